"""What holds for every plan, whatever the call: it keeps within what a GPU has."""

from __future__ import annotations

import pytest

from gpufold.geometry import Axis, SlidingGeometry
from gpufold.plan import MAX_SHARED_BYTES, Fusion, Operand
from gpufold.planners import choose

# ---------------------------------------------------------------------------------------------
# Named calls


def sliding(kernel, strides, dilations, blocks=8):
    """Give a geometry of so many blocks along each axis, without padding."""
    sizes = [
        (taps - 1) * dilation + 1 + (blocks - 1) * stride
        for taps, stride, dilation in zip(kernel, strides, dilations, strict=True)
    ]
    return SlidingGeometry(
        2, 3, tuple(Axis(*axis, 0, 0) for axis in zip(sizes, kernel, strides, dilations, strict=True))
    )


def block_by_block(geometry):
    """Describe split columns with the taps of a block one after another in memory."""
    rank = len(geometry.axes)
    shape = geometry.split_columns_shape
    strides = Operand.contiguous((*shape[:2], *geometry.num_blocks, *geometry.kernel_size)).strides
    return Operand(shape, (*strides[:2], *strides[2 + rank :], *strides[2 : 2 + rank]))


@pytest.mark.parametrize(
    ("dtype", "kernel", "strides", "dilations"),
    [
        ("float16", (56, 4), (1, 2), (1, 4)),
        ("float16", (53, 12), (1, 6), (1, 1)),
        ("float32", (53, 10), (1, 10), (1, 1)),
    ],
)
def test_blocks_brought_with_their_divisors_fit_shared_memory(dtype, kernel, strides, dilations):
    """Their sums, divisors and taps are 48 KB, and the taps' padding was some bytes beyond."""
    geometry = sliding(kernel, strides, dilations)
    operands = block_by_block(geometry), Operand.contiguous(geometry.image_shape)
    plan = choose("col2im", geometry, dtype, *operands, variant="gather_blocks", fusion=Fusion("mean", "full"))
    # With a divisor and a sum of 4 bytes for each of 2048 pixels, the rest is for taps.
    taps = 2 * 4 * 2048 + blocks_staged(plan, kernel, strides, dilations) * (2 if dtype == "float16" else 4)
    assert taps <= plan.shared_bytes <= MAX_SHARED_BYTES


def blocks_staged(plan, kernel, strides, dilations):
    """Count the elements that kernels/col2im_gather_blocks.cu stages, by its own formula, and one more."""
    columns, chunk = (int(dict(plan.defines)[name]) for name in ("COLUMNS", "CHUNK"))
    before = ((kernel[-1] - 1) * dilations[-1] + strides[-1] - 1) // strides[-1]
    count = ((columns - 1 + strides[-1] - 1) // strides[-1] + before + 1) * chunk * kernel[-1]
    return count + (count // 32 if kernel[-1] % 2 == 0 else 0) + 1
