"""A tile by runs: for each phase of the stride, a tap is one contiguous addition over a whole plane.

The sums lie phase by phase, in rows as long as those of blocks. What runs past the end of a row falls on the first
cells of the next: those, and the ones that have no room, are strips summed on their own. Small planes are copied first
(planes.py).
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod

import numpy as np

from gpufold.cpu.arithmetic import ALL, Array, Index, add_pairs
from gpufold.cpu.cells import Piece, groups_of, store
from gpufold.cpu.planes import COPIED_BYTES, fold_planes, layout_of
from gpufold.geometry import Axis, Size

FLAT_RUN, LARGE_PLANE = 32, 1500
"""Blocks of a plane from which a flat run is a long enough inner loop, and from which it takes less than a copy."""

_UNIT_AXIS = Axis(size=1, kernel=1, stride=1, dilation=1, pad_begin=0, pad_end=0)


def fold_runs(columns: Array, image: Array, axes: tuple[Axis, ...], weights: Array | None) -> bool:
    """Fold by runs where that is worth it, else do nothing and say False."""
    if len(axes) == 1:  # a single axis is a single row
        columns, image, axes = columns[:, :, None, :, None, :], image[:, :, None], (_UNIT_AXIS, *axes)
        weights = weights if weights is None else weights[:, :, None, :, None, :]
    *outer, last = axes
    copied = layout_of(axes, 1).elements * image.itemsize
    flat = columns.shape[-2] == 1 or columns.strides[-2] == columns.shape[-1] * columns.strides[-1]
    flat = flat and columns.strides[-1] <= columns.itemsize
    low = min(last.size, max(0, (last.dilated_kernel - 1) // last.stride * last.stride - last.pad_begin))
    high = max(low, min(last.size, last.blocks * last.stride - last.pad_begin))
    wide = prod(columns.shape[-2:]) >= FLAT_RUN and high - low >= 2 * (last.size - high + low)
    if not (flat and wide) or prod(columns.shape[-len(axes) :]) < LARGE_PLANE:
        if copied > COPIED_BYTES or (flat and 4 * copied > 7 * prod(columns.shape[2:]) * image.itemsize):
            return False
        fold_planes(columns, image, axes, weights)
        return True
    parts, zeros = (*outer, last._replace(size=high - low)), (0,) * len(outer)
    sums = _sums(columns, (*outer, _of_cells(last, last.blocks)), image.dtype, weights)
    store(sums, image[..., low:high], parts, (*zeros, low + last.pad_begin))
    for start, stop in ((0, low), (high, last.size)):
        if start < stop:
            section, of_section = last.section(start, stop)
            few, parts = (..., slice(of_section.start, of_section.stop)), (*outer, section)
            few_weights = None if weights is None else weights[few]
            sums = _sums_of_strip(columns[few], parts, image.dtype, few_weights)
            store(sums, image[..., start:stop], parts, (*zeros, 0))
    return True


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
