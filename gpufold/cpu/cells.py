"""A tile by cells: pixels viewed as cells of one stride, (cell, phase).

All taps that reach the same cell offset are one strided addition, so that there are few array operations: right for
small arrays, large strides and pure movement.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from gpufold.cpu.arithmetic import ALL, Array, Index, add_pairs, copy_rows, multiply
from gpufold.geometry import Axis, Size

LONG_STRIDE = 8
"""Strides of the last axis from which the phases of a cell make an inner loop that is long enough."""


class Group(NamedTuple):
    """Consecutive taps of an axis that reach the same cell offset, each at its own phase of the cell."""

    taps: slice
    phases: slice
    cells: slice
    blocks: slice

    @property
    def offset(self) -> int:
        """Block b reaches cell b + offset."""
        return int(self.cells.start - self.blocks.start)


class Piece(NamedTuple):
    """Pixels of an axis viewed as (cells, width): whole cells of a stride's width, or the shorter rest as one."""

    pixels: slice
    first_cell: int
    cells: int
    width: int


def pieces_of(axis: Axis, begin: int = 0) -> Iterator[Piece]:
    """Return the whole cells of an axis whose first pixel is pixel `begin` of them, and what is before and after."""
    head = min(axis.size, -begin % axis.stride)
    tail = axis.size - (axis.size - head) % axis.stride
    for start, stop in ((0, head), (head, tail), (tail, axis.size)):
        if start < stop:
            width = min(stop - start, axis.stride)
            yield Piece(slice(start, stop), (start + begin) // axis.stride, (stop - start) // width, width)


def groups_of(axis: Axis, piece: Piece, group_phases: bool) -> Iterator[Group]:
    """Return the groups that reach a piece, in ascending order of taps."""
    tap = 0
    while tap < axis.kernel:
        offset, phase = divmod(axis.pixel(0, tap), axis.stride)
        offset -= piece.first_cell
        step = max(1, axis.dilation)
        most = axis.kernel - tap if group_phases and axis.dilation else 1
        count = min(most, (axis.stride - 1 - phase) // step + 1)
        inside = min(count, max(0, (piece.width - 1 - phase) // step + 1))
        begin, end = max(0, offset), min(piece.cells, offset + axis.blocks)
        if inside and begin < end:
            yield Group(
                slice(tap, tap + inside),
                slice(phase, phase + (inside - 1) * step + 1, step),
                slice(begin, end),
                slice(begin - offset, end - offset),
            )
        tap += count


def store(sums: Array, image: Array, axes: tuple[Axis, ...], begin: Size) -> None:
    """Store sums (N, C, *phases, *cells), in which the image begins at a pixel of each axis."""
    rank = len(axes)
    phases_first = (0, 1, *range(3, 2 + 2 * rank, 2), *range(2, 2 + 2 * rank, 2))
    for source, pixels, extents in _stores(axes, begin):
        target = image[pixels]
        copy_rows(sums[source], target.reshape(*target.shape[:2], *extents, copy=False).transpose(phases_first))


@lru_cache(maxsize=64)
def _stores(axes: tuple[Axis, ...], begin: Size) -> tuple[tuple[Index, Index, Size], ...]:
    """Return which sums are which pixels, and these pixels' cells and phases: whole cells, or single phases.

    Phases are stored one by one where these are fewer than pieces of an axis, or make poor inner loops.
    """
    stores = []
    by_axis = [list(pieces_of(axis, n)) for axis, n in zip(axes, begin, strict=True)]
    for number, (axis, n) in enumerate(zip(axes, begin, strict=True)):
        if 1 < axis.stride < (len(by_axis[number]) if number + 1 < len(axes) else LONG_STRIDE):
            phases = [range(start, axis.size, axis.stride) for start in range(min(axis.stride, axis.size))]
            by_axis[number] = [
                Piece(slice(phase.start, phase.stop, phase.step), (phase.start + n) // axis.stride, len(phase), 1)
                for phase in phases
            ]
    for pieces in product(*by_axis):
        cells = [slice(piece.first_cell, piece.first_cell + piece.cells) for piece in pieces]
        first = [(piece.pixels.start + n) % axis.stride for piece, n, axis in zip(pieces, begin, axes, strict=True)]
        parts = [slice(n, n + piece.width) for piece, n in zip(pieces, first, strict=True)]
        extents = tuple(extent for piece in pieces for extent in (piece.cells, piece.width))
        stores.append(((ALL, ALL, *parts, *cells), (ALL, ALL, *(piece.pixels for piece in pieces)), extents))
    return tuple(stores)


class CellPiece(NamedTuple):
    """A piece of the image in the shape of its cells, and the (cells, columns) indices to pair up.

    Cells are (N, C, cells, phases, ...), without phases where the stride is 1; columns (N, C, blocks, taps, ...).
    """

    pixels: Index
    shape: Size
    pairs: tuple[tuple[Index, Index], ...]

    def of(self, image: Array) -> Array:
        """View the piece of an image as cells."""
        if image.shape[2:] == self.shape:
            return image
        return image[self.pixels].reshape(image.shape[:2] + self.shape, copy=False)


class CellWay(NamedTuple):
    """How a tile is served by cells."""

    order: tuple[int, ...]
    """The transposition from (N, C, *kernel, *blocks) to (N, C, blocks, taps, blocks, taps, ...)."""
    once: bool
    """Whether blocks tile the image without gaps, overlaps or margins left open: each pixel has one tap."""
    pieces: tuple[CellPiece, ...]


@lru_cache(maxsize=64)
def cell_way(axes: tuple[Axis, ...]) -> CellWay:
    """Pair cells and columns."""
    rank = len(axes)
    pieces = []
    for parts in product(*map(pieces_of, axes)):
        by_axis = [
            list(groups_of(axis, piece, number < rank - 1 or axis.stride >= LONG_STRIDE))
            for number, (axis, piece) in enumerate(zip(axes, parts, strict=True))
        ]
        pairs = []
        for groups in product(*by_axis):
            cells = (
                ALL,
                ALL,
                *(
                    part
                    for group, piece in zip(groups, parts, strict=True)
                    for part in (group.cells, _narrow(group.phases))[: 1 + (piece.width > 1)]
                ),
            )
            columns = (ALL, ALL, *(part for group in groups for part in (group.blocks, _narrow(group.taps))))
            pairs.append((cells, columns))
        pixels = (ALL, ALL, *(piece.pixels for piece in parts))
        shape = tuple(extent for piece in parts for extent in (piece.cells, piece.width)[: 1 + (piece.width > 1)])
        pieces.append(CellPiece(pixels, shape, tuple(pairs)))
    order = (0, 1, *(part for axis in range(rank) for part in (2 + rank + axis, 2 + axis)))
    once = all(
        axis.kernel == axis.stride
        and (axis.dilation == 1 or axis.kernel == 1)
        and axis.pixel(0, 0) <= 0
        and axis.pixel(axis.blocks - 1, axis.kernel - 1) >= axis.size - 1
        for axis in axes
    )
    return CellWay(order, once, tuple(pieces))


def _narrow(part: slice) -> slice | int:
    """Return a slice of one element as an index: additions over fewer axes start sooner."""
    return part if part.stop - part.start > 1 else int(part.start)


def fold_cells(columns: Array, image: Array, axes: tuple[Axis, ...], weights: Array | None, move: bool = False) -> None:
    """Add, or move, columns into an image, every element of which is written."""
    way = cell_way(axes)
    columns = columns.transpose(way.order)
    if weights is not None:
        weights = weights.transpose(way.order)
    if not way.once:
        image.fill("" if image.dtype.kind in "SUT" else 0)
    for piece in way.pieces:
        cells = piece.of(image)
        if not (move or way.once):
            add_pairs(cells, columns, weights, piece.pairs)
            continue
        for cell_index, column_index in piece.pairs:
            multiply(columns[column_index], None if weights is None else weights[column_index], cells[cell_index])
    if way.once and not move:
        np.add(image, np.zeros((), image.dtype), image)  # sums start from +0, and are never -0.0


def fold_few(columns: Array, image: Array, axes: tuple[Axis, ...], weights: Array | None) -> None:
    """Add few columns into an image, every element of which is written, by the pixel of each element."""
    terms, pixels = np.empty(columns.shape, image.dtype), np.zeros(1 + image.size, image.dtype)
    multiply(columns, weights, terms)
    np.add.at(pixels, _pixels(image.shape, axes), terms.ravel())
    image[...] = pixels[1:].reshape(image.shape)


@lru_cache(maxsize=16)
def _pixels(shape: Size, axes: tuple[Axis, ...]) -> Array:
    """Return the number of the pixel that each element of split columns lands on, from 1 on; 0 where there is none."""
    kernel, blocks = zip(*((axis.kernel, axis.blocks) for axis in axes), strict=True)
    numbers: Array = np.zeros((*shape[:2], *kernel, *blocks), np.intp)
    unfold_cells(np.arange(1, 1 + prod(shape)).reshape(shape), numbers, axes, None)
    return numbers.ravel()


def unfold_cells(image: Array, columns: Array, axes: tuple[Axis, ...], weights: Array | None) -> None:
    """Move pixels, weighted, into the columns whose taps land on them."""
    way = cell_way(axes)
    columns = columns.transpose(way.order)
    if weights is not None:
        weights = weights.transpose(way.order)
    for piece in way.pieces:
        cells = piece.of(image)
        for cell_index, column_index in piece.pairs:
            multiply(cells[cell_index], None if weights is None else weights[column_index], columns[column_index])
