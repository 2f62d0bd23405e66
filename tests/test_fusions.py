"""Means, windows and accumulation on NumPy arrays: the definition bit for bit, and the laws that users rely on."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest
from cases import (
    CASES,
    FUSIONS,
    INEXACT,
    assert_same_bits,
    crossed,
    fold,
    garbage,
    random_case,
    unfold,
    values,
    window_of,
)

COVERED = [case for case in CASES if fold(case, np.ones(case.columns_shape, np.int64)).min() > 0]
"""Cases in which every pixel is in a block."""


@cache
def defined(case, dtype, fusion, seed, make_window):
    """What a call is given, and what becomes of it by definition, which is worked out once for all ways."""
    reduction, kind, accumulate = fusion
    columns, window = values(case.columns_shape, dtype, seed), make_window(kind, case.kernel_size, dtype, seed)
    out = values(case.image_shape, dtype, seed + 1) if accumulate else None
    return columns, window, out, case.col2im(columns, reduction=reduction, window=window, out=out)


def check(case, dtype, fusion, seed=0, make_window=window_of):
    """Compare one call with the definition."""
    reduction, _, accumulate = fusion
    columns, window, out, want = defined(case, np.dtype(dtype), fusion, seed, make_window)
    got = out.copy() if accumulate else garbage(want.shape, want.dtype)
    message = f"{case!r} {np.dtype(dtype)} {fusion} seed {seed}"
    assert fold(case, columns, reduction=reduction, window=window, out=got, accumulate=accumulate) is got
    assert_same_bits(got, want, message)


@pytest.mark.parametrize(("case", "fusion"), crossed(CASES, FUSIONS))
def test_every_fusion_is_its_definition(case, fusion):
    check(case, np.float32, fusion)


@pytest.mark.some(3)
@pytest.mark.parametrize("first", range(0, 400, 100))
def test_random_problems_are_their_definition(first, way):
    for seed in range(first, first + 100):
        dtype = INEXACT[seed % len(INEXACT)]
        check(random_case(seed), dtype, random.Random(seed).choice(FUSIONS), seed)


# ---------------------------------------------------------------------------------------------
# Laws


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


# ---------------------------------------------------------------------------------------------
# Errors and memory
