"""Add blocks at arbitrary positions, tile by tile, and extract them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from gpufold.calls import Call
from gpufold.cpu import tiles
from gpufold.cpu.arithmetic import (
    ALL,
    PRODUCTS,
    Array,
    Index,
    add_pairs,
    copy_rows,
    multiply,
    repeated,
    round_into,
    shorten_buffers,
)
from gpufold.cpu.fused import Weights, weights_of_block
from gpufold.cpu.tiles import parts_of
from gpufold.elements import sum_dtype
from gpufold.geometry import PositionsGeometry, Size
from gpufold.threads import for_each, on_threads
from gpufold.weights import least_weight

BLOCK_START, ROW_START = 1 << 10, 8
"""Elements that can be indexed in the time of starting an array operation, and a row of it."""

LOOKED_UP, TAKEN = 1 << 17, 1 << 16
"""Elements whose indices are computed at a time, and that are extracted at a time."""

FEW_BLOCKS, MANY_BLOCKS, SMALL_BLOCK, LARGE_BLOCK = 16, 16, 3 << 9, 1 << 17
"""Most small blocks that are added one by one, because finding the blocks of a tile takes longer; least blocks, and
most elements of each, that are extracted together; least bytes of a block that is cleared around what is extracted, and
not as a whole, which takes longer."""


def add_blocks(
    call: Call, blocks: Array, array: Array, window: Weights, positions: Array, weight_out: Array | None = None
) -> None:
    """Add blocks into `array` at positions (count, rank), one after another, and drop what falls outside.

    The window, or one, is added to `weight_out` at the same positions.
    """
    geometry = call.geometry
    assert isinstance(geometry, PositionsGeometry)
    least = 0.0 if weight_out is None else least_weight(weight_out.itemsize, "mean")
    weights = None if window is None else weights_of_block(window, geometry.block_shape, least)
    _add(blocks, array, weights, positions)
    if weight_out is not None:
        added, factors = np.ones((), weight_out.dtype), weights
        if weights is not None and weights.dtype == weight_out.dtype:
            added, factors = weights, None
        _add(repeated(added, (geometry.count, *geometry.block_shape)), weight_out, factors, positions)


def _add(blocks: Array, array: Array, weights: Array | None, positions: Array) -> None:
    """Add blocks, tile by tile."""
    rank = positions.shape[1]
    if len(blocks) <= FEW_BLOCKS and blocks.size <= PRODUCTS and sum_dtype(array.dtype) == array.dtype:
        with np.errstate(all="ignore"):
            shorten_buffers(blocks)
            factors = None if weights is None else repeated(weights, blocks.shape)
            _add_slices(array, blocks, factors, [[number] for number in range(len(blocks))], positions)
        return
    scatters, limit = _are_small(blocks, rank), array.size
    narrow = sum_dtype(array.dtype) != array.dtype
    if narrow or (scatters and not _is_indexed(array, rank)):  # copied tile by tile
        block, size, limit = blocks.shape[-rank:], array.shape[-rank:], tiles.TILE_ELEMENTS
        positions = np.clip(positions, np.negative(block), size)  # beyond, nothing changes any more
        begin, end = positions.min(0).clip(0), positions.max(0) + block
        reached: Index = (..., *map(slice, begin.tolist(), end.tolist()))
        array = array[reached]
        positions -= begin
        if not array.size:
            return
    lead = 0 if scatters else array.ndim - rank  # planes come last if each is a step of its own
    extents = (*array.shape[lead:], *array.shape[:lead])

    def on(threads: int) -> None:
        planes = array.ndim - lead
        cut = [(*part[planes:], *part[:planes]) for part in parts_of(extents, limit, (), threads)]
        parts = _blocks_near(cut, blocks.shape[-rank:], positions)
        for_each(_add_to_tile, [(blocks, array, weights, positions, scatters, *part) for part in parts], threads)

    with np.errstate(all="ignore"):
        shorten_buffers(blocks)
        on_threads((_add, extents, blocks.dtype, blocks.shape, blocks.strides, array.strides), blocks.nbytes, on)


def _blocks_near(cut: list[Index], block: Size, positions: Array) -> list[tuple[Index, Index]]:
    """Return tiles, each with the ascending numbers of blocks that may intersect it, by the axis with most cuts."""
    if len(cut) == 1:
        return [(pixels, (ALL,)) for pixels in cut]
    sections = np.array([[(part.start, part.stop) for part in pixels[-len(block) :]] for pixels in cut])
    along = max(range(len(block)), key=lambda axis: len(np.unique(sections[:, axis, 0])))
    order = np.argsort(positions[:, along], kind="stable")
    first, last = np.searchsorted(positions[order, along], sections[:, along].T - ((block[along] - 1,), (0,)))
    return [(pixels, (np.sort(order[i:j]),)) for pixels, i, j in zip(cut, first, last, strict=True) if i < j]


def _add_to_tile(
    blocks: Array, array: Array, weights: Array | None, positions: Array, scatters: bool, pixels: Index, near: Index
) -> None:
    """Add the nearby blocks to a tile of an array (*lead, *size), block after block."""
    rank, tile = positions.shape[1], array[pixels]
    begin, blocks = np.array([part.start for part in pixels[-rank:]]), blocks[(ALL, *pixels[:-rank])]
    size, block, first = np.array(tile.shape[-rank:]), np.array(blocks.shape[-rank:]), positions[near]
    (met,) = ((first < begin + size) & (first > begin - block)).all(axis=1).nonzero()
    met = met if near[0] is ALL else near[0][met]
    if not met.size:
        return
    wide = sum_dtype(tile.dtype)
    total = tile.astype(wide, "C") if scatters and not _is_indexed(tile, rank) else tile.astype(wide, copy=False)
    if scatters:
        _scatter(total, blocks, weights, met, positions, begin)
    else:
        weights = None if weights is None else repeated(weights, blocks.shape)
        _add_slices(total, blocks, weights, met[:, None].tolist(), positions[met] - begin)
    if total is not tile:
        round_into(tile, total)


def _placed(first: Array, block: Size, size: Size) -> Iterator[tuple[int, Index, Index]]:
    """Yield the number of each block that intersects an array, and the indices of the pixels and taps in common."""
    inside = np.logical_and.reduce((first >= 0) & (first <= np.subtract(size, block)), axis=1).tolist()
    ends = (first + block).tolist()  # no overflow for blocks inside
    for number, (pixel, end, whole) in enumerate(zip(first.tolist(), ends, inside, strict=True)):
        if whole:
            yield number, (..., *map(slice, pixel, end)), (...,)
            continue
        each = zip(pixel, block, size, strict=True)
        spans = [(p, max(p, 0), min(p + taps, extent)) for p, taps, extent in each]
        if all(start < stop for _, start, stop in spans):
            taps = (slice(start - p, stop - p) for p, start, stop in spans)
            yield number, (..., *(slice(start, stop) for _, start, stop in spans)), (..., *taps)


def _add_slices(total: Array, blocks: Array, weights: Array | None, numbers: list[list[int]], first: Array) -> None:
    """Add numbered blocks at their first pixels (count, rank), one after another."""
    rank = first.shape[1]
    met = _placed(first, blocks.shape[-rank:], total.shape[-rank:])
    pairs = ((pixels, (*numbers[number], *taps)) for number, pixels, taps in met)
    add_pairs(total, blocks, weights, pairs)


def _scatter(total: Array, blocks: Array, weights: Array | None, met: Array, positions: Array, begin: Array) -> None:
    """Add elements by index, block after block, with many blocks in one array operation."""
    rank, zero = len(begin), np.zeros((), total.dtype)
    nothing = -zero if total.dtype.kind in "fc" else zero  # adding it changes no bits
    planes, block = _planes_as_memory(total, rank), blocks.shape[-rank:]
    step = max(1, LOOKED_UP // prod(block))
    for few in (met[start : start + step] for start in range(0, len(met), step)):
        index, partial, outside = _indices(total, block, positions[few] - begin)
        for plane in np.ndindex(planes.shape[:-1]):
            terms = blocks[(few, *plane)].astype(total.dtype, copy=False)
            if weights is not None:
                multiply(terms, weights, terms)
            terms = terms.reshape(index.shape)
            terms[partial] = np.where(outside, nothing, terms[partial])
            np.add.at(planes[plane], index.ravel(), terms.ravel())


def _are_small(blocks: Array, rank: int) -> bool:
    """Return whether indexing all elements, plane by plane, is faster than one array operation per block."""
    taps, planes = prod(blocks.shape[-rank:]), prod(blocks.shape[1:-rank])
    looked_up = max(0, taps - ROW_START * (taps // blocks.shape[-1]))
    return bool(planes * (looked_up * len(blocks) + 2 * BLOCK_START) <= BLOCK_START * len(blocks))


def _is_indexed(array: Array, rank: int) -> bool:
    """Return whether the strides of a plane are nonnegative multiples of its itemsize."""
    return all(step >= 0 and step % array.itemsize == 0 for step in array.strides[-rank:])


def _planes_as_memory(array: Array, rank: int) -> Array:
    """View each plane as one axis: the memory from its first pixel to its last."""
    last = sum((n - 1) * step for n, step in zip(array.shape[-rank:], array.strides[-rank:], strict=True))
    shape, steps = (*array.shape[:-rank], last // array.itemsize + 1), (*array.strides[:-rank], array.itemsize)
    return as_strided(array, shape, steps)


def _indices(array: Array, block: Size, first: Array) -> tuple[Array, Array, Array]:
    """Return the offsets (count, taps) of the taps of blocks in a plane's memory, in elements, clamped to the plane.

    Also return the numbers of the blocks that extend beyond the plane, and a mask of their taps outside.
    """
    rank = len(block)
    size, steps = np.array(array.shape[-rank:]), np.array(array.strides[-rank:]) // array.itemsize
    taps = np.indices(block).reshape(rank, -1)
    index: Array = (first @ steps)[:, None] + steps @ taps
    partial: Array = np.flatnonzero(((first < 0) | (first > size - block)).any(axis=1))
    along = first[partial, :, None] + taps
    clamped = along.clip(0, size[:, None] - 1)
    index[partial] = steps @ clamped
    return index, partial, (along != clamped).any(axis=1)


def take_blocks(call: Call, array: Array, blocks: Array, window: Weights, positions: Array) -> None:
    """Extract blocks of `array` at positions (count, rank). Every element of `blocks` is written."""
    geometry = call.geometry
    assert isinstance(geometry, PositionsGeometry)
    if not array.size:
        blocks[...] = np.zeros((), blocks.dtype)
        return
    weights = None if window is None else weights_of_block(window, geometry.block_shape)
    first = np.clip(positions, np.negative(geometry.block_shape), geometry.size)  # beyond, nothing changes any more
    axes = array.ndim + first.shape[1]  # of a view of all blocks, at most 64 in NumPy
    many = axes <= 64 and not array.dtype.hasobject and len(blocks) >= MANY_BLOCKS and blocks[0].size <= SMALL_BLOCK
    take, nearest = _take_many if many else _take_one_by_one, call.fusion.mode == "edge"
    most = max(1, TAKEN // blocks[0].size) if many else len(blocks)

    def on(threads: int) -> None:
        step = min(most, -(-len(blocks) // threads))
        parts = [slice(start, start + step) for start in range(0, len(blocks), step)]
        for_each(take, [(array, blocks[part], first[part], weights, nearest) for part in parts], threads)

    with np.errstate(all="ignore"):
        if weights is not None:  # copies use no ufunc
            shorten_buffers(blocks)
        on_threads((take, array.shape, blocks.dtype, blocks.shape, blocks.strides, array.strides), blocks.nbytes, on)


def _take_many(array: Array, blocks: Array, first: Array, weights: Array | None, nearest: bool) -> None:
    """Extract blocks that lie inside the array in one array operation, then the others."""
    lead, side = array.ndim - first.shape[1], blocks.shape[1 + array.ndim - first.shape[1] :]
    room = np.subtract(array.shape[lead:], side)
    inside = first.clip(0, room)
    partial: Array = np.flatnonzero((first != inside).any(axis=1))
    if room.min() < 0:
        partial = np.arange(len(first))
    else:
        shape = (*array.shape[:lead], *(room + 1).tolist(), *side)
        view = as_strided(array, shape, (*array.strides, *array.strides[lead:]), writeable=False)
        multiply(np.moveaxis(view[(*(ALL,) * lead, *inside.T)], lead, 0), weights, blocks)
    if partial.size:
        _take_beyond(array, blocks, first, weights, nearest, partial)


def _take_one_by_one(array: Array, blocks: Array, first: Array, weights: Array | None, nearest: bool) -> None:
    """Extract each block by its own array operation."""
    rank = first.shape[1]
    size, side = array.shape[-rank:], blocks.shape[-rank:]
    partial = np.flatnonzero(((first < 0) | (first > np.subtract(size, side))).any(axis=1)).tolist()
    apart = set(partial if blocks[0].nbytes >= LARGE_BLOCK and not nearest else ())
    for number in () if apart else partial:
        if nearest:
            _take_beyond(array, blocks, first, weights, True, np.array([number]))
        else:
            blocks[number] = np.zeros((), blocks.dtype)
    for number, pixels, met in _placed(first, side, size):
        if number in apart:
            apart.remove(number)
            _clear_around(blocks[number], met[1:])
        if weights is None:
            copy_rows(array[pixels], blocks[number][met])
        else:
            multiply(array[pixels], weights[met], blocks[number][met])
    for number in apart:
        blocks[number] = np.zeros((), blocks.dtype)


def _clear_around(block: Array, inside: tuple[slice, ...]) -> None:
    """Write zeros around a part of a block's last axes."""
    rank, zero = len(inside), np.zeros((), block.dtype)
    for axis, part in enumerate(inside):
        for start, stop in ((0, part.start), (part.stop, block.shape[axis - rank])):
            if start < stop:
                index: Index = (..., *inside[:axis], slice(start, stop), *(ALL,) * (rank - 1 - axis))
                block[index] = zero


def _take_beyond(array: Array, blocks: Array, first: Array, weights: Array | None, nearest: bool, few: Array) -> None:
    """Extract numbered blocks that extend beyond the array, element by element."""
    along: list[Array] = []
    lead, side = array.ndim - first.shape[1], blocks.shape[1 + array.ndim - first.shape[1] :]
    for axis, taps in enumerate(side):
        pixels = first[few, axis, None] + np.arange(taps)
        along.append(pixels.reshape(-1, *(1,) * axis, taps, *(1,) * (len(side) - 1 - axis)))
    inside: list[Any] = [pixels.clip(0, extent - 1) for pixels, extent in zip(along, array.shape[lead:], strict=True)]
    taken: Array = np.empty((len(few), *blocks.shape[1:]), blocks.dtype)
    multiply(np.moveaxis(array[(..., *inside)], lead, 0), weights, taken)
    if not nearest:
        beyond = reduce(np.logical_or, map(np.not_equal, along, inside)).reshape(-1, *(1,) * lead, *side)
        taken = np.where(beyond, np.zeros((), taken.dtype), taken)
    blocks[few] = taken
