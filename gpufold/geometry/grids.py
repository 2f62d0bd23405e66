"""Sizes of `grid_positions` and `Stitcher`: blocks on a grid, and the array that they cover."""

from __future__ import annotations

import sys
from math import prod
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from gpufold.geometry.integers import Size, as_integers, check_at_least, expand, sequence, whole_shape
from gpufold.given import word

LastBlock: TypeAlias = Literal["shift", "even", "over", "drop"]
LastSlidingBlock: TypeAlias = Literal["drop", "over"]
LAST_BLOCKS = get_args(LastBlock)
"""How to place the last block of an axis, see `gpufold.grid_positions`."""

ENDLESS = sys.maxsize
"""The extent of an unbounded axis."""


class GridAxis(NamedTuple):
    """Where blocks begin along an axis: block i at i * step, rounded half to even, and the last one at `last`."""

    blocks: int
    step: float
    last: int


def grid_of_blocks(size: Any, block_shape: Any, strides: Any, last: object) -> tuple[GridAxis, ...]:
    """Check the sizes of a grid_positions call, and return where blocks begin along each axis."""
    operation = "grid_positions"
    given = [
        as_integers(operation, name, value)
        for name, value in (("size", size), ("block_shape", block_shape), ("strides", strides))
    ]
    extents = sequence(operation, "size", given[0])
    blocks, steps = (
        expand(operation, name, value, len(extents), f"size={extents}")
        for name, value in zip(("block_shape", "strides"), given[1:], strict=True)
    )
    for name, values in (("size", extents), ("block_shape", blocks), ("strides", steps)):
        check_at_least(operation, name, values, 1)
    last = word(operation, "last", last, LAST_BLOCKS)
    for axis, (extent, block) in enumerate(zip(extents, blocks, strict=True)):
        if block > extent and last != "over":
            raise ValueError(
                f"{operation}: a block must fit into the array, got block_shape {block} on spatial axis {axis}, where "
                f"size is {extent}: block_shape={blocks}, size={extents}; last='over' lets blocks extend beyond it"
            )
    axes = tuple(
        _axis(axis, extent, block, step, last)
        for axis, (extent, block, step) in enumerate(zip(extents, blocks, steps, strict=True))
    )
    count = prod(along.blocks for along in axes)
    if count * len(axes) * 8 > sys.maxsize:
        raise ValueError(
            f"{operation}: {' * '.join(str(along.blocks) for along in axes)} = {count} positions have more bytes than "
            f"the {sys.maxsize} that an array can have"
        )
    return axes


def _axis(axis: int, extent: int, block: int, stride: int, last: str) -> GridAxis:
    """Return where blocks begin along one axis."""
    free = max(0, extent - block)  # where a block begins that ends with the axis
    steps = free // stride if last == "drop" else -(-free // stride)
    end = free if last in ("shift", "even") else steps * stride
    if end > sys.maxsize:
        raise ValueError(
            f"grid_positions: positions must fit into 64 bits, got a last block at {end} on spatial axis {axis}"
        )
    if last == "even":  # in double precision, as in nnU-Net
        return GridAxis(steps + 1, free / max(1, steps), end)
    return GridAxis(steps + 1, min(stride, end), end)


def stitched_sizes(output_shape: Any, block_shape: Any) -> tuple[Size, Size, Size]:
    """Return the leading and other extents of a stitcher's result, and the tile's shape; None becomes ENDLESS."""
    open_axes: list[int] = []
    if type(output_shape) in (tuple, list):
        open_axes = [axis for axis, extent in enumerate(output_shape) if extent is None]
        output_shape = [ENDLESS if extent is None else extent for extent in output_shape]
    extents = whole_shape("Stitcher", "output_shape", as_integers("Stitcher", "output_shape", output_shape))
    block = as_integers("Stitcher", "block_shape", block_shape)
    if isinstance(block, int):
        block = (block,) * len(extents[open_axes[0] if open_axes else 0 :])
    if not block or len(block) > len(extents) or min(block) < 1 or min(extents) < 0:
        raise ValueError(
            "Stitcher: output_shape must be (*lead, *size) of extents of at least 0, and block_shape have one value of "
            f"at least 1 for each axis of size, at least one, got output_shape={extents} and block_shape={block}"
        )
    if max(*extents, *block) > sys.maxsize:
        raise ValueError(
            f"Stitcher: no extent may be larger than the {sys.maxsize} elements that an axis can have, got "
            f"output_shape={extents} and block_shape={block}"
        )
    lead = len(extents) - len(block)
    if open_axes not in ([], [lead]):
        raise ValueError(
            f"Stitcher: output_shape may have None for the first axis of size only, here axis {lead}, got None for "
            f"axes {open_axes}: a block of {block} has {len(block)} axes of size"
        )
    return extents[:lead], extents[lead:], block
