"""Blocks at arbitrary positions, and division by weights: `add_blocks`, `take_blocks`, `average`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gpufold.geometry.axes import Axis, OnAxes, hash_once
from gpufold.geometry.integers import PerAxis, Size, check_at_least, check_axes, check_of_sizes, expand

SINGLE = "a single position is in a list of its own, such as [(3, 4)]"
"""A hint for positions with one axis, which may be meant as one position."""


@dataclass(frozen=True)
class PositionsGeometry:
    """Geometry of blocks (count, *lead, *block_shape) at positions in an array (*lead, *size)."""

    count: int
    lead: Size
    size: Size
    block_shape: Size

    __hash__ = hash_once

    @cached_property
    def array_shape(self) -> Size:
        return (*self.lead, *self.size)

    @cached_property
    def blocks_shape(self) -> Size:
        return (self.count, *self.lead, *self.block_shape)


@check_of_sizes()
def add_blocks_geometry(array_shape: Size, blocks_shape: Size, positions_shape: Size) -> PositionsGeometry:
    """Check the sizes of an add_blocks call; the last axis of positions determines the number of spatial axes."""
    operation = "add_blocks"
    count, rank = _count_and_rank(operation, array_shape, positions_shape)
    lead = len(array_shape) - rank
    if len(blocks_shape) != 1 + len(array_shape) or blocks_shape[: 1 + lead] != (count, *array_shape[:lead]):
        expected = ", ".join(map(str, (count, *array_shape[:lead])))
        hint = "the axes of positions are the last ones of array and of blocks; others, such as channels, come first"
        given = blocks_shape[0] if len(blocks_shape) == 1 + len(array_shape) else 0
        if rank == given == 1 < count <= len(array_shape):
            hint = SINGLE
        elif count != 1 and (given == 1 or (blocks_shape[:lead] == array_shape[:lead] and not given)):
            hint = f"one block for all positions is numpy.broadcast_to(block, ({count}, *block.shape))"
        elif given not in (0, count):
            hint = f"{given} blocks need as many positions"
        raise ValueError(
            f"{operation}: blocks must be (number of positions, *lead, *block_shape) = ({expected}, *block_shape) "
            f"with {rank} axes of block_shape, for array of shape {array_shape} and positions of shape "
            f"{positions_shape}, got shape {blocks_shape}; {hint}"
        )
    return PositionsGeometry(count, array_shape[:lead], array_shape[lead:], blocks_shape[1 + lead :])


@check_of_sizes()
def take_blocks_geometry(array_shape: Size, positions_shape: Size, block_shape: PerAxis) -> PositionsGeometry:
    """Check the sizes of a take_blocks call."""
    operation = "take_blocks"
    count, rank = _count_and_rank(operation, array_shape, positions_shape)
    lead = len(array_shape) - rank
    single = rank == 1 < count <= len(array_shape)
    source = f"positions of shape {positions_shape}{f' ({SINGLE})' if single else ''}"
    block = expand(operation, "block_shape", block_shape, rank, source)
    check_at_least(operation, "block_shape", block, 1, "spatial axis")
    check_axes(operation, "block_shape", block, 1 + len(array_shape), f"blocks of an array of {len(array_shape)}")
    return PositionsGeometry(count, array_shape[:lead], array_shape[lead:], block)


def _count_and_rank(operation: str, array_shape: Size, positions_shape: Size) -> tuple[int, int]:
    """Return the number of positions and of spatial axes, or raise if an array has fewer axes."""
    if len(positions_shape) != 2 or not positions_shape[1]:
        raise ValueError(
            f"{operation}: positions must be (number of blocks, number of spatial axes), at least one axis, "
            f"got shape {positions_shape}"
        )
    count, rank = positions_shape
    if len(array_shape) < rank:
        raise ValueError(
            f"{operation}: array must be (*lead, *size) with {rank} axes of size, one per column of positions "
            f"of shape {positions_shape}, got rank {len(array_shape)}: shape {array_shape}"
        )
    return count, rank


class AverageGeometry(OnAxes):
    """Geometry of weights (*size) that divide an array (*lead, *size), like one block as large as the array."""

    @property
    def blocks_shape(self) -> Size:
        return self.array_shape


@check_of_sizes()
def average_geometry(array_shape: Size, weight_shape: Size) -> AverageGeometry:
    """Check the sizes of an average call."""
    lead = len(array_shape) - len(weight_shape)
    if lead < 0 or array_shape[lead:] != weight_shape:
        raise ValueError(
            f"average: weight must have the shape of numerator's last axes, where numerator has shape {array_shape}, "
            f"got {weight_shape}"
        )
    return AverageGeometry(array_shape[:lead], tuple(Axis(extent, extent, 1, 1, 0, 0) for extent in weight_shape))
