"""What no block covers, and what blocks take outside of an array: refused or filled, and as `numpy.pad` has it."""

from __future__ import annotations

import re
from contextlib import nullcontext
from decimal import Decimal
from fractions import Fraction
from functools import partial, reduce
from numbers import Number

import numpy as np
import pytest
from cases import assert_same_bits, fold, random_blocks_case, random_case, unfold, values
from fronts import x64
from test_kinds import KINDS, converted, every_kind, kinds

import gpufold
from gpufold.calls import MODES


def padded(array, case, mode="constant"):
    """Pad an array to the end of the blocks that cover it."""
    return np.pad(array, [*[(0, 0)] * len(case.lead), *((0, beyond) for beyond in case.beyond)], mode)


def coverage(case):
    """Count the blocks on each element, one by one."""
    counts = np.zeros(case.size, int)
    for position in gpufold.grid_positions(case.size, case.block, strides=case.strides, last=case.last):
        counts[tuple(slice(start, start + side) for start, side in zip(position, case.block, strict=True))] += 1
    return counts


@every_kind
@pytest.mark.parametrize("mode", MODES)
def test_beyond_the_end_is_what_a_padded_array_has(kind, mode, monkeypatch):
    """A large array of NumPy is not padded: the last blocks of each axis are taken by position."""
    it, lasts = KINDS[kind], set()
    for seed in range(24):
        monkeypatch.setattr("gpufold.blocks.PADDED_BYTES", seed % 2 * 2**18)
        monkeypatch.setattr("gpufold.blocks._are_few_beyond", lambda axes: True)
        case, dtype = random_blocks_case(seed), ("float32", "int8", "complex64")[seed % 3]
        array = values(case.shape, dtype, seed)
        whole = padded(array, case, mode)
        window = None if dtype == "int8" else values(case.block, "float32", seed + 1)
        lasts.add((case.last, whole.shape == array.shape))
        want = gpufold.array_to_blocks(whole, case.block, strides=case.strides, window=window)
        if mode == "constant":  # zero, whatever the weight
            ones = padded(np.ones(case.shape, bool), case)
            want[~gpufold.array_to_blocks(ones, case.block, strides=case.strides)] = 0
        options = {"window": converted(kind, window, "window"), "mode": mode}
        got = gpufold.array_to_blocks(it.to(array), case.block, **case.arguments, **options)
        assert_same_bits(np.ascontiguousarray(it.back(got)), want, case)
    assert len(lasts) == 3, "drop, and over with and without blocks beyond the end"


def test_a_result_is_written_into_out_and_an_array_is_described():
    array = np.arange(5.0)
    out = np.full((3, 2), np.nan)
    assert gpufold.array_to_blocks(array, (2,), strides=2, last="over", mode="symmetric", out=out) is out
    np.testing.assert_array_equal(out, [[0, 1], [2, 3], [4, 4]])
    options = {"strides": 2, "last": "over", "mode": "wrap"}
    assert gpufold.explain("array_to_blocks", array, (2,), **options).plan == (
        gpufold.explain("array_to_blocks", np.arange(6.0), (2,), strides=2).plan
    )


@pytest.mark.parametrize("reduction", ["mean", "least_squares"])
def test_an_average_gives_back_what_was_taken_and_is_refused_or_filled_where_nothing_was(reduction):
    for seed in range(200):
        case = random_blocks_case(seed)
        array = values(case.shape, np.float64, seed)
        weights = [abs(values((side,), np.float64, seed)) + 0.5 for side in case.block]
        window = (None, tuple(weights), reduce(np.multiply.outer, weights))[seed % 3]
        used = window if reduction == "least_squares" else None
        blocks = gpufold.array_to_blocks(array, case.block, **case.arguments, window=used)
        options = case.arguments | {"reduction": reduction, "window": window}
        stitched = partial(gpufold.blocks_to_array, blocks, case.shape, case.block, **options)
        assert_close = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-300, err_msg=str(case))
        covered = coverage(case) > 0
        if covered.all():
            assert_close(stitched(), array)
        else:
            said = r"got .* use blocks with (last='over' .*|smaller strides), or fill_value=0 to fill"
            with pytest.raises(ValueError, match=said):
                stitched()
        for fill_value in (0, 7, np.nan):
            assert_close(stitched(fill_value=fill_value), np.where(covered, array, fill_value))


@pytest.mark.parametrize("reduction", ["mean", "least_squares"])
def test_pixels_that_no_block_covers_are_refused_or_filled(reduction):
    """By geometry alone, and the pads that the message names cover all."""
    refused = 0
    for seed in range(300):
        case = random_case(seed)
        columns, options = unfold(case, np.ones(case.image_shape)), case.arguments | {"reduction": reduction}
        folded = partial(gpufold.col2im, columns, case.output_size, case.kernel_size, **options)
        want = np.where(fold(case, columns), 1, np.nan)
        assert_same_bits(folded(fill_value=np.nan), want, f"seed {seed}")
        if not np.isnan(want).any():
            assert_same_bits(folded(), want, f"seed {seed}")
            continue
        refused += 1
        with pytest.raises(ValueError, match=r"^col2im: .* use .*, or fill_value=0 to fill") as caught:
            folded()
        if found := re.search(r"on spatial axis (\d) \(image .* pads_end=(\d+), or", str(caught.value)):
            axis, pad = map(int, found.groups())
            along = {name: steps[axis] for name, steps in case.arguments.items()} | {"pads_end": pad}
            image, kernel = np.ones((1, case.output_size[axis])), (case.kernel_size[axis],)
            columns = gpufold.im2col(image, kernel, **along)
            assert_same_bits(gpufold.col2im(columns, image.shape[1:], kernel, reduction="mean", **along), image)
    assert refused > 50


@pytest.mark.peer("torch")
def test_tensors_are_folded_by_torch_s_names_with_what_was_named():
    import torch

    columns = torch.ones(1, 4, 4)
    with pytest.raises(ValueError, match=r"^fold: .* \(image axis 2\), .* fill_value=0 to fill"):
        gpufold.torch.fold(columns, 5, 2, stride=2, reduction="mean")
    filled = gpufold.torch.fold(columns, 5, 2, stride=2, reduction="mean", fill_value=7)
    assert filled[0, 0, 4].tolist() == [7] * 5
    module = gpufold.torch.Fold(5, 2, stride=2, reduction="mean", fill_value=7)
    assert torch.equal(module(columns), filled)


@kinds("numpy", "torch", "jax")
@pytest.mark.parametrize(
    "number",
    [np.float32(2.5), np.float16(-1), np.True_, Fraction(5, 2), Decimal("0.5"), 2**31, 2**64, 1e300, -1e300, np.inf],
    ids=repr,
)
def test_what_no_block_covers_may_be_any_number(kind, number):
    it, blocks = KINDS[kind], np.ones((2, 2), np.float32)
    with np.errstate(over="ignore"):
        want = [1, 1, 1, 1, np.float32(float(number))]
    options = {"strides": 2, "reduction": "mean", "fill_value": number}
    stitchers = whole, in_slabs = [gpufold.Stitcher((3, 5), (2,), slabs=slabs) for slabs in (False, True)]
    for stitcher in stitchers:
        stitcher.add(it.to(np.ones((2, 3, 2), np.float32)), [(0,), (2,)])
    with np.errstate(over="raise"):
        for got in (
            gpufold.blocks_to_array(it.to(blocks), (5,), (2,), **options),
            gpufold.col2im(it.to(blocks), (5,), (2,), **options)[0],
            whole.result(fill_value=number)[1],
            in_slabs.result(fill_value=number)[1][1],
        ):
            assert it.back(got).tolist() == want


@pytest.mark.parametrize("number", [Fraction(10**400), 10**400, Decimal("sNaN"), type("Own", (Number,), {})()])
@pytest.mark.parametrize("dtype", ["float16", "float64", "complex64"])
def test_a_number_without_a_value_is_refused_before_anything_is_written(number, dtype):
    out = np.full(5, 7, dtype)
    with pytest.raises(ValueError, match=f"^blocks_to_array: fill_value must fit the dtype {dtype}, got "):
        gpufold.blocks_to_array(np.ones((2, 2), dtype), (5,), (2,), strides=2, fill_value=number, out=out)
    assert (out == 7).all()


@kinds("numpy", "torch", "jax")
def test_what_no_block_covers_may_be_the_largest_integer(kind):
    it = KINDS[kind]
    for dtype in (np.uint32, np.int32) if kind == "jax" else (np.uint32, np.int64, np.uint64):
        most = int(np.iinfo(dtype).max)
        got = gpufold.blocks_to_array(it.to(np.ones((2, 2), dtype)), (5,), (2,), strides=2, fill_value=most)
        assert it.back(got).tolist() == [1, 1, 1, 1, most]


@pytest.mark.peer("torch")
def test_a_compiled_mean_of_what_is_not_covered_is_refused_or_filled():
    """As soon as sizes have values: where they are symbols, when the program runs."""
    import torch

    def mean(blocks, like, **options):
        return gpufold.blocks_to_array(blocks, like.shape, (3,), strides=3, reduction="mean", **options)

    blocks, said = torch.ones(2, 3), "blocks must cover every element with reduction='mean', got 2 of 8 uncovered"
    for dynamic in (False, True):
        torch.compiler.reset()
        compiled = torch.compile(mean, backend="aot_eager", fullgraph=True, dynamic=dynamic)
        assert compiled(blocks, torch.ones(6)).tolist() == [1] * 6
        with pytest.raises(Exception, match=said):
            compiled(blocks, torch.ones(8))
        assert compiled(blocks, torch.ones(8), fill_value=0).tolist() == [1] * 6 + [0] * 2
    with pytest.raises(Exception, match=said):
        torch.jit.trace(lambda blocks: mean(blocks, torch.ones(8)), blocks)


@kinds("numpy", "torch", "jax", "dask")
@pytest.mark.parametrize(("stride", "dilation"), [(5, 1), (7, 3), (200, 1)])
def test_many_gaps_are_filled(kind, stride, dilation):
    """Between two taps a dilation apart, of 100 blocks."""
    it, size = KINDS[kind], 99 * stride + dilation + 9
    options = {"strides": stride, "dilations": dilation, "pads_begin": 1, "pads_end": 0}
    blocks = (size + 1 - dilation - 1) // stride + 1
    columns = np.ones((2, blocks), np.float32)
    covered = gpufold.col2im(columns, (size,), (2,), **options) > 0
    got = gpufold.col2im(it.to(columns), (size,), (2,), **options, reduction="mean", fill_value=-1)
    assert_same_bits(it.back(got), np.where(covered, 1, -1).astype(np.float32))


@kinds("torch", "jax")
def test_the_gradient_by_a_weight_leaves_the_range_of_the_sums(kind):
    """It is of the weights' dtype."""
    it, sums, weight = KINDS[kind], np.array([1, 3], np.float16), np.array([1e-3, 0.7], np.float32)
    if kind == "torch":
        learned = it.to(weight).requires_grad_()
        gpufold.average(it.to(sums), learned).sum().backward()
        gradient = learned.grad
    else:
        import jax

        gradient = jax.grad(lambda weight: gpufold.average(it.to(sums), weight).sum())(it.to(weight))
    np.testing.assert_allclose(it.back(gradient), [-1e6, -3 / 0.49], rtol=1e-6)


@kinds("numpy", "torch", "jax")
def test_an_average_by_a_weight_that_vanishes_in_the_precision_of_the_sums_is_zero(kind):
    """Other weights that would become zero count as the smallest normal number."""
    it = KINDS[kind]
    with x64(True) if kind == "jax" else nullcontext():
        sums, weight = it.to(np.array([1, 1, 1e-38], np.float32)), it.to(np.array([1e-50, 2, 1e-300]))
        assert it.back(gpufold.average(sums, weight)).tolist() == [0, 0.5, 0]
