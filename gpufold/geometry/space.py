"""Batch-to-space: `batch_to_space` and `space_to_batch`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import islice
from math import prod
from operator import index
from typing import Any

from gpufold.geometry.axes import Axes, Axis, OnAxes
from gpufold.geometry.integers import PerAxis, Size, as_integers, check_at_least, check_axes, check_of_sizes, expand
from gpufold.given import shown


class SpaceGeometry(OnAxes):
    """Geometry of a batch (B*prod(block), *D) and space (B, *E): blocks tile the axes of E.

    Element (offset*B + b, *d) of the batch array is pixel d*block + offset - pad_begin of image b, where offset runs
    over the block in lexicographic order; the pads are crops of the image (batch_to_space) or zeros around it
    (space_to_batch).
    """

    @property
    def batch(self) -> int:
        return self.lead[0]

    @cached_property
    def blocks_shape(self) -> Size:
        return (self.batch * prod(self.block_shape), *self.num_blocks)


def space_axes(grid: Sequence[int], block: Sequence[int], begin: Sequence[int], end: Sequence[int]) -> Axes:
    """Return the axes of space for a grid of blocks with margins."""
    return tuple(
        Axis(count * side - before - behind, side, side, 1, before, behind)
        for count, side, before, behind in zip(grid, block, begin, end, strict=True)
    )


def _block_arguments(operation: str, shape: Size, block_shape: PerAxis, **given: PerAxis) -> tuple[Size, Size, Size]:
    """Check block shape and margins against the rank; return their spatial parts."""
    rank = len(shape)
    if rank < 2:
        raise ValueError(
            f"{operation}: data must be (batch, *spatial axes), so of rank 2 or more, got rank {rank}: shape {shape}"
        )
    if isinstance(block_shape, int) or len(block_shape) != rank:
        spatial = (block_shape,) * (rank - 2) if isinstance(block_shape, int) else block_shape
        rewrite = f"; of channels-last data it is {(1, *spatial, 1)}" if len(spatial) == rank - 2 > 0 else ""
        raise (TypeError if isinstance(block_shape, int) else ValueError)(
            f"{operation}: block_shape must have {rank} values, one per axis of data, 1 for the batch first, got "
            f"{shown(block_shape)}{rewrite}"
        )
    check_axes(operation, "block_shape", block_shape, 2 * rank, "data with block and grid apart")
    check_at_least(operation, "block_shape", block_shape, 1)
    if block_shape[0] != 1:
        raise ValueError(
            f"{operation}: block_shape must be 1 on axis 0, the batch axis, "
            f"got {block_shape[0]}: block_shape={block_shape}"
        )
    margins = []
    for name, margin in given.items():
        if isinstance(margin, int) and margin:
            raise TypeError(
                f"{operation}: {name} must have {rank} values, one per axis of data, 0 for the batch first, got "
                f"{shown(margin)}; an integer does not say which axes are spatial"
            )
        margin = expand(operation, name, margin, rank, "data")
        check_at_least(operation, name, margin, 0)
        if margin[0] != 0:
            raise ValueError(
                f"{operation}: {name} must be 0 on axis 0, the batch axis, got {margin[0]}: {name}={margin}"
            )
        margins.append(margin[1:])
    return block_shape[1:], margins[0], margins[1]


def _margins(operation: str, name: str, value: Any, shape: Size) -> PerAxis:
    """Return margins as integers; errors for TensorFlow's pairs say how to write them here."""
    try:
        return as_integers(operation, name, value)
    except TypeError:
        margins = margins_of_pairs(value, len(shape))
        if not margins:
            raise
        what = name.partition("_")[0]
        raise TypeError(
            f"{operation}: {name} must be one integer per axis of data, got the pairs {shown(value)}; write "
            f"{what}_begin={margins[0]}, {what}_end={margins[1]}"
        ) from None


def margins_of_pairs(pairs: Any, rank: int) -> tuple[Size, ...]:
    """Return the begins and ends of pairs for the first axes after the batch; () if they are not such pairs."""
    try:
        begins, ends = zip(*([index(begin), index(end)] for begin, end in islice(pairs, rank)), strict=True)
    except Exception:  # whatever the methods of a caller's own class raise
        return ()
    rest = (0,) * (rank - 1 - len(begins))
    return ((0, *begins, *rest), (0, *ends, *rest)) if len(begins) < rank else ()


@check_of_sizes(crops_begin=_margins, crops_end=_margins)
def batch_to_space_geometry(
    data_shape: Size, block_shape: PerAxis, crops_begin: PerAxis = 0, crops_end: PerAxis = 0
) -> SpaceGeometry:
    """Check the sizes of a batch_to_space call."""
    operation = "batch_to_space"
    block, begin, end = _block_arguments(
        operation, data_shape, block_shape, crops_begin=crops_begin, crops_end=crops_end
    )
    batch, *grid = data_shape
    if batch % prod(block):
        raise ValueError(
            f"{operation}: data axis 0, the batch, must be a multiple of prod(block_shape) = {prod(block)} "
            f"for block_shape={(1, *block)}, got {batch}: shape {data_shape}"
        )
    axes = space_axes(grid, block, begin, end)
    for number, axis in enumerate(axes):
        if axis.size < 0:
            raise ValueError(
                f"{operation}: crops_begin + crops_end must not exceed data * block_shape on any axis, "
                f"got {axis.pad_begin} + {axis.pad_end} = {axis.pad_begin + axis.pad_end} on axis {number + 1}, "
                f"where {grid[number]} * {axis.kernel} = {grid[number] * axis.kernel}"
            )
    return SpaceGeometry((batch // prod(block),), axes)


@check_of_sizes(pads_begin=_margins, pads_end=_margins)
def space_to_batch_geometry(
    data_shape: Size, block_shape: PerAxis, pads_begin: PerAxis = 0, pads_end: PerAxis = 0
) -> SpaceGeometry:
    """Check the sizes of a space_to_batch call."""
    operation = "space_to_batch"
    block, begin, end = _block_arguments(operation, data_shape, block_shape, pads_begin=pads_begin, pads_end=pads_end)
    batch, *size = data_shape
    axes = tuple(
        Axis(extent, side, side, 1, *pads) for extent, side, *pads in zip(size, block, begin, end, strict=True)
    )
    for number, axis in enumerate(axes):
        if axis.padded_size % axis.kernel:
            raise ValueError(
                f"{operation}: data + pads_begin + pads_end must be a multiple of block_shape on every axis, "
                f"got {axis.size} + {axis.pad_begin} + {axis.pad_end} = {axis.padded_size} on axis {number + 1}, "
                f"where block_shape is {axis.kernel}"
            )
    return SpaceGeometry((batch,), axes)
