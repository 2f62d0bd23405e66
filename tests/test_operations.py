"""The laws of the operations on NumPy arrays."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import reduce
from math import prod

import definition
import numpy as np
import pytest
from cases import INEXACT, Case, assert_same_bits, fold, garbage, values, window_of

import gpufold
from gpufold.cpu import folding
from gpufold.cpu import positions as on_positions
from gpufold.cpu.cells import fold_cells
from gpufold.cpu.runs import fold_copied
from gpufold.elements import average_dtype, narrowed, shifted_back, widened
from gpufold.geometry import Axis, SlidingGeometry
from gpufold.threads import Ways

LARGE_CASES = (
    Case("large-3x3", (56, 56), (3, 3), 1, 1, 1, 1, batch=4, channels=16),
    Case("large-stride-two", (113, 112), (3, 3), 2, 1, 1, 1, batch=2, channels=8),
    Case("large-single-plane", (300, 301), (4, 3), batch=1, channels=1),
    Case("large-taps-apart", (20_032,), (3648,), 3648, 3, 0, 6383, batch=1, channels=1),
    Case("large-audio", (60_000,), (400,), 160, batch=2, channels=1),
    Case("large-volume", (20, 30, 40), (3, 2, 3), 1, 1, (1, 0, 1), (1, 1, 0), batch=2, channels=3),
    Case("many-small-planes", (7, 7), (3, 3), 1, 1, 1, 1, batch=3, channels=613),
    Case("many-small-planes-padded-at-the-end", (8, 7), (3, 3), 1, 1, 0, 2, batch=2, channels=700),
    Case("many-small-images", (14, 9), (3, 4), (2, 1), (2, 3), 3, 2, batch=401, channels=2),
    Case("many-small-halos", (30, 31), (14, 14), 8, batch=2, channels=37),
    Case("many-small-volumes", (5, 6, 7), (3, 2, 3), (2, 1, 2), 1, (1, 0, 1), (1, 1, 0), batch=2, channels=203),
    Case("many-short-rows", (50,), (5,), 2, 1, 1, 3, batch=2, channels=511),
)


@pytest.mark.parametrize(
    ("case", "dtype", "infinite"),
    [
        *((case, dtype, False) for case in LARGE_CASES for dtype in (np.float32, np.float16, np.uint8)),
        *(
            (case, dtype, True)
            for case in LARGE_CASES
            if "small" in case.name
            for dtype in (np.float32, np.float16, np.complex64)
        ),
    ],
    ids=str,
)
def test_planes_of_large_problems_are_what_each_is_alone_by_cells(case, dtype, infinite, monkeypatch):
    """What lies between planes and rows in a copy is zero whatever the weights: zeros times infinity would be NaN."""
    rows, window = prod(case.kernel_size), None
    columns = values(case.columns_shape, dtype)
    if infinite:
        window = np.where(np.arange(rows) % 3 == 1, np.inf, -1).reshape(case.kernel_size).astype(np.float32)
        columns = np.abs(columns).astype(dtype) + dtype(1)
    got = fold(case, columns, window=window)
    monkeypatch.setattr(folding, "ways_to_fold", lambda columns, *_: Ways((columns.size, fold_cells)))
    for batch, channel in ((0, 0), (case.batch - 1, case.channels - 1)):
        part = columns[batch : batch + 1, channel * rows : (channel + 1) * rows]
        assert_same_bits(got[batch, channel], fold(replace(case, batch=1, channels=1), part, window=window)[0, 0], case)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_a_copy_of_a_single_pixel_is_summed_in_order(dtype, monkeypatch):
    """NumPy sums along its innermost axis in pairs: that must not be the axis of the taps."""
    monkeypatch.setattr(folding, "ways_to_fold", lambda columns, *_: Ways((columns.size, fold_copied)))
    case = Case("single-pixel", (1, 1), (200, 1), 1, 1, (199, 0), (199, 0), batch=1, channels=1)
    columns = (np.random.default_rng(0).standard_normal((2, *case.columns_shape)) * 1e3).astype(dtype)
    columns = columns[0] + (1j * columns[1] if columns.dtype.kind == "c" else 0)
    terms = columns.reshape(200, 200)[:, ::-1].diagonal()
    assert_same_bits(fold(case, columns.astype(dtype)).ravel(), np.add.accumulate(terms.astype(dtype))[-1:])


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.peer("torch"))], ids=["", "flushed"])
def flushed(request):
    """The caller's thread, which may flush subnormal numbers of float32."""
    if request.param:
        import torch

        torch.set_flush_denormal(True)
    yield
    if request.param:
        torch.set_flush_denormal(False)


def test_all_halves_are_widened_exactly(flushed):
    """Those with infinities and NaNs among them too, and subnormal ones."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    want = halves.astype(np.float32)
    parts = [widened(part) for part in halves.reshape(-1, 1024)[:, ::-1]]
    assert_same_bits(np.concatenate([part[::-1] for part in parts]), want)
    for some in (slice(0x7C01), slice(0x8000, 0xFC01)):  # infinities are the largest
        assert_same_bits(widened(halves[some]), want[some])


def test_sums_are_rounded_to_halves_as_numpy_rounds_them(flushed):
    """Every half, the middle between it and the next one, and the float32 numbers beside them: of both signs."""
    halves = np.arange(0x7C01, dtype=np.uint16).view(np.float16).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):  # the last one is infinite
        middles = np.append((halves[:-2] + halves[1:-1]) / 2, 65520)
        bits = np.concatenate([halves, middles]).astype(np.float32).view(np.int32)
        near = np.concatenate([bits, np.maximum(bits - 1, 0), bits + 1]).view(np.float32)
        large = np.repeat(np.array([7e4, 1e30], np.float32), 32)  # rows of one number each
        floats = np.concatenate([near, -near, large, -large, np.resize(np.float32("nan"), 16)])
        floats = np.append(np.sort(floats), np.zeros(-len(floats) % 16, np.float32)).reshape(-1, 16)
        want = floats.astype(np.float16)
        got = [narrowed(part) for part in floats]
    assert_same_bits(np.stack(got), want)


def test_shifted_sums_are_rounded_to_halves_as_numpy_rounds_their_numbers():
    """As above: every half but the infinite one, middles, and the numbers beside them; none of them is NaN."""
    halves = np.arange(0x7C00, dtype=np.int32) << 13
    middles = halves + (1 << 12)
    near = np.concatenate([halves, middles, middles - 1, middles + 1]).view(np.float32)
    large = np.array([7e4 * 2.0**-112, 1e30], np.float32)
    floats = np.concatenate([near, -near, large, -large])
    with np.errstate(over="ignore"):
        want = (floats.astype(np.float64) * 2.0**112).astype(np.float16)
    assert_same_bits(shifted_back(floats), want)


def test_sums_beyond_the_range_are_silent(recwarn):
    """As on a GPU: infinities and NaNs come out, warnings do not, nor do flat runs warn of what they discard."""
    case = Case("large", (64, 64), (3, 3), batch=1, channels=4)
    columns = np.full(case.columns_shape, 3e38, np.float32)
    columns[..., ::2] = -np.inf
    columns[..., 1::2] = np.inf
    with np.errstate(all="raise"):
        assert np.isnan(fold(case, columns)).any()
        fold(case, np.full(case.columns_shape, 60000, np.float16))
    assert not recwarn.list


def test_results_own_just_their_memory():
    columns = np.ones((1, 64 * 9, 1024), np.float32)
    assert gpufold.col2im(columns, (34, 34), (3, 3)).base is None


def test_blocks_overlap_where_two_taps_land_on_one_pixel():
    rng = random.Random(0)
    overlapping = 0
    for _ in range(3000):
        axes = tuple(
            Axis(rng.randint(1, 9), rng.randint(1, 6), rng.randint(1, 7), rng.choice((0, 1, 2, 3, 5)), *pads)
            for pads in [(rng.randint(0, 9), rng.randint(0, 9)) for _ in range(rng.randint(1, 2))]
        )
        if min(axis.blocks for axis in axes) < 1:
            continue
        landed = [[axis.pixel(b, tap) for tap in range(axis.kernel) for b in axis.reach(tap)] for axis in axes]
        want = all(landed) and any(len(set(pixels)) < len(pixels) for pixels in landed)
        assert SlidingGeometry((1, 1), axes).blocks_overlap == want, axes
        overlapping += want
    assert 500 < overlapping < 2500
    for stride in (1, 2**40):  # these take no longer
        assert SlidingGeometry((1, 1), (Axis(2**60, 2**30, stride, 1, 0, 0),)).blocks_overlap == (stride == 1)


def test_as_many_axes_as_an_array_can_have_are_served():
    size, kernel = (*(1,) * 28, 3, 1, 4), (*(1,) * 28, 2, 1, 3)
    image = np.arange(24.0).reshape(2, *size)
    columns = gpufold.im2col(image, kernel)
    assert_same_bits(columns, gpufold.im2col(image.reshape(2, 3, 4), (2, 3)))
    few = gpufold.col2im(columns, (3, 4), (2, 3), reduction="mean")
    assert_same_bits(gpufold.col2im(columns, size, kernel, reduction="mean"), few.reshape(image.shape))
    blocks = gpufold.array_to_blocks(image, kernel)
    assert blocks.ndim == 63
    assert_same_bits(gpufold.blocks_to_array(blocks, image.shape, kernel, reduction="mean"), image)
    data = gpufold.space_to_batch(image, (1, *(1,) * 28, 3, 1, 2))
    assert_same_bits(gpufold.batch_to_space(data, (1, *(1,) * 28, 3, 1, 2)), image)
    deep = np.arange(6.0).reshape(*(1,) * 60, 2, 1, 3)
    assert_same_bits(gpufold.take_blocks(deep, np.zeros((1, 63), int), deep.shape)[0], deep)


def test_sizes_may_be_anything_that_counts():
    columns = np.ones((4, 9))
    want = gpufold.col2im(columns, (4, 4), (2, 2))
    for size in ([4, 4], np.array([4, 4]), np.array([4, 4], np.uint8), (np.int64(4), True + 3), range(4, 5)):
        size = tuple(size) * 2 if len(size) == 1 else size
        assert_same_bits(gpufold.col2im(columns, size, [2, np.int8(2)], strides=np.array(1)), want)
    for block in (2, np.int64(2), [2, 2]):  # an integer is a block on every axis that is known
        blocks = gpufold.array_to_blocks(want[0], block)
        assert_same_bits(blocks, gpufold.array_to_blocks(want[0], (2, 2)))
        assert_same_bits(gpufold.blocks_to_array(blocks, (4, 4), block, reduction="mean"), want[0])


# ---- Averages


@pytest.mark.parametrize("weight_dtype", ["f2", "f4", ">f4", "f8", "g", "i1", "u8"])
@pytest.mark.parametrize("dtype", INEXACT, ids=str)
def test_one_weight_of_any_dtype_divides_all_that_is_there(dtype, weight_dtype):
    for shape in ((), (4,), (2, 3)):
        for number in (3, 0):
            sums, weight = np.asarray(values(shape, dtype)), np.array(number, weight_dtype)
            want, out, here = definition.average(sums, weight), garbage(shape, dtype), sums.copy()
            assert_same_bits(gpufold.average(sums, weight), want)
            assert gpufold.average(sums, weight, out=out) is out
            assert_same_bits(out, want)
            assert_same_bits(gpufold.average(here, weight, out=here), want, "in place")


@pytest.mark.parametrize("reduction", ["mean", "least_squares"])
@pytest.mark.parametrize("kind", ["separable", "full"])
def test_where_all_weights_are_zero_an_average_is_whatever_lies_there(reduction, kind):
    """It is the value that was named; a weight of zero times NaN is no zero, and some elements no block reaches."""
    weights = np.array([0, 1, 0], np.float32)
    window = (weights, weights) if kind == "separable" else np.outer(weights, weights)
    blocks = np.full((2, 2, 3, 3), np.nan, np.float32)
    blocks[:, :, 1, 1] = 5
    options = {"strides": 4, "reduction": reduction, "window": window, "fill_value": 0}
    want = np.zeros((8, 8), np.float32)
    want[1::4, 1::4] = 5
    np.testing.assert_array_equal(gpufold.blocks_to_array(blocks, (8, 8), (3, 3), **options), want)


# ---- Integers and bool, which are averaged and weighed in wider dtypes


INTEGERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
SIZE, TILE, STRIDES = (2, 14, 19), (6, 7), (4, 6)
POSITIONS = gpufold.grid_positions(SIZE[1:], TILE, strides=STRIDES)


@pytest.mark.parametrize("kind", ["none", "separable", "full"])
@pytest.mark.parametrize("reduction", ["sum", "mean", "least_squares"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_averages_are_of_float32_up_to_16_bits_else_of_float64(dtype, reduction, kind):
    """Of blocks at once, and of a stitcher's, where integers and floats may come in turn."""
    if (reduction, kind) == ("sum", "none"):
        return
    wide = average_dtype(dtype)
    assert wide == ("float32" if np.dtype(dtype).itemsize <= 2 else "float64")
    options = {"reduction": reduction, "window": window_of(kind, TILE, wide)}
    blocks = gpufold.array_to_blocks(values(SIZE, dtype), TILE, strides=STRIDES)
    want = gpufold.blocks_to_array(blocks.astype(wide), SIZE, TILE, strides=STRIDES, **options)
    for given in (blocks, blocks.astype(blocks.dtype.newbyteorder())):
        assert_same_bits(gpufold.blocks_to_array(given, SIZE, TILE, strides=STRIDES, **options), want)
    tiles, results = values((len(POSITIONS), 2, *TILE), dtype), []
    for in_turn in ([dtype, wide, dtype], [wide] * 3):
        stitcher = gpufold.Stitcher(SIZE, TILE, **options)
        for given, batch in zip(in_turn, np.array_split(np.arange(len(tiles)), 3), strict=True):
            stitcher.add(tiles[batch].astype(given), POSITIONS[batch])
        results.append(stitcher.result())
    assert_same_bits(*results)


def test_arguments_that_look_alike_are_told_apart_after_a_call_with_one_of_them():
    """Descriptions of calls are cached by the bytes of their arguments, and those of arrays have no types."""
    signal, pairs = np.arange(8.0, dtype=np.float32)[None], np.array([2], np.int64)
    want = gpufold.im2col(signal, (2,), strides=2)
    for strides in (2, (2,), [2], pairs, np.int64(2)):
        for variant in ("auto", np.str_("auto")):
            assert_same_bits(gpufold.im2col(signal, (2,), strides=strides, variant=variant), want)
        assert gpufold.im2col(signal.astype(np.int32), (2,), strides=strides).dtype == np.int32
    for strides, error in ((2.0, TypeError), (pairs.view(np.int32), ValueError), (pairs.tobytes(), TypeError)):
        with pytest.raises(error, match="im2col: strides must"):
            gpufold.im2col(signal, (2,), strides=strides)
    gpufold.im2col(signal, (2,), pads_begin=1)
    for given in (True, np.True_):
        with pytest.raises(TypeError, match="im2col: pads_begin must"):
            gpufold.im2col(signal, (2,), pads_begin=given)
    with pytest.raises(TypeError, match="im2col: variant must"):
        gpufold.im2col(signal, (2,), strides=2, variant=memoryview(np.str_("auto")).tobytes())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_averages_are_divided_by_what_a_window_is_now(dtype):
    """Divisors are kept by the contents of small windows: the mean of equal blocks is their element for any other."""
    blocks, window = np.full((1, 5, 4, 3, 2), 7, dtype), np.zeros((3, 2), dtype)
    for weights in (1, [[1, 2], [3, 4], [5, 6]], [[1, 2], [3, 9], [5, 6]], [[6, 5], [4, 3], [2, 1]]):
        window[:] = weights
        axes = window[:, 0], window[1]
        weighted = blocks * np.multiply.outer(*axes)
        for given, reduction, terms in (
            (window, "mean", blocks),
            (axes, "mean", blocks),
            (axes, "least_squares", weighted),
            (window, "least_squares", blocks * window),
        ):
            got = gpufold.blocks_to_array(terms, (1, 7, 5), (3, 2), reduction=reduction, window=given)
            np.testing.assert_allclose(got, 7, rtol=1e-5)


# ---- Narrow windows: what a tile covers with weights other than zero is never lost, though their product is tiny

SIGMAS, SIDES = (0.5, 1, 1.5, 2, 4, 8), (8, 16, 32, 64)


def gaussian(taps, sigma):
    """Weights of one axis in double precision, which are not zero themselves."""
    distance = (np.arange(taps) - (taps - 1) / 2) / sigma
    return np.exp(np.maximum(-0.5 * distance**2, -700.0))


def problems(sigma):
    """Yield shapes, tiles, strides, and windows by axis: small along the axes that only add to the elements."""
    for axes in (1, 2, 3, 4):
        for side in SIDES:
            tile = (side,) * axes if side ** (axes - 1) <= 1024 else (*(8,) * (axes - 1), side)
            size, strides = tuple(taps + taps // 2 for taps in tile), tuple(taps // 2 for taps in tile)
            yield size, tile, strides, tuple(gaussian(taps, sigma) for taps in tile)


@pytest.mark.parametrize("dtype", [dtype for dtype in INEXACT if dtype.kind != "c"], ids=str)
@pytest.mark.parametrize("sigma", SIGMAS)
def test_a_mean_of_narrow_windows_is_what_was_averaged(sigma, dtype):
    tolerance = 1e-5 if dtype == np.float32 else 1e-12 if dtype == np.float64 else 0.05
    for size, tile, strides, axes in problems(sigma):
        array = (1 + np.random.default_rng(0).random(size)).astype(dtype)
        blocks = gpufold.array_to_blocks(array, tile, strides=strides)
        positions = gpufold.grid_positions(size, tile, strides=strides)
        tiles = blocks.reshape(-1, *tile)
        for window in (axes, reduce(np.multiply.outer, axes) + 1e-300):
            sums = np.zeros(size, array.dtype if array.itemsize > 2 else np.float32)
            weight = np.zeros(size, np.float64 if dtype == np.float64 else np.float32)
            gpufold.add_blocks_(sums, tiles, positions, window=window, weight_out=weight)
            stitcher = gpufold.Stitcher(size, tile, window=window)
            stitcher.add(tiles, positions)
            for got in (
                gpufold.blocks_to_array(blocks, size, tile, strides=strides, reduction="mean", window=window),
                gpufold.average(sums, weight),
                stitcher.result(),
            ):
                np.testing.assert_allclose(got.astype(float), array.astype(float), rtol=tolerance, err_msg=f"{tile}")


@pytest.mark.parametrize("sigma", SIGMAS)
def test_least_squares_lose_no_element_either(sigma):
    for size, tile, strides, axes in problems(sigma):
        blocks = gpufold.array_to_blocks(np.ones(size, np.float32), tile, strides=strides)
        stitcher = gpufold.Stitcher(size, tile, window=axes, reduction="least_squares")
        stitcher.add(blocks.reshape(-1, *tile), gpufold.grid_positions(size, tile, strides=strides))
        folded = gpufold.blocks_to_array(blocks, size, tile, strides=strides, reduction="least_squares", window=axes)
        assert (folded > 0).all()
        assert (stitcher.result() > 0).all()


@pytest.mark.parametrize("kind", ["numpy", pytest.param("torch", marks=pytest.mark.peer("torch"))])
@pytest.mark.parametrize("window", [None, np.array([1.0, 1e-40, 1e-60])])
@pytest.mark.parametrize("products", [0, 1 << 17])
def test_weights_of_whole_blocks_are_not_lost_either(kind, window, products, monkeypatch):
    monkeypatch.setattr(on_positions, "PRODUCTS", products)
    library = pytest.importorskip(kind)
    tile, weights = library.asarray(np.full((1, 3), 5, np.float32)), library.asarray(np.array([1e-60]))
    sums, weight = (library.zeros(3, dtype=library.float32) for _ in range(2))
    window = None if window is None else library.asarray(window)
    gpufold.add_blocks_(sums, tile, [(0,)], window=window, weights=weights, weight_out=weight)
    stitcher = gpufold.Stitcher((3,), (3,), window=window)
    stitcher.add(tile, [(0,)], weights=weights)
    for got in (gpufold.average(sums, weight), stitcher.result()):
        np.testing.assert_allclose(got, [5, 5, 5])


def test_weights_of_blocks_in_another_byte_order():
    blocks, weights = np.ones((2, 3), np.float32), np.array([0.5, 2])
    want, got = (
        gpufold.add_blocks(np.zeros(5), blocks, [0, 2], weights=each) for each in (weights, weights.astype(">f8"))
    )
    assert got.tolist() == want.tolist() == [0.5, 0.5, 2.5, 2, 2]


@pytest.mark.peer("torch")
@pytest.mark.parametrize("reduction", ["mean", "least_squares"])
@pytest.mark.parametrize("kind", ["separable", "full"])
def test_tensors_have_the_same_bits_and_a_gradient(reduction, kind):
    import torch

    import gpufold.torch

    tile, size = (8, 16), (20, 40)
    axes = tuple(gaussian(taps, 0.5) for taps in tile)
    window = axes if kind == "separable" else np.multiply.outer(*axes) + 1e-300
    given = tuple(map(torch.from_numpy, window)) if kind == "separable" else torch.from_numpy(window)
    blocks = np.ones((4, 4, *tile), np.float32)
    want = gpufold.blocks_to_array(blocks, size, tile, strides=(4, 8), reduction=reduction, window=window)
    data = torch.from_numpy(blocks).requires_grad_()
    options = {"reduction": reduction, "window": given}
    got = gpufold.torch.blocks_to_array(data, size, tile, strides=(4, 8), **options)
    assert_same_bits(got.detach().numpy(), want)
    got.sum().backward()
    if reduction == "mean":  # the weights of an element are shares
        assert data.grad.sum().item() == pytest.approx(want.size, rel=1e-5)
    by_aten = gpufold.torch.exporting.decomposed
    sizes = [list(size), list(tile), [4, 8]]
    joined = torch.cat(given) if kind == "separable" else given
    joined = gpufold.torch.tensors.narrowed(joined, torch.float32)
    arguments = (data.detach(), joined, None, None, *sizes, reduction, kind == "separable", "auto", True, True, False)
    composed = by_aten(gpufold.torch.exporting.fold_by_aten, "blocks_to_array", *arguments)
    np.testing.assert_allclose(composed.numpy(), want, rtol=1e-4)


@pytest.mark.parametrize("mode", ["reflect", "symmetric", "wrap", "edge"])
def test_blocks_without_planes_need_no_elements_to_mirror(mode):
    assert gpufold.take_blocks(np.zeros((0, 0)), [(0,)], (2,), mode=mode).shape == (1, 0, 2)


@pytest.mark.parametrize("dtype", INTEGERS[1:])
def test_positions_are_read_in_any_dtype_and_layout(dtype, monkeypatch):
    """Some at a time; no coordinate overflows its dtype, and those beyond int64 are far outside."""
    monkeypatch.setattr(on_positions, "AT_ONCE", 20)
    monkeypatch.setattr(on_positions, "COORDINATES", 20)
    rng, limits = np.random.default_rng(7), np.iinfo(dtype)
    for count in (4, 60):  # few are added one by one
        known = rng.integers(max(limits.min, -5), 110, (count, 2))
        known[0] = limits.min, min(limits.max, 2**63 - 1)
        exact = np.array([[limits.min, limits.max], *known[1:].tolist()], dtype)
        misaligned = np.array([(0, each) for each in exact], [("", "u1"), ("at", dtype, 2)])["at"]
        image, tiles = values((130, 140), np.float32, 3), values((count, 5, 30), np.float32, 4)
        swapped = exact.astype(exact.dtype.newbyteorder())
        for given in (exact, np.asfortranarray(exact), np.repeat(exact, 2, 1)[:, ::2], swapped, misaligned):
            assert_same_bits(gpufold.add_blocks(image, tiles, given), gpufold.add_blocks(image, tiles, known))
            for mode in ("constant", "edge", "wrap"):
                assert_same_bits(*[gpufold.take_blocks(image, each, (5, 30), mode=mode) for each in (given, known)])
