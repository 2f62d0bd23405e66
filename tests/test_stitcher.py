"""Tiles stitched as they come: whatever the batches, the bits of one call, and slab by slab those of the whole."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import random
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from cases import INEXACT, assert_same_bits, peak_of, values, window_of
from definition import sum_dtype, weight_dtype

import gpufold
from gpufold.backends import Backend
from gpufold.cpu import positions as on_positions

REDUCTIONS = ("sum", "mean", "least_squares")


class Batch(NamedTuple):
    blocks: np.ndarray
    positions: np.ndarray
    window: object
    """Its own, or None for the beginning of the stitcher's."""
    weights: np.ndarray | None
    """Those of its blocks."""

    def part(self, rows):
        weights = None if self.weights is None else self.weights[rows]
        return self._replace(blocks=self.blocks[rows], positions=self.positions[rows], weights=weights)


def first_of(window, tile):
    """Return the weights with which a window begins, in the shape of a smaller tile."""
    if isinstance(window, tuple):
        return tuple(weights[:side] for weights, side in zip(window, tile, strict=True))
    return None if window is None else window[tuple(map(slice, tile))]


def whole(shape, rank, batches, window, reduction):
    """Return what is stitched, by calls of the other functions on the whole arrays, batch after batch."""
    dtype = sum_dtype(batches[0].blocks.dtype)
    real = weight_dtype(dtype)
    size = shape[len(shape) - rank :]
    total, weight = np.zeros(shape, dtype), np.zeros(size, real)
    for batch in batches:
        tile = batch.blocks.shape[1 + len(shape) - rank :]
        used = first_of(window, tile) if batch.window is None else batch.window
        if reduction == "least_squares" and isinstance(used, tuple):  # whose product has squares
            used = reduce(np.multiply.outer, [axis.astype(real) for axis in used])
        gpufold.add_blocks_(total, batch.blocks, batch.positions, window=used, weights=batch.weights)
        factors = used if isinstance(used, tuple) else (np.ones(tile) if used is None else used,)
        own = np.ones(len(batch.blocks)) if batch.weights is None else batch.weights
        each = reduce(np.multiply.outer, [array.astype(real) for array in (own, *factors)])
        gpufold.add_blocks_(weight, each**2 if reduction == "least_squares" else each, batch.positions)
    return total if reduction == "sum" else gpufold.average(total, weight)


def problem(seed, ascending=False):
    """Draw an array's shape, a block, a window, a reduction and batches of tiles; return them after what draws.

    Some tiles are smaller than the others, or have a window or weights of their own.
    """
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    rank, lead = rng.choice((1, 2, 2, 3)), tuple(rng.randint(1, 3) for _ in range(rng.choice((0, 1, 2))))
    size = tuple(rng.randint(3, 16) for _ in range(rank))
    block = tuple(rng.randint(1, 6) for _ in range(rank))
    dtype = INEXACT[seed % len(INEXACT)]
    window = window_of(rng.choice(("none", "separable", "full")), block, dtype)
    count = rng.randint(1, 25)
    positions = numbers.integers([-side - 1 for side in block], [n + 2 for n in size], (count, rank))
    if ascending:
        positions = positions[np.argsort(positions[:, 0], kind="stable")]
    cuts, batches = sorted(rng.choices(range(count + 1), k=rng.randint(0, 5))), []
    for start, stop in pairwise([0, *cuts, count]):
        tile = block if rng.random() < 0.6 else tuple(rng.randint(1, side) for side in block)
        own = window_of(rng.choice(("separable", "full")), tile, dtype) if rng.random() < 0.2 else None
        weights = numbers.random(stop - start, np.float32) if rng.random() < 0.3 else None
        batches.append(Batch(values((stop - start, *lead, *tile), dtype, seed), positions[start:stop], own, weights))
    return rng, (*lead, *size), block, window, REDUCTIONS[seed % 3], batches


def changed(window):
    """Let nothing remain of a window, as its owner may once a stitcher has it."""
    for weights in window if isinstance(window, list) else [window]:
        weights[...] = np.nan
    if isinstance(window, list):
        window.clear()


@pytest.mark.parametrize("products", [0, 1 << 17])
def test_batches_never_show(products, monkeypatch):
    """Tiles of one shape and window may come together or one by one; weights are multiplied in runs or at once."""
    monkeypatch.setattr(on_positions, "PRODUCTS", products)
    for seed in range(100):
        rng, shape, block, window, reduction, batches = problem(seed)
        want = whole(shape, len(block), batches, window, reduction)
        given = copy.deepcopy([*window] if isinstance(window, tuple) else window)
        stitcher = gpufold.Stitcher(shape, block, window=given, reduction=reduction)
        if given is not None:
            changed(given)
        for batch in batches:
            count = len(batch.blocks)
            for cut in pairwise(sorted({0, count, rng.randint(0, count)})) if count else [(0, 0)]:
                part = batch.part(slice(*cut))
                part = part._replace(positions=rng.choice((part.positions, part.positions.tolist())))
                stitcher.add(**part._asdict())
        assert_same_bits(stitcher.result(), want, f"seed {seed}")
        assert_same_bits(stitcher.result(), want, "again")


@pytest.mark.parametrize("endless", [False, True])
def test_slabs_are_the_whole(endless):
    """They are all that is finished, and end where the array does or, without an end, where the last tile does."""
    for seed in range(100):
        rng, shape, block, window, reduction, batches = problem(seed, ascending=True)
        lead = len(shape) - len(block)
        if seed % 5 == 0 and not endless:
            together = np.concatenate([batch.positions for batch in batches])
            together[0, 0], together[-1, 0] = -(2**63), 2**63 - 1
            ends = np.cumsum([len(batch.positions) for batch in batches])[:-1]
            parts = np.split(together, ends)
            batches = [batch._replace(positions=part) for batch, part in zip(batches, parts, strict=True)]
        end = shape[lead]
        if endless:
            last_rows = [batch.positions[-1:, 0] + batch.blocks.shape[1 + lead] for batch in batches]
            end = max(0, *np.concatenate(last_rows))
        whole_shape = (*shape[:lead], end, *shape[lead + 1 :])
        want = whole(whole_shape, len(block), batches, window, reduction)
        given = (*shape[:lead], None if endless else end, *shape[lead + 1 :])
        stitcher = gpufold.Stitcher(given, block, window=window, reduction=reduction, slabs=not endless)
        slabs, row = [], 0
        last = -(2**63)
        for batch in batches:
            stitcher.add(**batch._asdict())
            last = max(last, int(batch.positions[:, 0].max(initial=-(2**63))))
            if seed % 3 == 0:
                stitcher = pickle.loads(pickle.dumps(stitcher))
            if rng.random() < 0.7:
                start, slab = stitcher.finished()
                assert start == row
                row += slab.shape[lead]
                assert row == max(start, min(max(0, last), end)), f"seed {seed}: all that is finished"
                slabs.append(slab)
                if not endless:
                    assert stitcher.progress == row / end
        start, slab = stitcher.result()
        assert start == row
        assert_same_bits(np.concatenate([*slabs, slab], lead), want, f"seed {seed}")


def test_slabs_need_the_memory_of_the_open_rows():
    tile, rows = np.ones((1, 64, 512), np.float32), 64 * 60

    def stitch():
        stitcher = gpufold.Stitcher((rows, 512), (64, 512), slabs=True)
        for row in range(0, rows - 63, 32):
            stitcher.add(tile, [(row, 0)])
            assert (stitcher.finished()[1] == 1).all()

    peak, _ = peak_of(stitch)
    assert peak < 7 * tile.nbytes < rows * 512 * 4 / 5


def test_what_is_not_finished_is_not_copied():
    """A slab without rows costs no memory, however many rows are open; half of what is open is moved where it lies."""
    tile = np.ones((1, 1024, 2048), np.float32)
    tripled = 3 * tile
    stitcher = gpufold.Stitcher((None, 2048), (1024, 2048))
    stitcher.add(tile, [(0, 0)])
    stitcher.add(tile, [(0, 0)])
    tracemalloc.start()
    assert stitcher.finished()[1].shape == (0, 2048)
    none = tracemalloc.get_traced_memory()[1]
    stitcher.add(tile[:, :1], [(512, 0)])
    start, slab = stitcher.finished()
    tracemalloc.clear_traces()
    before = tracemalloc.get_traced_memory()[0]
    stitcher.add(tripled, [(512, 0)])
    moved = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert (start, slab.shape) == (0, (512, 2048))
    assert none < tile.nbytes / 50
    assert moved < tile.nbytes / 4
    rest = stitcher.result()[1]
    np.testing.assert_array_equal(rest[1:512], np.float32(5 / 3))
    np.testing.assert_array_equal(rest[512:], 3)


TILES, TWICE = np.ones((2, 3, 4, 5)), [(0, 0)] * 2
TOO_WIDE = r"with lead \(3,\) and tiles of \(4, 5\) or less, got .*4, 6\)"


@pytest.mark.parametrize(
    ("error", "match", "blocks", "positions", "options"),
    [
        (TypeError, "blocks must be a numpy.ndarray", TILES.tolist(), [(0, 0)], {}),
        (TypeError, "blocks has dtype object", TILES.astype(object), [(0, 0), (1, 1)], {}),
        (ValueError, TOO_WIDE, np.ones((2, 3, 4, 6)), TWICE, {}),
        (ValueError, r"blocks must be .* got shape \(2, 2, 4, 5\)", TILES[:, :2], TWICE, {}),
        (ValueError, r"positions must be .* = \(2, 2\) .* got shape \(1, 2\)", TILES, [(0, 0)], {}),
        (TypeError, "positions must be integers", TILES, [(0.5, 0), (1, 1)], {}),
        (ValueError, "positions must be .* got shape", TILES, [0, 1], {}),
        (ValueError, r"positions must be .* got shape \(\)$", TILES, np.array(3), {}),
        (ValueError, r"got shape \(2, 1\); a single position is in a list", TILES[:1], (0, 1), {}),
        (ValueError, r"block_shape \(4, 5\) has one value per axis", TILES, np.zeros((2, 3), int), {}),
        (ValueError, "must come in ascending order .* got 2 after 3", TILES, [(3, 0), (2, 0)], {}),
        (TypeError, "window must hold real numbers", TILES, TWICE, {"window": np.ones((4, 5), complex)}),
        (ValueError, r"window must have the shape \(4, 5\)", TILES, TWICE, {"window": np.ones((5, 4))}),
        (TypeError, "weights must be a numpy.ndarray", TILES, TWICE, {"weights": [1.0, 2.0]}),
        (ValueError, r"weights must have the shape \(2,\), one for each block", TILES, TWICE, {"weights": np.ones(3)}),
    ],
)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("later", [False, True])
def test_what_does_not_fit_is_refused_and_nothing_is_added(error, match, blocks, positions, options, reduction, later):
    """As the first batch, and after another."""
    stitchers = [gpufold.Stitcher((3, 8, 9), (4, 5), reduction=reduction, slabs=True) for _ in range(2)]
    for stitcher in stitchers if later else ():
        stitcher.add(TILES, TWICE)
    with pytest.raises(error, match=f"^Stitcher.add: .*{match}"):
        stitchers[0].add(blocks, positions, **options)
    if not later:
        with pytest.raises(ValueError, match=r"Stitcher.result: no tile was added"):
            stitchers[0].result()
    for stitcher in stitchers:
        stitcher.add(3 * TILES, [(3, 1), (7, 0)])
    for got, want in zip(*((*each.finished(), *each.result()) for each in stitchers), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.peer("torch")
def test_a_tensor_that_cannot_be_added_is_refused_and_nothing_is_added():
    """The stitcher was thought to be torn."""
    import torch

    learned, freed = torch.ones(1, 2, requires_grad=True), torch.ones(1, 2)
    freed.untyped_storage().resize_(0)
    for blocks, match in (
        (torch.ones(1, 2).to_sparse(), "blocks must be a dense tensor"),
        (freed, "blocks must have its elements in memory"),
        (learned, "the sum of tiles or weights is of inference mode, and must not be changed"),
    ):
        stitcher = gpufold.Stitcher((4,), 2)
        with torch.inference_mode():
            stitcher.add(torch.ones(1, 2), [0])
        with pytest.raises((TypeError, ValueError), match=f"^Stitcher.add: {match}"):
            stitcher.add(blocks, [1])
        assert stitcher.result().tolist() == [1, 1, 0, 0]


def test_a_later_batch_is_of_the_dtype_and_rows_of_the_first():
    stitcher = gpufold.Stitcher((3, 8, 9), (4, 5), slabs=True)
    stitcher.add(TILES.astype(np.float16), [(0, 0), (3, 3)])
    for error, match, blocks in (
        (TypeError, "blocks must be of dtype float32, in which the first batch was .* got float64", TILES),
        (ValueError, "ascending order .* got 1 after 3", TILES.astype(np.float32)),
    ):
        with pytest.raises(error, match=f"^Stitcher.add: .*{match}"):
            stitcher.add(blocks, [(1, 0), (3, 0)])
    assert stitcher.finished()[1].shape == (3, 3, 9)
    assert stitcher.result()[0] == 3
    assert stitcher.progress == 1
    with pytest.raises(ValueError, match=r"ascending order .* got 4 after 8"):
        stitcher.add(TILES.astype(np.float32), [(4, 0), (5, 0)])


def test_integers_have_sums_that_no_window_is_added_to():
    votes = gpufold.Stitcher((5,), 3, reduction="sum")
    votes.add(np.ones((2, 3), np.uint8), [(0,), (1,)])
    assert_same_bits(votes.result(), np.array([1, 2, 2, 1, 0], np.uint8))
    votes.result()[:] = 9
    assert votes.result().max() == 2, "what is given is the caller's own"
    with pytest.raises(TypeError, match=r"weights need sums of floats or .*, but the first batch, of dtype uint8"):
        votes.add(np.ones((1, 3), np.uint8), [(0,)], window=np.ones(3))


@pytest.mark.hostcuda
@pytest.mark.parametrize("window", ["hann", np.arange(1.0, 5), (np.arange(1.0, 5),)], ids=str)
def test_a_window_of_numpy_goes_to_the_device_of_the_tiles(cupy, window):
    """One that is named is SciPy's."""
    tiles, positions, results = values((3, 4), np.float32), np.array([0, 2, 5]), []
    for to in (np.asarray, cupy.asarray):
        stitcher = gpufold.Stitcher((9,), 4, window=window)
        stitcher.add(to(tiles), positions)
        results.append(stitcher.result())
    assert isinstance(results[1], cupy.ndarray)
    assert_same_bits(cupy.asnumpy(results[1]), results[0])


def test_there_are_slabs_only_where_they_are_wanted():
    for whole in (gpufold.Stitcher((8, 9), (4, 5)), gpufold.Stitcher((8, None), 5)):
        with pytest.raises(ValueError, match=r"^Stitcher.progress: slabs must be True .*, got Stitcher\("):
            whole.progress  # noqa: B018
    with pytest.raises(ValueError, match="slabs must be True, got False"):
        gpufold.Stitcher((8, 9), (4, 5)).finished()


# ---- One caller at a time, all of a batch or nothing


def added_by_four(stitcher, slabs):
    """Add tiles in four threads at once, each of which asks for what there is after every one; raise their errors."""
    ready = threading.Barrier(4)

    def work(first):
        ready.wait()
        for row in range(first, 64, 16) if not slabs else [0] * 4:
            stitcher.add(np.full((1, 4, 8), row + 1.0), [(row, 0)])
            _ = stitcher.finished() if slabs else stitcher.result()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(0, 16, 4)))
    return stitcher.result()


@pytest.mark.parametrize("slabs", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_tiles_that_threads_add_are_all_there(reduction, slabs):
    """None is lost, whichever comes first, nor a row given twice."""
    for round in range(20):
        result = added_by_four(gpufold.Stitcher((64, 8), (4, 8), reduction=reduction, slabs=slabs), slabs)
        if slabs:
            assert (result[1][:4] == (16 if reduction == "sum" else 1)).all(), round
        else:
            assert_same_bits(result, np.repeat(np.arange(0.0, 64, 4) + 1, 4)[:, None] * np.ones(8))


METHODS = {
    "add": lambda stitcher: stitcher.add(np.ones((1, 4, 4)), [(0, 0)]),
    "result": lambda stitcher: stitcher.result(),
    "finished": lambda stitcher: stitcher.finished(),
    "progress": lambda stitcher: stitcher.progress,
    "__getstate__": pickle.dumps,
}


@pytest.mark.parametrize("method", METHODS)
def test_a_call_in_the_middle_of_another_of_its_thread_is_refused_and_changes_nothing(method, monkeypatch):
    """A signal's handler, say: it must not wait for what it interrupts."""
    tile, seen = np.ones((1, 4, 4)), []
    stitcher = gpufold.Stitcher((8, 8), 4, slabs=True)
    stitcher.add(tile, [(0, 0)])
    add = Backend.add

    def interrupted(*given):
        add(*given)
        with pytest.raises(RuntimeError, match=rf"^Stitcher.{method}: another call of this stitcher is still running"):
            METHODS[method](stitcher)
        seen.append(method)

    monkeypatch.setattr(Backend, "add", interrupted)
    stitcher.add(2 * tile, [(0, 0)])
    monkeypatch.undo()
    assert seen == [method]
    stitcher.add(3 * tile, [(0, 0)])
    assert (stitcher.result()[1][:4, :4] == 2).all()


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, RuntimeError])
@pytest.mark.parametrize("number", [0, 1])
def test_a_batch_that_is_interrupted_while_it_is_added_is_known_to_be_torn(number, error, monkeypatch):
    stitcher = gpufold.Stitcher((8, 8), 4, reduction="least_squares", slabs=True)
    add, count = Backend.add, [0]

    def interrupted(*given):
        count[0] += 1
        if count[0] > number:
            raise error
        add(*given)

    def interrupt():
        count[0] = 0
        with monkeypatch.context() as patch:
            patch.setattr(Backend, "add", interrupted)
            with pytest.raises(error):
                stitcher.add(np.ones((1, 4, 4)), [(0, 0)])

    interrupt()
    with pytest.raises(ValueError, match="no tile was added"):  # the rows were the batch's own
        stitcher.result()
    stitcher.add(np.ones((1, 4, 4)), [(0, 0)])
    whole = copy.deepcopy(stitcher)
    interrupt()
    for method, call in METHODS.items():
        with pytest.raises(RuntimeError, match=rf"^Stitcher.{method}: an addition was interrupted, so some"):
            call(stitcher)
    assert whole.result()[1].sum() == 16


@pytest.mark.parametrize("part", ["ones", "weights", "zeros", "to_device"])
def test_what_has_no_memory_before_it_is_added_changes_nothing(part, monkeypatch):
    stitchers = [gpufold.Stitcher((None, 8), 4, reduction="least_squares") for _ in range(2)]
    for stitcher in stitchers:
        stitcher.add(np.ones((1, 4, 4)), [(0, 0)])

    def fail(*given):
        raise MemoryError("no more")

    with monkeypatch.context() as patch:
        patch.setattr(Backend, part, fail)
        with pytest.raises(MemoryError, match="no more"):
            stitchers[0].add(np.ones((1, 4, 4)), [(10_000, 0)], window=np.ones((4, 4)))
    for stitcher in stitchers:
        stitcher.add(np.full((1, 4, 4), 3.0), [(1, 0)])
    for got, want in zip(stitchers[0].result(), stitchers[1].result(), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_forked_child_waits_for_no_thread_that_it_does_not_have(monkeypatch):
    free, held = gpufold.Stitcher((8,), 4), gpufold.Stitcher((8,), 4)
    for stitcher in (free, held):
        stitcher.add(np.ones((1, 4)), [(0,)])
    inside, leave, add = threading.Event(), threading.Event(), Backend.add

    def slowly(*given):
        add(*given)
        inside.set()
        leave.wait(60)

    monkeypatch.setattr(Backend, "add", slowly)
    thread = threading.Thread(target=held.add, args=(np.ones((1, 4)), [(4,)]))
    thread.start()
    inside.wait(60)
    monkeypatch.undo()

    def in_the_child():
        free.add(np.ones((1, 4)), [(4,)])
        assert free.result().sum() == 8
        with pytest.raises(RuntimeError, match="addition was interrupted"):
            held.result()

    child = multiprocessing.get_context("fork").Process(target=in_the_child, daemon=True)
    child.start()
    leave.set()
    thread.join()
    child.join(60)
    assert child.exitcode == 0
    assert held.result().sum() == 8


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.deepcopy, copy.copy])
def test_a_duplicate_goes_on_by_itself(duplicate):
    stitcher = gpufold.Stitcher((8,), 4)
    stitcher.add(np.ones((1, 4)), [(0,)])
    state, other = stitcher.__getstate__(), duplicate(stitcher)
    other = pickle.loads(other) if isinstance(other, bytes) else other
    stitcher.add(np.ones((1, 4)), [(4,)])
    assert stitcher.result().tolist() == [1] * 8
    assert other.result().tolist() == [1] * 4 + [0] * 4
    other.__setstate__(state)  # which is a copy, because another thread may add before it is written
    assert other.result().tolist() == [1] * 4 + [0] * 4


@pytest.mark.hostcuda
@pytest.mark.peer("cupy")
def test_a_batch_without_tiles_on_a_gpu(cupy):
    stitcher = gpufold.Stitcher((6, 6), (3, 3))
    stitcher.add(cupy.asarray(np.ones((1, 3, 3))), [(0, 0)])
    stitcher.add(cupy.asarray(np.ones((0, 3, 3))), np.zeros((0, 2), np.int64))
    assert cupy.asnumpy(stitcher.result()).sum() == 9


@pytest.mark.parametrize("size", [(2**62, 4), (2**31, 2**31), (0, 2**62, 4)])
def test_sums_that_cannot_be_are_refused_by_name(size):
    stitcher = gpufold.Stitcher(size, (2, 4))
    for _ in range(2):
        with pytest.raises((ValueError, MemoryError), match=r"^Stitcher.add: "):
            stitcher.add(np.ones((1, *size[:-2], 2, 4)), [(0, 0)])
    with pytest.raises(ValueError, match="no tile was added"):
        stitcher.result()
