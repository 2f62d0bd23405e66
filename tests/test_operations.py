"""The laws of the four operations on NumPy arrays."""

from __future__ import annotations

import random
from functools import cache
from math import prod

import definition
import numpy as np
import pytest
from cases import (
    CASES,
    DTYPES,
    EMPTY_CASES,
    SPACE_CASES,
    Case,
    assert_same_bits,
    fold,
    garbage,
    unfold,
    values,
    window_of,
    with_extents,
)

import gpufold
from gpufold.cpu.cells import fold_cells
from gpufold.elements import sum_dtype, widened
from gpufold.geometry import Axis, SlidingGeometry

# ---------------------------------------------------------------------------------------------
# Equal to the definition


@cache
def defined(case, seed=0, dtype=DTYPES[11]):
    """Columns, an image, and what becomes of them by definition, which is worked out once for all ways."""
    columns, image = values(case.columns_shape, dtype, seed), values(case.image_shape, dtype, seed + 1)
    return columns, image, case.col2im(columns), case.im2col(image)


@pytest.mark.parametrize("huge", [2**31, 2**62, 2**63, 2**70])
def test_the_stride_of_one_block_and_the_dilation_of_one_tap_may_be_any(huge):
    image = values((2, 3, 5, 6), np.float32)
    for steps, plain in (
        ({"strides": (huge, 2)}, {"strides": (9, 2)}),
        ({"strides": (1, huge), "dilations": (huge, 1)}, {"strides": (1, 9)}),
    ):
        kernel = (1, 5) if "dilations" in steps else (4, 2)
        want = gpufold.im2col(image, kernel, **plain)
        assert_same_bits(gpufold.im2col(image, kernel, **steps), want, steps)
        folded = gpufold.col2im(want, (5, 6), kernel, **steps)
        assert_same_bits(folded, gpufold.col2im(want, (5, 6), kernel, **plain), steps)


STILL = {
    "one-axis": Case("", (7,), (300,), 1, 0, 0, 0, batch=2, channels=3),
    "one-block": Case("", (1,), (3000,), 1, 0, 0, 0),
    "both-axes": Case("", (4, 5), (20, 30), (1, 2), 0, (1, 0), (0, 1), channels=2),
    "before-taps-that-move": Case("", (5, 9), (400, 3), (1, 3), (0, 1), (0, 2), (1, 1), batch=2),
    "behind-them": Case("", (9, 5), (3, 400), (3, 1), (1, 0), (2, 0), (1, 1)),
    "overlapping": Case("", (5, 6), (300, 3), (1, 1), (0, 1), 0, 0),
    "padding-alone": Case("", (3,), (300,), 2, 0, 4, 4),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bool", "int8", "complex64"])
@pytest.mark.parametrize("name", STILL)
def test_many_taps_on_one_pixel_are_added_in_their_order(name, dtype):
    case = STILL[name]
    columns = values(case.columns_shape, np.dtype(dtype))
    got = gpufold.col2im(columns, case.output_size, case.kernel_size, **case.arguments)
    assert_same_bits(got, case.col2im(columns), name)
    turned = columns.swapaxes(-1, -2).copy().swapaxes(-1, -2)
    assert_same_bits(gpufold.col2im(turned, case.output_size, case.kernel_size, **case.arguments), got, name)
    if np.dtype(dtype).kind in "fc":
        window = window_of("full", case.kernel_size, np.dtype(dtype))
        got = gpufold.col2im(columns, case.output_size, case.kernel_size, **case.arguments, window=window)
        assert_same_bits(got, case.col2im(columns, window=window), name)


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.all) for first in range(10, 100, 10))])
def test_few_blocks_of_many_taps_are_their_definition(first, way):
    """An axis with far fewer blocks than taps is served block by block, which keeps the order of additions."""
    for seed in range(first, first + 10):
        rng = random.Random(seed)
        rank = rng.choice((1, 1, 2, 3))
        kernel, strides, dilations, before, after, rest, blocks = (
            tuple(rng.randint(low, most) for _ in range(rank))
            for low, most in ((1, {1: 300, 2: 25, 3: 8}[rank]), (1, 4), (1, 3), (0, 9), (0, 9), (0, 3), (1, 4))
        )
        covered = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(blocks, strides, kernel, dilations, strict=True)]
        size = tuple(max(1, c + r - b - a) for c, r, b, a in zip(covered, rest, before, after, strict=True))
        options = {"strides": strides, "dilations": dilations, "pads_begin": before, "pads_end": after}
        case = Case(f"few-blocks-{seed}", size, kernel, **options, batch=rng.randint(1, 2), channels=rng.randint(1, 2))
        dtype = rng.choice(DTYPES)
        columns, image, folded, taken = defined(case, seed, dtype)
        assert_same_bits(fold(case, columns), folded, case)
        assert_same_bits(unfold(case, image), taken, case)
        lying = np.ascontiguousarray(columns.swapaxes(-1, -2)).swapaxes(-1, -2)  # taps side by side, as in blocks
        assert_same_bits(fold(case, lying), folded, case)


@pytest.mark.parametrize("case", [case for case in SPACE_CASES if not prod(case.space_shape)], ids=str)
def test_batch_and_space_may_have_no_elements(case):
    data, space = np.zeros(case.batch_shape), np.zeros(case.space_shape)
    arguments = case.block_shape, case.crops_begin, case.crops_end
    assert_same_bits(to_space(data, *arguments), definition.batch_to_space(data, *arguments), case)
    assert_same_bits(to_batch(space, *arguments), definition.space_to_batch(space, *arguments), case)


def to_space(data, block, begin, end):
    return gpufold.batch_to_space(data, block, crops_begin=begin, crops_end=end)


def to_batch(space, block, begin, end):
    return gpufold.space_to_batch(space, block, pads_begin=begin, pads_end=end)


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


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.uint8)], ids=str)
@pytest.mark.parametrize("case", LARGE_CASES, ids=str)
def test_large_problems_have_the_bits_of_small_ones(case, dtype):
    """Planes do not depend on one another: each is compared with the same plane computed alone, by cells."""
    columns = values(case.columns_shape, dtype)
    got = fold(case, columns)
    one = with_extents(case, None, 1)
    rows = prod(case.kernel_size)
    for batch, channel in ((0, 0), (case.batch - 1, case.channels - 1)):
        plane = np.zeros(one.image_shape, got.dtype)
        axes = gpufold.geometry.col2im_geometry(
            one.columns_shape, one.output_size, one.kernel_size, *one.arguments.values()
        ).axes
        part = columns[batch, channel * rows : (channel + 1) * rows].reshape(1, 1, *one.kernel_size, *one.num_blocks)
        wide = np.zeros(plane[None].shape, sum_dtype(plane.dtype))
        fold_cells(part, wide, axes, None)
        assert_same_bits(got[batch, channel], wide[0, 0].astype(dtype), case)


@pytest.mark.parametrize("flushed", [False, pytest.param(True, marks=pytest.mark.peer("torch"))])
def test_all_halves_are_widened_exactly(flushed):
    """Those with infinities and NaNs among them too, and subnormal ones where the caller flushes those of float32."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    want = halves.astype(np.float32)
    if flushed:
        import torch

        torch.set_flush_denormal(True)
    try:
        parts = [widened(part) for part in halves.reshape(-1, 1024)[:, ::-1]]
    finally:
        if flushed:
            torch.set_flush_denormal(False)
    assert_same_bits(np.concatenate([part[::-1] for part in parts]), want)


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.complex64)], ids=str)
@pytest.mark.parametrize("case", [case for case in LARGE_CASES if "small" in case.name], ids=str)
def test_a_window_of_infinities_reaches_no_other_plane_or_row(case, dtype):
    """What lies between planes and rows in a copy is zero whatever the weights: zeros times infinity would be NaN."""
    rows = prod(case.kernel_size)
    window = np.where(np.arange(rows) % 3 == 1, np.inf, -1).reshape(case.kernel_size).astype(np.float32)
    columns = np.abs(values(case.columns_shape, dtype)) + dtype.type(1)
    got = fold(case, columns, window=window)
    for batch, channel in ((0, 0), (case.batch - 1, case.channels - 1)):
        part = columns[batch : batch + 1, channel * rows : (channel + 1) * rows]
        assert_same_bits(got[batch, channel], fold(with_extents(case, 1, 1), part, window=window)[0, 0], case)


# ---------------------------------------------------------------------------------------------
# Laws


@pytest.mark.parametrize("case", CASES, ids=str)
def test_col2im_and_im2col_are_adjoint(case):
    """<col2im(x), y> = <x, im2col(y)>, exactly, in integers."""
    rng = np.random.default_rng(0)
    columns, image = rng.integers(-99, 100, case.columns_shape), rng.integers(-99, 100, case.image_shape)
    assert (fold(case, columns) * image).sum() == (columns * unfold(case, image)).sum()


@pytest.mark.parametrize("case", [case for case in SPACE_CASES if prod(case.space_shape)], ids=str)
def test_space_round_trips(case):
    space = values(case.space_shape, np.float32)
    arguments = case.block_shape, case.crops_begin, case.crops_end
    assert_same_bits(to_space(to_batch(space, *arguments), *arguments), space)


def test_sums_start_from_positive_zero_and_moves_keep_bits():
    """The one place where adding and moving differ: -0.0."""
    minus = np.full((1, 4, 1), -0.0, np.float32)
    for dtype in (np.float32, *DTYPES[9:11]):  # tiling blocks of half precision are moved as words
        assert not np.signbit(gpufold.col2im(minus.astype(dtype), (2, 2), (2, 2))).any()
        assert not np.signbit(gpufold.col2im(minus.astype(dtype), (2, 2), (2, 2), strides=2)).any()
    assert np.signbit(gpufold.im2col(minus.reshape(1, 1, 2, 2), (2, 2))).all()
    assert np.signbit(gpufold.batch_to_space(minus.reshape(4, 1), (1, 2))).all()
    nan = np.array([[0x7F800001, 0xFFC12345]], np.uint32).view(np.float32)
    assert gpufold.space_to_batch(nan, (1, 2)).tobytes() == nan.tobytes()


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


# ---------------------------------------------------------------------------------------------
# Arrays of every kind


@pytest.mark.parametrize("case", [*CASES[:8], *LARGE_CASES[:3]], ids=str)
def test_nothing_is_written_between_the_elements_of_out(case):
    columns = values(case.columns_shape, np.float32)
    want = fold(case, columns)
    wide = garbage((*want.shape[:-1], 2 * want.shape[-1]), want.dtype)
    out = wide[..., ::2]
    assert fold(case, columns, out=out) is out
    assert_same_bits(out, want, case)
    assert (wide[..., 1::2].view(np.uint32) == 0xA5A5A5A5).all()


def test_results_share_no_memory_with_the_input():
    image = np.zeros((1, 1, 4, 4))
    assert not np.shares_memory(gpufold.im2col(image, (1, 1)), image)
    assert not np.shares_memory(gpufold.col2im(image.reshape(1, 1, 16), (4, 4), (1, 1)), image)
    assert not np.shares_memory(gpufold.batch_to_space(image, (1, 1, 1, 1)), image)
    assert not np.shares_memory(gpufold.space_to_batch(image, (1, 1, 1, 1)), image)


def test_results_own_just_their_memory():
    columns = np.ones((1, 64 * 9, 1024), np.float32)
    assert gpufold.col2im(columns, (34, 34), (3, 3)).base is None


@pytest.mark.parametrize("case", EMPTY_CASES, ids=str)
def test_no_planes_give_an_empty_result(case, way):
    assert fold(case, np.zeros(case.columns_shape, np.int8)).shape == case.image_shape
    assert unfold(case, np.zeros(case.image_shape, np.int8)).shape == case.columns_shape


def test_many_strings_of_any_length_are_taken():
    """NumPy makes no strided view of those, in which other large arrays are taken at once."""
    numbers = np.arange(1, 1 + 40 * 41).reshape(40, 41)
    strings = numbers.astype("U4").astype(np.dtypes.StringDType())
    for operation in (
        lambda array: gpufold.take_blocks(array, [(row, 2 * row) for row in range(16)], (3, 4)),
        lambda array: gpufold.array_to_blocks(array, (7, 7)),
        lambda array: gpufold.im2col(array[None], (25, 25)),
    ):
        assert (operation(strings) == operation(numbers).astype("U4")).all()


@pytest.mark.parametrize("kind", ["U3", "S5", "T", "f4"])
def test_a_large_image_that_is_padded_has_nothing_outside(kind):
    dtype = np.dtypes.StringDType() if kind == "T" else np.dtype(kind)
    numbers = np.arange(6 * 20 * 21).reshape(1, 6, 20, 21) % 998 + 1
    columns = gpufold.im2col(numbers, (7, 5), strides=2, pads_begin=3, pads_end=4)
    got = gpufold.im2col(numbers.astype("U3").astype(dtype), (7, 5), strides=2, pads_begin=3, pads_end=4)
    assert columns.size > 1 << 14
    assert (got == np.where(columns, columns.astype("U3"), "0" if kind == "f4" else "").astype(dtype)).all()


@pytest.mark.parametrize("kind", ["U3", "S5", "T"])
def test_strings_move_where_no_blocks_overlap(kind):
    dtype = np.dtypes.StringDType() if kind == "T" else np.dtype(kind)
    columns = np.array([["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"]]).astype(dtype)
    got = gpufold.col2im(columns, (2, 5), (2, 2), strides=(1, 2))
    assert got.astype("U1").tolist() == [[["a", "c", "b", "d", ""], ["e", "g", "f", "h", ""]]]
    back = gpufold.im2col(got, (2, 2), strides=(1, 2))
    assert (back == columns).all()
    padded = gpufold.im2col(got, (2, 2), strides=(1, 2), pads_end=(0, 1))
    assert padded[1].astype("U1").tolist() == ["c", "d", ""]
    assert gpufold.batch_to_space(columns.reshape(4, 2), (1, 2)).astype("U1").tolist() == [list("aebf"), list("cgdh")]


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
        assert SlidingGeometry(1, 1, axes).blocks_overlap == want, axes
        overlapping += want
    assert 500 < overlapping < 2500
    for stride in (1, 2**40):  # these take no longer
        assert SlidingGeometry(1, 1, (Axis(2**60, 2**30, stride, 1, 0, 0),)).blocks_overlap == (stride == 1)


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
