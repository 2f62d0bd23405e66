"""Where the blocks of a grid begin: `grid_positions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpufold.geometry.integers import as_integers, check_at_least, expand

LAST_BLOCKS = ("shift", "even", "over", "drop")
"""What becomes of a block that reaches beyond the end of an axis: see `gpufold.grid_positions`."""


def grid_of_blocks(size: Any, block_shape: Any, strides: Any, last: object) -> tuple[Sequence[int], ...]:
    """Check the sizes of a grid_positions call, and return where blocks begin along each axis.

    >>> grid_of_blocks((10, 4), (4, 4), 3, "shift")
    ([0, 3, 6], [0])
    """
    operation = "grid_positions"
    given = [
        as_integers(operation, name, value)
        for name, value in (("size", size), ("block_shape", block_shape), ("strides", strides))
    ]
    extents = (given[0],) if isinstance(given[0], int) else given[0]
    if not extents:
        raise ValueError(f"{operation}: size must have at least one axis, got size={size!r}")
    blocks, steps = (
        expand(operation, name, value, len(extents), f"size={extents}")
        for name, value in zip(("block_shape", "strides"), given[1:], strict=True)
    )
    for name, values in (("size", extents), ("block_shape", blocks), ("strides", steps)):
        check_at_least(operation, name, values, 1)
    if last not in LAST_BLOCKS:
        raise ValueError(f"{operation}: last must be one of {', '.join(LAST_BLOCKS)}, got {last!r}")
    for axis, (extent, block) in enumerate(zip(extents, blocks, strict=True)):
        if block > extent and last != "over":
            raise ValueError(
                f"{operation}: a block must fit into the array, got block_shape {block} on axis {axis}, where size is "
                f"{extent}: block_shape={blocks}, size={extents}; last='over' lets blocks hang over"
            )
    return tuple(
        _begins(extent, block, step, str(last)) for extent, block, step in zip(extents, blocks, steps, strict=True)
    )


def _begins(extent: int, block: int, stride: int, last: str) -> Sequence[int]:
    """Return where blocks begin along one axis, in ascending order."""
    free = max(0, extent - block)  # where the last block begins that ends with the axis
    if last == "drop":
        return range(0, free + 1, stride)
    steps = -(-free // stride)
    if last == "even":
        distance = free / max(1, steps)  # in double precision, as in nnU-Net, whose tiles these are
        return [*(min(free, round(distance * number)) for number in range(steps)), free]
    begins = range(0, steps * stride + 1, stride)
    return begins if last == "over" else [min(begin, free) for begin in begins]
