"""Memory: a call needs its result and a bounded scratch, whatever the size of the problem."""

from __future__ import annotations

import gc
import random
import tracemalloc
import weakref
from functools import partial
from itertools import cycle
from math import prod
from time import process_time, sleep
from timeit import repeat

import numpy as np
import pytest
from cases import FUSIONS, Case, SpaceCase, assert_same_bits, fold, peak_of, unfold, window_of
from executors import LAYOUTS, call_of

import gpufold
from gpufold import keeping, threads
from gpufold.calls import REDUCTIONS
from gpufold.cpu import runs, tiles
from gpufold.cpu.arithmetic import ROUNDED
from gpufold.elements import sum_dtype
from gpufold.geometry import Axis, col2im_geometry
from gpufold.geometry.integers import MOST_KEPT

CASES = (
    Case("maps", (56, 56), (3, 3), 1, 1, 1, 1, batch=16, channels=64),
    Case("one-plane", (2500, 1500), (2, 2), batch=1, channels=1),
    Case("one-row", (4_000_000,), (3,), batch=1, channels=1),
    Case("one-slice", (1, 2000, 1500), (1, 2, 2), batch=1, channels=1),
    Case("stride-two", (300, 300), (4, 4), 2, 1, 1, 1, batch=4, channels=10),
    Case("tiles", (2000, 1600), (16, 16), 16, batch=1, channels=1),
    Case("half-overlap", (1608, 1608), (16, 16), 8, batch=1, channels=1),
    Case("audio", (1_600_240,), (400,), 160, batch=2, channels=1),
)


@pytest.fixture(scope="module", autouse=True)
def _what_others_left():
    """Let the garbage collector pass over it: looking through it takes a second each time, also while time is taken."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def one_thread():
    gpufold.set_num_threads(1)
    yield
    gpufold.set_num_threads(None)


SPACE = SpaceCase("space", (16, 8, 200, 150), (1, 1, 4, 2), (0, 0, 3, 0), (0, 0, 1, 2))


@pytest.mark.parametrize(
    ("operation", "case", "dtype", "threads"),
    [
        *(("col2im", case, dtype, threads) for case in CASES for dtype in ("f4", "f2") for threads in (1, 2)),
        *(("im2col", case, "f4", 2) for case in CASES[::3]),
        ("batch_to_space", SPACE, "f4", 2),
        ("space_to_batch", SPACE, "f4", 2),
    ],
    ids=str,
)
def test_a_call_needs_its_result_and_sums_a_bounded_scratch(operation, case, dtype, threads):
    """Of padded planes, or of a tile in its accumulator, twice, or 8 MB of halves; and some for objects."""
    call = call_of(operation, case, partial(np.ones, dtype=dtype))
    gpufold.set_num_threads(threads)
    peak, result = peak_of(lambda: call.on(call.data))
    gpufold.set_num_threads(None)
    assert result.size > 1_000_000
    of_sums = threads * (8 << 20 if dtype == "f2" else 2 * tiles.TILE_ELEMENTS * np.dtype(dtype).itemsize)
    scratch = {"col2im": of_sums, "im2col": threads * tiles.PADDED_BYTES}.get(operation, 0)
    assert peak - result.nbytes <= scratch + 600_000


LARGE_CASES = (CASES[0], Case("large-tiles", (1984, 1984), (256, 256), 192, batch=1, channels=1), CASES[7])


@pytest.mark.some(13, all=13)
@pytest.mark.parametrize("case", LARGE_CASES, ids=str)
@pytest.mark.parametrize("fusion", [("sum", "none", False), *FUSIONS], ids=str)
@pytest.mark.parametrize("dtypes", [("f4", "f4"), ("f2", "f2"), ("c8", "c8"), ("f2", "f4"), ("f4", "f8")], ids=str)
def test_one_pass_needs_a_window_and_a_bounded_scratch(one_thread, case, fusion, dtypes):
    reduction, kind, accumulate = fusion
    narrow, dtype = map(np.dtype, dtypes)
    columns, out = np.broadcast_to(np.ones((), narrow), case.columns_shape), np.zeros(case.image_shape, dtype)
    options = {"reduction": reduction, "dtype": dtype, "window": window_of(kind, case.kernel_size, dtype)}
    peak, _ = peak_of(lambda: fold(case, columns, **options, out=out, accumulate=accumulate))
    # sums, products and a tap's scratch; two divisors and where they are small
    of_an_element = 4 * sum_dtype(dtype).itemsize + (17 if reduction != "sum" else 0)
    assert peak <= tiles.TILE_ELEMENTS * of_an_element + 8 * prod(case.kernel_size) + 600_000


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["none", "full", "separable"])
@pytest.mark.parametrize(("size", "side"), [((1, 192, 192, 192), (96, 96, 96)), ((1, 1536, 1536), (512, 512))])
def test_a_mean_of_large_blocks_needs_8_mb(size, side, kind, dtype, one_thread):
    strides, window = side[0] // 2, window_of(kind, side, np.dtype(dtype))
    blocks = gpufold.array_to_blocks(np.ones(size, np.float32), side, strides=strides)
    options = {"strides": strides, "reduction": "mean", "window": window, "dtype": dtype}
    peak, result = peak_of(lambda: gpufold.blocks_to_array(blocks, size, side, **options))
    assert peak - result.nbytes < 8 << 20


@pytest.mark.parametrize("way", range(4))
@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize(
    ("size", "side", "stride", "reduction"),
    [
        ((8, 400_000), (1636,), 654, "sum"),
        ((2, 1_297_835), (138,), 103, "sum"),
        ((2, 1_297_835), (138,), 103, "mean"),
        ((8, 600, 700), (100, 100), 100, "sum"),
    ],
    ids=str,
)
def test_every_way_to_add_long_rows_needs_8_mb(way, dtype, size, side, stride, reduction, one_thread, monkeypatch):
    """Also where NumPy copies sums of several rows that it adds to in place; and all make the same bits."""
    array = np.random.default_rng(0).standard_normal(size, np.float32).astype(dtype)
    blocks = gpufold.array_to_blocks(array, side, strides=stride)
    options = {"strides": stride, "reduction": reduction}
    want = gpufold.blocks_to_array(blocks, size, side, **options)
    monkeypatch.setattr(threads.Ways, "run", lambda ways, size, work: work(1, *ways.all[way % len(ways.all)]))
    out, rank = np.empty((size[0], size[1] + 1, *size[2:]), dtype)[:, 1:], len(side)
    taps_apart = np.ascontiguousarray(np.moveaxis(blocks, -rank, 1))
    for given in (blocks, np.moveaxis(taps_apart, 1, -rank)):
        peak, _ = peak_of(partial(gpufold.blocks_to_array, given, size, side, **options, out=out))
        assert peak < 8 << 20
        assert_same_bits(out, want)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_are_not_copied(one_thread, layout):
    blocks = LAYOUTS[layout](random.Random(0), np.ones((4, 4, 2, 61, 61, 8, 8), np.float32))
    shape = (*blocks.shape[:3], 128, 128)
    out, taken = np.empty(shape, np.float32), np.empty(blocks.shape, np.float32)
    together, _ = peak_of(lambda: gpufold.blocks_to_array(blocks, shape, (8, 8), strides=2, out=out))
    apart, _ = peak_of(lambda: gpufold.array_to_blocks(out, (8, 8), strides=2, out=taken))
    assert max(together, apart) < 2 * runs.MANY_PLANES + 600_000 < blocks.nbytes // 4  # some planes are, twice


def test_an_image_channels_last_is_copied_some_planes_at_a_time(one_thread):
    image = np.moveaxis(np.ones((16, 128, 128, 16), np.float32), -1, 1)
    blocks = np.empty((16, 16, 31, 31, 8, 8), np.float32)
    peak, _ = peak_of(lambda: gpufold.array_to_blocks(image, (8, 8), strides=4, out=blocks))
    assert tiles.PADDED_BYTES // 2 < peak < tiles.PADDED_BYTES + 600_000 < image.nbytes
    assert blocks.all()


@pytest.mark.parametrize(
    ("dtypes", "kind"),
    [(("f4", "f4"), "none"), (("f4", "f4"), "full"), (("f2", "f2"), "separable"), (("u1", "f4"), "none")],
)
def test_blocks_at_positions_need_no_more_than_a_tile(one_thread, dtypes, kind):
    """Integers that are added to floats are not copied either."""
    narrow, dtype = map(np.dtype, dtypes)
    out, blocks = np.zeros((4096, 4096), dtype), np.broadcast_to(np.ones((), narrow), (64, 256, 256))
    positions = np.random.default_rng(0).integers(0, 3840, (64, 2))
    window = window_of(kind, (256, 256), dtype)
    peak, _ = peak_of(lambda: gpufold.add_blocks_(out, blocks, positions, window=window))
    assert peak < 4 * tiles.TILE_ELEMENTS + 3 * 4 * 256 * 256 + 16 * ROUNDED + 500_000


@pytest.mark.parametrize("way", range(2))
def test_blocks_at_positions_are_listed_some_at_a_time(way, one_thread, monkeypatch):
    """The positions of all were listed, if each was extracted by an array operation of its own."""
    monkeypatch.setattr(threads.Ways, "run", lambda ways, size, work: work(1, *ways.all[way % len(ways.all)]))
    array, rng = np.zeros((300, 300, 300), np.uint8), np.random.default_rng(0)
    for first in (0, -300):
        positions = rng.integers(first, first + 280, (1 << 16, 3))
        peak, taken = peak_of(partial(gpufold.take_blocks, array, positions, (10, 10, 10)))
        assert peak - taken.nbytes < 4 << 20


def test_large_blocks_at_positions_are_copied_once(one_thread):
    row, image = np.ones(200_000, np.float32), np.ones((1300, 1300), np.float32)
    calls = [partial(gpufold.take_blocks, row, np.arange(20), 150_000)]
    for window in (None, np.ones((1024, 1024), np.float32)):
        calls.append(partial(gpufold.take_blocks, image, [(-3, 5)], 1024, mode="edge", window=window))
    for call in calls:
        peak, taken = peak_of(call)
        assert taken.all()
        assert peak - taken.nbytes < 100_000


def ones(shape, dtype="f4"):
    return np.broadcast_to(np.ones((), dtype), shape)


def stitcher_of(size, tile, reduction):
    stitcher = gpufold.Stitcher(size, tile, reduction=reduction, window=np.outer(np.hanning(101)[1:-1], np.ones(99)))
    stitcher.add(ones((1, *tile)), [(0, 0)], weights=ones(1))
    return stitcher


WINDOW = (np.ones(1999, "f4"),) * 2

FOUND = {
    "strides beyond a tile": lambda: partial(
        gpufold.blocks_to_array, ones((2, 2, 2, 192, 192, 192)), (288,) * 3, 192, strides=96, reduction="mean"
    ),
    "few columns": lambda: partial(gpufold.col2im, np.ones((3, 998), "f2"), (5000, 1000), (1, 3), strides=(10000, 1)),
    "widened": lambda: partial(gpufold.col2im, np.ones((256, 156**2), "f2"), (2496, 2496), 16, strides=16, dtype="f4"),
    "complex means": lambda: partial(
        gpufold.col2im, ones((9, 1500**2), "c16"), (1500, 1500), (3, 3), pads_begin=1, pads_end=1, reduction="mean"
    ),
    "averages": lambda: partial(gpufold.average, ones((3000, 3000)), np.arange(9e6, dtype="f4").reshape(3000, -1) % 7),
    "mirrored": lambda: partial(gpufold.take_blocks, ones((900, 900)), np.full((300, 2), 800), 200, mode="reflect"),
    "mirrored at the end": lambda: partial(
        gpufold.array_to_blocks, ones((2, 1999, 1999)), (400, 400), strides=400, last="over", mode="reflect"
    ),
    "blocks beyond a border": lambda: partial(gpufold.take_blocks, np.ones((900, 900)), np.full((60000, 2), 880), 27),
    "gaps": lambda: partial(gpufold.blocks_to_array, ones((10**6, 3)), (5 * 10**6,), 3, strides=5, fill_value=np.nan),
    "rows of few channels": lambda: partial(
        gpufold.add_blocks_, np.zeros((900, 900, 2), "f4"), ones((9, 700, 700, 2)), np.zeros((9, 3), int)
    ),
    "weights of blocks": lambda: partial(
        gpufold.add_blocks_, np.zeros((900, 900)), ones((99, 200, 200), "f8"), np.zeros((99, 2), int), weights=ones(99)
    ),
    "weights of halves": lambda: partial(
        gpufold.add_blocks_, np.zeros((9, 999, 999), "f2"), ones((9, 9, 99, 99), "f2"), [(0, 0)] * 9, weights=ones(9)
    ),
    "weights of large blocks": lambda: partial(
        gpufold.add_blocks_, np.zeros((1999, 1999)), ones((2, 1999, 1999), "f8"), [(0, 1)] * 2, weights=ones(2),
        window=np.ones((1999, 1999)), weight_out=np.zeros((1999, 1999)),
    ),
    "gaps of a stitcher": lambda: partial(stitcher_of((1999, 1999), (99, 99), "mean").result, fill_value=np.nan),
    **{
        f"weights of tiles: {reduction}": lambda reduction=reduction: partial(
            stitcher_of((999, 999), (99, 99), reduction).add, ones((300, 99, 99)), [(7, 7)] * 300, weights=ones(300)
        )
        for reduction in REDUCTIONS
    },
    **{
        f"a window of {n} elements: {reduction}": lambda n=n, reduction=reduction: partial(
            gpufold.blocks_to_array, ones((2, 1, n, n)), (n + n // 4, n), n, strides=n // 4,
            window=[each[:n] for each in WINDOW], reduction=reduction,
        )
        for n in (1000, 1999)
        for reduction in REDUCTIONS
    },
    "a window of doubles": lambda: partial(
        gpufold.blocks_to_array, ones((5, 1, 704, 704), "f8"), (1408, 704), 704, strides=176, accumulate=True,
        window=(np.ones(704),) * 2, out=np.zeros((1408, 704)),
    ),
    "edges of a large block": lambda: partial(
        gpufold.take_blocks, ones((200, 200, 200)), [(0, 100, 0)], 200, mode="edge"
    ),
    "large blocks of halves": lambda: partial(
        gpufold.add_blocks_, np.zeros((240,) * 3, "f2"), ones((3, 200, 200, 200), "f2"), np.zeros((3, 3), int)
    ),
    "a large window: array_to_blocks": lambda: partial(
        gpufold.array_to_blocks, ones((2498, 1999)), 1999, strides=499, window=WINDOW
    ),
    "a large window: take_blocks": lambda: partial(gpufold.take_blocks, ones((9, 9)), [(1, -3)], 1999, window=WINDOW),
}  # fmt: skip
"""Calls that needed 9 to 400 MB beside their arguments and result."""


@pytest.mark.parametrize("name", FOUND)
def test_a_call_needs_8_mb_beside_its_arguments_and_result(name, one_thread):
    call = FOUND[name]()
    peak, result = peak_of(call)
    returned = call.func is not gpufold.add_blocks_ and "out" not in call.keywords and result is not None
    assert peak - (result.nbytes if returned else 0) <= 8 << 20


@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_many_small_blocks_at_positions_need_no_more_than_few_of_them(one_thread, dtype):
    """Positions of 300,000 blocks are 5 MB, and were copied and sorted at once; they have any integer dtype."""
    out, blocks = np.zeros((2, 700, 700), dtype), np.ones((300_000, 2, 2, 3), dtype)
    positions = np.random.default_rng(0).integers(-2, 701, (len(blocks), 2)).astype("i8" if dtype == "f4" else "i4")
    added, _ = peak_of(lambda: gpufold.add_blocks_(out, blocks, positions))
    taken, _ = peak_of(lambda: gpufold.take_blocks(out, positions, (2, 3), out=blocks))
    assert max(added, taken) < 8_000_000


# ---- However many taps or blocks there are, what Python does and keeps is bounded by the arrays


def kept_by(call):
    """Bytes that are still there once a call's result is gone."""
    tracemalloc.start()
    try:
        call()
        gc.collect()
        sleep(0.02)  # until a thread that came too late to help has let go of the call
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


MANY = 100_000
LOPSIDED = (
    Case("a-few-long-blocks", (MANY + 10,), (MANY,), batch=1, channels=1),
    Case("padded", (MANY,), (MANY,), pads_begin=5, pads_end=4, batch=1, channels=1),
    Case("dilated", (2 * MANY + 9,), (MANY,), dilations=2, batch=1, channels=1),
    Case("strided-and-dilated", (456488,), (202881,), strides=3, dilations=3, pads_end=152161, batch=1, channels=1),
    Case("all-taps-on-one-pixel", (5,), (MANY // 4,), dilations=0, batch=1, channels=1),
    Case("all-taps-on-one-pixel-padded", (3,), (MANY // 4,), dilations=0, pads_end=2, batch=1, channels=1),
    Case("apart", (2 * MANY + 7,), (MANY,), strides=MANY + 3, batch=1, channels=1),
    Case("squares", (501, 501), (500, 500), batch=1, channels=1),
    Case("padded-squares", (499, 499), (500, 500), pads_begin=1, pads_end=1, batch=1, channels=1),
    Case("high-columns", (MANY // 80 + 30, 8), (MANY // 80, 4), batch=1, channels=1),
    Case("a-few-long-strides", (2 * MANY - 7,), (MANY,), strides=MANY, pads_begin=3, pads_end=4, batch=1, channels=1),
    Case("many-axes", (2,) * 18, (2,) * 18, batch=1, channels=1),
    Case("many-axes-of-two-blocks", (3,) * 9, (2,) * 9, batch=1, channels=1),
    Case("many-padded-axes", (1,) * 9, (2,) * 9, pads_begin=1, pads_end=1, batch=1, channels=1),
    Case("many-strided-axes", (4,) * 7, (3,) * 7, strides=3, pads_begin=1, pads_end=1, batch=1, channels=1),
    Case("two-blocks-far-apart", (2953276 + MANY,), (MANY // 2,), 2953276, 0, batch=1, channels=1),
    Case(
        "axes-of-every-kind",
        output_size=(2, 6, 2, 3, 3, 3, 3, 2, 4, 3, 1, 2, 3, 1, 1, 3, 3, 1),
        kernel_size=(3, 3, 2, 2, 2, 3, 1, 2, 3, 2, 1, 2, 3, 1, 1, 2, 3, 1),
        strides=(2, 3, 1, 2, 1, 1, 2, 1, 3, 2, 2, 2, 1, 1, 3, 2, 2, 1),
        dilations=(1, 3, 1, 1, 2, 1, 1, 1, 1, 1, 3, 1, 1, 1, 3, 1, 1, 1),
        pads_begin=(1, *[0] * 17),
        pads_end=(1, 1, *[0] * 4, 1, *[0] * 9, 1, 0),
        batch=1,
        channels=1,
    ),
)
"""Tap by tap some of these took 5 seconds to minutes; a copy of the columns takes some hundredths."""


def lopsided_axes(rng, elements):
    """Draw axes that have few blocks, or many axes that have few taps, and about so many column elements."""
    few_blocks, made, axes = rng.random() < 0.5, 1, []
    rank = rng.randint(1, 3) if few_blocks else rng.randint(1, 20)
    for number in range(rank):
        extent = max(1, int((elements / made) ** (1 / (rank - number)) * rng.uniform(0.5, 2)))
        blocks = rng.choice((1, 1, 2, 3, 5, 11)) if few_blocks else max(1, extent // 2)
        kernel = max(1, extent // blocks) if few_blocks else rng.choice((1, 2, 2, 3))
        made *= kernel * blocks
        stride, dilation = rng.choice((1, 1, 2, 3, kernel, kernel + 1)), rng.choice((1, 1, 2, 3))
        covered = (blocks - 1) * stride + (kernel - 1) * dilation + 1
        begin, end = (rng.choice((0, 0, 1, covered // 4)) for _ in range(2))
        if begin + end >= covered:
            begin = end = 0
        axes.append(Axis(covered - begin - end + rng.randrange(stride), kernel, stride, dilation, begin, end))
    return tuple(axes)


def drawn_cases():
    """Draw axes of no more elements than memory has room for, from a seed that is printed."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rng, drawn = random.Random(seed), []
    while len(drawn) < 8:
        axes = lopsided_axes(rng, 10 ** rng.uniform(3, 6.5))
        elements = prod(axis.kernel * axis.blocks for axis in axes)
        few_pixels = prod(axis.size for axis in axes) <= 8 * elements
        if elements < 1e7 and few_pixels and prod(axis.padded_size for axis in axes) < 3e7:
            drawn.append(Case(f"drawn-{axes}", *zip(*axes, strict=True), batch=1, channels=1))
    return drawn


DTYPES = ("int32", "float64", "float16", "complex64")


@pytest.mark.parametrize(
    "problems",
    [*([each] for each in zip(LOPSIDED, cycle(DTYPES))), None],
    ids=lambda each: str(each[0][0] if each else "drawn"),
)
def test_few_blocks_or_taps_cost_no_more_than_a_few_copies_and_keep_nothing(problems):
    """Three times a copy of the columns and one of the image, and 50 ms."""
    for case, dtype in problems or zip(drawn_cases(), cycle(DTYPES)):
        geometry = col2im_geometry(case.columns_shape, case.output_size, case.kernel_size, **case.arguments)
        image = (np.arange(prod(case.image_shape)) % 97).reshape(case.image_shape).astype(dtype)
        whole = np.zeros((1, *(axis.padded_size for axis in geometry.axes)), dtype)
        steps = zip(whole.strides[1:], geometry.axes, strict=True)
        taps, blocks = zip(*((step * axis.dilation, step * axis.stride) for step, axis in steps), strict=True)
        shape = (1, *case.kernel_size, *case.num_blocks)
        view = np.lib.stride_tricks.as_strided(whole, shape, (whole.strides[0], *taps, *blocks))
        columns = gpufold.im2col(image, case.kernel_size, **case.arguments)
        calls = [
            lambda view=view, image=image: (view.copy(), image.copy()),
            partial(unfold, case, image),
            partial(fold, case, columns),
        ]
        # the least of three times, in which more than one thread counts as that
        copies, *times = (min(repeat(call, timer=process_time, number=1, repeat=3)) for call in calls)
        assert max(times) < 3 * copies + 0.05, case
        if problems and dtype != "float16":  # in which a pixel under 100,000 taps is infinite
            assert (fold(case, columns) == image * fold(case, unfold(case, np.ones_like(image)))).all()
            calls.append(partial(fold, case, columns.real.astype("f4"), reduction="mean"))
            assert max(map(kept_by, calls[1:])) <= keeping.KEPT_BYTES + 1_000_000


def test_what_is_kept_of_all_sizes_is_bounded():
    """Results are counted in bytes: neither many small ones nor a large one are kept beyond the bound."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rng = random.Random(seed)

    def calls():
        for _ in range(80):
            rank, most = rng.choice(((1, 300), (2, 17), (3, 6), (6, 2)))
            kernel, blocks = ([rng.randint(1, most) for _ in range(rank)] for _ in range(2))
            strides = [rng.choice((1, 2, taps)) for taps in kernel]
            size = [(n - 1) * step + taps for n, step, taps in zip(blocks, strides, kernel, strict=True)]
            columns = gpufold.im2col(np.ones((1, *size), np.float32), kernel, strides=strides)
            window = tuple([rng.random() + np.ones(taps) for taps in kernel]) if rng.random() < 0.5 else None
            gpufold.col2im(columns, size, kernel, strides=strides, reduction="mean", window=window, fill_value=0)

    assert kept_by(calls) < 16_000_000
    assert keeping._bytes <= keeping.KEPT_BYTES
    large = keeping.kept(lambda size: np.empty(size, np.uint8))
    assert kept_by(lambda: large(keeping.KEPT_BYTES)) < 100_000
    assert large(10) is large(10)
    assert large(keeping.KEPT_BYTES) is not large(keeping.KEPT_BYTES)
    for size in range(200):
        large(keeping.KEPT_BYTES // 5 + size)
    assert keeping._bytes <= keeping.KEPT_BYTES
    assert sum(sum(map(keeping._bytes_of, results.values())) for results in keeping._results) <= keeping.KEPT_BYTES


def test_checked_sizes_are_kept_for_a_bounded_number_of_calls():
    kept = weakref.ref(col2im_geometry((12, 5), (6,), (2,)))
    assert kept() is col2im_geometry((12, 5), (6,), (2,))
    for extent in range(6, 7 + MOST_KEPT):
        col2im_geometry((12, extent), (extent + 1,), (2,))
    assert kept() is None
