"""Blocks in a layout of their own: the functions are col2im and im2col through a transpose, in whatever layout."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from cases import BLOCKS_CASES as CASES
from cases import (
    SANITIZED,
    BlocksCase,
    assert_same_bits,
    values,
    window_of,
)
from executors import Call, run

import gpufold
from gpufold import calls
from gpufold.cpu import folding, runs
from gpufold.cpu import tiles as cpu_tiles
from gpufold.cpu.cells import fold_cells
from gpufold.cpu.folding import fold_way
from gpufold.cpu.runs import fold_runs
from gpufold.geometry import array_to_blocks_geometry, blocks_as_columns, blocks_to_array_geometry
from gpufold.gpu.plan import H200, Operand
from gpufold.gpu.registry import choose


def through_col2im(case, blocks, out=None, **options):
    """What col2im makes of the same blocks, copied into its columns."""
    rank, lead = len(case.block), len(case.lead)
    taps_first = blocks.transpose(*range(lead), *range(lead + rank, lead + 2 * rank), *range(lead, lead + rank))
    columns = np.ascontiguousarray(taps_first).reshape(prod(case.lead), prod(case.block), prod(case.num_blocks))
    if out is not None:
        options["out"] = out.reshape(prod(case.lead), 1, *case.shape[lead:]).copy()
    image = gpufold.col2im(columns, case.shape[lead:], case.block, strides=case.strides, **options)
    return image.reshape(case.shape)


def through_im2col(case, array, **options):
    """What im2col takes out of the same array, its taps moved behind its blocks."""
    rank, lead = len(case.block), len(case.lead)
    image = array.reshape(prod(case.lead), 1, *case.shape[lead:])
    columns = gpufold.im2col(image, case.block, strides=case.strides, **options)
    split = columns.reshape(*case.lead, *case.block, *case.num_blocks)
    return split.transpose(*range(lead), *range(lead + rank, lead + 2 * rank), *range(lead, lead + rank))


# ---------------------------------------------------------------------------------------------
# On NumPy arrays


LARGE_CASES = (
    (BlocksCase("frames", (300_000,), (1024,), (256,)), fold_cells),
    (BlocksCase("short-frames", (2, 140_000), (8,), (2,)), fold_runs),
    (BlocksCase("patches", (2, 3, 100, 90), (8, 7), (1, 2)), fold_runs),
    (BlocksCase("tiles", (2, 600, 500), (280, 192), (70, 130)), fold_cells),
    (BlocksCase("volume", (60, 100, 90), (30, 32, 40), (15, 16, 20)), fold_cells),
)


@pytest.mark.parametrize("fusion", [("sum", "none", False), ("least_squares", "separable", True)], ids=["sum", "fused"])
@pytest.mark.parametrize(("case", "way"), LARGE_CASES, ids=lambda each: getattr(each, "__name__", str(each)))
def test_large_blocks_in_rows_have_the_bits_of_columns(case, way, fusion, monkeypatch):
    """Columns are summed in runs, blocks by cells, as they are best read; the bits are the same."""
    chosen = []
    monkeypatch.setattr(folding, "fold_way", lambda *given: chosen.append(fold_way(*given)) or chosen[-1])
    reduction, kind, accumulate = fusion
    blocks, out = values(case.blocks_shape, np.float32), values(case.shape, np.float32, 1)
    assert blocks.size > cpu_tiles.THREADED_ELEMENTS
    options = {"reduction": reduction, "window": window_of(kind, case.block, np.float32), "accumulate": accumulate}
    want = through_col2im(case, blocks, out, **options)
    got = gpufold.blocks_to_array(blocks, case.shape, case.block, strides=case.strides, out=out.copy(), **options)
    assert_same_bits(got, want)
    assert [each for each, *_ in chosen] == [fold_runs, way]


def test_leading_axes_may_be_empty_and_strings_move():
    assert gpufold.array_to_blocks(np.ones((0, 3, 8)), (4,), strides=2).shape == (0, 3, 3, 4)
    assert gpufold.blocks_to_array(np.ones((2, 0, 3, 4)), (2, 0, 8), (4,), strides=2).shape == (2, 0, 8)
    words = np.array(["a", "b", "c", "d", "e"])
    blocks = gpufold.array_to_blocks(words, (2,), strides=2)
    assert blocks.tolist() == [["a", "b"], ["c", "d"]]
    assert gpufold.blocks_to_array(blocks, (5,), (2,), strides=2).tolist() == ["a", "b", "c", "d", ""]
    with pytest.raises(TypeError, match="strings"):
        gpufold.blocks_to_array(gpufold.array_to_blocks(words, (2,), strides=1), (5,), (2,), strides=1)


@pytest.mark.hostcuda
@pytest.mark.parametrize("reduction", ["sum", "mean", "least_squares"])
def test_leading_axes_apart_have_no_weights(reduction):
    """They are axes of one tap to the kernels, where batch and channels are too few to count them."""
    (case,) = (case for case in CASES if case.name == "three-leading")
    blocks, array = values(case.blocks_shape, np.float32), values(case.shape, np.float32, 1)
    blocks = np.ascontiguousarray(blocks.swapaxes(0, 2)).swapaxes(0, 2)
    window = window_of("separable", case.block, np.float32)
    folds = Call(
        *("blocks_to_array", blocks, (case.shape, case.block)),
        {
            "strides": case.strides,
            "reduction": reduction,
            "window": window,
            "fill_value": None if reduction == "sum" else 0,
        },
    )
    want = through_col2im(case, blocks, reduction=reduction, window=window)
    for variant in ("gather", "gather_parts", "gather_pixels"):
        plan, arrays = run(folds, variant)
        assert (dict(plan.defines)["WINDOW_AXES"], dict(plan.defines)["KERNEL"]) == ("2", "1,3,4")
        assert_same_bits(arrays.result, want, variant)
    _, arrays = run(Call("array_to_blocks", array, (case.block,), {"strides": case.strides, "window": window}), "taps")
    assert_same_bits(arrays.result, through_im2col(case, array, window=window))


@pytest.mark.hostcuda
@pytest.mark.parametrize("executor", ["plain", SANITIZED])
def test_weights_may_lie_anywhere(executor):
    """Pixels that get whole words of taps get whole words of weights too, where these are aligned."""
    case = CASES[7]
    blocks, weights = values(case.blocks_shape, np.float32), values((17,), np.float32, 1)
    for window in (weights[:16].reshape(4, 4), weights[1:].reshape(4, 4), (weights[4:8], weights[5:9])):
        options = {"reduction": "mean", "window": window, "fill_value": 0}
        call = Call("blocks_to_array", blocks, (case.shape, case.block), {"strides": case.strides} | options)
        plan, arrays = run(call, "gather_pixels", executor=executor)
        assert plan.symbol == "col2im_gather_words"
        assert_same_bits(arrays.result, through_col2im(case, blocks, reduction="mean", window=window))


# ---------------------------------------------------------------------------------------------
# What is planned


def plan_of(operation, shape, block, strides, order=None):
    """Plan a call whose blocks are contiguous, or lie in memory in another order of their axes."""
    geometry = array_to_blocks_geometry(shape, block, strides)
    blocks = Operand.contiguous(geometry.blocks_shape)
    if order:
        inside = Operand.contiguous(tuple(geometry.blocks_shape[axis] for axis in order)).strides
        blocks = Operand(geometry.blocks_shape, tuple(inside[order.index(axis)] for axis in range(len(order))))
    array = Operand.contiguous(shape)
    arrays = (blocks, array) if operation == "blocks_to_array" else (array, blocks)
    return choose(calls.Call(operation, geometry, "float32"), *arrays, H200)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_tiles_of_short_blocks_are_small_enough_to_be_copied(dtype, monkeypatch):
    """Else they would be added by cells, in up to three times the time."""
    fold_copied, copied = runs._fold_copied, []
    monkeypatch.setattr(runs, "_fold_copied", lambda *arguments: copied.append(fold_copied(*arguments)))
    monkeypatch.delattr(runs, "fold_cells")
    gpufold.blocks_to_array(np.ones((1, 1, 200, 200, 8, 8), dtype), (1, 1, 207, 207), (8, 8))
    assert copied


@pytest.mark.parametrize("lead", [(), (3,), (2, 1), (2, 2, 2)], ids=str)
def test_atomic_additions_serve_any_leading_axes(lead):
    geometry = blocks_to_array_geometry((*lead, 6, 7, 3, 4), (*lead, 8, 10), (3, 4), 1)
    call = calls.Call("blocks_to_array", geometry, "float32", variant="atomic", deterministic=False)
    arrays = Operand.contiguous(geometry.blocks_shape), Operand.contiguous(geometry.array_shape)
    assert choose(call, *arrays, H200).variant == "atomic"


@pytest.mark.parametrize(
    ("expected", "operation", "shape", "block", "strides", "order"),
    [
        ("gather_blocks", "blocks_to_array", (64, 512, 512), (7, 7), 1, None),
        ("gather_blocks", "blocks_to_array", (8, 3, 512, 512), (8, 8), (1, 2), None),
        ("gather_blocks", "blocks_to_array", (16, 96, 96, 96), (3, 3, 3), 1, None),
        ("gather_pixels", "blocks_to_array", (64, 512, 512), (3, 3), 1, None),  # blocks of a sector
        ("gather_pixels", "blocks_to_array", (512, 512, 12), (8, 8), 1, None),  # rows of a few blocks
        ("gather_blocks", "blocks_to_array", (3, 512, 128), (24, 24), 1, None),  # few pixels, each in many blocks
        ("gather_blocks", "blocks_to_array", (2, 32, 100, 48), (8, 8, 8), 1, None),
        ("gather_blocks", "blocks_to_array", (12, 128, 128), (8, 8), 2, None),
        ("gather_blocks", "blocks_to_array", (19, 48_000), (30,), 1, None),
        ("gather_pixels", "blocks_to_array", (16, 96, 96, 96), (5, 5, 5), 2, None),
        ("gather_pixels", "blocks_to_array", (3, 16_000), (64,), 2, None),
        ("gather_pixels", "blocks_to_array", (64, 512, 512), (16, 16), 8, None),
        ("gather_pixels", "blocks_to_array", (64, 512, 512), (2, 2), 2, None),
        ("gather_pixels", "blocks_to_array", (64, 100_000), (8,), 1, None),
        ("gather_pixels", "blocks_to_array", (64, 512, 512), (7, 7), 1, (0, 3, 4, 1, 2)),
        ("packed", "array_to_blocks", (64, 512, 512), (7, 7), 1, None),
        ("taps", "array_to_blocks", (64, 512, 512), (8, 8), 1, None),
        ("taps", "array_to_blocks", (64, 512, 512), (16, 16), 16, None),
        ("runs", "array_to_blocks", (64, 511, 511), (7, 7), 1, (0, 3, 4, 1, 2)),
        ("direct", "array_to_blocks", (64, 512, 512), (16, 16), 16, (0, 3, 4, 1, 2)),
    ],
)
def test_auto_takes_the_variant_for_the_layout(expected, operation, shape, block, strides, order):
    plan = plan_of(operation, shape, block, strides, order)
    assert plan.variant == expected, plan.reason
    assert plan.operation == operation


def test_leading_axes_that_are_walked_as_one_are_planes():
    geometry = array_to_blocks_geometry((2, 3, 4, 8, 9), (2, 3), 1)
    contiguous = Operand.contiguous(geometry.blocks_shape).strides, Operand.contiguous(geometry.array_shape).strides
    sliding, _, _ = blocks_as_columns(geometry, *contiguous)
    assert (sliding.planes, len(sliding.axes)) == (24, 2)
    apart = (contiguous[0], (8 * 9, 2 * 8 * 9, 6 * 8 * 9, 9, 1))
    sliding, columns, image = blocks_as_columns(geometry, *apart)
    assert (sliding.batch, sliding.channels) == (2, 3)
    assert sliding.image_size == (4, 8, 9)
    assert image == apart[1]
    assert columns == (*contiguous[0][:2], 0, *contiguous[0][5:], *contiguous[0][2:5])
