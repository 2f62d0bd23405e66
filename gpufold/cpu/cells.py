"""Tiles by cells: pixels are viewed as (cell, phase), and taps at the same cell offset are one strided addition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, product
from math import prod
from typing import NamedTuple

import numpy as np

from gpufold.cores import cache_bytes
from gpufold.cpu.arithmetic import ALL, Array, Factors, Index, add_pairs, copy_rows, multiply, shorten_buffers, spread
from gpufold.geometry import Axes, Axis, Size
from gpufold.geometry.cells import LONG_STRIDE, Segment, groups_of, groups_phases, plan_of, segments_of
from gpufold.keeping import kept

LONG_CELL = 32
"""Least bytes of a cell whose phases are likely to be copied faster together than one by one."""

MOVED_BYTES = 4 * cache_bytes()
"""Bytes of the pixels of a tile of an image that is only moved, if it has more than twice as many."""

SUMMED_ROW = 512
"""Bytes of a contiguous row above which sums that are only moved are added to zero without a copy."""

LARGE_BLOCK = 1 << 10
"""Least taps of a block that is added in whole rows: by blocks along the last axis."""


def store(sums: Array, image: Array, axes: Axes, begin: Size) -> None:
    """Store sums (N, C, *phases, *cells) in the image, which begins at pixel `begin` of the sums' cells."""
    rank = len(axes)
    phases_first = (0, 1, *range(3, 2 + 2 * rank, 2), *range(2, 2 + 2 * rank, 2))
    for source, pixels, extents in _stores(axes, begin):
        target = image[pixels]
        copy_rows(sums[source], target.reshape(*target.shape[:2], *extents, copy=False).transpose(phases_first))


@kept
def _stores(axes: Axes, begin: Size) -> tuple[tuple[Index, Index, Size], ...]:
    """Return the indices of sums, the indices of their pixels, and the pixels' shape in cells and phases.

    Phases are stored one by one if they are fewer than the pieces of an axis, or would make short inner loops.
    """
    stores = []
    by_axis = [list(segments_of(axis, n)) for axis, n in zip(axes, begin, strict=True)]
    for number, (axis, n) in enumerate(zip(axes, begin, strict=True)):
        if 1 < axis.stride < (len(by_axis[number]) if number + 1 < len(axes) else LONG_STRIDE):
            phases = [range(start, axis.size, axis.stride) for start in range(min(axis.stride, axis.size))]
            by_axis[number] = [
                Segment(slice(phase.start, phase.stop, phase.step), (phase.start + n) // axis.stride, len(phase), 1)
                for phase in phases
            ]
    for pieces in product(*by_axis):
        cells = [slice(piece.first_cell, piece.first_cell + piece.cells) for piece in pieces]
        first = [(piece.pixels.start + n) % axis.stride for piece, n, axis in zip(pieces, begin, axes, strict=True)]
        parts = [slice(n, n + piece.width) for piece, n in zip(pieces, first, strict=True)]
        extents = tuple(extent for piece in pieces for extent in (piece.cells, piece.width))
        stores.append(((ALL, ALL, *parts, *cells), (ALL, ALL, *(piece.pixels for piece in pieces)), extents))
    return tuple(stores)


@kept
def taps_are_closest(strides: Size, axes: Axes) -> bool:
    """Return whether neighbouring taps of split columns lie closer in memory than neighbouring blocks."""
    rank = len(axes)
    taps = [abs(step) for step, axis in zip(strides[2 : 2 + rank], axes, strict=True) if axis.kernel > 1]
    blocks = [abs(step) for step, axis in zip(strides[2 + rank :], axes, strict=True) if axis.blocks > 1]
    return bool(taps) and min(taps) < min(blocks, default=min(taps) + 1)


def adds_rows(columns: Array, axes: Axes) -> bool:
    """Return whether rows of blocks, which overlap, make longer inner loops than the phases of a cell."""
    last, large = axes[-1], prod(axis.kernel for axis in axes) >= LARGE_BLOCK
    overlap = last.dilation > 0 and last.kernel > last.stride
    return large and overlap and len(axes) > 1 and taps_are_closest(columns.strides, axes)


class CellSegment(NamedTuple):
    """A piece of the image as cells, and pairs of indices: of cells, and of the columns that land there.

    Cells are (N, C, cells, phases, ...), without phases if the stride is 1; columns are (N, C, blocks, taps, ...).
    """

    pixels: Index
    shape: Size
    pairs: tuple[tuple[Index, Index], ...]

    def of(self, image: Array) -> Array:
        """View the piece of an image as cells."""
        return image[self.pixels].reshape(image.shape[:2] + self.shape, copy=False)


@kept
def cell_way(
    axes: Axes, rows: bool, separate: tuple[int, ...], moves: bool = False
) -> tuple[tuple[int, ...], tuple[CellSegment, ...]]:
    """Pair cells and columns, phase by phase along the `separate` axes, unless their cells are long.

    Return the transposition of columns to (N, C, blocks, taps, blocks, taps, ...), of `Plan.axes`, and the pieces.
    Along the other axes cells begin where blocks do if elements are only moved: all phases of a cell move together.
    """
    plan, rank, pieces, order = plan_of(axes, rows), len(axes), [], [0, 1]
    by_axis = []
    for number, (axis, turned) in enumerate(zip(plan.axes, plan.turned, strict=True)):
        order += (2 + number, 2 + rank + number)[:: 1 if turned else -1]
        begin = axis.pad_begin % axis.stride if moves and not turned and number not in separate else 0
        by_axis.append(_pairs_along(axis, number in separate, turned, begin))
    for parts in product(*by_axis):
        of_axes, pairs_of_axes = zip(*parts, strict=True)
        pixels = (ALL, ALL, *(piece.pixels for piece in of_axes))
        shape = tuple(extent for piece in of_axes for extent in (piece.cells, piece.width)[: 1 + (piece.width > 1)])
        both = (zip(*groups, strict=True) for groups in product(*pairs_of_axes))
        pairs = [(_joined(cells), _joined(columns)) for cells, columns in both]
        pieces.append(CellSegment(pixels, shape, tuple(pairs)))
    return tuple(order), tuple(pieces)


@kept
def _pairs_along(
    axis: Axis, separate: bool, turned: bool, begin: int
) -> tuple[tuple[Segment, tuple[tuple[Index, Index], ...]], ...]:
    """Return the pieces of an axis, each with the (cells, phases) and (blocks, taps) of its groups, in order."""
    along = []
    for piece in segments_of(axis, begin):
        pairs = [
            ((cells, _single(phases))[: 1 + (piece.width > 1)], (blocks, _single(taps)))
            for taps, phases, cells, blocks in groups_of(axis, piece, groups_phases(axis, separate), begin)
        ]
        along.append((piece, tuple(pairs[:: -1 if turned else 1])))
    return tuple(along)


def _joined(parts: Iterable[Index]) -> Index:
    """Join indices of each axis into an index of the array."""
    return (ALL, ALL, *chain.from_iterable(parts))


def _single(part: slice) -> slice | int:
    """Return a slice of one element as an integer, because additions over fewer axes have less overhead."""
    return part if part.stop - part.start > 1 else int(part.start)


def fold_cells(columns: Array, image: Array, axes: Axes, weights: Array | None) -> None:
    """Add columns into an image and write each of its elements."""
    closest = taps_are_closest(columns.strides, axes)
    if closest and len(axes) > 1:  # cells of a single axis are contiguous
        shorten_buffers(columns)
    order, pieces = cell_way(axes, adds_rows(columns, axes), (len(axes) - 1,))
    columns = columns.transpose(order)
    factors = Factors() if weights is None else Factors([weights.transpose(order)])
    image.fill(0)
    for piece in pieces:
        add_pairs(piece.of(image), columns, factors, piece.pairs)


def _by_cells(
    image: Array, columns: Array, axes: Axes, weights: Array | None, separate: tuple[int, ...], moves: bool
) -> Iterator[tuple[Array, Array, Array | None]]:
    """Yield views of an image as cells, of the columns that land there, and of their weights."""
    order, pieces = cell_way(axes, False, separate, moves)
    columns, weights = columns.transpose(order), None if weights is None else weights.transpose(order)
    for piece in pieces:
        cells = piece.of(image)
        for cell_index, column_index in piece.pairs:
            yield cells[cell_index], columns[column_index], None if weights is None else weights[column_index]


def _split(axes: Axes) -> tuple[int, ...]:
    return tuple([number for number, axis in enumerate(axes) if axis.stride > 1])


def _row_bytes(first: Array, second: Array) -> int:
    """Return the bytes of rows that are contiguous in both arrays, which have one shape and dtype."""
    size = first.itemsize
    for step, axis in sorted([(step, axis) for axis, step in enumerate(second.strides) if second.shape[axis] > 1]):
        if not step == first.strides[axis] == size:
            break
        size *= second.shape[axis]
    return size


def _move(columns: Array, image: Array, axes: Axes, weights: Array | None, apart: slice, sums: bool) -> None:
    """Copy columns that do not overlap into an image and write each of its elements.

    Of the axes with a stride, the phases along those in `apart` are copied one after another, and all phases of a cell
    along the others at once. Sums start from +0, and are never -0.0.
    """
    zero, sums, copied = np.zeros((), image.dtype), sums and image.dtype.kind in "fc", False
    if not plan_of(axes).once:
        image[...] = zero
    for into, some, factors in _by_cells(image, columns, axes, weights, _split(axes)[apart], True):
        if sums and factors is None and some.dtype == into.dtype and _row_bytes(some, into) > SUMMED_ROW:
            np.add(some, zero, into)
        else:
            multiply(some, factors, into)
            copied = True
    if sums and copied:
        np.add(image, zero, image)


_APART = slice(0), slice(-1, None), ALL
MOVES, SUMMED_MOVES = ([partial(_move, apart=some, sums=sums) for some in _APART] for sums in (False, True))
"""The ways to copy columns that are only moved, or summed: all phases of a cell together, those along the last axis
apart, and all apart."""


@kept
def ways_to_move(
    shape: Size, strides: Size, axes: Axes, pixels: int, itemsize: int, sums: bool = False
) -> tuple[tuple[int, Callable[..., None]], ...]:
    """Return the ways to copy columns into an image of some pixels, each with the most pixels of a tile.

    The likely fastest is first. If the blocks along the last axis are not the closest, it may be to copy the phases one
    after another along all axes, because every copy then reads what is contiguous. Large images may be faster in tiles.
    """
    split, (together, last_apart, all_apart) = _split(axes), SUMMED_MOVES if sums else MOVES
    if not split or axes[split[-1]].stride >= LONG_STRIDE:
        ways = [together]
    else:
        some = [*range(2), *range(2 + len(axes), len(shape))]
        closest = min((abs(strides[number]) for number in some if shape[number] > 1), default=0)
        cell = itemsize * prod(axis.size for axis in axes[split[-1] + 1 :]) * axes[split[-1]].stride
        ways = [last_apart, together] if cell < LONG_CELL else [together, last_apart]
        ways += [all_apart] * (len(split) > 1 and abs(strides[-1]) > closest)
    tile = MOVED_BYTES // max(1, itemsize)
    return *((pixels, way) for way in ways), *((tile, way) for way in ways[:1] if 2 * tile < pixels)


def unfold_cells(columns: Array, image: Array, axes: Axes, weights: Array | None) -> None:
    """Copy weighted pixels into the columns whose taps land on them: tap by tap if taps are the closest elements."""
    rank = len(axes)
    separate = tuple(range(rank)) if taps_are_closest(columns.strides, axes) else (rank - 1,)
    for some, into, factors in _by_cells(image, columns, axes, spread(weights, columns), separate, False):
        multiply(some, factors, into)
