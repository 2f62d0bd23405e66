"""Which way columns take into an image: the one whose inner loops are the longest in the memory of the columns."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TypeAlias

from gpufold.cpu import tiles
from gpufold.cpu.arithmetic import Array
from gpufold.cpu.cells import fold_cells
from gpufold.cpu.indexed import are_few, fold_indexed
from gpufold.cpu.runs import COPIED_BYTES, fold_runs
from gpufold.cpu.slices import fold_slices
from gpufold.elements import sum_dtype
from gpufold.geometry import Axis
from gpufold.geometry.cells import LONG_STRIDE, plan_of

Way: TypeAlias = Callable[[Array, Array, tuple[Axis, ...], Array | None], None]
"""Adds split columns, weighed, into a tile of an image, every element of which it writes."""

SMALL_ELEMENTS = 1 << 14
"""Column elements up to which starting array operations takes longer than to add each by its index."""

LONG_ELEMENTS = 1 << 9
"""Of an array operation on a tile at least: to start one takes little beside that."""

CACHED_BYTES = 1 << 19
"""Of a tile by cells: it stays in the cache of a core while the taps of every cell offset pass over it."""

SHORT_TAPS = 12
"""Taps of a row up to which columns are copied, blocks along rows, to be added by runs."""

CUT_ROWS, SMALL_BLOCK = 256, 1 << 16
"""Pieces of a block's rows that an addition of its own spares: from here on they cost more than that does; and pixels
of a block up to which tiles are larger, so that they cut few blocks into still shorter additions."""


def fold_way(columns: Array, image: Array, axes: tuple[Axis, ...]) -> tuple[Way, int]:
    """Return the way that columns take into an image, and how many pixels a tile has at most.

    Runs go along the blocks. Where taps lie closer together, short rows of them are copied for that; others are added
    by cells, which cut a block's rows where a stride ends, or in a slice for each block. Few go by their index.
    """
    plan = plan_of(axes)
    if plan.once or columns.size <= SMALL_ELEMENTS:
        return fold_cells if plan.once else fold_indexed, tiles.TILE_ELEMENTS
    if are_few(columns.size, axes):
        return fold_indexed, pixels_of(tiles.TILE_ELEMENTS, columns, image)
    rows, last = prod(axis.kernel for axis in axes[:-1]), axes[-1]
    cached = min(tiles.TILE_ELEMENTS, max(CACHED_BYTES // image.itemsize, LONG_ELEMENTS * plan.operations))
    closest, short = taps_are_closest(columns, axes), last.kernel <= min(SHORT_TAPS, last.blocks)
    if plan.few_blocks and (short or not closest):
        return fold_cells, cached
    if not closest:
        return fold_runs, tiles.TILE_ELEMENTS
    if short:
        copied = COPIED_BYTES // 2 // sum_dtype(image.dtype).itemsize  # half, for rows of sums may be longer
        return fold_runs, pixels_of(max(copied, LONG_ELEMENTS * plan.operations), columns, image)
    planes = min(image.shape[1], max(1, tiles.TILE_ELEMENTS // prod(image.shape[2:])))  # of a tile
    cuts = (last.dilated_kernel - 1) // max(last.stride, LONG_STRIDE)
    if planes * rows * cuts >= CUT_ROWS and all(axis.dilation == 1 or axis.kernel == 1 for axis in axes):
        return fold_slices, tiles.TILE_ELEMENTS * (4 if rows * last.kernel <= SMALL_BLOCK else 1)
    return fold_cells, cached


def pixels_of(elements: int, columns: Array, image: Array) -> int:
    """Return how many pixels so many column elements land on."""
    return max(1, elements * image.size // max(1, columns.size))


def taps_are_closest(columns: Array, axes: tuple[Axis, ...]) -> bool:
    """Return whether neighbouring taps lie closer in memory than neighbouring blocks."""
    rank = len(axes)
    taps = [abs(s) for s, axis in zip(columns.strides[2 : 2 + rank], axes, strict=True) if axis.kernel > 1]
    blocks = [abs(s) for s, axis in zip(columns.strides[2 + rank :], axes, strict=True) if axis.blocks > 1]
    return bool(taps) and min(taps) < min(blocks, default=min(taps) + 1)
