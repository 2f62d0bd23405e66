"""Pixels moved into columns."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np

from gpufold.cpu import tiles, ways
from gpufold.cpu.arithmetic import ALL, Array, Index, copy_rows, multiply
from gpufold.cpu.cells import taps_are_closest, unfold_cells
from gpufold.cpu.indexed import are_few, unfold_indexed
from gpufold.cpu.tiles import for_each_tile
from gpufold.cpu.treatment import spread
from gpufold.geometry import Axis
from gpufold.geometry.cells import MANY_OPERATIONS, plan_of
from gpufold.keeping import kept
from gpufold.threads import for_each, get_num_threads

LONG_KERNEL = 4
"""Taps of a block's row from which they make an inner loop that is long enough, where they lie one after another."""


def unfold(image: Array, columns: Array, axes: tuple[Axis, ...], weights: Array | None = None) -> None:
    """Take split columns (N, C, *kernel, *blocks), weighed, out of an image (N, C, *size), each of any layout."""
    with nullcontext() if weights is None else np.errstate(all="ignore"):
        many = plan_of(axes).operations >= MANY_OPERATIONS and not _taps_outside(axes)  # all of one view
        if not many and are_few(max(columns.size, image.size), axes):
            return unfold_indexed(image, columns, axes, spread(weights, columns))
        for index in _taps_outside(axes):
            columns[index] = np.zeros((), columns.dtype)
        if not image.size:
            return  # all margin
        small = columns.size <= ways.SMALL_ELEMENTS and axes[-1].kernel < LONG_KERNEL
        inside = not small and not _taps_outside(axes)
        closest = inside and taps_are_closest(columns, axes)
        if many or (closest and axes[-1].kernel >= LONG_KERNEL):
            _unfold_view(image, columns, axes, spread(weights, columns))
        else:
            steps, limit = plan_of(axes).operations, 2 * tiles.TILE_ELEMENTS
            if closest:  # smaller ones, for the taps of a block are written one after another
                limit = ways.pixels_of(
                    max(tiles.CACHE_BYTES // 4, tiles.STEP_BYTES * steps) // columns.itemsize, columns, image
                )
            steps *= 4 if axes[-1].stride == 1 else 1  # to copy what lies side by side takes less than sums
            for_each_tile(_unfold_tile, columns, image, axes, limit, steps, weights)


def _unfold_tile(columns: Array, image: Array, axes: tuple[Axis, ...], weights: Array | None) -> None:
    unfold_cells(columns, image, axes, spread(weights, columns))


def _unfold_view(image: Array, columns: Array, axes: tuple[Axis, ...], weights: Array | None) -> None:
    """Copy blocks that lie inside the image from one view of it, which runs along the taps as the columns do."""
    first = image[(ALL, ALL, *(slice(axis.pixel(0, 0), None) for axis in axes))]
    taps = (axis.dilation * step for axis, step in zip(axes, image.strides[2:], strict=True))
    blocks = (axis.stride * step for axis, step in zip(axes, image.strides[2:], strict=True))
    view = np.lib.stride_tricks.as_strided(first, columns.shape, (*image.strides[:2], *taps, *blocks), writeable=False)
    outer = (0, 1, *range(2 + len(axes), columns.ndim))
    longest = max(outer, key=lambda number: columns.shape[number])
    parts = max(1, min(get_num_threads(), columns.size // (4 * tiles.THREADED_ELEMENTS)))  # a copy takes less than sums
    arrays = [view, columns] if weights is None else [view, weights, columns]
    cut = [[np.moveaxis(part, 1 + len(axes), -1) for part in np.array_split(array, parts, longest)] for array in arrays]
    for_each(copy_rows if weights is None else multiply, zip(*cut, strict=True))


@kept
def _taps_outside(axes: tuple[Axis, ...]) -> tuple[Index, ...]:
    """Return the split columns whose tap lands outside the image: tap by tap, or all where taps are many."""
    outside: list[Index] = []
    for number, axis in enumerate(axes):
        if turned := axis.dilation > 0 and axis.blocks < axis.kernel:
            axis = axis.turned
        if axis.pixel(0, 0) >= 0 and axis.pixel(axis.blocks - 1, axis.kernel - 1) < axis.size:
            continue
        of_tap, of_blocks = (2 + number, 2 + len(axes) + number)[:: -1 if turned else 1]
        for tap in range(axis.kernel if axis.dilation else 1):
            inside = axis.reach(tap)
            for blocks in (slice(0, inside.start), slice(inside.stop, axis.blocks)):
                if blocks.start < min(blocks.stop, axis.blocks):
                    index: list[Any] = [ALL] * (2 + 2 * len(axes))
                    index[of_tap], index[of_blocks] = tap if axis.dilation else ALL, blocks
                    outside.append(tuple(index))
            if len(outside) >= MANY_OPERATIONS:
                return ((...,),)
    return tuple(outside)
