"""A tile by flat runs: for each phase of the stride, every tap is one contiguous addition over whole planes.

The scratch they are added in has rows as long as those of blocks, not of pixels. Rows then wrap into one another in the
few columns at both edges, which are added again on their own. Contiguous additions run three times faster than those
into strided parts of an array.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np

from gpufold.cpu.arithmetic import ALL, Array, Index, add_pairs, multiply
from gpufold.cpu.cells import LONG_STRIDE, Group, Piece, groups_of, pieces_of
from gpufold.geometry import Axis, Size

FLAT_RUN = 32
"""Blocks of a plane from which a flat run is a long enough inner loop."""

_UNIT_AXIS = Axis(size=1, kernel=1, stride=1, dilation=1, pad_begin=0, pad_end=0)


@dataclass(frozen=True, slots=True)
class _Store:
    """Which sums go where: image[pixels] in the shape of its cells, (N, C, cells, phases, ...), is a piece of it."""

    pixels: Index
    shape: Size
    into: Index
    """Into the piece, viewed as (N, C, *phases, *cells)."""
    source: Index
    """From the sums, viewed likewise."""


@dataclass(frozen=True, slots=True)
class _Sum:
    """A scratch of `shape`, the planes apart, the (scratch, columns) indices to add up in it, and where it goes."""

    shape: Size
    pairs: tuple[tuple[Index, Index], ...]
    stores: tuple[_Store, ...]


@dataclass(frozen=True, slots=True)
class _Runs:
    """A tile summed in contiguous runs.

    The scratch holds a plane's cells phase by phase, in rows as long as the rows of blocks. A tap is then one run,
    shifted by its offsets; taps that share them are one addition. What runs past the end of a row falls on the first
    columns of the next. Those columns, and the ones that the scratch has no room for, are strips summed on their own.
    """

    flat: _Sum
    first_covers: bool
    """Whether the first pair reaches every phase and every cell of the outer axes."""
    strips: tuple[_Sum, ...]
    """With the last axis in front of (N, C)."""


def fold_flat(columns: Array, image: Array, axes: tuple[Axis, ...], weights: Array | None) -> bool:
    """Fold by runs where that is worth it, else do nothing and say False."""
    if len(axes) == 1:  # a single axis is a single row
        columns, image, axes = columns[:, :, None, :, None, :], image[:, :, None], (_UNIT_AXIS, *axes)
        weights = weights if weights is None else weights[:, :, None, :, None, :]
    if prod(columns.shape[-2:]) < FLAT_RUN or not _is_flat(columns):
        return False
    runs = _runs(axes)
    if runs is None:
        return False
    _fold_runs(columns, image, axes, runs, weights)
    return True


@lru_cache(maxsize=64)
def _runs(axes: tuple[Axis, ...]) -> _Runs | None:
    """Return the runs of a tile; None where strips would be too wide to be worth it."""
    whole = [Piece(slice(0, axis.size), 0, -(-axis.size // axis.stride), min(axis.stride, axis.size)) for axis in axes]
    by_axis = [tuple(groups_of(axis, piece, True)) for axis, piece in zip(axes, whole, strict=True)]
    if not all(by_axis):
        return None
    pitch, cells = axes[-1].blocks, tuple(piece.cells for piece in whole)
    offsets = [group.offset for group in by_axis[-1]]
    first, last = min(offsets), max(offsets)
    begin = min(max(0, last), cells[-1])
    end = max(begin, min(cells[-1], first + pitch))
    if end - begin < 2 * (cells[-1] - end + begin):
        return None

    phases = tuple(piece.width for piece in whole)
    steps = list(product(*by_axis))
    pairs = []
    for *outer, row, inner in steps:
        start = row.cells.start * pitch + inner.offset - first
        run = slice(start, start + (row.cells.stop - row.cells.start) * pitch)
        source = slice(row.blocks.start * pitch, row.blocks.stop * pitch)
        groups = (*outer, row, inner)
        pairs.append(
            (
                (ALL, ALL, *(group.phases for group in groups), *(group.cells for group in outer), run),
                (ALL, ALL, *(group.taps for group in groups), *(group.blocks for group in outer), source),
            )
        )
    length = cells[-2] * pitch + last - first
    flat = _Sum((*phases, *cells[:-2], length), tuple(pairs), _stores(axes, begin, end, first))
    strips = []
    for low, high in ((0, begin), (end, cells[-1])):
        if low < high:
            shape = (high - low, *phases, *cells[:-1])
            strips.append(_Sum(shape, _strip_pairs(steps, pitch, low, high), _stores(axes, low, high, low)))
    covers = all(
        group.phases == slice(0, piece.width, 1) for group, piece in zip(steps[0], whole, strict=True)
    ) and all(group.cells == slice(0, piece.cells) for group, piece in zip(steps[0][:-2], whole, strict=False))
    return _Runs(flat, covers, tuple(strips))


def _strip_pairs(steps: list[tuple[Group, ...]], pitch: int, low: int, high: int) -> tuple[tuple[Index, Index], ...]:
    """Return the (strip, columns) indices of every tap for cells [low, high) of the last axis, which comes first."""
    pairs = []
    for groups in steps:
        *outer, inner = groups
        begin, end = max(low, inner.offset), min(high, inner.offset + pitch)
        if begin < end:
            cells = slice(begin - low, end - low)
            blocks = slice(begin - inner.offset, end - inner.offset)
            pairs.append(
                (
                    (cells, ALL, ALL, *(group.phases for group in groups), *(group.cells for group in outer)),
                    (blocks, ALL, ALL, *(group.taps for group in groups), *(group.blocks for group in outer)),
                )
            )
    return tuple(pairs)


def _stores(axes: tuple[Axis, ...], low: int, high: int, origin: int) -> tuple[_Store, ...]:
    """Store cells [low, high) of the last axis; the sums' last axis begins at cell `origin`."""
    stores = []
    for pieces in product(*map(pieces_of, axes)):
        *outer, inner = pieces
        begin, end = max(low, inner.first_cell), min(high, inner.first_cell + inner.cells)
        if begin >= end:
            continue
        pixels = (ALL, ALL, *(piece.pixels for piece in pieces))
        shape = tuple(extent for piece in pieces for extent in (piece.cells, piece.width))
        rows = tuple(slice(piece.first_cell, piece.first_cell + piece.cells) for piece in outer)
        phases = tuple(slice(0, piece.width) for piece in outer)
        apart = 1 < inner.width < LONG_STRIDE  # short phases make poor inner loops: store them one by one
        for phase in [slice(i, i + 1) for i in range(inner.width)] if apart else [slice(0, inner.width)]:
            into = (
                ALL,
                ALL,
                *phases,
                phase,
                *(ALL,) * len(outer),
                slice(begin - inner.first_cell, end - inner.first_cell),
            )
            source = (ALL, ALL, *phases, phase, *rows, slice(begin - origin, end - origin))
            stores.append(_Store(pixels, shape, into, source))
    return tuple(stores)


def _fold_runs(columns: Array, image: Array, axes: tuple[Axis, ...], runs: _Runs, weights: Array | None = None) -> None:
    """Fold by runs; the last two axes of the columns lie flat in memory (see `_is_flat`)."""
    planes, rank, pitch = image.shape[:2], len(axes), columns.shape[-1]
    flat, pairs = columns.reshape(*columns.shape[:-2], -1, copy=False), list(runs.flat.pairs)
    flat_weights = None if weights is None else weights.reshape(flat.shape, copy=False)
    scratch: Array = np.empty((*planes, *runs.flat.shape), image.dtype)
    zero = np.zeros((), image.dtype)
    if runs.first_covers:  # all but the ends: the first addition then need not read what it adds to
        (into, first), *pairs = pairs
        scratch[..., : into[-1].start] = zero
        scratch[..., into[-1].stop :] = zero
        terms = flat[first]
        if flat_weights is not None:
            multiply(terms, flat_weights[first], scratch[into])
            terms = scratch[into]
        np.add(terms, zero, scratch[into])
    else:
        scratch[...] = zero
    add_pairs(scratch, flat, flat_weights, pairs)
    rows = -(-axes[-2].size // axes[-2].stride)
    grid = scratch[..., : rows * pitch].reshape(*scratch.shape[:-1], rows, pitch, copy=False)
    for store in runs.flat.stores:
        _phases_first(image, store, rank)[store.into] = grid[store.source]

    for strip in runs.strips:
        width, *shape = strip.shape
        scratch = np.zeros((width, *planes, *shape), image.dtype)
        strip_weights = None if weights is None else _last_axis_first(weights)
        add_pairs(scratch, _last_axis_first(columns), strip_weights, strip.pairs)
        sums = scratch.transpose(*range(1, scratch.ndim), 0)
        for store in strip.stores:
            target = _phases_first(image, store, rank)[store.into]
            np.add(_last_axis_first(sums[store.source]), zero, _last_axis_first(target))


def _phases_first(image: Array, store: _Store, rank: int) -> Array:
    """View a piece of the image as (N, C, *phases, *cells)."""
    cells = image[store.pixels].reshape(*image.shape[:2], *store.shape, copy=False)
    return cells.transpose(0, 1, *range(3, 2 + 2 * rank, 2), *range(2, 2 + 2 * rank, 2))


def _last_axis_first(array: Array) -> Array:
    """View the last axis as the first: the inner loop of an addition is then the axis before it."""
    return array.transpose(array.ndim - 1, *range(array.ndim - 1))


def _is_flat(columns: Array) -> bool:
    """Whether the last two axes of the columns are one run."""
    return bool(columns.shape[-2] == 1 or columns.strides[-2] == columns.shape[-1] * columns.strides[-1])
