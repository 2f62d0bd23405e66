"""Common parts of the plans of add_blocks and take_blocks: blocks at positions and their image, with strides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

from gpufold.elements import ElementType
from gpufold.geometry import PositionsGeometry, Size, merged_axes
from gpufold.gpu.parameters import Field, divisor, offset, offset_bits, struct, wide
from gpufold.gpu.plan import LaunchShape, Operand, Plan, Problem, make_plan
from gpufold.gpu.variants.views import SECTOR_BYTES

THREADS = 256
CANDIDATES = 4
"""Most blocks that a thread tests at a time; tests may run that far past the last block."""
COUNT_BYTES = 4
"""Bytes of a warp's count of blocks."""
POSITION_BYTES = 8
"""Bytes of a block's coordinate."""


@dataclass(frozen=True, slots=True)
class PlacedView:
    """Blocks (count, batch, channels, *block) and image (batch, channels, *size) by their strides.

    Leading axes that cannot be merged into batch and channels are the first of `size` and `block`, without a position.
    """

    element: ElementType
    count: int
    batch: int
    channels: int
    fixed: int
    size: Size
    block: Size
    block_step: int
    blocks_batch: int
    blocks_channel: int
    tap_strides: Size
    image_batch: int
    image_channel: int
    pixel_strides: Size
    weight_strides: Size
    """Strides of the sums of weights; 0 along leading axes."""


@lru_cache(maxsize=256)
def placed_view(problem: Problem) -> PlacedView:
    """Name every stride, and merge leading axes that are contiguous in both arrays."""
    geometry = problem.geometry
    assert isinstance(geometry, PositionsGeometry)
    count = len(geometry.lead)
    takes = problem.call.operation == "take_blocks"
    blocks, image = (problem.output, problem.input) if takes else (problem.input, problem.output)
    block_step, *blocks_strides = blocks.strides
    lead = merged_axes(geometry.lead, tuple(blocks_strides[:count]), image.strides[:count])
    if len(lead) < 2:
        lead = [(1, 0, 0)] * (2 - len(lead)) + lead
    (batch, blocks_batch, image_batch), (channels, blocks_channel, image_channel), *rest = lead
    extents, rest_taps, rest_pixels = (tuple(axis[i] for axis in rest) for i in range(3))
    return PlacedView(
        problem.element,
        geometry.count,
        batch,
        channels,
        len(rest),
        (*extents, *geometry.size),
        (*extents, *geometry.block_shape),
        block_step,
        blocks_batch,
        blocks_channel,
        (*rest_taps, *blocks_strides[count:]),
        image_batch,
        image_channel,
        (*rest_pixels, *image.strides[count:]),
        (*(0,) * len(rest), *((0,) * len(geometry.size) if problem.weight_out is None else problem.weight_out.strides)),
    )


def bits_of(problem: Problem, items: int, tile: Size, *others: int) -> int:
    """Return the width of an Offset for a kernel whose threads own tiles."""
    view = placed_view(problem)
    reach = [size + block + side for size, block, side in zip(view.size, view.block, tile, strict=True)]
    return offset_bits(
        items + THREADS,
        view.count + 2 * CANDIDATES * THREADS,  # tests run past the last
        view.channels,
        max(reach),
        sum(abs(stride) * extent for stride, extent in zip(view.tap_strides, reach, strict=True)),
        sum(abs(stride) * extent for stride, extent in zip(view.pixel_strides, reach, strict=True)),
        sum(abs(stride) * extent for stride, extent in zip(view.weight_strides, reach, strict=True)),
        prod(view.block),
        *others,
    )


def placed_plan(
    problem: Problem, variant: str, shape: LaunchShape, reason: str, members: dict[str, Field], **defines: Any
) -> Plan:
    """Make a plan with the common parts of all variants; `members` follow the Parameters of kernels/positions.cuh.

    `defines` follow the common macros and replace those of the same name.
    """
    operation, view, element = problem.call.operation, placed_view(problem), problem.element
    takes = operation == "take_blocks"
    shared = struct(
        block_step=wide(view.block_step),
        blocks_batch=wide(view.blocks_batch),
        blocks_channel=wide(view.blocks_channel),
        image_batch=wide(view.image_batch),
        image_channel=wide(view.image_channel),
        count=offset(view.count),
        channels=offset(view.channels),
        items=offset(shape.items),
        size=offset(view.size),
        block=offset(view.block),
        tap_stride=offset(view.tap_strides),
        pixel_stride=offset(view.pixel_strides),
        weight_stride=offset(view.weight_strides),
        by_extent=divisor(shape.extents),
        by_channels=divisor(shape.channel_groups),
    )
    return make_plan(
        problem,
        variant,
        shape,
        reason,
        {
            "SCALAR": problem.call.source_scalar,
            "RESULT": defines.get("SCALAR", element.scalar),
            "ACCUMULATOR": element.accumulator,
            "WEIGHT": element.weight_type,
            "WEIGHT_OUT": int(problem.weight_out is not None),
            "RANK": len(view.size),
            "FIXED": view.fixed,
            "WINDOW": problem.fusion.window,
            "WINDOW_AXES": len(view.size) - view.fixed,
            **defines,
        },
        {"shared": shared, **members},
        bytes_moved=_bytes_moved(problem),
        atomic_output=variant == "atomic",
        reads_output=not takes,
    )


def _bytes_moved(problem: Problem) -> int:
    """Count the minimum traffic: positions and blocks once, and the sectors under blocks once or twice."""
    geometry, itemsize = problem.geometry, problem.element.itemsize
    assert isinstance(geometry, PositionsGeometry)
    placed = geometry.count * len(geometry.size) * POSITION_BYTES
    if problem.call.operation == "take_blocks":
        return placed + prod(geometry.blocks_shape) * itemsize + _bytes_under_blocks(geometry, problem.input, itemsize)
    added = placed + prod(geometry.blocks_shape) * problem.call.source_element.itemsize
    changed = _bytes_under_blocks(geometry, problem.output, itemsize)
    if problem.weight_out is not None:
        changed += _bytes_under_blocks(replace(geometry, lead=()), problem.weight_out, problem.element.weight_bytes)
    return added + 2 * changed


def _bytes_under_blocks(geometry: PositionsGeometry, array: Operand, itemsize: int) -> int:
    """Count the bytes that memory moves of an array for blocks side by side: whole sectors.

    A row that begins anywhere touches, on average, one sector less an element more than it fills.
    """
    *_, columns = geometry.block_shape
    row = columns * itemsize + (SECTOR_BYTES - itemsize if array.strides[-1] == 1 else 0)
    return min(prod(array.shape) * itemsize, prod(geometry.blocks_shape) // columns * row)


def tiles_of(size: Size, tile: Size) -> Size:
    """Return the tiles along each axis."""
    return tuple(-(-extent // side) for extent, side in zip(size, tile, strict=True))
