"""Tiles stitched as they come: whatever the batches, the bits of one call, and slab by slab those of the whole."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest
from cases import INEXACT, assert_same_bits, values, window_of

import gpufold


def at_once(shape, blocks, positions, window, dtype):
    """Return the average by one call of each function."""
    block = blocks.shape[1 + len(shape) - positions.shape[1] :]
    real = np.float64 if np.dtype(dtype).name in ("float64", "complex128") else np.float32
    total, weight = np.zeros(shape, dtype), np.zeros(shape[len(shape) - len(block) :], real)
    gpufold.add_blocks(total, blocks, positions, window)
    gpufold.add_blocks(weight, np.broadcast_to(real(1), (len(blocks), *block)), positions, window)
    return gpufold.average(total, weight)


def problem(seed):
    rng = random.Random(seed)
    rank, lead = rng.choice((1, 2, 2, 3)), tuple(rng.randint(1, 3) for _ in range(rng.choice((0, 1, 2))))
    size = tuple(rng.randint(3, 16) for _ in range(rank))
    block = tuple(rng.randint(1, 6) for _ in range(rank))
    count = rng.randint(1, 25)
    positions = np.random.default_rng(seed).integers(
        [-side - 1 for side in block], [n + 2 for n in size], (count, rank)
    )
    dtype = INEXACT[seed % len(INEXACT)]
    window = window_of(rng.choice(("none", "separable", "full")), block, dtype)
    return rng, (*lead, *size), block, values((count, *lead, *block), dtype, seed), positions, window


def batches(rng, count):
    cuts = sorted(rng.choices(range(count + 1), k=rng.randint(0, 5)))
    return [slice(*cut) for cut in zip([0, *cuts], [*cuts, count], strict=True)]


def sum_dtype(dtype):
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


@pytest.mark.parametrize("first", [0, 50])
def test_batches_never_show(first):
    for seed in range(first, first + 50):
        rng, shape, block, blocks, positions, window = problem(seed)
        want = at_once(shape, blocks, positions, window, sum_dtype(blocks.dtype))
        stitcher = gpufold.Stitcher(shape, block, window=window)
        for batch in batches(rng, len(blocks)):
            stitcher.add(blocks[batch], rng.choice((positions[batch], positions[batch].tolist() or positions[:0])))
        assert_same_bits(stitcher.result(), want, f"seed {seed}")
        assert_same_bits(stitcher.result(), want, "again")


@pytest.mark.parametrize("first", [0, 50])
def test_slabs_are_the_whole(first):
    for seed in range(first, first + 50):
        rng, shape, block, blocks, positions, window = problem(seed)
        positions = positions[np.argsort(positions[:, 0], kind="stable")]
        if seed % 5 == 0:
            positions[0, 0], positions[-1, 0] = -(2**63), 2**63 - 1
        want = at_once(shape, blocks, positions, window, sum_dtype(blocks.dtype))
        stitcher, slabs, row = gpufold.Stitcher(shape, block, window=window, slabs=True), [], 0
        lead = len(shape) - len(block)
        for batch in batches(rng, len(blocks)):
            stitcher.add(blocks[batch], positions[batch])
            if rng.random() < 0.7:
                start, slab = stitcher.finished()
                assert start == row
                reached = positions[: batch.stop, 0].max(initial=-(2**63))
                row += slab.shape[lead]
                assert row == max(start, min(max(0, int(reached)), shape[lead])), f"seed {seed}: all that is finished"
                slabs.append(slab)
        start, slab = stitcher.result()
        assert start == row
        assert_same_bits(np.concatenate([*slabs, slab], lead), want, f"seed {seed}")


def test_slabs_need_the_memory_of_the_open_rows():
    tile, rows = np.ones((1, 64, 512), np.float32), 64 * 60
    stitcher = gpufold.Stitcher((rows, 512), (64, 512), slabs=True)
    tracemalloc.start()
    for row in range(0, rows - 63, 32):
        stitcher.add(tile, [(row, 0)])
        assert (stitcher.finished()[1] == 1).all()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * tile.nbytes < rows * 512 * 4 / 5


def test_half_precision_is_summed_in_single():
    stitcher = gpufold.Stitcher((4, 4), (4, 4), window=np.full((4, 4), 10, np.float32))
    stitcher.add(np.full((8, 4, 4), 1000, np.float16), np.zeros((8, 2), int))
    assert_same_bits(stitcher.result(), np.full((4, 4), 1000, np.float32))


TILES = np.ones((2, 3, 4, 5))


@pytest.mark.parametrize(
    ("error", "match", "blocks", "positions", "options"),
    [
        (TypeError, "Stitcher.add: blocks must be a numpy.ndarray", TILES.tolist(), [(0, 0)], {}),
        (TypeError, "Stitcher.add: blocks must be of floats or complex", TILES.astype(int), [(0, 0), (1, 1)], {}),
        (ValueError, r"Stitcher.add: blocks must be .* got shape \(2, 3, 4, 4\)", TILES[..., :4], [(0, 0), (1, 1)], {}),
        (ValueError, "blocks must be", TILES, [(0, 0)], {}),
        (TypeError, "positions must be integers", TILES, [(0.5, 0), (1, 1)], {"slabs": True}),
        (ValueError, "positions must be .* got shape", TILES, [0, 1], {"slabs": True}),
        (ValueError, "must come in ascending order .* after -4", TILES, [(3, 0), (2, 0)], {"slabs": True}),
        (ValueError, "window must have the shape", TILES, [(0, 0), (1, 1)], {"window": np.ones((5, 4))}),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_added(error, match, blocks, positions, options):
    stitcher = gpufold.Stitcher((3, 8, 9), (4, 5), **options)
    with pytest.raises(error, match=match):
        stitcher.add(blocks, positions)
    with pytest.raises(ValueError, match="no tile was added"):
        stitcher.result()


def test_a_tile_before_rows_that_were_given_is_refused():
    stitcher = gpufold.Stitcher((3, 8, 9), (4, 5), slabs=True)
    stitcher.add(TILES, [(0, 0), (3, 0)])
    with pytest.raises(ValueError, match=r"ascending order of their first coordinate .* after 3"):
        stitcher.add(TILES, [(2, 0), (3, 0)])
    assert stitcher.finished()[1].shape == (3, 3, 9)
    assert stitcher.result()[0] == 3
    with pytest.raises(ValueError, match="after 8"):
        stitcher.add(TILES, [(4, 0), (5, 0)])


def test_there_are_slabs_only_where_they_are_wanted():
    with pytest.raises(ValueError, match="with slabs=True only"):
        gpufold.Stitcher((8, 9), (4, 5)).finished()
    with pytest.raises(TypeError, match="Stitcher: shape must be an integer or a sequence"):
        gpufold.Stitcher((8.0, 9), (4, 5))
    for shape, block in (((9,), (4, 5)), ((8, 9), (4, 0)), ((8, -1), (4, 5)), ((8, 9), ())):
        with pytest.raises(ValueError, match="Stitcher: shape must be"):
            gpufold.Stitcher(shape, block)
