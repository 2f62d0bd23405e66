"""Blocks in a layout of their own: the functions are col2im and im2col through a transpose, in whatever layout."""

from __future__ import annotations

import random
import tracemalloc
from contextlib import suppress
from dataclasses import dataclass
from math import prod

import numpy as np
import pytest
from cases import (
    DTYPES,
    FUSIONS,
    INEXACT,
    SANITIZED,
    WEIGHTED_WIDENINGS,
    WIDENINGS,
    assert_same_bits,
    crossed,
    values,
    weights_of,
    window_of,
)
from moves import DEVICES, ONE_THREAD, in_layout, operand

import gpufold
from bench import hostcuda
from gpufold.calls import PLAIN, Call, Fusion, Unsupported
from gpufold.cpu import runs, ways
from gpufold.cpu import tiles as cpu_tiles
from gpufold.cpu.cells import fold_cells
from gpufold.cpu.runs import fold_runs
from gpufold.cpu.slices import fold_slices
from gpufold.cpu.ways import fold_way
from gpufold.elements import ELEMENT_TYPES
from gpufold.explanation import explain_call as explain
from gpufold.geometry import array_to_blocks_geometry, blocks_as_columns
from gpufold.gpu import parameters
from gpufold.gpu.plan import H200, Operand
from gpufold.gpu.registry import choose
from gpufold.operations import variants


@dataclass(frozen=True)
class Blocks:
    """The shape of an array, the last axes of which are taken apart."""

    name: str
    shape: tuple[int, ...]
    block: tuple[int, ...]
    strides: tuple[int, ...]

    def __str__(self):
        return self.name

    @property
    def lead(self):
        return self.shape[: -len(self.block)]

    @property
    def num_blocks(self):
        sizes = self.shape[len(self.lead) :]
        return tuple((n - b) // s + 1 for n, b, s in zip(sizes, self.block, self.strides, strict=True))

    @property
    def blocks_shape(self):
        return (*self.lead, *self.num_blocks, *self.block)

    @property
    def arguments(self):
        return self.block, self.strides


CASES = (
    Blocks("row", (17,), (5,), (2,)),
    Blocks("rest-uncovered", (3, 19), (4,), (6,)),
    Blocks("one-block", (2, 5, 7), (5, 7), (1, 1)),
    Blocks("dense-7x7", (20, 40), (7, 7), (1, 1)),
    Blocks("dense-8x8-in-two-tiles", (2, 12, 140), (8, 8), (1, 1)),
    Blocks("half-overlap", (2, 3, 16, 24), (4, 4), (2, 2)),
    Blocks("strides-differ", (2, 21, 34), (5, 6), (2, 3)),
    Blocks("patches", (3, 12, 16), (4, 4), (4, 4)),
    Blocks("volume", (2, 7, 8, 33), (3, 3, 3), (1, 1, 1)),
    Blocks("volume-strided", (6, 9, 14), (4, 3, 5), (2, 3, 1)),
    Blocks("three-leading", (2, 3, 4, 9, 10), (3, 4), (1, 2)),
    Blocks("four-axes", (2, 4, 3, 5, 6), (2, 1, 3, 2), (1, 1, 2, 2)),
    Blocks("many-taps", (1, 6, 40), (5, 38), (1, 1)),
)


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


@pytest.mark.parametrize(("case", "dtype"), crossed(CASES, DTYPES))
def test_they_are_col2im_and_im2col_through_a_transpose(case, dtype):
    blocks, array = values(case.blocks_shape, dtype), values(case.shape, dtype, 1)
    assert_same_bits(gpufold.blocks_to_array(blocks, case.shape, *case.arguments), through_col2im(case, blocks))
    assert_same_bits(gpufold.array_to_blocks(array, *case.arguments), through_im2col(case, array))


LARGE_CASES = (
    (Blocks("frames", (300_000,), (1024,), (256,)), fold_cells),
    (Blocks("short-frames", (2, 140_000), (8,), (2,)), fold_runs),
    (Blocks("patches", (2, 3, 100, 90), (8, 7), (1, 2)), fold_runs),
    (Blocks("tiles", (2, 600, 500), (280, 192), (70, 130)), fold_slices),
    (Blocks("volume", (60, 100, 90), (30, 32, 40), (15, 16, 20)), fold_slices),
)


@pytest.mark.parametrize("fusion", [("sum", "none", False), ("least_squares", "separable", True)], ids=["sum", "fused"])
@pytest.mark.parametrize(("case", "way"), LARGE_CASES, ids=lambda each: getattr(each, "__name__", str(each)))
def test_large_blocks_in_rows_have_the_bits_of_columns(case, way, fusion, monkeypatch):
    """Columns are summed in runs, blocks by cells or in slices, as they are best read; the bits are the same."""
    chosen = []
    monkeypatch.setattr(ways, "fold_way", lambda *given: chosen.append(fold_way(*given)) or chosen[-1])
    reduction, kind, accumulate = fusion
    blocks, out = values(case.blocks_shape, np.float32), values(case.shape, np.float32, 1)
    assert blocks.size > cpu_tiles.THREADED_ELEMENTS
    options = {"reduction": reduction, "window": window_of(kind, case.block, np.float32), "accumulate": accumulate}
    want = through_col2im(case, blocks, out, **options)
    got = gpufold.blocks_to_array(blocks, case.shape, *case.arguments, out=out.copy(), **options)
    assert_same_bits(got, want)
    assert [each for each, _ in chosen] == [fold_cells if way is fold_slices else fold_runs, way]


@pytest.mark.parametrize(("case", "seed"), crossed(CASES, range(20)))
def test_any_layout_gives_the_same(case, seed):
    rng = random.Random(seed)
    blocks, array = values(case.blocks_shape, np.float32, seed), values(case.shape, np.float32, seed + 1)
    out = in_layout(rng, np.empty(case.shape, np.float32))
    got = gpufold.blocks_to_array(in_layout(rng, blocks), case.shape, *case.arguments, out=out)
    assert got is out
    assert_same_bits(got, through_col2im(case, blocks))
    out = in_layout(rng, np.empty(case.blocks_shape, np.float32))
    got = gpufold.array_to_blocks(in_layout(rng, array), *case.arguments, out=out)
    assert got is out
    assert_same_bits(got, through_im2col(case, array))


@pytest.mark.parametrize(("case", "fusion"), crossed(CASES[3::2], FUSIONS))
def test_reductions_windows_and_accumulation_are_those_of_col2im(case, fusion):
    reduction, kind, accumulate = fusion
    dtype = INEXACT[len(case.name) % len(INEXACT)]
    rng = random.Random(str(fusion))
    blocks, window = values(case.blocks_shape, dtype), window_of(kind, case.block, dtype)
    out = values(case.shape, dtype, 1)
    options = {"reduction": reduction, "window": window, "accumulate": accumulate}
    want = through_col2im(case, blocks, out, **options)
    got = gpufold.blocks_to_array(
        in_layout(rng, blocks), case.shape, *case.arguments, out=in_layout(rng, out), **options
    )
    assert_same_bits(got, want)
    got = gpufold.array_to_blocks(in_layout(rng, out), *case.arguments, window=window)
    assert_same_bits(got, through_im2col(case, out, window=window))


@pytest.mark.parametrize(("narrow", "wide"), WIDENINGS)
def test_a_wider_sum_is_that_of_converted_blocks(narrow, wide):
    for case in CASES[::3]:
        blocks, options = values(case.blocks_shape, narrow), [{}]
        if (narrow, wide) in WEIGHTED_WIDENINGS:
            options.append({"reduction": "mean", "window": window_of("separable", case.block, wide), "fill_value": 0})
        for chosen in options:
            got = gpufold.blocks_to_array(blocks, case.shape, *case.arguments, dtype=wide, **chosen)
            assert_same_bits(got, gpufold.blocks_to_array(blocks.astype(wide), case.shape, *case.arguments, **chosen))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_they_are_adjoint_and_a_mean_undoes_the_blocks(case):
    rng = np.random.default_rng(0)
    blocks, array = rng.standard_normal(case.blocks_shape), rng.standard_normal(case.shape)
    taken = gpufold.array_to_blocks(array, *case.arguments)
    left = (gpufold.blocks_to_array(blocks, case.shape, *case.arguments) * array).sum()
    np.testing.assert_allclose(left, (blocks * taken).sum(), rtol=1e-10)
    back = gpufold.blocks_to_array(taken, case.shape, *case.arguments, reduction="mean", fill_value=0)
    covered = gpufold.blocks_to_array(np.ones(case.blocks_shape), case.shape, *case.arguments) > 0
    np.testing.assert_allclose(back, np.where(covered, array, 0), rtol=1e-14)


def test_leading_axes_may_be_empty_and_strings_move():
    assert gpufold.array_to_blocks(np.ones((0, 3, 8)), (4,), 2).shape == (0, 3, 3, 4)
    assert gpufold.blocks_to_array(np.ones((2, 0, 3, 4)), (2, 0, 8), (4,), 2).shape == (2, 0, 8)
    words = np.array(["a", "b", "c", "d", "e"])
    blocks = gpufold.array_to_blocks(words, (2,), 2)
    assert blocks.tolist() == [["a", "b"], ["c", "d"]]
    assert gpufold.blocks_to_array(blocks, (5,), (2,), 2).tolist() == ["a", "b", "c", "d", ""]
    with pytest.raises(TypeError, match="strings"):
        gpufold.blocks_to_array(gpufold.array_to_blocks(words, (2,), 1), (5,), (2,), 1)


LAYOUTS = {
    "transposed": lambda blocks: blocks.transpose(1, 0, *range(2, 7)),
    "backwards": lambda blocks: blocks[::-1, :, ::-1, ::-1],
    "sliced": lambda blocks: blocks[:, 1::2],
    "broadcast": lambda blocks: np.broadcast_to(blocks[:, :1], blocks.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_nothing_is_copied(layout):
    blocks = layout(np.ones((4, 4, 2, 61, 61, 8, 8), np.float32))
    shape = (*blocks.shape[:3], 128, 128)
    out, taken = np.empty(shape, np.float32), np.empty(blocks.shape, np.float32)
    gpufold.set_num_threads(1)
    try:
        for _ in range(2):  # caches of geometry are filled once
            tracemalloc.start()
            gpufold.blocks_to_array(blocks, shape, (8, 8), 2, out=out)
            gpufold.array_to_blocks(out, (8, 8), 2, out=taken)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    finally:
        gpufold.set_num_threads(None)
    assert peak < 4 * cpu_tiles.TILE_ELEMENTS + 600_000 < blocks.nbytes // 4


ERRORS = (
    (TypeError, "block_shape must be a sequence", lambda a: gpufold.array_to_blocks(a, 3, 1)),
    (ValueError, "block_shape must be a sequence .* at least one", lambda a: gpufold.array_to_blocks(a, (), 1)),
    (ValueError, "rank 2", lambda a: gpufold.array_to_blocks(a, (1, 1, 1), 1)),
    (ValueError, "strides must have 2 values", lambda a: gpufold.array_to_blocks(a, (2, 2), (1, 1, 1))),
    (
        ValueError,
        "strides must be at least 1 .* got 0 on axis 1",
        lambda a: gpufold.array_to_blocks(a, (2, 2), (1, 0)),
    ),
    (ValueError, "block_shape must be at least 1", lambda a: gpufold.array_to_blocks(a, (2, 0), 1)),
    (
        ValueError,
        "a block must fit into the array, got block_shape 9 on axis 1",
        lambda a: gpufold.array_to_blocks(a, (2, 9), 1),
    ),
    (ValueError, "a block must fit into the array", lambda a: gpufold.array_to_blocks(a[:, :0], (2, 2), 1)),
    (TypeError, "block_shape must be an integer or", lambda a: gpufold.array_to_blocks(a, (2.0, 2), 1)),
    (TypeError, "output_shape must be a sequence", lambda a: gpufold.blocks_to_array(a, 8, (8,), 1)),
    (ValueError, "output_shape must be .* got 1 values", lambda a: gpufold.blocks_to_array(a, (8,), (2, 2), 1)),
    (
        ValueError,
        r"blocks must be .* \(4, 2\) for output_shape=\(8,\)",
        lambda a: gpufold.blocks_to_array(a, (8,), (2,), 2),
    ),
    (ValueError, "out must have the result's shape", lambda a: gpufold.array_to_blocks(a, (2,), 2, out=a)),
    (ValueError, "share no memory", lambda a: gpufold.blocks_to_array(a[:, None], (6, 8), (8,), 1, out=a)),
    (
        TypeError,
        "reduction 'mean' needs a dtype of floats",
        lambda a: gpufold.blocks_to_array(a[:, None].astype("i4"), (6, 8), (8,), 1, reduction="mean", dtype="i8"),
    ),
    (
        TypeError,
        "blocks_to_array: dtype must be that of blocks, float64, got float32",
        lambda a: gpufold.blocks_to_array(a[:, None], (6, 8), (8,), 1, dtype="f4"),
    ),
    (Unsupported, "is a GPU kernel", lambda a: gpufold.array_to_blocks(a, (2,), 2, variant="taps")),
    (ValueError, "variant must be auto or one of", lambda a: gpufold.array_to_blocks(a, (2,), 2, variant="gather")),
)


@pytest.mark.parametrize(("error", "match", "call"), ERRORS)
def test_what_does_not_fit_is_refused(error, match, call):
    with pytest.raises(error, match=match):
        call(np.ones((6, 8)))


# ---------------------------------------------------------------------------------------------
# The kernels, run on the CPU


def run(operation, case, data, result, variant, device=H200, fusion=PLAIN, window=None, **mode):
    """Run a variant; gives its plan."""
    geometry = array_to_blocks_geometry(case.shape, *case.arguments)
    plan = choose(
        Call(operation, geometry, data.dtype.name, fusion=fusion, variant=variant),
        operand(data),
        operand(result),
        device,
    )
    hostcuda.run(plan, data, result, window, **mode)
    return plan


def check_kernels(case, dtype, rng, device=H200, **mode):
    """Run every variant that serves the case in some layout, both ways."""
    blocks, array = values(case.blocks_shape, dtype, rng.randrange(99)), values(case.shape, dtype, rng.randrange(99))
    if rng.random() < 0.5:
        blocks = in_layout(rng, blocks)
    want = through_col2im(case, blocks)
    served = set()
    for variant in ("auto", *variants("blocks_to_array")):
        if variant == "atomic" and not ELEMENT_TYPES[np.dtype(dtype).name].exact:
            continue
        result = np.empty(case.shape, dtype)
        if variant != "atomic" and rng.random() < 0.5:
            result = in_layout(rng, result)
        try:
            served.add(run("blocks_to_array", case, blocks, result, variant, device, **mode).variant)
        except Unsupported:
            continue
        assert_same_bits(result, want, f"{case} {variant}")
    want = through_im2col(case, array)
    for variant in ("auto", *variants("array_to_blocks")):
        result = (
            in_layout(rng, np.empty(case.blocks_shape, dtype))
            if rng.random() < 0.5
            else np.empty(case.blocks_shape, dtype)
        )
        try:
            served.add(run("array_to_blocks", case, in_layout(rng, array), result, variant, device, **mode).variant)
        except Unsupported:
            continue
        assert_same_bits(result, want, f"{case} {variant}")
    return served


@pytest.mark.some(3)
@pytest.mark.hostcuda
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_kernel_is_the_numpy_path_in_any_layout(case):
    number = CASES.index(case)
    served = set()
    for seed in range(6):
        served |= check_kernels(case, DTYPES[number % len(DTYPES)], random.Random(f"{case} {seed}"), DEVICES[seed % 2])
    assert {"gather_pixels", "taps"} <= served


@pytest.mark.some(3)
@pytest.mark.hostcuda
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_the_numpy_path(dtype):
    check_kernels(CASES[5], dtype, random.Random(str(dtype)), ONE_THREAD)


@pytest.mark.hostcuda
@pytest.mark.parametrize("mode", ["observed", "shuffled", SANITIZED])
@pytest.mark.parametrize("case", [CASES[3], CASES[4], CASES[8], CASES[12]], ids=str)
def test_threads_wait_for_each_other_and_stay_inside_the_arrays(case, mode):
    for device in DEVICES:
        blocks, array = values(case.blocks_shape, np.float32), values(case.shape, np.float32, 1)
        result = np.empty(case.shape, np.float32)
        run("blocks_to_array", case, blocks, result, "gather_blocks", device, mode=mode)
        assert_same_bits(result, through_col2im(case, blocks))
        result = np.empty(case.blocks_shape, np.float32)
        run("array_to_blocks", case, array, result, "taps", device, mode=mode)
        assert_same_bits(result, through_im2col(case, array))


@pytest.mark.hostcuda
@pytest.mark.parametrize("reduction", ["sum", "mean", "least_squares"])
def test_leading_axes_apart_have_no_weights(reduction):
    """They are axes of one tap to the kernels, where batch and channels are too few to count them."""
    (case,) = (case for case in CASES if case.name == "three-leading")
    blocks, array = values(case.blocks_shape, np.float32), values(case.shape, np.float32, 1)
    blocks = np.ascontiguousarray(blocks.swapaxes(0, 2)).swapaxes(0, 2)
    window = window_of("separable", case.block, np.float32)
    want = through_col2im(case, blocks, reduction=reduction, window=window)
    served = set()
    for variant in set(variants("blocks_to_array")) - {"atomic"}:
        result = np.empty(case.shape, np.float32)
        fusion = Fusion(reduction, "separable")
        with suppress(Unsupported):
            plan = run("blocks_to_array", case, blocks, result, variant, fusion=fusion, window=window)
            assert dict(plan.defines)["WINDOW_AXES"] == "2"
            assert dict(plan.defines)["KERNEL"] == "1,3,4"
            assert_same_bits(result, want, variant)
            served.add(variant)
    assert {"gather", "gather_parts", "gather_pixels"} <= served
    want = through_im2col(case, array, window=window)
    for variant in variants("array_to_blocks"):
        result = np.empty_like(blocks)
        with suppress(Unsupported):
            run("array_to_blocks", case, array, result, variant, fusion=Fusion("sum", "separable"), window=window)
            assert_same_bits(result, want, variant)
            served.add(variant)
    assert "taps" in served


@pytest.mark.some(3)
@pytest.mark.hostcuda
@pytest.mark.parametrize("number", range(len(FUSIONS)))
def test_kernels_fuse_as_the_numpy_path(number):
    reduction, kind, accumulate = FUSIONS[number]
    case, dtype = CASES[3 + number % (len(CASES) - 3)], INEXACT[number % len(INEXACT)]
    rng = random.Random(number)
    blocks, window = in_layout(rng, values(case.blocks_shape, dtype)), window_of(kind, case.block, dtype)
    before = values(case.shape, dtype, 1)
    options = {"reduction": reduction, "window": window, "accumulate": accumulate}
    want = through_col2im(case, blocks, before, **options)
    kind, weights = weights_of(window, case.block, np.dtype(dtype))
    for variant in ("auto", "gather_blocks", "gather_pixels"):
        for device in DEVICES:
            result = in_layout(rng, before.copy())
            try:
                run(
                    "blocks_to_array",
                    case,
                    blocks,
                    result,
                    variant,
                    device,
                    Fusion(reduction, kind, accumulate),
                    weights,
                )
            except Unsupported:
                assert variant == "gather_blocks"
                continue
            assert_same_bits(result, want, f"{case} {variant}")
    want = through_im2col(case, before, window=window)
    result = np.empty(case.blocks_shape, dtype)
    run("array_to_blocks", case, before, result, "taps", H200, Fusion(window=kind), weights)
    assert_same_bits(result, want)


@pytest.mark.hostcuda
@pytest.mark.parametrize("mode", ["plain", "sanitized"])
def test_weights_may_lie_anywhere(mode):
    """Pixels that get whole words of taps get whole words of weights too, where these are aligned."""
    case = CASES[7]
    blocks, weights = values(case.blocks_shape, np.float32), values((17,), np.float32, 1)
    for window in (weights[:16].reshape(4, 4), weights[1:].reshape(4, 4), (weights[4:8], weights[5:9])):
        want = through_col2im(case, blocks, reduction="mean", window=window)
        kind, arrays = weights_of(window, case.block, np.dtype(np.float32))
        result, fusion = np.empty(case.shape, np.float32), Fusion("mean", kind)
        plan = run("blocks_to_array", case, blocks, result, "gather_pixels", H200, fusion, arrays, mode=mode)
        assert plan.symbol == "col2im_gather_words"
        assert_same_bits(result, want)


@pytest.mark.hostcuda
@pytest.mark.parametrize("case", [CASES[3], CASES[8], CASES[10]], ids=str)
def test_wide_offsets_give_the_same(case, monkeypatch):
    monkeypatch.setattr(parameters, "INT32_MAX", 10)
    choose.cache_clear()
    blocks, array = values(case.blocks_shape, np.float32), values(case.shape, np.float32, 1)
    result, taken = np.empty(case.shape, np.float32), np.empty(case.blocks_shape, np.float32)
    plans = (
        run("blocks_to_array", case, blocks, result, "gather_blocks"),
        run("array_to_blocks", case, array, taken, "taps"),
    )
    choose.cache_clear()
    assert [dict(plan.defines)["OFFSET"] for plan in plans] == ["long long"] * 2
    assert_same_bits(result, through_col2im(case, blocks))
    assert_same_bits(taken, through_im2col(case, array))


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
    return choose(Call(operation, geometry, "float32"), *arrays, H200)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_tiles_of_short_blocks_are_small_enough_to_be_copied(dtype, monkeypatch):
    """Else they would be added by cells, in up to three times the time."""
    fold_copied, copied = runs._fold_copied, []
    monkeypatch.setattr(runs, "_fold_copied", lambda *arguments: copied.append(fold_copied(*arguments)))
    monkeypatch.delattr(runs, "fold_cells")
    gpufold.blocks_to_array(np.ones((1, 1, 200, 200, 8, 8), dtype), (1, 1, 207, 207), (8, 8))
    assert copied


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
        ("taps", "array_to_blocks", (64, 512, 512), (7, 7), 1, None),
        ("taps", "array_to_blocks", (64, 512, 512), (16, 16), 16, None),
        ("direct", "array_to_blocks", (64, 512, 512), (7, 7), 1, (0, 3, 4, 1, 2)),
        ("direct", "array_to_blocks", (64, 111, 111), (7, 7), 1, (0, 3, 4, 1, 2)),
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


def test_explain_and_warmup_know_them():
    why = gpufold.explain("blocks_to_array", ((8, 250, 250, 7, 7), "float32"), (8, 256, 256), (7, 7), 1)
    assert why.plan.variant == "gather_blocks"
    assert why.plan.bytes_moved == 4 * (8 * 250 * 250 * 49 + 8 * 256 * 256)
    assert "gather_pixels" in why.alternatives
    why = gpufold.explain("array_to_blocks", np.ones((256, 256), np.float16), (7, 7), 1)
    assert why.plan.operation == "array_to_blocks"
    assert str(why).startswith("array_to_blocks: packed, because")
    geometry = array_to_blocks_geometry((9,), (3,), 1)
    operands = Operand.contiguous((7, 3)), Operand.contiguous((9,))
    explanation = explain(Call("blocks_to_array", geometry, "float16"), *operands)
    assert explanation.alternatives["atomic"].startswith("atomic adds in memory")
