"""Pixels moved into columns."""

from __future__ import annotations

from contextlib import nullcontext
from math import prod
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

SHORT_STEP, LONG_STEP = 1 << 14, 1 << 18
"""Bytes of an array operation up to which all are one sooner, on a view of blocks inside the image, or inside a copy:
where pixels and taps lie together, and where they lie apart."""

PADDED_BYTES, OVERLAP = 1 << 23, 4
"""Of such a copy at most; and column elements for each of its pixels at least."""

LONG_KERNEL, MANY_TAPS = 4, 16
"""Taps of a block's row from which they make an inner loop that is long enough, one less where pixels or taps lie
apart; and taps that do."""


def unfold(image: Array, columns: Array, axes: tuple[Axis, ...], weights: Array | None = None) -> None:
    """Take split columns (N, C, *kernel, *blocks), weighed, out of an image (N, C, *size), each of any layout."""
    with nullcontext() if weights is None else np.errstate(all="ignore"):
        steps, outside = plan_of(axes).operations, _taps_outside(axes)
        # whether loops along blocks meet pixels, or taps, that lie apart
        apart = axes[-1].stride > 1 or prod(axis.kernel for axis in axes) >= MANY_TAPS
        short = columns.size > ways.SMALL_ELEMENTS and columns.nbytes < (LONG_STEP if apart else SHORT_STEP) * steps
        pads = [(axis.pad_begin, axis.pad_end) for axis in axes]
        padded = image.itemsize * prod(image.shape[:2]) * prod(axis.padded_size for axis in axes)
        worth = OVERLAP * padded <= columns.nbytes and padded <= PADDED_BYTES
        if short and outside and worth and weights is None and min(map(min, pads)) >= 0:
            image, outside = np.pad(image, [(0, 0), (0, 0), *pads]), ()
            axes = tuple(axis._replace(size=axis.padded_size, pad_begin=0, pad_end=0) for axis in axes)
        one_view = not outside and (short or steps >= MANY_OPERATIONS)
        if not one_view and are_few(max(columns.size, image.size), axes):
            return unfold_indexed(image, columns, axes, spread(weights, columns))
        for index in outside:
            columns[index] = np.zeros((), columns.dtype)
        if not image.size:
            return  # all margin
        closest = columns.size > ways.SMALL_ELEMENTS and not outside and taps_are_closest(columns, axes)
        if one_view or (closest and axes[-1].kernel >= LONG_KERNEL - apart):
            return _unfold_view(image, columns, axes, spread(weights, columns))
        limit = 2 * tiles.TILE_ELEMENTS
        if closest:  # smaller ones, for the taps of a block are written one after another
            few = max(tiles.CACHE_BYTES // 4 // columns.itemsize, tiles.STEP_ELEMENTS * steps)
            limit = ways.pixels_of(few, columns, image)
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
