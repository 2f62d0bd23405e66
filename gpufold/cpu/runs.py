"""Tiles by runs: a tap is one contiguous addition over a whole plane, or over many planes.

The sums of a large plane are stored phase by phase, in rows as long as those of blocks. A run that passes the end of a
row lands on the first cells of the next row. Those cells, and cells without room, are strips that are added by cells.

Small planes are first copied side by side, with a run for each tap. Every block is added at a fixed distance from its
place. It passes the end of its row only if it lands in the padding, where the copy has a zero; a zero changes no sum
that starts from +0. So taps a stride apart are one reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby, pairwise, product
from math import gcd, prod
from typing import NamedTuple, TypeAlias

import numpy as np

from gpufold.cpu import tiles
from gpufold.cpu.arithmetic import ALL, Array, Index, add_pairs, multiply, shorten_buffers
from gpufold.cpu.cells import fold_cells, store, taps_are_closest
from gpufold.elements import is_narrow, sum_dtype, widened
from gpufold.geometry import Axis, Size
from gpufold.geometry.cells import MANY_OPERATIONS, Segment, groups_of
from gpufold.keeping import kept

FLAT_RUN, LARGE_PLANE = 32, 20000
"""Least blocks of a plane for a long inner loop, and least bytes of sums for which runs are faster than a copy, unless
runs reach whole rows: these are always faster."""

COPIED_BYTES = max(tiles.CACHE_BYTES, 1 << 21)
"""Most bytes of a plane's columns that are copied, twice as many if nothing is widened first."""

FEW_PLANES, MANY_PLANES = max(tiles.KEPT_BYTES, 1 << 20), 5 << 19
"""Bytes of the columns of several planes that are copied together: they stay in a core's cache, or make steps of Python
few, in which threads wait for one another."""

FETCHED, READ_BYTES = 2 * tiles.LINE_BYTES, tiles.CACHE_BYTES // 2
"""Most bytes of a block whose taps are copied from where they lie. Larger ones, of rows shorter than a cache line, are
first copied as they lie if they have more than so many bytes: else every tap would wait for lines anew."""

_UNIT_AXIS = Axis(size=1, kernel=1, stride=1, dilation=1, pad_begin=0, pad_end=0)


@kept
def are_long(dtype: np.dtype[np.generic], strides: Size, axes: tuple[Axis, ...]) -> tuple[int, int]:
    """Return the range of a row's pixels that the runs of a whole plane reach, or an empty one if runs are short."""
    last, size = axes[-1], axes[-1].size
    low = min(size, max(0, (last.dilated_kernel - 1) // last.stride * last.stride - last.pad_begin))
    high = max(low, min(size, last.blocks * last.stride - last.pad_begin))
    strips = size - (high - low)
    elements = prod(axis.blocks for axis in axes) * last.stride
    large = not strips or elements * sum_dtype(dtype).itemsize >= LARGE_PLANE
    wide = prod(axis.blocks for axis in axes[-2:]) >= FLAT_RUN and high - low >= 2 * strips
    follow = axes[-2].blocks == 1 or strides[-2] == axes[-1].blocks * strides[-1]
    flat = follow and strides[-1] <= dtype.itemsize  # the rows of a plane's blocks are contiguous
    return (low, high) if large and wide and flat else (0, 0)


def _fold(most_bytes: int, columns: Array, image: Array, axes: tuple[Axis, ...], weights: Array | None) -> None:
    """Add split columns into an image, every element of which is written; by cells if runs would be short.

    Small planes are copied together up to `most_bytes`.
    """
    if not columns.size:
        return fold_cells(columns, image, axes, weights)
    if len(axes) == 1:  # a single axis is a single row
        columns, image, axes = columns[:, :, None, :, None, :], image[:, :, None], (_UNIT_AXIS, *axes)
        weights = weights if weights is None else weights[:, :, None, :, None, :]
    low, high = are_long(columns.dtype, columns.strides, axes)
    if low == high:
        if prod(min(axis.stride, axis.kernel) for axis in axes if axis.dilation > 1) > MANY_OPERATIONS:
            return fold_cells(columns, image, axes, weights)
        allowed, layout = COPIED_BYTES * (1 if is_narrow(columns, image) else 2), _layout(axes, 1)
        elements = max(layout.elements, prod(axis.stride for axis in axes) * layout.run)
        if elements * image.itemsize > allowed:
            return fold_cells(columns, image, axes, weights)
        return _fold_copied(most_bytes, columns, image, axes, weights)
    shorten_buffers(columns)
    *outer, last = axes
    parts, zeros = (*outer, last._replace(size=high - low)), (0,) * len(outer)
    cells = last._replace(size=last.blocks * last.stride, pad_begin=0, pad_end=last.dilated_kernel - last.stride)
    sums = _sums(columns, (*outer, cells), image.dtype, weights)
    store(sums, image[..., low:high], parts, (*zeros, low + last.pad_begin))
    for start, stop in ((0, low), (high, last.size)):
        if start < stop:
            section, of_section = last.section(start, stop)
            few = (..., slice(of_section.start, of_section.stop))
            of_few = None if weights is None else weights[few]
            strip: Array = np.empty((*image.shape[:2], stop - start, *image.shape[2:-1]), image.dtype)
            strip = strip.transpose(0, 1, *range(3, image.ndim), 2)  # rows are short: inner loops go across them
            fold_cells(columns[few], strip, (*outer, section), of_few)
            image[..., start:stop] = strip


fold_runs, fold_long_runs = partial(_fold, FEW_PLANES), partial(_fold, MANY_PLANES)


@kept
def _pairs(axes: tuple[Axis, ...]) -> tuple[Size, Size, tuple[tuple[Index, Index], ...]]:
    """Return the phases and cells of the sums, and pairs of indices (sums, columns); rows are merged into one axis."""
    whole = [Segment(ALL, 0, -(-axis.size // axis.stride), min(axis.stride, axis.size)) for axis in axes]
    pairs, pitch = [], axes[-1].blocks
    for groups in product(*(tuple(groups_of(axis, piece, True)) for axis, piece in zip(axes, whole, strict=True))):
        *outer, row, inner = groups
        start = row.cells.start * pitch + inner.cells.start - inner.blocks.start
        run = slice(start, start + (row.cells.stop - row.cells.start) * pitch)
        source = slice(row.blocks.start * pitch, row.blocks.stop * pitch)
        into = (ALL, ALL, *(group.phases for group in groups), *(group.cells for group in outer), run)
        pairs.append((into, (ALL, ALL, *(group.taps for group in groups), *(group.blocks for group in outer), source)))
    return tuple(piece.width for piece in whole), tuple(piece.cells for piece in whole), tuple(pairs)


def _sums(columns: Array, axes: tuple[Axis, ...], dtype: np.dtype[np.generic], weights: Array | None) -> Array:
    """Return the sums (N, C, *phases, *cells) of columns whose last two axes are one run."""
    phases, (*others, rows, pitch), pairs = _pairs(axes)
    columns = columns.reshape(*columns.shape[:-2], -1, copy=False)
    weights = None if weights is None else weights.reshape(columns.shape, copy=False)
    past = axes[-1].pixel(0, axes[-1].kernel - 1) // axes[-1].stride
    sums: Array = np.zeros((*columns.shape[:2], *phases, *others, rows * pitch + past), dtype)
    add_pairs(sums, columns, weights, pairs)
    return sums[..., : rows * pitch].reshape(*sums.shape[:-1], rows, pitch, copy=False)


_View: TypeAlias = tuple[int, Size, Size]
"""A view of a 1-D array: first element, shape and strides in elements."""


class _Layout(NamedTuple):
    """The layout of a copy of some planes' columns, and of their sums."""

    copy: _View
    """(planes, *taps, *places)"""
    copies: tuple[tuple[Index, Index], ...]
    """Indices in the copy, and the indices of the columns that are copied there."""
    zeros: tuple[Index, ...]
    """Indices in the copy that are set to zero, because they pass an end of their row."""
    added: tuple[tuple[_View, Index], ...]
    """Views (*taps a stride apart, *phases, run) of the copy, and the indices of these phases in the sums."""
    sums: _View
    """(planes, *phases, *cells)"""
    begin: Size
    """The pixel of the first cell at which the image begins."""
    elements: int
    """Elements of the copy."""
    run: int
    """Elements of a phase's sums."""


def _fold_copied(most_bytes: int, columns: Array, image: Array, axes: tuple[Axis, ...], weights: Array | None) -> None:
    """Add split columns into an image, every element of which is written, from copies of some planes at a time."""
    if all(array.strides[0] == array.shape[1] * array.strides[1] for array in (columns, image)):
        columns, image = (array.reshape(1, -1, *array.shape[2:], copy=False) for array in (columns, image))
    elif len(image) > image.shape[1]:
        columns, image = columns.swapaxes(0, 1), image.swapaxes(0, 1)
    planes, dtype, taps = image.shape[1], image.dtype, tuple(range(len(axes)))
    narrow = is_narrow(columns, image)  # widened first, into as many bytes again
    most = max(1, most_bytes // ((1 + narrow) * dtype.itemsize * _layout(axes, 1).elements))
    count = -(-planes // -(-planes // most))
    layout, zero = _layout(axes, count), np.zeros((), dtype)
    block, row = (dtype.itemsize * prod(axis.kernel for axis in some) for some in (axes, axes[-1:]))
    waits = block > FETCHED and row < tiles.LINE_BYTES and taps_are_closest(columns.strides, axes)
    scratch = np.empty_like(columns[0, :count]) if waits and columns.nbytes > READ_BYTES and not narrow else None
    copied: Array = np.zeros(layout.elements, dtype)
    copy = _view(copied, layout.copy)
    sums: Array = np.zeros((*(axis.stride for axis in axes), layout.run), dtype)
    cells = _view(sums, layout.sums)[None]
    weights = None if weights is None else np.broadcast_to(weights[0, :1], (count, *weights.shape[2:]))
    rows_follow = all(part.strides[-2] == part.shape[-1] * part.strides[-1] for part in (columns, copy))

    def rows(part: Array) -> Array:
        return part.reshape(*part.shape[:-2], -1, copy=False) if rows_follow else part

    copies = [
        (rows(copy[place]), some, None if weights is None else rows(weights[some])) for place, some in layout.copies
    ]
    zeros, added = [copy[place] for place in layout.zeros], [(_view(copied, v), sums[p]) for v, p in layout.added]
    for source, pixels in zip(columns, image, strict=True):
        for start in (min(first, planes - count) for first in range(0, planes, count)):  # the last ones may repeat some
            few = slice(start, start + count)
            terms = widened(source[few]) if narrow else source[few]
            if scratch is not None:
                scratch[...] = terms
                terms = scratch
            for place, some, factors in copies:
                multiply(terms[some].reshape(place.shape), factors, place)
            for place in zeros:
                place[...] = zero
            for alike, total in added:
                np.add.reduce(alike, axis=taps, dtype=dtype, out=total, initial=zero)
            store(cells, pixels[None, few], axes, layout.begin)


def _view(array: Array, view: _View) -> Array:
    first, shape, steps = view
    size = array.itemsize
    return np.ndarray(shape, array.dtype, array, first * size, tuple([step * size for step in steps]))


@kept
def _layout(axes: tuple[Axis, ...], planes: int) -> _Layout:
    """Lay out planes in rows of cells, from the first cell with pixels on, or of blocks if these are more."""
    *outer, last = axes
    kernel, strides, pads = zip(*((axis.kernel, axis.stride, axis.pad_begin) for axis in axes), strict=True)
    first = [pad // stride for pad, stride in zip(pads, strides, strict=True)]  # counted from where the padding begins
    cells = [(axis.pad_begin + axis.size - 1) // axis.stride + 1 - cell for axis, cell in zip(axes, first, strict=True)]
    cells[-1] = max(last.blocks, -(-last.size // last.stride))
    reached = [tap * last.dilation // last.stride - first[-1] for tap in (0, last.kernel - 1)]
    before, run = max(0, reached[1]), planes * prod(cells) + 1
    pitch = before + run + max(0, -reached[0])
    steps, of_taps, of_phases = ([prod(n[i:]) for i in range(len(n) + 1)] for n in (cells, kernel, strides))
    apart, phase_steps = [step * pitch for step in of_taps[1:]], [step * run for step in of_phases[1:]]
    unpadded = [axis._replace(pad_begin=0, pad_end=axis.pad_begin + axis.pad_end) for axis in outer]
    pieces = [Segment(ALL, *piece) for piece in zip(first, cells, strides, strict=True)]
    copies = []
    for groups in product(
        *(tuple(groups_of(axis, piece, True)) for axis, piece in zip(unpadded, pieces, strict=False))
    ):
        taps = (ALL, *(group.taps for group in groups), ALL)
        copies.append(((*taps, *(group.cells for group in groups)), (*taps, *(group.blocks for group in groups))))
    zeros: list[Index] = []
    for inside, alike in groupby(range(last.kernel), last.reach):
        tap, *more = alike
        for start, stop in ((0, inside.start), (inside.stop, last.blocks)):
            if start < min(stop, last.blocks):
                zeros.append((..., slice(tap, tap + 1 + len(more)), *(ALL,) * len(outer), slice(start, stop)))
    added = []
    for parts in product(*map(_taps_alike, axes)):
        firsts, phases, begins, counts, jumps, further = zip(*parts, strict=True)
        start = before + first[-1] - begins[-1] + sum(tap * step for tap, step in zip(firsts, apart, strict=True))
        again = [jump * step for jump, step in zip(jumps, apart, strict=True)]
        again[-1] -= further[-1]
        shape = (*counts, *(phase.stop - phase.start for phase in phases), run)
        added.append(((start, shape, (*again, *apart, 1)), phases))
    return _Layout(
        copy=(before, (planes, *kernel, *cells[:-1], last.blocks), (steps[0], *apart, *steps[1:])),
        copies=tuple(copies),
        zeros=tuple(zeros),
        added=tuple(added),
        sums=(0, (planes, *strides, *cells[:-1], cells[-1] + 1), (steps[0], *phase_steps, *steps[1:])),
        begin=tuple(pad - cell * stride for pad, cell, stride in zip(pads, first, strides, strict=True)),
        elements=of_taps[0] * pitch,
        run=run,
    )


def _taps_alike(axis: Axis) -> list[tuple[int, slice, int, int, int, int]]:
    """Return the taps of an axis, grouped if they reach adjacent phases.

    A group is its first tap, its phases, the cell where its first block begins, how often the phases recur, and after
    how many taps and cells.
    """
    common = gcd(axis.stride, axis.dilation)
    jump, further = axis.stride // common, axis.dilation // common
    ends: Sequence[int] = range(1 + min(jump, axis.kernel))
    if axis.dilation == 1:
        ends = sorted({0, axis.kernel % jump, ends[-1]})
    begins = [divmod(tap * axis.dilation, axis.stride) for tap in ends]
    return [
        (tap, slice(phase, phase + end - tap), cell, -((tap - axis.kernel) // jump), jump, further)
        for (tap, end), (cell, phase) in zip(pairwise(ends), begins, strict=False)
    ]
