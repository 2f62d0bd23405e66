"""A tile by runs: for each phase of the stride, a tap is one contiguous addition over a whole plane.

The sums lie phase by phase, in rows as long as those of blocks. What runs past the end of a row falls on the first
cells of the next: those, and the ones that have no room, are strips summed on their own. Small planes are copied first,
so that they are one tall plane, with as many zeros between rows and planes as taps run past them. Zeros change no sum:
one that starts from +0 is never -0.0.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod

import numpy as np

from gpufold.cpu.arithmetic import ALL, Array, Index, add_pairs, copy_rows, multiply, runs_of
from gpufold.cpu.cells import LONG_STRIDE, Piece, groups_of, pieces_of
from gpufold.geometry import Axis, Size

FLAT_RUN, LARGE_PLANE = 32, 1500
"""Blocks of a plane from which a flat run is a long enough inner loop, and from which a copy would take longer."""

COPIED_ELEMENTS, MOST_COPIED = 1 << 18, 1 << 20
"""Column elements that are copied at a time, which stay in the cache of a core, and those of a single plane at most."""

_UNIT_AXIS = Axis(size=1, kernel=1, stride=1, dilation=1, pad_begin=0, pad_end=0)


def fold_runs(columns: Array, image: Array, axes: tuple[Axis, ...], weights: Array | None) -> bool:
    """Fold by runs where that is worth it, else do nothing and say False."""
    if len(axes) == 1:  # a single axis is a single row
        columns, image, axes = columns[:, :, None, :, None, :], image[:, :, None], (_UNIT_AXIS, *axes)
        weights = weights if weights is None else weights[:, :, None, :, None, :]
    *outer, last = axes
    blocks = _room(axes[0])[2].blocks * prod(axis.blocks for axis in axes[1:-1]) * _room(last)[2].blocks
    copied = blocks * prod(axis.kernel for axis in axes)
    flat = columns.shape[-2] == 1 or columns.strides[-2] == columns.shape[-1] * columns.strides[-1]
    flat = flat and columns.strides[-1] <= columns.itemsize
    low = min(last.size, max(0, (last.dilated_kernel - 1) // last.stride * last.stride - last.pad_begin))
    high = max(low, min(last.size, last.blocks * last.stride - last.pad_begin))
    wide = prod(columns.shape[-2:]) >= FLAT_RUN and high - low >= 2 * (last.size - high + low)
    if not (flat and wide) or (copied <= COPIED_ELEMENTS and blocks < LARGE_PLANE):
        if copied > MOST_COPIED or (flat and 4 * copied > 7 * prod(columns.shape[2:])):
            return False
        _fold_copied(columns, image, axes, weights, max(1, COPIED_ELEMENTS // copied))
        return True
    parts, zeros = (*outer, last._replace(size=high - low)), (0,) * len(outer)
    sums = _sums(columns, (*outer, _of_cells(last, last.blocks)), image.dtype, weights)
    _store(sums, image[..., low:high], parts, (*zeros, low + last.pad_begin))
    for start, stop in ((0, low), (high, last.size)):
        if start < stop:
            section, of_section = last.section(start, stop)
            few, parts = (..., slice(of_section.start, of_section.stop)), (*outer, section)
            few_weights = None if weights is None else weights[few]
            sums = _sums_of_strip(columns[few], parts, image.dtype, few_weights)
            _store(sums, image[..., start:stop], parts, (*zeros, 0))
    return True


def _fold_copied(columns: Array, image: Array, axes: tuple[Axis, ...], weights: Array | None, most: int) -> None:
    """Fold a few planes at a time, from a copy in which they are one tall plane."""
    if len(image) > image.shape[1]:
        columns, image = columns.swapaxes(0, 1), image.swapaxes(0, 1)
    planes, rank, (first, *inner, last) = image.shape[1], len(axes), axes
    taps, blocks = columns.shape[2 : 2 + rank], columns.shape[2 + rank :]
    (top, above, tall), (left, before, wide) = _room(first), _room(last)
    if planes == 1:
        top, above, tall = 0, 0, first
    count = -(-planes // -(-planes // most))
    copied: Array = np.zeros((1, 1, *taps, count, tall.blocks, *blocks[1:-1], wide.blocks), image.dtype)
    top_blocks, left_blocks = slice(above, above + blocks[0]), slice(before, before + blocks[-1])
    inside: Index = (0, 0, ..., top_blocks, *(ALL,) * len(inner), left_blocks)
    target = np.moveaxis(copied[inside], rank, 0)
    copied = copied.reshape(1, 1, *taps, count * tall.blocks, *blocks[1:-1], wide.blocks)
    axes_of_copy = (_of_cells(first, count * tall.blocks, -tall.pad_begin) if count > 1 else tall, *inner, wide)
    # what lies scattered in memory is read in its order, before its rows are moved apart
    terms = np.empty(target.shape, image.dtype) if count > 1 and columns.strides[-1] == columns.itemsize else target
    factors = [] if weights is None else [np.broadcast_to(weights[0, :1], terms.shape)]
    begin = (top, *(0,) * len(inner), left)
    for source, pixels in zip(columns, image, strict=True):
        for start in (min(first, planes - count) for first in range(0, planes, count)):  # some again, rather than fewer
            some = slice(start, start + count)
            for part, elements, *weight in runs_of(terms, source[some], *factors):
                multiply(elements, weight[0] if weight else None, part)
            if terms is not target:
                copy_rows(terms, target)
            sums = _sums(copied, axes_of_copy, image.dtype)
            sums = sums.reshape(*sums.shape[1 : 2 + rank], count, -1, *sums.shape[3 + rank :])
            _store(np.moveaxis(sums, 1 + rank, 0)[None, :, 0], pixels[None, some], axes, begin)


def _room(axis: Axis) -> tuple[int, int, Axis]:
    """Return the first pixel and the cell of the first block, on an axis with room for all taps, which is the third.

    It has as many blocks as cells, and an image's pixel 0 begins a cell.
    """
    first = -(-axis.pad_begin // axis.stride)  # cell of the image's first pixel, where the first block's is 0
    phase, before = first * axis.stride - axis.pad_begin, max(0, -first)
    reached = before + (phase + (axis.blocks - 1) * axis.stride + axis.dilated_kernel - 1) // axis.stride + 1
    cells = max(reached, first + before - (-axis.size // axis.stride))
    return (first + before) * axis.stride, before, _of_cells(axis, cells, phase)


def _of_cells(axis: Axis, cells: int, phase: int = 0) -> Axis:
    """Return an axis of so many cells, and as many blocks, each of which begins at a phase of its cell."""
    pad_end = axis.dilated_kernel - axis.stride + phase
    return axis._replace(size=cells * axis.stride, pad_begin=-phase, pad_end=pad_end)


@lru_cache(maxsize=64)
def _layout(axes: tuple[Axis, ...], strip: bool) -> tuple[Size, Size, tuple[tuple[Index, Index], ...]]:
    """Return the phases of the sums, their cells, and which of them which columns are added to.

    The rows of both are one axis, except for a strip, whose last axis is the first.
    """
    whole = [Piece(ALL, 0, -(-axis.size // axis.stride), min(axis.stride, axis.size)) for axis in axes]
    pairs, pitch = [], axes[-1].blocks
    for groups in product(*(tuple(groups_of(axis, piece, True)) for axis, piece in zip(axes, whole, strict=True))):
        *outer, row, inner = groups
        start = row.cells.start * pitch + inner.offset
        run = slice(start, start + (row.cells.stop - row.cells.start) * pitch)
        source = slice(row.blocks.start * pitch, row.blocks.stop * pitch)
        if strip:
            outer, run, source = [*outer, row], inner.cells, inner.blocks
        into = (ALL, ALL, *(group.phases for group in groups), *(group.cells for group in outer), run)
        terms = (ALL, ALL, *(group.taps for group in groups), *(group.blocks for group in outer), source)
        pairs.append((into[-1:] + into[:-1], terms[-1:] + terms[:-1]) if strip else (into, terms))
    return tuple(piece.width for piece in whole), tuple(piece.cells for piece in whole), tuple(pairs)


def _sums(columns: Array, axes: tuple[Axis, ...], dtype: np.dtype[np.generic], weights: Array | None = None) -> Array:
    """Return the sums (N, C, *phases, *cells) of columns whose last two axes are one run."""
    phases, (*others, rows, pitch), pairs = _layout(axes, False)
    columns = columns.reshape(*columns.shape[:-2], -1, copy=False)
    weights = None if weights is None else weights.reshape(columns.shape, copy=False)
    past, zero = axes[-1].pixel(0, axes[-1].kernel - 1) // axes[-1].stride, np.zeros((), dtype)
    sums: Array = np.empty((*columns.shape[:2], *phases, *others, rows * pitch + past), dtype)
    if weights is None and pairs and sums[pairs[0][0]].shape[:-1] == sums.shape[:-1]:  # the others need not be cleared
        (into, terms), pairs = pairs[0], pairs[1:]
        sums[..., : into[-1].start], sums[..., into[-1].stop :] = zero, zero
        np.add(columns[terms], zero, sums[into])
    else:
        sums[...] = zero
    add_pairs(sums, columns, weights, pairs)
    return sums[..., : rows * pitch].reshape(*sums.shape[:-1], rows, pitch, copy=False)


def _sums_of_strip(columns: Array, axes: tuple[Axis, ...], dtype: np.dtype[np.generic], weights: Array | None) -> Array:
    """Return the same of a few cells of the last axis: NumPy's loops run along the axis before it."""
    phases, (*others, width), pairs = _layout(axes, True)
    sums: Array = np.zeros((width, *columns.shape[:2], *phases, *others), dtype)
    weights = None if weights is None else np.moveaxis(weights, -1, 0)
    add_pairs(sums, np.moveaxis(columns, -1, 0), weights, pairs)
    return np.moveaxis(sums, 0, -1)


def _store(sums: Array, image: Array, axes: tuple[Axis, ...], begin: Size) -> None:
    """Store sums (N, C, *phases, *cells), in which the image begins at a pixel of each axis."""
    rank = len(axes)
    phases_first = (0, 1, *range(3, 2 + 2 * rank, 2), *range(2, 2 + 2 * rank, 2))
    for source, pixels, extents in _stores(axes, begin):
        target = image[pixels]
        target = target.reshape(*target.shape[:2], *extents, copy=False).transpose(phases_first)
        apart = 1 < extents[-1] < LONG_STRIDE  # short phases make poor inner loops: store them one by one
        for phase in [slice(i, i + 1) for i in range(extents[-1])] if apart else [ALL]:
            few = (..., phase, *(ALL,) * rank)
            copy_rows(sums[source][few], target[few])


@lru_cache(maxsize=64)
def _stores(axes: tuple[Axis, ...], begin: Size) -> tuple[tuple[Index, Index, Size], ...]:
    """Return which sums are which pixels, and these pixels' cells and phases."""
    stores = []
    for pieces in product(*map(pieces_of, axes, begin)):
        cells = [slice(piece.first_cell, piece.first_cell + piece.cells) for piece in pieces]
        first = [(piece.pixels.start + n) % axis.stride for piece, n, axis in zip(pieces, begin, axes, strict=True)]
        phases = [slice(n, n + piece.width) for piece, n in zip(pieces, first, strict=True)]
        extents = tuple(extent for piece in pieces for extent in (piece.cells, piece.width))
        stores.append(((ALL, ALL, *phases, *cells), (ALL, ALL, *(piece.pixels for piece in pieces)), extents))
    return tuple(stores)
