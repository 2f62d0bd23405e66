"""Sums divided by the sums of their weights: the rule of a mean, in place too, on the NumPy path and the kernel."""

from __future__ import annotations

import numpy as np
import pytest
from cases import CASES, INEXACT, assert_same_bits, fold, garbage, unfold, values, window_of
from definition import average as definition

import gpufold

COVERED = [case for case in CASES if fold(case, np.ones(case.columns_shape, np.int64)).min() > 0]
"""Cases in which every pixel is in a block."""


@pytest.mark.parametrize("case", COVERED, ids=str)
def test_a_mean_gives_back_what_im2col_took(case):
    image = values(case.image_shape, np.float64)
    columns = unfold(case, image)
    for kind in ("none", "separable", "full"):
        window = window_of(kind, case.kernel_size, np.float64)
        if window is not None:  # a mean needs weights that do not cancel
            window = tuple(abs(w) + 0.5 for w in window) if kind == "separable" else abs(window) + 0.5
        back = fold(case, columns, reduction="mean", window=window)
        np.testing.assert_allclose(back, image, rtol=1e-12, atol=1e-300)
        back = fold(case, unfold(case, image, window=window), reduction="least_squares", window=window)
        np.testing.assert_allclose(back, image, rtol=1e-12, atol=1e-300)


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
