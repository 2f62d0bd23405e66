"""What holds for every plan, whatever the call: it keeps within what a GPU has."""

from __future__ import annotations

import pytest

from gpufold.geometry import Axis, SlidingGeometry, batch_geometry, positions_geometry
from gpufold.plan import MAX_SHARED_BYTES, Fusion, Operand, Unsupported
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


def test_blocks_beyond_the_rows_of_a_grid_are_moved_by_their_indices():
    """A variant that is predicted to be slower serves a call that the faster one refuses."""
    geometry = batch_geometry((65535 * 16 + 1, 2), (1, 65535 * 16 + 1), 0, 0)
    operands = Operand.contiguous(geometry.batch_shape), Operand.contiguous(geometry.space_shape)
    plan = choose("batch_to_space", geometry, "float32", *operands)
    assert plan.variant == "index_map"
    assert plan.reason.startswith("staged serves no blocks of 1048561 pixels along the last axis: ")


def test_taps_that_are_not_evenly_apart_are_taken_one_by_one():
    geometry = sliding((2, 3), (1, 1), (1, 1))
    columns = Operand((2, 3, 2, 3, 8, 8), (64 * 24, 64 * 8, 64 * 4, 64, 8, 1))
    plan = choose("im2col", geometry, "int8", Operand.contiguous(geometry.image_shape), columns)
    assert plan.variant == "taps"
    assert "not evenly apart" in plan.reason


def test_an_order_that_matters_is_never_given_up():
    """Positions along so many axes that gathering threads cannot list them: atomics are all that is left."""
    geometry = positions_geometry((1,) * 50, (3, *(1,) * 50), (3, 50))
    operands = Operand.contiguous(geometry.blocks_shape), Operand.contiguous(geometry.array_shape)
    call = ("add_blocks", geometry, "float64", *operands)
    with pytest.raises(
        Unsupported, match=r"no variant serves the call: gather would need .*; atomic adds in any order"
    ):
        choose(*call)
    plan = choose(*call, deterministic=False)
    assert plan.variant == "atomic"
    assert "bytes of shared memory" in plan.reason
