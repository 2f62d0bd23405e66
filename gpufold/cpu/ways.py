"""Which way columns take into an image: the one whose inner loops are the longest in the memory of the columns."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TypeAlias

from gpufold.cpu import tiles
from gpufold.cpu.arithmetic import Array
from gpufold.cpu.cells import fold_cells, taps_are_closest
from gpufold.cpu.indexed import are_few, fold_indexed
from gpufold.cpu.runs import COPIED_BYTES, are_long, fold_runs
from gpufold.elements import sum_dtype
from gpufold.geometry import Axis
from gpufold.geometry.cells import LONG_STRIDE, plan_of

Way: TypeAlias = Callable[[Array, Array, tuple[Axis, ...], Array | None], None]
"""Adds split columns, weighed, into a tile of an image, every element of which it writes."""

SMALL_ELEMENTS = 1 << 14
"""Column elements up to which starting array operations takes longer than to add each by its index."""

LONG_ELEMENTS = 1 << 9
"""Of an array operation on a tile at least: to start one takes little beside that."""

CACHED_BYTES = tiles.CACHE_BYTES // 4
"""Of a tile by cells: it stays in the cache of a core while the taps of every cell offset pass over it."""

SCRATCH_BYTES = 1 << 22
"""Of the sums of a tile by runs, where array operations on it would be short."""

FEW_BLOCKS = 16
"""Blocks whose pixels a tile has at least, for it cuts those along its edges into shorter additions."""

MANY_TAPS = 4
"""Of a block in an array operation, from which its inner loops are long enough without a copy."""


def fold_way(columns: Array, image: Array, axes: tuple[Axis, ...]) -> tuple[Way, int, int]:
    """Return the way that columns take into an image, how many pixels a tile has at most, and how many steps it takes.

    Runs go along the blocks. Where taps lie closer together, short rows of them are copied for that; others are added
    by cells, which cut a block's rows where a stride ends. Few go by their index.
    """
    plan, size = plan_of(axes), sum_dtype(image.dtype).itemsize
    if columns.size <= SMALL_ELEMENTS and not plan.once:
        return fold_indexed, tiles.TILE_ELEMENTS, plan.operations
    if not plan.once and are_few(columns.size, axes):
        return fold_indexed, pixels_of(tiles.TILE_ELEMENTS, columns, image), plan.operations
    if plan.once or plan.apart:
        return fold_cells, tiles.TILE_ELEMENTS, plan.operations
    if not taps_are_closest(columns, axes):
        steps = plan.operations if any(are_long(columns, axes)) else tiles.TILE_STEPS
        most = min(SCRATCH_BYTES // size, pixels_of(tiles.STEP_ELEMENTS * steps, columns, image))
        return fold_runs, max(tiles.TILE_ELEMENTS, most), steps
    taps, steps = prod(axis.kernel for axis in axes), plan_of(axes, True).operations
    if min(axes[-1].kernel, axes[-1].stride) < LONG_STRIDE and taps < MANY_TAPS * steps:
        copied = max(COPIED_BYTES // 2 // size, LONG_ELEMENTS * plan.operations)  # half, for rows of sums may be longer
        fits = columns.size <= copied * columns.shape[0] * columns.shape[1]  # a plane does, of which few are copied
        return fold_runs, tiles.TILE_ELEMENTS if fits else pixels_of(copied, columns, image), tiles.TILE_STEPS
    limit = max(CACHED_BYTES // image.itemsize, LONG_ELEMENTS * steps, FEW_BLOCKS * taps)
    return fold_cells, min(limit, 4 * tiles.TILE_ELEMENTS), steps


def pixels_of(elements: int, columns: Array, image: Array) -> int:
    """Return how many pixels so many column elements land on."""
    return max(1, elements * image.size // max(1, columns.size))
