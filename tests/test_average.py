"""Sums divided by the sums of their weights: the rule of a mean, in place too, on the NumPy path and the kernel."""

from __future__ import annotations

import numpy as np
import pytest
from cases import INEXACT, assert_same_bits, garbage, values
from definition import average as definition

import gpufold


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
