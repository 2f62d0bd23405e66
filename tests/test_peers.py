"""Other libraries' own bits; `make test PEERS=1` installs them.

That they compute the same as gpufold, on every case, is asked where they are timed: tests/test_bench.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from processes import python

import gpufold


@pytest.mark.peer("torch")
def test_torch_has_the_same_bits():
    """torch's CPU kernel adds in lexicographic order too, so float32 sums agree to the last bit."""
    import torch

    columns = np.random.default_rng(1).standard_normal((3, 4 * 25, 40 * 50)).astype(np.float32)
    want = torch.nn.functional.fold(torch.from_numpy(columns), (44, 54), 5).numpy()
    assert gpufold.col2im(columns, (44, 54), (5, 5)).tobytes() == want.tobytes()


@pytest.mark.peer("sigpy")
@pytest.mark.parametrize("lead", [(), (2, 1, 3)], ids=str)
@pytest.mark.parametrize(
    ("size", "block", "strides"),
    [((40,), (9,), (4,)), ((17, 23), (4, 5), (2, 3)), ((9, 10, 11), (3, 2, 4), (2, 1, 3))],
)
def test_sigpy_has_the_same_bits(lead, size, block, strides):
    """It adds the blocks' elements in lexicographic order too."""
    import sigpy

    rng = np.random.default_rng(0)
    array = rng.standard_normal((*lead, *size)).astype(np.float32)
    blocks = gpufold.array_to_blocks(array, block, strides=strides)
    want = sigpy.array_to_blocks(array, block, strides)
    assert blocks.tobytes() == want.tobytes()
    assert blocks.shape == want.shape
    blocks = rng.standard_normal(blocks.shape).astype(np.float32)
    got = gpufold.blocks_to_array(blocks, array.shape, block, strides=strides)
    assert got.tobytes() == sigpy.blocks_to_array(blocks, array.shape, block, strides).tobytes()


# ---------------------------------------------------------------------------------------------
# Triton: a kernel of the benchmark's own, interpreted where there is no GPU

INTERPRETED = """
import sys
import numpy as np, torch
from bench.triton_fold import _fold, fold
from cases import Case
from gpufold.geometry import col2im_geometry
import gpufold
for number, case in enumerate((
    Case("frames", (37,), (5,), 2, 2, 3, 1, batch=2, channels=3),
    Case("long-frames", (75,), (70,), 40, 1, 20, 35, channels=2),
    Case("pixels", (9, 21), (3, 4), (2, 1), (1, 2), (1, 0), (0, 2), batch=2, channels=2),
    Case("many-taps", (10, 11), (9, 8), (1, 3), 1, (2, 0), 4, channels=1),
)):
    geometry = col2im_geometry(case.columns_shape, case.output_size, case.kernel_size, **case.arguments)
    columns = np.random.default_rng(number).integers(-50, 51, case.columns_shape).astype(np.float32)
    image = torch.full(geometry.image_shape, np.nan)
    fold(torch.from_numpy(columns), image, geometry, _fold.fn, ROWS=(1, 4)[number // 2], COLUMNS=(32, 16)[number % 2])
    want = gpufold.col2im(columns, case.output_size, case.kernel_size, **case.arguments)
    np.testing.assert_array_equal(image.numpy().reshape(want.shape), want, str(case))
"""


@pytest.mark.peer("torch")
@pytest.mark.peer("triton")
def test_a_fold_in_triton_agrees():
    """Of one axis and of two, with the loop over taps unrolled and not."""
    python("-c", INTERPRETED, TRITON_INTERPRET="1")
