"""The NumPy path: the four operations on NumPy arrays, deterministic whatever the number of threads.

Both pairs of operations are one thing here: a split view of the columns, (N, C, *kernel, *blocks), and an
image, (N, C, *size), whose axes say which pixel a tap of a block lands on. `fold` adds (or moves) columns into
the image, `unfold` moves pixels into the columns. Batch and space are the case kernel = stride = block.

Work is cut into tiles of the image: planes first, then windows along the axes. A tile is served in one of two ways:

- cells: pixels viewed as cells of one stride, (cell, phase); all taps that reach the same cell offset are one
  strided add. Few array operations; right for small arrays, large strides and pure movement.
- flat: for each phase, every tap is one contiguous add over whole planes into a scratch whose row pitch is the
  number of blocks, not of pixels. Rows then wrap into one another in the few columns at both edges, which are added
  again on their own. Contiguous adds run three times faster than adds into strided windows.

Both add the taps of a pixel in lexicographic order, starting from +0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gpufold.geometry import Axis, Size, SlidingGeometry, SpaceGeometry
from gpufold.threads import for_each, get_num_threads

Array: TypeAlias = npt.NDArray[Any]
Index: TypeAlias = tuple[Any, ...]

TILE_ELEMENTS = 1 << 19
"""Pixels of a tile at most: its scratch stays in the caches, and is all a call needs."""

THREADED_ELEMENTS = 1 << 20
"""Column elements from which a call is worth spreading over threads."""

TILES_PER_THREAD = 2
"""Tiles that a thread gets at least: more even the load, fewer keep the array operations long."""

FLAT_ELEMENTS = 1 << 14
"""Column elements of a tile from which flat runs repay what they cost to set up."""

FLAT_RUN = 32
"""Blocks of a plane from which a flat run is a long enough inner loop."""

MANY_STRIPS = 64
"""Strips of zeros beyond which im2col clears all columns at once."""

LONG_STRIDE = 8
"""Strides of the last axis from which the phases of a cell make an inner loop that is long enough."""

_ALL = slice(None)


# ---------------------------------------------------------------------------------------------
# The operations


def col2im(data: Array, image: Array, geometry: SlidingGeometry) -> None:
    """Add the columns' blocks into `image`, every element of which is written."""
    _fold(
        data.reshape(geometry.split_columns_shape), _batched(image, geometry), geometry.axes, data.dtype.kind in "SUT"
    )


def im2col(image: Array, columns: Array, geometry: SlidingGeometry) -> None:
    """Take the blocks out of `image`; taps in the padding give zero. Every element of `columns` is written."""
    _unfold(_batched(image, geometry), columns.reshape(geometry.split_columns_shape), geometry.axes)


def batch_to_space(data: Array, space: Array, geometry: SpaceGeometry) -> None:
    """Move batch blocks into space, every element of which is written."""
    _fold(_blocks_first(data, geometry), space[:, None], geometry.axes, True)


def space_to_batch(space: Array, data: Array, geometry: SpaceGeometry) -> None:
    """Move space into batch blocks; the margins give zero. Every element of `data` is written."""
    _unfold(space[:, None], _blocks_first(data, geometry), geometry.axes)


def _batched(image: Array, geometry: SlidingGeometry) -> Array:
    return image[None] if geometry.batch is None else image


def _blocks_first(data: Array, geometry: SpaceGeometry) -> Array:
    """View (prod(block)*B, *D) as split columns (B, 1, *block, *D)."""
    rank = len(geometry.block)
    split = data.reshape(*geometry.block, geometry.batch, *geometry.grid)
    return split.transpose(rank, *range(rank), *range(rank + 1, 2 * rank + 1))[:, None]


# ---------------------------------------------------------------------------------------------
# Tiles


def _fold(columns: Array, image: Array, axes: tuple[Axis, ...], move: bool) -> None:
    with np.errstate(all="ignore"):  # sums past the range are IEEE's infinities and NaNs, silently, as on a GPU
        if columns.size < THREADED_ELEMENTS:
            _fold_tile(columns, image, axes, move)
        else:
            tiles = _tiles(image.shape, axes)
            for_each(_fold_tile, [(_cut(columns, tile), image[tile.pixels], tile.axes, move) for tile in tiles])


def _unfold(image: Array, columns: Array, axes: tuple[Axis, ...]) -> None:
    for index in _taps_outside(axes):
        columns[index] = np.zeros((), columns.dtype)
    if not image.size:
        return  # all margin
    if columns.size < THREADED_ELEMENTS:
        _unfold_tile(image, columns, axes)
    else:
        tiles = _tiles(image.shape, axes)
        for_each(_unfold_tile, [(image[tile.pixels], _cut(columns, tile), tile.axes) for tile in tiles])


@lru_cache(maxsize=64)
def _taps_outside(axes: tuple[Axis, ...]) -> tuple[Index, ...]:
    """Give the split columns whose tap lands outside the image: tap by tap, or all where taps are many."""
    outside = []
    for number, axis in enumerate(axes):
        for tap in range(axis.kernel):
            inside = axis.reach(tap)
            for blocks in (slice(0, inside.start), slice(inside.stop, axis.blocks)):
                if blocks.start < min(blocks.stop, axis.blocks):
                    index: list[Any] = [_ALL] * (2 + 2 * len(axes))
                    index[2 + number], index[2 + len(axes) + number] = tap, blocks
                    outside.append(tuple(index))
            if len(outside) > MANY_STRIPS:
                return ((...,),)
    return tuple(outside)


@dataclass(frozen=True, slots=True)
class _Tile:
    """Some planes of an image and a window of it, as a problem of its own."""

    pixels: Index
    planes: tuple[slice, slice]
    blocks: tuple[slice, ...]
    axes: tuple[Axis, ...]


def _cut(columns: Array, tile: _Tile) -> Array:
    """Give the columns that reach a tile."""
    return columns[(*tile.planes, *(_ALL,) * len(tile.axes), *tile.blocks)]


def _tiles(shape: Size, axes: tuple[Axis, ...]) -> tuple[_Tile, ...]:
    """Cut an image (N, C, *size) into tiles: a few a thread, so that threads finish together."""
    return _cut_into_tiles(shape, axes, min(TILE_ELEMENTS, -(-prod(shape) // (TILES_PER_THREAD * get_num_threads()))))


@lru_cache(maxsize=256)
def _cut_into_tiles(shape: Size, axes: tuple[Axis, ...], limit: int) -> tuple[_Tile, ...]:
    """Cut from the outermost axis inwards until a tile has at most `limit` pixels; along an axis, by whole cells."""
    units = (1, 1, *(axis.stride for axis in axes))
    steps = []
    for number, (extent, unit) in enumerate(zip(shape, units, strict=True)):
        inner = prod(shape[number + 1 :])
        fit = max(1, limit // inner)
        step = min(extent, max(unit, fit // unit * unit))
        pieces = -(-extent // step)
        step = -(-extent // pieces // unit) * unit  # of equal length, rather than a short one at the end
        steps.append([slice(start, min(start + step, extent)) for start in range(0, extent, step)])
        limit = max(1, limit // step)
    tiles = []
    for pixels in product(*steps):
        windows = [axis.window(piece.start, piece.stop) for axis, piece in zip(axes, pixels[2:], strict=True)]
        tiles.append(
            _Tile(
                pixels,
                (pixels[0], pixels[1]),
                tuple(slice(blocks.start, blocks.stop) for _, blocks in windows),
                tuple(axis for axis, _ in windows),
            )
        )
    return tuple(tiles)


# ---------------------------------------------------------------------------------------------
# Cells: an axis as (cell, phase)


@dataclass(frozen=True, slots=True)
class _Group:
    """Consecutive taps of an axis that reach the same cell offset, each at its own phase of the cell."""

    taps: slice
    phases: slice
    cells: slice
    blocks: slice

    @property
    def offset(self) -> int:
        """Block b reaches cell b + offset."""
        return int(self.cells.start - self.blocks.start)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Pixels of an axis viewed as (cells, width): whole cells of a stride's width, or the shorter rest as one."""

    pixels: slice
    first_cell: int
    cells: int
    width: int


def _pieces(axis: Axis) -> Iterator[_Piece]:
    whole = axis.size // axis.stride
    if whole:
        yield _Piece(slice(0, whole * axis.stride), 0, whole, axis.stride)
    if axis.size % axis.stride:
        yield _Piece(slice(whole * axis.stride, axis.size), whole, 1, axis.size % axis.stride)


def _groups(axis: Axis, piece: _Piece, group_phases: bool) -> Iterator[_Group]:
    """Give the groups that reach a piece, in ascending order of taps."""
    tap = 0
    while tap < axis.kernel:
        offset, phase = divmod(axis.pixel(0, tap), axis.stride)
        offset -= piece.first_cell
        step = max(1, axis.dilation)
        count = 1
        if group_phases and axis.dilation:
            count = min(axis.kernel - tap, (axis.stride - 1 - phase) // step + 1)
        inside = min(count, max(0, (piece.width - 1 - phase) // step + 1))
        begin, end = max(0, offset), min(piece.cells, offset + axis.blocks)
        if inside and begin < end:
            yield _Group(
                slice(tap, tap + inside),
                slice(phase, phase + (inside - 1) * step + 1, step),
                slice(begin, end),
                slice(begin - offset, end - offset),
            )
        tap += count


def _add_pairs(total: Array, terms: Array, pairs: Iterable[tuple[Index, Index]]) -> None:
    """Add terms into windows of a total, in the order given."""
    for into, term in pairs:
        window = total[into]
        np.add(window, terms[term], window)


# ---------------------------------------------------------------------------------------------
# A tile by cells


@dataclass(frozen=True, slots=True)
class _CellPiece:
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


@dataclass(frozen=True, slots=True)
class _CellWay:
    """How a tile is served by cells."""

    order: tuple[int, ...]
    """The transposition from (N, C, *kernel, *blocks) to (N, C, blocks, taps, blocks, taps, ...)."""
    once: bool
    """Whether blocks tile the image without gaps, overlaps or margins left open: each pixel has one tap."""
    pieces: tuple[_CellPiece, ...]


@lru_cache(maxsize=64)
def _cell_way(axes: tuple[Axis, ...]) -> _CellWay:
    rank = len(axes)
    pieces = []
    for parts in product(*map(_pieces, axes)):
        by_axis = [
            list(_groups(axis, piece, number < rank - 1 or axis.stride >= LONG_STRIDE))
            for number, (axis, piece) in enumerate(zip(axes, parts, strict=True))
        ]
        pairs = []
        for groups in product(*by_axis):
            cells = (
                _ALL,
                _ALL,
                *(
                    part
                    for group, piece in zip(groups, parts, strict=True)
                    for part in (group.cells, _narrow(group.phases))[: 1 + (piece.width > 1)]
                ),
            )
            columns = (_ALL, _ALL, *(part for group in groups for part in (group.blocks, _narrow(group.taps))))
            pairs.append((cells, columns))
        pixels = (_ALL, _ALL, *(piece.pixels for piece in parts))
        shape = tuple(extent for piece in parts for extent in (piece.cells, piece.width)[: 1 + (piece.width > 1)])
        pieces.append(_CellPiece(pixels, shape, tuple(pairs)))
    order = (0, 1, *(part for axis in range(rank) for part in (2 + rank + axis, 2 + axis)))
    once = all(
        axis.kernel == axis.stride
        and (axis.dilation == 1 or axis.kernel == 1)
        and axis.pixel(0, 0) <= 0
        and axis.pixel(axis.blocks - 1, axis.kernel - 1) >= axis.size - 1
        for axis in axes
    )
    return _CellWay(order, once, tuple(pieces))


def _narrow(part: slice) -> slice | int:
    """Give a slice of one element as an index: additions over fewer axes start sooner."""
    return part if part.stop - part.start > 1 else int(part.start)


def _unfold_tile(image: Array, columns: Array, axes: tuple[Axis, ...]) -> None:
    way = _cell_way(axes)
    columns = columns.transpose(way.order)
    for piece in way.pieces:
        cells = piece.of(image)
        for cell_index, column_index in piece.pairs:
            columns[column_index] = cells[cell_index]


def _fold_cells(columns: Array, image: Array, way: _CellWay, move: bool) -> None:
    columns = columns.transpose(way.order)
    if not way.once:
        image.fill("" if image.dtype.kind in "SUT" else 0)
    for piece in way.pieces:
        cells = piece.of(image)
        if move:
            for cell_index, column_index in piece.pairs:
                cells[cell_index] = columns[column_index]
        elif way.once:
            for cell_index, column_index in piece.pairs:
                np.add(columns[column_index], np.zeros((), image.dtype), cells[cell_index])
        else:
            _add_pairs(cells, columns, piece.pairs)


# ---------------------------------------------------------------------------------------------
# A tile by flat runs


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


@lru_cache(maxsize=64)
def _runs(axes: tuple[Axis, ...]) -> _Runs | None:
    """Give the runs of a tile; None where strips would be too wide to be worth it."""
    whole = [_Piece(slice(0, axis.size), 0, -(-axis.size // axis.stride), min(axis.stride, axis.size)) for axis in axes]
    by_axis = [tuple(_groups(axis, piece, True)) for axis, piece in zip(axes, whole, strict=True)]
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
                (_ALL, _ALL, *(group.phases for group in groups), *(group.cells for group in outer), run),
                (_ALL, _ALL, *(group.taps for group in groups), *(group.blocks for group in outer), source),
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


def _strip_pairs(steps: list[tuple[_Group, ...]], pitch: int, low: int, high: int) -> tuple[tuple[Index, Index], ...]:
    """Give the (strip, columns) indices of every tap for cells [low, high) of the last axis, which comes first."""
    pairs = []
    for groups in steps:
        *outer, inner = groups
        begin, end = max(low, inner.offset), min(high, inner.offset + pitch)
        if begin < end:
            cells = slice(begin - low, end - low)
            blocks = slice(begin - inner.offset, end - inner.offset)
            pairs.append(
                (
                    (cells, _ALL, _ALL, *(group.phases for group in groups), *(group.cells for group in outer)),
                    (blocks, _ALL, _ALL, *(group.taps for group in groups), *(group.blocks for group in outer)),
                )
            )
    return tuple(pairs)


def _stores(axes: tuple[Axis, ...], low: int, high: int, origin: int) -> tuple[_Store, ...]:
    """Store cells [low, high) of the last axis; the sums' last axis begins at cell `origin`."""
    stores = []
    for pieces in product(*map(_pieces, axes)):
        *outer, inner = pieces
        begin, end = max(low, inner.first_cell), min(high, inner.first_cell + inner.cells)
        if begin >= end:
            continue
        pixels = (_ALL, _ALL, *(piece.pixels for piece in pieces))
        shape = tuple(extent for piece in pieces for extent in (piece.cells, piece.width))
        rows = tuple(slice(piece.first_cell, piece.first_cell + piece.cells) for piece in outer)
        phases = tuple(slice(0, piece.width) for piece in outer)
        apart = 1 < inner.width < LONG_STRIDE  # short phases make poor inner loops: store them one by one
        for phase in [slice(i, i + 1) for i in range(inner.width)] if apart else [slice(0, inner.width)]:
            into = (
                _ALL,
                _ALL,
                *phases,
                phase,
                *(_ALL,) * len(outer),
                slice(begin - inner.first_cell, end - inner.first_cell),
            )
            source = (_ALL, _ALL, *phases, phase, *rows, slice(begin - origin, end - origin))
            stores.append(_Store(pixels, shape, into, source))
    return tuple(stores)


def _fold_runs(columns: Array, image: Array, axes: tuple[Axis, ...], runs: _Runs) -> None:
    """Fold by runs; the last two axes of the columns lie flat in memory (see `_is_flat`)."""
    planes, rank, pitch = image.shape[:2], len(axes), columns.shape[-1]
    flat, pairs = columns.reshape(*columns.shape[:-2], -1, copy=False), list(runs.flat.pairs)
    scratch: Array = np.empty((*planes, *runs.flat.shape), image.dtype)
    zero = np.zeros((), image.dtype)
    if runs.first_covers:  # all but the ends: the first addition then need not read what it adds to
        (into, first), *pairs = pairs
        scratch[..., : into[-1].start] = zero
        scratch[..., into[-1].stop :] = zero
        np.add(flat[first], zero, scratch[into])
    else:
        scratch[...] = zero
    _add_pairs(scratch, flat, pairs)
    rows = -(-axes[-2].size // axes[-2].stride)
    grid = scratch[..., : rows * pitch].reshape(*scratch.shape[:-1], rows, pitch, copy=False)
    for store in runs.flat.stores:
        _phases_first(image, store, rank)[store.into] = grid[store.source]

    for strip in runs.strips:
        width, *shape = strip.shape
        scratch = np.zeros((width, *planes, *shape), image.dtype)
        _add_pairs(scratch, _last_axis_first(columns), strip.pairs)
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


# ---------------------------------------------------------------------------------------------
# A tile in the way that suits it

_UNIT_AXIS = Axis(size=1, kernel=1, stride=1, dilation=1, pad_begin=0, pad_end=0)


def _fold_tile(columns: Array, image: Array, axes: tuple[Axis, ...], move: bool) -> None:
    way = _cell_way(axes)
    if move or way.once:
        _fold_cells(columns, image, way, move)
        return
    accumulator = accumulator_dtype(image.dtype)
    total = image if accumulator == image.dtype else np.empty(image.shape, accumulator)
    if columns.size < FLAT_ELEMENTS or not _fold_flat(columns, total, axes):
        _fold_cells(columns, total, way, move)
    if total is not image:
        image[...] = total


def _fold_flat(columns: Array, image: Array, axes: tuple[Axis, ...]) -> bool:
    """Fold by runs where that is worth it, else do nothing and say False."""
    if len(axes) == 1:  # a single axis is a single row
        columns, image, axes = columns[:, :, None, :, None, :], image[:, :, None], (_UNIT_AXIS, *axes)
    if prod(columns.shape[-2:]) < FLAT_RUN or not _is_flat(columns):
        return False
    runs = _runs(axes)
    if runs is None:
        return False
    _fold_runs(columns, image, axes, runs)
    return True


@lru_cache(maxsize=64)
def accumulator_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Give the type that sums are made in: float32 for the half precisions, else the array's own."""
    return np.dtype(np.float32) if dtype.name in ("float16", "bfloat16") else dtype
