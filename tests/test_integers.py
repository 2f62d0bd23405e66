"""Integers and bool averaged, weighted and summed in wider dtypes: as if converted first, by the kernels themselves."""

from __future__ import annotations

import numpy as np
import pytest
from cases import INEXACT, WIDENINGS, assert_same_bits, values, window_of
from executors import Call, run

import gpufold
from gpufold.elements import WIDER, average_dtype
from gpufold.operations import variants

INTEGERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
SIZE, TILE, STRIDES = (2, 14, 19), (6, 7), (4, 6)
POSITIONS = gpufold.grid_positions(SIZE[1:], TILE, strides=STRIDES)


def blocks_of(dtype):
    count = [(extent - block) // stride + 1 for extent, block, stride in zip(SIZE[1:], TILE, STRIDES, strict=True)]
    return values((2, *count, *TILE), dtype)


def test_every_dtype_is_summed_in_what_holds_it():
    for narrow, wide in WIDER.items():
        assert narrow not in wide
        for each in wide if narrow != "bfloat16" else ():
            assert np.can_cast(narrow, each, "safe")
    assert "uint32" in WIDER["uint8"]
    assert "float32" not in WIDER["int32"]


@pytest.mark.parametrize("kind", ["none", "separable", "full"])
@pytest.mark.parametrize("reduction", ["sum", "mean", "least_squares"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_averages_are_of_float32_up_to_16_bits_else_of_float64(dtype, reduction, kind):
    if (reduction, kind) == ("sum", "none"):
        return
    wide = average_dtype(dtype)
    assert wide == ("float32" if np.dtype(dtype).itemsize <= 2 else "float64")
    options = {"reduction": reduction, "window": window_of(kind, TILE, wide)}
    blocks = blocks_of(dtype)
    want = gpufold.blocks_to_array(blocks.astype(wide), SIZE, TILE, strides=STRIDES, **options)
    for given in (blocks, blocks.astype(blocks.dtype.newbyteorder())):
        assert_same_bits(gpufold.blocks_to_array(given, SIZE, TILE, strides=STRIDES, **options), want)
    narrow = gpufold.blocks_to_array(blocks, SIZE, TILE, strides=STRIDES, dtype="float64", **options)
    assert_same_bits(
        narrow,
        gpufold.blocks_to_array(blocks.astype("float64"), SIZE, TILE, strides=STRIDES, **options),
        "the wider one",
    )


@pytest.mark.parametrize("reduction", ["sum", "mean", "least_squares"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_stitcher_averages_integers(dtype, reduction):
    tiles = values((len(POSITIONS), 2, *TILE), dtype)
    window = window_of("separable", TILE, average_dtype(dtype))
    results = []
    for given in (tiles, tiles.astype(average_dtype(dtype))):
        stitcher = gpufold.Stitcher(SIZE, TILE, window=window, reduction=reduction)
        for batch in np.array_split(np.arange(len(tiles)), 3):
            stitcher.add(given[batch], POSITIONS[batch])
        results.append(stitcher.result())
    assert_same_bits(*results)


def test_integers_and_floats_come_in_turn():
    stitcher = gpufold.Stitcher((5,), 3)
    for dtype in ("uint8", "float32", "bool"):
        stitcher.add(np.ones((1, 3), dtype), [(0,)])
    assert_same_bits(stitcher.result(), np.array([1, 1, 1, 0, 0], np.float32))
    with pytest.raises(TypeError, match=r"blocks must be of dtype float32, .* got int32"):
        stitcher.add(np.ones((1, 3), np.int32), [(0,)])


@pytest.mark.hostcuda
@pytest.mark.parametrize(("narrow", "wide"), [pair for pair in WIDENINGS if pair[0] in INTEGERS])
def test_kernels_leave_negative_zeros_as_numpy_does(narrow, wide):
    """A zero times a negative weight is -0.0, which the zero of a tap that does not exist must not turn into +0.0."""
    if np.dtype(wide) not in INEXACT:
        return
    out, blocks = np.full((40, 70), -0.0, wide), np.zeros((9, 6, 7), narrow)
    positions = np.random.default_rng(0).integers(-3, 60, (9, 2))
    window = np.full((6, 7), -1, wide)
    want = gpufold.add_blocks_(out.copy(), blocks, positions, window=window)
    for variant in variants("add_blocks"):
        _, arrays = run(Call("add_blocks", out, (blocks, positions), {"window": window}), variant)
        if variant != "atomic":
            assert_same_bits(arrays.result, want, variant)
