"""The NumPy path: the operations on NumPy arrays, deterministic whatever the number of threads.

All but add_blocks are one thing here: a split view of the columns, (N, C, *kernel, *blocks), and an
image, (N, C, *size), whose axes say which pixel a tap of a block lands on. `fold` adds (or moves) columns into
the image, `unfold` moves pixels into the columns. Batch and space are the case kernel = stride = block.

Work is cut into tiles of the image: planes first, then windows along the axes. A tile is served in one of two ways:

- cells: pixels viewed as cells of one stride, (cell, phase); all taps that reach the same cell offset are one
  strided add. Few array operations; right for small arrays, large strides and pure movement.
- flat: for each phase, every tap is one contiguous add over whole planes into a scratch whose row pitch is the
  number of blocks, not of pixels. Rows then wrap into one another in the few columns at both edges, which are added
  again on their own. Contiguous adds run three times faster than adds into strided windows.

Both add the taps of a pixel in lexicographic order, starting from +0. A window's weights are one more array with the
columns' axes, indexed alike: a tap is multiplied into a scratch of its own just before it is added. A mean divides a
tile when it is summed, by the sums of the weights along each axis, or by the window folded once for all planes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import product
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gpufold.geometry import (
    Axis,
    BlocksGeometry,
    PositionsGeometry,
    Size,
    SlidingGeometry,
    SpaceGeometry,
    blocks_as_columns,
)
from gpufold.plan import ELEMENT_TYPES, PLAIN, Fusion
from gpufold.threads import for_each, get_num_threads
from gpufold.windows import weights_of_axes, weights_of_taps

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

LONG_ROW = 4
"""Taps of a block's row from which they make an inner loop that is long enough, where they lie one after another."""

SCATTERED_ELEMENTS = 1 << 17
"""Column elements of a tile, where they are shorter: taps are then scattered, and should find it in the caches."""

SCATTERED_BLOCK = 512
"""Elements of a block up to which add_blocks adds them by their indices, for less than an array operation costs."""

MANY_STRIPS = 64
"""Strips of zeros beyond which im2col clears all columns at once."""

LONG_STRIDE = 8
"""Strides of the last axis from which the phases of a cell make an inner loop that is long enough."""

_ALL = slice(None)


# ---------------------------------------------------------------------------------------------
# The operations


def col2im(
    data: Array, image: Array, geometry: SlidingGeometry, fusion: Fusion = PLAIN, window: Array | None = None
) -> None:
    """Add the columns' blocks into `image`, every element of which is written, or added to where it accumulates."""
    columns = data.reshape(geometry.split_columns_shape)
    fold(columns, _batched(image, geometry), geometry.axes, fusion, window)


def im2col(
    image: Array, columns: Array, geometry: SlidingGeometry, fusion: Fusion = PLAIN, window: Array | None = None
) -> None:
    """Take the blocks out of `image`; taps in the padding give zero. Every element of `columns` is written."""
    unfold(_batched(image, geometry), columns.reshape(geometry.split_columns_shape), geometry.axes, fusion, window)


def blocks_to_array(
    blocks: Array, array: Array, geometry: BlocksGeometry, fusion: Fusion = PLAIN, window: Array | None = None
) -> None:
    """Add blocks of their own layout into `array`, every element of which is written, or added to."""
    columns, image, axes = _as_columns(blocks, array, geometry)
    fold(columns, image, axes, fusion, window)


def array_to_blocks(
    array: Array, blocks: Array, geometry: BlocksGeometry, fusion: Fusion = PLAIN, window: Array | None = None
) -> None:
    """Take the blocks out of `array`. Every element of `blocks` is written."""
    columns, image, axes = _as_columns(blocks, array, geometry)
    unfold(image, columns, axes, fusion, window)


def add_blocks(
    blocks: Array,
    array: Array,
    geometry: PositionsGeometry,
    fusion: Fusion,
    window: Array | None,
    positions: Array,
) -> None:
    """Add blocks into `array` at positions (count, rank), one after another, and drop what falls outside."""
    taps = None if window is None else weights_of_taps(fusion.window, window, geometry.block_shape)
    lead = len(geometry.lead)
    unit_axes = tuple(Axis(extent, 1, 1, 1, 0, 0) for extent in array.shape)
    scatters = blocks[0].size <= SCATTERED_BLOCK
    copies = accumulator_dtype(array.dtype) != array.dtype or (scatters and not array.flags.c_contiguous)
    limit = TILE_ELEMENTS if copies else array.size
    if blocks.size >= THREADED_ELEMENTS:
        limit = min(limit, -(-array.size // (TILES_PER_THREAD * get_num_threads())))
    with np.errstate(all="ignore"):
        for_each(
            _add_to_tile,
            [
                (
                    array[tile.pixels[2:]],
                    np.array([pixels.start for pixels in tile.pixels[2 + lead :]]),
                    blocks[(_ALL, *tile.pixels[2 : 2 + lead])],
                    positions,
                    taps,
                    scatters,
                )
                for tile in _cut_into_tiles((1, 1, *array.shape), unit_axes, limit)
            ],
        )


def batch_to_space(data: Array, space: Array, geometry: SpaceGeometry) -> None:
    """Move batch blocks into space, every element of which is written."""
    _fold(_blocks_first(data, geometry), space[:, None], geometry.axes, MOVE)


def space_to_batch(space: Array, data: Array, geometry: SpaceGeometry) -> None:
    """Move space into batch blocks; the margins give zero. Every element of `data` is written."""
    unfold(space[:, None], _blocks_first(data, geometry), geometry.axes)


def fold(
    columns: Array, image: Array, axes: tuple[Axis, ...], fusion: Fusion = PLAIN, window: Array | None = None
) -> None:
    """Add split columns (N, C, *kernel, *blocks) into an image (N, C, *size), each of any layout; strings move."""
    _fold(columns, image, axes, MOVE if columns.dtype.kind in "SUT" else _treatment(fusion, window, columns, axes))


def unfold(
    image: Array, columns: Array, axes: tuple[Axis, ...], fusion: Fusion = PLAIN, window: Array | None = None
) -> None:
    """Take split columns (N, C, *kernel, *blocks) out of an image (N, C, *size), each of any layout."""
    _unfold(image, columns, axes, _treatment(fusion, window, columns, axes).weights)


def _batched(image: Array, geometry: SlidingGeometry) -> Array:
    return image[None] if geometry.batch is None else image


def _as_columns(blocks: Array, array: Array, geometry: BlocksGeometry) -> tuple[Array, Array, tuple[Axis, ...]]:
    """View blocks as split columns, and the array as an image."""
    sliding, _, _ = blocks_as_columns(geometry, blocks.strides, array.strides)
    batch, channels, *_ = sliding.split_columns_shape
    rank = len(sliding.axes)
    columns = blocks.reshape(batch, channels, *sliding.num_blocks, *sliding.kernel_size, copy=False)
    image = array.reshape(batch, channels, *sliding.image_size, copy=False)
    return columns.transpose(0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank)), image, sliding.axes


def _blocks_first(data: Array, geometry: SpaceGeometry) -> Array:
    """View (prod(block)*B, *D) as split columns (B, 1, *block, *D)."""
    rank = len(geometry.block)
    split = data.reshape(*geometry.block, geometry.batch, *geometry.grid)
    return split.transpose(rank, *range(rank), *range(rank + 1, 2 * rank + 1))[:, None]


# ---------------------------------------------------------------------------------------------
# Tiles


@dataclass(frozen=True, slots=True)
class _Treatment:
    """What becomes of the elements besides being added: `Fusion` with a window's weights in the columns' shape."""

    move: bool = False
    """They are stored, not added: no two of them meet."""
    taps: Array | None = None
    """The weight of every tap of a block."""
    weights: Array | None = None
    """The same in the shape of the split columns, by zero strides."""
    by_axis: tuple[Array, ...] | None = None
    """The weights of each axis, where the window is separable."""
    reduction: str = "sum"
    accumulate: bool = False


SUM, MOVE = _Treatment(), _Treatment(move=True)


def _treatment(fusion: Fusion, window: Array | None, columns: Array, axes: tuple[Axis, ...]) -> _Treatment:
    if fusion == PLAIN:
        return SUM
    taps, weights, by_axis = None, None, None
    if window is not None:
        kernel = tuple(axis.kernel for axis in axes)
        if fusion.window == "separable":
            by_axis = tuple(weights_of_axes(window, kernel))
        taps = weights_of_taps(fusion.window, window, kernel)
        weights = np.broadcast_to(taps.reshape(1, 1, *kernel, *(1,) * len(kernel)), columns.shape)
    return _Treatment(False, taps, weights, by_axis, fusion.reduction, fusion.accumulate)


def _fold(columns: Array, image: Array, axes: tuple[Axis, ...], treatment: _Treatment) -> None:
    with np.errstate(all="ignore"):  # sums past the range are IEEE's infinities and NaNs, silently, as on a GPU
        if max(columns.size, image.size) < THREADED_ELEMENTS:
            _fold_tile(columns, image, axes, treatment)
        else:
            tiles = _tiles(image.shape, axes)
            for_each(
                _fold_tile,
                [(_cut(columns, tile), image[tile.pixels], tile.axes, _treat(treatment, tile)) for tile in tiles],
            )


def _unfold(image: Array, columns: Array, axes: tuple[Axis, ...], weights: Array | None) -> None:
    for index in _taps_outside(axes):
        columns[index] = np.zeros((), columns.dtype)
    if not image.size:
        return  # all margin
    with np.errstate(all="ignore"):
        closest = not _taps_outside(axes) and _taps_are_closest(columns, axes)
        if closest and axes[-1].kernel >= LONG_ROW:
            _unfold_view(image, columns, axes, weights)
        elif columns.size < (SCATTERED_ELEMENTS if closest else THREADED_ELEMENTS):
            _unfold_tile(image, columns, axes, weights)
        else:
            limit = SCATTERED_ELEMENTS * image.size // columns.size
            tiles = _cut_into_tiles(image.shape, axes, limit) if closest else _tiles(image.shape, axes)
            for_each(
                _unfold_tile,
                [
                    (
                        image[tile.pixels],
                        _cut(columns, tile),
                        tile.axes,
                        weights if weights is None else _cut(weights, tile),
                    )
                    for tile in tiles
                ],
            )


def _taps_are_closest(columns: Array, axes: tuple[Axis, ...]) -> bool:
    """Whether neighbouring taps lie closer in memory than neighbouring blocks."""
    rank = len(axes)
    taps = [abs(s) for s, axis in zip(columns.strides[2 : 2 + rank], axes, strict=True) if axis.kernel > 1]
    blocks = [abs(s) for s, axis in zip(columns.strides[2 + rank :], axes, strict=True) if axis.blocks > 1]
    return bool(taps) and min(taps) < min(blocks, default=min(taps) + 1)


def _unfold_view(image: Array, columns: Array, axes: tuple[Axis, ...], weights: Array | None) -> None:
    """Copy blocks that lie inside the image from one view of it, which runs along the taps as the columns do."""
    first = image[(_ALL, _ALL, *(slice(axis.pixel(0, 0), None) for axis in axes))]
    steps = image.strides[2:]
    taps = (axis.dilation * step for axis, step in zip(axes, steps, strict=True))
    blocks = (axis.stride * step for axis, step in zip(axes, steps, strict=True))
    view = np.lib.stride_tricks.as_strided(first, columns.shape, (*image.strides[:2], *taps, *blocks), writeable=False)
    outer = (0, 1, *range(2 + len(axes), columns.ndim))
    longest = max(outer, key=lambda number: columns.shape[number])
    parts = TILES_PER_THREAD * get_num_threads() if columns.size >= THREADED_ELEMENTS else 1
    arrays = (columns, view) if weights is None else (view, weights, columns)
    cut = [np.array_split(array, parts, longest) for array in arrays]
    for_each(np.copyto if weights is None else _multiply, zip(*cut, strict=True))


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


def _treat(treatment: _Treatment, tile: _Tile) -> _Treatment:
    """Cut the weights as the columns are cut."""
    return treatment if treatment.weights is None else replace(treatment, weights=_cut(treatment.weights, tile))


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


def _add_pairs(total: Array, terms: Array, weights: Array | None, pairs: Iterable[tuple[Index, Index]]) -> None:
    """Add terms, weighted, into windows of a total, in the order given."""
    scratch: Array = np.empty(0, total.dtype)
    for into, term in pairs:
        window, terms_here = total[into], terms[term]
        if weights is not None:
            if scratch.size < terms_here.size:
                scratch = np.empty(terms_here.size, total.dtype)
            products = scratch[: terms_here.size].reshape(terms_here.shape, copy=False)
            _multiply(terms_here, weights[term], products)
            terms_here = products
        np.add(window, terms_here, window)


def _multiply(elements: Array, weights: Array, products: Array) -> None:
    """Multiply by real weights, component by component, rounded once to the products' dtype."""
    for part, result in _parts(elements, products):
        np.multiply(part, weights, result, casting="unsafe")


def _divide(elements: Array, divisor: Array) -> None:
    for part, quotient in _parts(elements, elements):
        np.divide(part, divisor, quotient)


def _parts(elements: Array, results: Array) -> tuple[tuple[Array, Array], ...]:
    """Give the real and imaginary parts, or the real ones as they are."""
    if elements.dtype.kind != "c":
        return ((elements, results),)
    return ((elements.real, results.real), (elements.imag, results.imag))


# ---------------------------------------------------------------------------------------------
# A tile of blocks at positions


def _add_to_tile(
    tile: Array, begin: Array, blocks: Array, positions: Array, taps: Array | None, scatters: bool
) -> None:
    """Add what falls into a tile (*lead, *size) that begins at a pixel, block after block."""
    rank = len(begin)
    size, block = np.array(tile.shape[-rank:]), np.array(blocks.shape[-rank:])
    (met,) = ((positions < begin + size) & (positions > begin - block)).all(axis=1).nonzero()
    if not met.size:
        return
    total = tile.astype(accumulator_dtype(tile.dtype), order="C" if scatters else "K", copy=False)
    (_scatter_blocks if scatters else _add_one_by_one)(total, blocks, taps, met, positions[met] - begin)
    if total is not tile:
        tile[...] = total


def _add_one_by_one(total: Array, blocks: Array, taps: Array | None, met: Array, first: Array) -> None:
    """Add each block at its first pixel by an array operation of its own."""
    rank = first.shape[1]
    start, stop = np.maximum(first, 0), np.minimum(first + blocks.shape[-rank:], total.shape[-rank:])
    scratch: Array = np.empty(0 if taps is None else blocks[0].size, total.dtype)
    edges = (corner.tolist() for corner in (met, start, stop, start - first, stop - first))
    for number, starts, stops, first_taps, last_taps in zip(*edges, strict=True):
        elements: Index = (..., *map(slice, first_taps, last_taps))
        terms = blocks[number][elements]
        if taps is not None:
            products = scratch[: terms.size].reshape(terms.shape)
            _multiply(terms, taps[elements], products)
            terms = products
        into: Index = (..., *map(slice, starts, stops))
        pixels = total[into]
        np.add(pixels, terms, pixels)


def _scatter_blocks(total: Array, blocks: Array, taps: Array | None, met: Array, first: Array) -> None:
    """Add elements by their index, those of one block before those of the next, many blocks in one array operation."""
    rank, shape = first.shape[1], blocks.shape[1:]
    planes = np.arange(prod(shape[:-rank])).reshape(*shape[:-rank], *(1,) * rank)
    step = max(1, SCATTERED_ELEMENTS // prod(shape))
    for few in range(0, len(met), step):
        terms = blocks[met[few : few + step]].astype(total.dtype, copy=False)
        if taps is not None:
            products = np.empty(terms.shape, total.dtype)
            _multiply(terms, taps, products)
            terms = products
        pixel: Array = planes
        inside: Any = np.True_
        for axis in range(rank):
            extent, side = total.shape[axis - rank], shape[axis - rank]
            along = first[few : few + step, axis, None] + np.arange(side)
            along = along.reshape(-1, *(1,) * (len(shape) - rank + axis), side, *(1,) * (rank - 1 - axis))
            pixel = pixel * extent + along
            inside = inside & (along >= 0) & (along < extent)
        if inside.all():
            np.add.at(total.reshape(-1), pixel.ravel(), terms.ravel())
        else:
            inside = np.broadcast_to(inside, terms.shape)
            np.add.at(total.reshape(-1), pixel[inside], terms[inside])


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


def _unfold_tile(image: Array, columns: Array, axes: tuple[Axis, ...], weights: Array | None) -> None:
    way = _cell_way(axes)
    columns = columns.transpose(way.order)
    if weights is not None:
        weights = weights.transpose(way.order)
    for piece in way.pieces:
        cells = piece.of(image)
        for cell_index, column_index in piece.pairs:
            if weights is None:
                columns[column_index] = cells[cell_index]
            else:
                _multiply(cells[cell_index], weights[column_index], columns[column_index])


def _fold_cells(columns: Array, image: Array, way: _CellWay, weights: Array | None = None, move: bool = False) -> None:
    columns = columns.transpose(way.order)
    if weights is not None:
        weights = weights.transpose(way.order)
    if not way.once:
        image.fill("" if image.dtype.kind in "SUT" else 0)
    for piece in way.pieces:
        cells = piece.of(image)
        if move:
            for cell_index, column_index in piece.pairs:
                cells[cell_index] = columns[column_index]
        elif way.once:
            for cell_index, column_index in piece.pairs:
                terms = columns[column_index]
                if weights is not None:
                    _multiply(terms, weights[column_index], cells[cell_index])
                    terms = cells[cell_index]
                np.add(terms, np.zeros((), image.dtype), cells[cell_index])
        else:
            _add_pairs(cells, columns, weights, piece.pairs)


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
            _multiply(terms, flat_weights[first], scratch[into])
            terms = scratch[into]
        np.add(terms, zero, scratch[into])
    else:
        scratch[...] = zero
    _add_pairs(scratch, flat, flat_weights, pairs)
    rows = -(-axes[-2].size // axes[-2].stride)
    grid = scratch[..., : rows * pitch].reshape(*scratch.shape[:-1], rows, pitch, copy=False)
    for store in runs.flat.stores:
        _phases_first(image, store, rank)[store.into] = grid[store.source]

    for strip in runs.strips:
        width, *shape = strip.shape
        scratch = np.zeros((width, *planes, *shape), image.dtype)
        strip_weights = None if weights is None else _last_axis_first(weights)
        _add_pairs(scratch, _last_axis_first(columns), strip_weights, strip.pairs)
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


def _fold_tile(columns: Array, image: Array, axes: tuple[Axis, ...], treatment: _Treatment) -> None:
    way = _cell_way(axes)
    if treatment.move:
        _fold_cells(columns, image, way, move=True)
        return
    accumulator = accumulator_dtype(image.dtype)
    narrow = accumulator != image.dtype
    total = np.empty(image.shape, accumulator) if narrow or treatment.accumulate else image
    weights = treatment.weights
    if way.once or columns.size < FLAT_ELEMENTS or not _fold_flat(columns, total, axes, weights):
        _fold_cells(columns, total, way, weights)
    if treatment.reduction != "sum":
        _average(total, axes, treatment)
    if treatment.accumulate:
        np.add(image, total, total if narrow else image)
    if narrow:
        image[...] = total


def _fold_flat(columns: Array, image: Array, axes: tuple[Axis, ...], weights: Array | None) -> bool:
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
def accumulator_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Give the type that sums are made in: float32 for the half precisions, else the array's own."""
    return np.dtype(np.float32) if dtype.name in ("float16", "bfloat16") else dtype


# ---------------------------------------------------------------------------------------------
# Means: what the sums of a tile are divided by


def _average(total: Array, axes: tuple[Axis, ...], treatment: _Treatment) -> None:
    """Divide a tile's sums by what landed on each pixel; where that is nothing, or next to it, give zero."""
    dtype = np.dtype(ELEMENT_TYPES[total.dtype.name].weight)
    if treatment.taps is None:
        counts = [_counts(axis) for axis in axes]
        most, least = prod(int(count.max()) for count in counts), min(int(count.min()) for count in counts)
        if most <= 1:
            return
        exact = dtype if most <= 1 << np.finfo(dtype).nmant else np.dtype(np.float64)
        divisor = reduce(np.multiply.outer, [count.astype(exact) for count in counts]).astype(dtype, copy=False)
        uncovered = None if least else divisor == 0
    else:
        divisor = _sums_of_weights(axes, treatment, dtype)
        uncovered = np.abs(divisor) < np.finfo(dtype).tiny
        if not uncovered.any():
            uncovered = None
    if uncovered is not None:
        divisor[uncovered] = 1
    _divide(total, divisor)
    if uncovered is not None:
        total[..., uncovered] = 0


@lru_cache(maxsize=16)
def _counts(axis: Axis) -> Array:
    """Count the taps that land on each pixel of an axis."""
    return _folded(np.ones(axis.kernel, np.int64), (axis,))


def _sums_of_weights(axes: tuple[Axis, ...], treatment: _Treatment, dtype: np.dtype[Any]) -> Array:
    """Give what a pixel of one plane is divided by, in an array of its own."""

    def power(weights: Array) -> Array:
        return weights * weights if treatment.reduction == "least_squares" else weights

    if treatment.by_axis is not None:
        shares = [_folded(power(weights), (axis,)) for axis, weights in zip(axes, treatment.by_axis, strict=True)]
        return np.array(reduce(np.multiply.outer, shares))
    assert treatment.taps is not None
    few, pixels = zip(*map(_shortened, axes), strict=True)
    divisor = _folded(power(treatment.taps), few)
    for number, index in enumerate(pixels):
        if index is not None:
            divisor = divisor.take(index, number)
    return divisor


def _folded(weights: Array, axes: tuple[Axis, ...]) -> Array:
    """Fold one plane whose blocks are all the same."""
    rank, blocks = len(axes), tuple(axis.blocks for axis in axes)
    columns = np.broadcast_to(weights.reshape(1, 1, *weights.shape, *(1,) * rank), (1, 1, *weights.shape, *blocks))
    image: Array = np.empty((1, 1, *(axis.size for axis in axes)), weights.dtype)
    _fold_cells(columns, image, _cell_way(axes))
    plane: Array = image[0, 0]
    return plane


@lru_cache(maxsize=16)
def _shortened(axis: Axis) -> tuple[Axis, Array | None]:
    """Give an axis with fewer blocks that shows all there is, and its pixel for each pixel, where that is another.

    Past the first blocks and before the last ones, pixels a stride apart are reached by the same taps.
    """
    least = -(-axis.dilated_kernel // axis.stride) + 1
    missing = (axis.blocks - least) * axis.stride
    if missing <= 0:
        return axis, None
    pixels = np.arange(axis.size)
    begin = (least - 1) * axis.stride - axis.pad_begin
    periodic = (pixels >= begin) & (pixels < begin + missing)
    few = np.where(periodic, begin + (pixels - begin) % axis.stride, np.where(pixels < begin, pixels, pixels - missing))
    lowest, highest = int(few.min()), int(few.max())
    size = highest - lowest + 1
    pad_begin = axis.pad_begin + lowest
    pad_end = (least - 1) * axis.stride + axis.dilated_kernel - size - pad_begin
    return Axis(size, axis.kernel, axis.stride, axis.dilation, pad_begin, pad_end), few - lowest
