"""Sums divided by the sums of their weights: the rule of a mean, in place too, on the NumPy path and the kernel."""

from __future__ import annotations

import random

import numpy as np
import pytest
from cases import INEXACT, assert_same_bits, garbage, values, window_of
from definition import average as definition
from executors import in_layout

import gpufold

SHAPES = (((7,), 1), ((2, 3, 5, 6), 2), ((3, 4, 5), 3), ((600, 3), 1), ((4, 1, 1), 0))
"""Shapes of sums, and how many of their last axes have weights."""


def problem(shape, axes, dtype, seed=0):
    weight = values(shape[len(shape) - axes :], np.float32, seed + 1)
    kind = np.random.default_rng(seed).integers(0, 5, weight.shape)
    tiny = np.finfo(np.float32).tiny
    return values(shape, dtype, seed), np.select([kind == 0, kind == 1, kind == 2], [0, tiny, tiny / 2], weight).astype(
        "f4"
    )


@pytest.mark.parametrize("dtype", INEXACT, ids=str)
@pytest.mark.parametrize(("shape", "axes"), SHAPES, ids=str)
def test_it_is_its_definition(shape, axes, dtype):
    rng = random.Random(f"{shape} {dtype}")
    sums, weight = problem(shape, axes, dtype)
    want = definition(sums, weight)
    assert_same_bits(gpufold.average(in_layout(rng, sums), weight), want)
    out = in_layout(rng, garbage(shape, dtype))
    assert gpufold.average(sums, weight.astype(np.float64), out=out) is out
    assert_same_bits(out, want)
    here = in_layout(rng, sums)
    assert gpufold.average(here, weight, out=here) is here
    assert_same_bits(here, want, "in place")


@pytest.mark.parametrize("weight_dtype", ["f2", "f4", ">f4", "f8", "g", "i1", "u8"])
@pytest.mark.parametrize("dtype", INEXACT, ids=str)
def test_one_weight_of_any_dtype_divides_all_that_is_there(dtype, weight_dtype):
    for shape in ((), (4,), (2, 3)):
        for number in (3, 0):
            sums, weight = np.asarray(values(shape, dtype)), np.array(number, weight_dtype)
            want, out, here = definition(sums, weight), garbage(shape, dtype), sums.copy()
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


def test_sums_and_their_weights_are_the_mean():
    blocks, positions = values((9, 3, 4, 5), np.float32), gpufold.grid_positions((8, 11), (4, 5), strides=(2, 3))[:9]
    window = window_of("full", (4, 5), np.float32)
    total, weight = np.zeros((3, 8, 11), np.float32), np.zeros((8, 11), np.float32)
    gpufold.add_blocks_(total, blocks, positions, window=window)
    gpufold.add_blocks_(weight, np.broadcast_to(np.float32(1), (9, 4, 5)), positions, window=window)
    want = gpufold.blocks_to_array(
        blocks.swapaxes(0, 1).reshape(3, 3, 3, 4, 5),
        (3, 8, 11),
        (4, 5),
        strides=(2, 3),
        window=window,
        reduction="mean",
    )
    np.testing.assert_allclose(gpufold.average(total, weight), want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("weight", [2.0, 0.0, 1e-40])
@pytest.mark.parametrize("shape", [(), (2, 3), (0, 3)], ids=str)
@pytest.mark.parametrize("dtype", INEXACT, ids=str)
def test_one_weight_may_have_no_axis(dtype, shape, weight):
    sums = np.asarray(values(shape, dtype), dtype)
    one = np.array(weight, "f8" if np.dtype(dtype).name in ("float64", "complex128") else "f4")
    want = definition(sums, np.broadcast_to(one, shape).astype("f8"))
    assert_same_bits(gpufold.average(sums, one), want)
    out = garbage(shape, dtype)
    assert gpufold.average(sums, one, out=out) is out
    assert_same_bits(out, want)


SUMS = np.ones((2, 3, 4))
OVERLAPPING = np.ones(30)


@pytest.mark.parametrize(
    ("error", "match", "arguments", "options"),
    [
        (TypeError, "numerator must be a numpy.ndarray", (SUMS.tolist(), SUMS), {}),
        (TypeError, "weight must be a numpy.ndarray", (SUMS, [1.0]), {}),
        (TypeError, "numerator must be of floats or complex numbers, got dtype int64", (SUMS.astype(int), SUMS), {}),
        (TypeError, "weight must hold real numbers, got dtype complex128", (SUMS, SUMS.astype(complex)), {}),
        (
            ValueError,
            r"weight must have the shape of numerator's last axes, .* got \(2, 3\)",
            (SUMS, SUMS[..., 0]),
            {},
        ),
        (ValueError, "weight must have the shape", (SUMS[0], SUMS), {}),
        (ValueError, "out must have the result's shape", (SUMS, SUMS), {"out": SUMS[0]}),
        (TypeError, "out must have the result's dtype", (SUMS, SUMS), {"out": SUMS.astype("f4")}),
        (ValueError, "out must share no memory with weight", (SUMS.copy(), SUMS), {"out": SUMS}),
        (
            ValueError,
            "out must share no memory with numerator",
            (OVERLAPPING[:24], np.ones(24)),
            {"out": OVERLAPPING[1:25]},
        ),
        (ValueError, "'direct' is a GPU kernel", (SUMS, SUMS), {"variant": "direct"}),
    ],
)
def test_what_does_not_fit_is_refused(error, match, arguments, options):
    with pytest.raises(error, match=f"^average: .*{match}"):
        gpufold.average(*arguments, **options)
    assert (SUMS == 1).all()
