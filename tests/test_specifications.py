"""The examples printed on the pages of OpenVINO Col2Im-15 and ONNX Col2Im-18."""

from __future__ import annotations

import numpy as np
import pytest

import gpufold
from gpufold.geometry import col2im_geometry

OPENVINO_COL2IM = [
    # Columns, output_size, kernel_size and options as printed, and the number of blocks by the page's formula.
    ((3, 12, 225), (16, 16), (2, 2), {}, 225),
    ((1, 27, 25), (16, 16), (3, 3), {"strides": 2, "dilations": 2, "pads_begin": 1, "pads_end": 1}, 7 * 7),
    ((12, 12, 324), (32, 32), (2, 2), {"dilations": 2, "pads_begin": 3, "pads_end": 3}, 36 * 36),
]


@pytest.mark.parametrize(("columns", "output_size", "kernel_size", "options", "blocks"), OPENVINO_COL2IM)
def test_openvinos_col2im_examples_follow_the_formula(columns, output_size, kernel_size, options, blocks):
    """Examples 2 and 3 print L = 25 and L = 324; the formula above them gives 49 and 1296, and it stands."""
    if columns[2] != blocks:
        said = rf"data axis 2 must be the number of blocks, got {columns[2]}.* = {blocks} "
        with pytest.raises(ValueError, match=said):
            gpufold.col2im(np.zeros(columns, np.int32), output_size, kernel_size, **options)
    image = gpufold.col2im(np.zeros((*columns[:2], blocks), np.int32), output_size, kernel_size, **options)
    assert image.shape == (columns[0], 3, *output_size)


def test_onnxs_example_of_block_order():
    """An image of 10x20 and blocks of 9x18 make 2*3 blocks: (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)."""
    assert col2im_geometry((1, 162, 6), (10, 20), (9, 18), 1, 1, 0, 0).num_blocks == (2, 3)
    columns = np.zeros((1, 162, 6), np.int64)
    columns[0, 0] = range(1, 7)  # the first tap of a block lands on the block's own position
    image = gpufold.col2im(columns, (10, 20), (9, 18))
    np.testing.assert_array_equal(image[0, 0, :2, :3], [[1, 2, 3], [4, 5, 6]])
