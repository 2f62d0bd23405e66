"""Add blocks at arbitrary positions, tile by tile, and extract them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial, reduce
from math import prod
from operator import add, and_, le, sub
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from gpufold.arrays import as_int64
from gpufold.calls import Call
from gpufold.cpu import tiles
from gpufold.cpu.arithmetic import (
    ALL,
    PRODUCTS,
    AnyWeights,
    Array,
    Factors,
    Index,
    add_pairs,
    dtype_of_row,
    multiply,
    part_of,
    round_into,
    shorten_buffers,
)
from gpufold.cpu.fused import Weights, along_axes, factored, weights_of_block
from gpufold.cpu.tiles import parts_of
from gpufold.elements import is_narrow, sum_dtype, widened
from gpufold.geometry import PositionsGeometry, Size
from gpufold.geometry.integers import MOST_AXES
from gpufold.keeping import kept
from gpufold.threads import Ways, for_each, get_num_threads
from gpufold.weights import BlockWeights, at_least, least_weight, of_elements

BLOCK_START, ROW_START = 1 << 10, 8
"""Elements that can be indexed in the time of starting an array operation, and a row of it; no larger block is added by
index."""

AT_ONCE, LOOKED_UP, TAKEN_BYTES = 1 << 17, 1 << 18, 1 << 19
"""Coordinates of blocks that are compared at a time, indices along all axes that are computed at a time, and bytes that
are extracted at a time."""

FEW_BLOCKS, FEW_BYTES = 16, 5 << 20
"""Most blocks that are added one by one, and their most bytes: finding the blocks of a tile takes longer."""

MANY_BLOCKS, MANY_LARGE, SMALL_BLOCK = 16, 64, 1 << 16
"""Least small and large blocks that are extracted from a view of all windows; most bytes of a small block."""

LEAST_EACH, MOST_TOGETHER = 1 << 12, 1 << 17
"""Least bytes of a block for which it is tried to extract each block by its own array operation; most for which it is
tried to extract many at once."""

RELEASED, LARGEST_ELEMENT = 500, 1 << 31
"""Least elements of an array operation for which NumPy releases the interpreter lock; bytes that no element has."""

READ_AGAIN, LEAST_ROW = 4, 48
"""Least ratio of extracted bytes to those of an array whose rows are apart, and least bytes of a row, for which a
contiguous copy of the array is worthwhile."""

BLOCK_BYTES, ELEMENT_BYTES = 1 << 16, 1 << 6
"""Bytes that are copied in the time of extracting a block beyond the border alone, and an element by index."""

COORDINATES, COORDINATE_BYTES = 1 << 16, 20
"""Coordinates of blocks that are extracted from one copy of an array, and bytes that each needs beside it."""

LISTED = 1 << 12
"""Most blocks whose positions are listed at a time."""

FEW_ELEMENTS, FEW_BEYOND = 800, 8
"""Most elements of a block beyond the border that is extracted by index; most such blocks that are faster extracted one
by one."""


@kept
def _ways_for(count: int, *kind: Any) -> Ways:
    """Return the ways of a kind of calls, each as its number; 0 stands for a single way, which needs no number."""
    return Ways(*[(number,) for number in range(count)])


def add_blocks(
    call: Call,
    blocks: Array,
    array: Array,
    window: Weights,
    positions: Array,
    weight_out: Array | None = None,
    by_block: BlockWeights | None = None,
) -> None:
    """Add blocks into `array` at positions (count, rank), one after another, and drop what falls outside.

    Their weights, of the window times those of each block, or ones, are added to `weight_out` at the same positions.
    """
    geometry = call.geometry
    assert isinstance(geometry, PositionsGeometry)
    few = len(blocks) <= FEW_BLOCKS and blocks.nbytes <= FEW_BYTES
    placed = _placed(positions.tolist(), geometry.block_shape, geometry.size) if few else ()
    met = [(pixels, (number, *taps)) for number, pixels, taps in placed]
    with np.errstate(all="ignore"):
        factors = _factors(window, by_block, geometry.block_shape, weight_out)
        added = [(blocks, array, factors)]
        if weight_out is not None:
            terms, shape = np.ones((), weight_out.dtype), (geometry.count, *geometry.block_shape)
            if len(factors.arrays) == 1 and factors.arrays[0].dtype == terms.dtype:
                (terms,), factors = factors.arrays, Factors()
            added.append((_over_planes(terms[(None,) * (len(shape) - terms.ndim)], shape), weight_out, factors))
        shorten_buffers(blocks)
        for terms, total, factors in added:
            if few and sum_dtype(total.dtype) == total.dtype:
                if is_narrow(terms, total) and terms.size <= PRODUCTS:
                    terms = widened(terms)
                add_pairs(total, terms, _of_elements(factors, terms), met)
            else:
                _add(terms, total, factors, positions)


def _factors(window: Weights, by_block: BlockWeights | None, block: Size, weight_out: Array | None) -> Factors:
    """Return the weights of blocks' elements as arrays (count, *block), of one element where they are the same.

    Axes along which they are the same are new axes. There is one array if it is small, or the window's alone.
    """
    least = 0.0 if weight_out is None else least_weight(weight_out.itemsize, "mean")
    if by_block is None:
        return Factors() if window is None else weights_of_block(window, block, least).part((None,))
    of_blocks, least, squared = by_block
    if window and len(of_blocks) * prod(block) <= PRODUCTS:
        each = of_elements(np, of_blocks, window, 1 + len(block), least)
        return Factors([each * each if squared else each])
    arrays = [at_least(np, of_blocks, least)[(ALL, *(None,) * len(block))]]
    arrays += [each[None] for each in along_axes(window or (), block, least)]
    return factored(arrays, least, squared)


def _of_elements(factors: Factors, blocks: Array) -> Factors:
    """View factors of blocks in their shape (count, *lead, *block_shape)."""
    if not factors.arrays:
        return factors
    return Factors([_over_planes(each, blocks.shape) for each in factors.arrays], factors.least, factors.squared)


def _over_planes(weights: Array, shape: Size) -> Array:
    """View weights (count, *block) in a shape (count, *lead, *block), where their new axes have zero strides.

    `broadcast_to` takes longer.
    """
    first, *steps = weights.strides
    return np.ndarray(shape, weights.dtype, weights, 0, (first, *(0,) * (len(shape) - weights.ndim), *steps))


def _add(blocks: Array, array: Array, factors: Factors, positions: Array) -> None:
    """Add blocks, tile by tile."""
    rank = positions.shape[1]
    scatters, limit, origin = _is_faster_by_index(blocks, rank), array.size, np.zeros(rank, np.int64)
    narrow = sum_dtype(array.dtype) != array.dtype
    if narrow or (scatters and not _is_indexed(array, rank)):  # copied tile by tile, as far as blocks reach
        size, limit = np.array(array.shape[-rank:]), tiles.TILE_ELEMENTS
        origin, end = (np.clip(along, 0, size) for along in _first_and_last(positions))
        end += blocks.shape[-rank:]
        reached: Index = (..., *map(slice, origin.tolist(), end.tolist()))
        array = array[reached]
        if not array.size:
            return
    lead = 0 if scatters else array.ndim - rank  # planes come last if each is a step of its own
    extents = (*array.shape[lead:], *array.shape[:lead])

    def on(threads: int) -> None:
        planes = array.ndim - lead
        cut = [(*part[planes:], *part[:planes]) for part in parts_of(extents, limit, (), threads)]
        for_each(_add_to_tile, [(blocks, array, factors, scatters, origin, positions, part) for part in cut], threads)

    kind = _add, scatters, len(factors.arrays), extents, array.dtype, array.strides
    _ways_for(0, *kind, blocks.dtype, blocks.shape, blocks.strides).run(blocks.nbytes, on)


def _first_and_last(positions: Array) -> list[list[int]]:
    """Return the least and the greatest position along each axis: NumPy's reductions of short rows take long."""
    return [[min(int(most(along)), sys.maxsize) for along in positions.T] for most in (np.min, np.max)]


def _add_to_tile(
    blocks: Array, array: Array, factors: Factors, scatters: bool, origin: Array, positions: Array, pixels: Index
) -> None:
    """Add blocks at positions, one after another, to a tile of an array (*lead, *size) that begins at `origin`."""
    rank, tile = len(origin), array[pixels]
    begin, blocks = origin + [part.start for part in pixels[-rank:]], blocks[:, *pixels[:-rank]]
    size, block = tile.shape[-rank:], blocks.shape[-rank:]
    wide, total = sum_dtype(tile.dtype), None
    of_elements = factors if scatters else _of_elements(factors, blocks)
    at_once = max(1, AT_ONCE // rank)
    for start in range(0, len(positions), at_once):
        first = as_int64(np, positions[start : start + at_once])
        along = zip(first.T, begin, block, size, strict=True)
        (met,) = reduce(and_, [(n - taps < p) & (p < n + extent) for p, n, taps, extent in along]).nonzero()
        del along  # which keeps the positions
        if not met.size:
            continue
        if total is None:
            copied = scatters and not _is_indexed(tile, rank)
            total = tile.astype(wide, "C") if copied else tile.astype(wide, copy=False)
        numbers, first = start + met, first[met] - begin
        if scatters:
            _scatter(total, blocks, factors, numbers, first)
            continue
        elements = prod(blocks.shape[1:])
        halves = is_narrow(blocks, total) and elements <= PRODUCTS and not factors.arrays  # many are converted at once
        listed = min(LISTED, PRODUCTS // max(1, elements)) if halves else LISTED
        for begin_of in range(0, len(first), listed):
            few = slice(begin_of, begin_of + listed)
            placed, known = _placed(first[few].tolist(), block, size), numbers[few]
            terms, known = (widened(blocks[known]), range(len(known))) if halves else (blocks, known.tolist())
            add_pairs(total, terms, of_elements, [(into, (known[each], *taps)) for each, into, taps in placed])
    if total is not None and total is not tile:
        round_into(tile, total)


def _placed(first: list[list[int]], block: Size, size: Size) -> Iterator[tuple[int, Index, Index]]:
    """Yield the number of each block that intersects an array, and the indices of the pixels and taps in common."""
    room = [*map(sub, size, block)]
    for number, pixel in enumerate(first):
        if min(pixel) >= 0 and all(map(le, pixel, room)):
            yield number, (..., *map(slice, pixel, map(add, pixel, block))), (...,)
            continue
        pixels, taps = list[slice](), list[slice]()
        for p, extent, end in zip(pixel, block, size, strict=True):
            start, stop = max(p, 0), min(p + extent, end)
            if start >= stop:
                break
            pixels.append(slice(start, stop))
            taps.append(slice(start - p, stop - p))
        else:
            yield number, (..., *pixels), (..., *taps)


def _scatter(total: Array, blocks: Array, factors: Factors, numbers: Array, first: Array) -> None:
    """Add elements by index, block after block, with many blocks in one array operation."""
    rank, zero = first.shape[1], np.zeros((), total.dtype)
    nothing = -zero if total.dtype.kind in "fc" else zero  # adding it changes no bits
    # a plane is one axis: the memory from its first pixel to its last
    last = sum((n - 1) * step for n, step in zip(total.shape[-rank:], total.strides[-rank:], strict=True))
    shape, steps = (*total.shape[:-rank], last // total.itemsize + 1), (*total.strides[:-rank], total.itemsize)
    planes, block = as_strided(total, shape, steps), blocks.shape[-rank:]
    step = max(1, LOOKED_UP // (rank * prod(block)))
    for start in range(0, len(numbers), step):
        few: Any = numbers[start : start + step]
        if few[-1] - few[0] < len(few):  # a slice is copied faster than blocks by number
            few = slice(few[0], few[-1] + 1)
        index, crossing, outside = _indices(total, block, first[start : start + step])
        weights = [each if len(each) == 1 else each[few] for each in factors.arrays]
        for plane in np.ndindex(planes.shape[:-1]):
            some = blocks[(few, *plane)]
            terms = np.empty(some.shape, total.dtype)
            multiply(some, factors.product(weights) if weights else None, terms)
            terms = terms.reshape(index.shape)
            terms[crossing] = np.where(outside, nothing, terms[crossing])
            np.add.at(planes[plane], index.ravel(), terms.ravel())


def _is_faster_by_index(blocks: Array, rank: int) -> bool:
    """Return whether indexing all elements, plane by plane, is faster than one array operation per block."""
    taps, planes = prod(blocks.shape[-rank:]), prod(blocks.shape[1:-rank])
    if taps > BLOCK_START:
        return False
    looked_up = max(0, taps - ROW_START * (taps // blocks.shape[-1]))
    return bool(planes * (looked_up * len(blocks) + 2 * BLOCK_START) <= BLOCK_START * len(blocks))


def _is_indexed(array: Array, rank: int) -> bool:
    """Return whether the strides of a plane are nonnegative multiples of its itemsize."""
    return all(step >= 0 and step % array.itemsize == 0 for step in array.strides[-rank:])


def _indices(array: Array, block: Size, first: Array) -> tuple[Array, Array, Array]:
    """Return the offsets (count, taps) of the taps of blocks in a plane's memory, in elements, clamped to the plane.

    Also return the numbers of the blocks that extend beyond the plane, and a mask of their taps outside.
    """
    rank = len(block)
    size, steps = np.array(array.shape[-rank:]), np.array(array.strides[-rank:]) // array.itemsize
    taps = np.indices(block).reshape(rank, -1)
    index: Array = (first @ steps)[:, None] + steps @ taps
    crossing: Array = np.flatnonzero(((first < 0) | (first > size - block)).any(axis=1))
    along = first[crossing, :, None] + taps
    clamped = along.clip(0, size[:, None] - 1)
    index[crossing] = steps @ clamped
    return index, crossing, (along != clamped).any(axis=1)


def take_blocks(call: Call, array: Array, blocks: Array, window: Weights, positions: Array) -> None:
    """Extract blocks of `array` at positions (count, rank). Every element of `blocks` is written."""
    geometry = call.geometry
    assert isinstance(geometry, PositionsGeometry)
    if not array.size:
        blocks[...] = np.zeros((), blocks.dtype)
        return
    weights: AnyWeights = None
    if window is not None:
        factors = weights_of_block(window, geometry.block_shape)
        weights = factors.arrays[0] if len(factors.arrays) == 1 else factors.over(blocks.shape[1:])
    at_once = max(1, COORDINATES // positions.shape[1])
    for start in range(0, len(blocks), at_once):
        some, first = blocks[start : start + at_once], as_int64(np, positions[start : start + at_once])
        kind = _take, array.shape, blocks.dtype, some.shape, blocks.strides, array.strides, call.fusion.mode
        _take(array, some, weights, first, call.fusion.mode == "edge", kind)


_Share: TypeAlias = tuple[Callable[[Any], None], Any, int]
"""A function that extracts numbered blocks, the numbers, and how many at a time."""


def _take(
    array: Array, blocks: Array, weights: AnyWeights, positions: Array, nearest: bool, kind: tuple[Any, ...]
) -> None:
    """Extract weighted blocks; beyond the array is zero, or its nearest element. Calls of a `kind` share their ways."""
    rank, first = positions.shape[1], blocks[0]
    side, size = first.shape[-rank:], first.nbytes
    alone = partial(_take_one_by_one, array, blocks, positions, weights, nearest)
    ways: list[list[_Share]] = [[(alone, np.arange(len(blocks)), LISTED)]]
    many = len(blocks) >= (MANY_BLOCKS if size <= SMALL_BLOCK else MANY_LARGE)
    if many and not array.dtype.hasobject and not isinstance(weights, Factors):
        room = np.subtract(array.shape[-rank:], side)
        places = [along.clip(0, most) for along, most in zip(positions.T, room, strict=True)]
        outside = reduce(np.logical_or, map(np.not_equal, positions.T, places))
        if room.min() < 0:
            outside.fill(True)
        inside, beyond = np.flatnonzero(~outside), np.flatnonzero(outside)
        few_elements = first.size <= FEW_ELEMENTS and len(beyond) > FEW_BEYOND
        rows = array.strides[-1] == array.itemsize or blocks.strides[-1] != array.itemsize
        apart = not rows and side[-1] * array.itemsize >= LEAST_ROW and array.nbytes * READ_AGAIN <= blocks.nbytes
        if (apart or len(beyond)) and (weights is None or not len(beyond)):
            beside = ELEMENT_BYTES * first.size if few_elements else BLOCK_BYTES
            most = tiles.PADDED_BYTES - COORDINATE_BYTES * positions.size
            most = most if apart else min(most, len(beyond) * beside)
            if padded := _padded(array, positions, side, nearest, most):
                del places, outside, inside, beyond  # else they are kept meanwhile
                return _take(padded[0], blocks, weights, padded[1], nearest, (*kind, "padded"))
        most = max(1, TAKEN_BYTES // size)
        rest: _Share = (alone, beyond, LISTED)
        if few_elements:
            rest = (partial(_take_beyond, array, blocks, positions, weights, nearest), beyond, most)
        ways = [[(alone, inside, LISTED), rest]]
        viewed = prod((room + 1).tolist()) * size
        if len(inside) and array.ndim + rank <= MOST_AXES and viewed <= sys.maxsize:
            views, ways = partial(_windows, array, blocks, room, weights is None), []
            if size <= MOST_TOGETHER:
                ways.append([(partial(_take_together, *views(most), weights, places), range(len(blocks)), most), rest])
            if size >= LEAST_EACH:
                ways.append([(partial(_take_each, *views(1), weights, places), inside, LISTED), rest])

    def on(threads: int, way: int) -> None:
        for take, numbers, most in ways[way]:
            step = max(1, min(most, -(-len(numbers) // threads)))
            for_each(take, [(numbers[start : start + step],) for start in range(0, len(numbers), step)], threads)

    with np.errstate(all="ignore"):
        if weights is not None:  # copies use no ufunc
            shorten_buffers(blocks)
        _ways_for(len(ways), *kind, weights is None).run(blocks.nbytes, on)


def _take_together(windows: Array, blocks: Array, weights: Array | None, places: list[Array], numbers: range) -> None:
    """Extract consecutive blocks in one array operation."""
    part = slice(numbers.start, numbers.stop)
    taken = windows[tuple([along[part] for along in places])]
    if weights is None:
        blocks[part] = taken
    else:
        multiply(taken, weights, blocks[part])


def _take_each(windows: Array, blocks: Array, weights: Array | None, places: list[Array], numbers: Array) -> None:
    """Extract numbered blocks, each by its own array operation."""
    for number, *place in np.stack([numbers, *(along[numbers] for along in places)], axis=-1).tolist():
        window = windows[(*place, ...)]  # a view, also of a single element
        if weights is None:
            blocks[number] = window
        else:
            multiply(window, weights, blocks[number])


def _padded(array: Array, positions: Array, side: Size, nearest: bool, most: int) -> tuple[Array, Array] | None:
    """Return an array padded as far as blocks reach, and their positions there; None if it takes over `most` bytes."""
    lead, size = array.shape[: -len(side)], array.shape[-len(side) :]
    first, last = _first_and_last(positions)
    before = [max(0, -p) for p in first]
    after = [max(0, p + n - end) for p, n, end in zip(last, side, size, strict=True)]
    shape = (*lead, *map(sum, zip(before, size, after, strict=True)))
    if array.itemsize * prod(shape) > most:
        return None
    padded: Array = np.zeros(shape, array.dtype)
    inside = tuple(map(slice, before, map(add, before, size)))
    within: Index = (..., *inside)
    multiply(array, None, padded[within])
    if nearest:
        _fill_around(padded, inside, nearest)
    return padded, positions + before


def _windows(array: Array, blocks: Array, room: Array, copied: bool, at_once: int) -> tuple[Array, Array]:
    """View every window of an array (*lead, *size), with its position first, and the blocks.

    A contiguous row of a block that is only copied is one element in both, if `at_once` blocks have many.
    """
    rank, side = len(room), blocks.shape[-len(room) :]
    lead, steps, size = array.ndim - rank, array.strides[-rank:], side[-1] * array.itemsize
    contiguous = array.itemsize == steps[-1] == blocks.strides[-1]
    many = at_once * prod(blocks.shape[1:-1]) >= RELEASED or get_num_threads() == 1
    if copied and array.dtype == blocks.dtype and contiguous and many and size < LARGEST_ELEMENT:
        row = dtype_of_row(size)
        array, blocks, side = array[..., : side[-1]].view(row)[..., 0], blocks.view(row)[..., 0], side[:-1]
    shape = (*(room + 1).tolist(), *array.shape[:lead], *side)
    steps = (*steps, *array.strides[:lead], *steps[: len(side)])
    return as_strided(array, shape, steps, writeable=False), blocks


def _take_one_by_one(
    array: Array, blocks: Array, positions: Array, weights: AnyWeights, nearest: bool, numbers: Array
) -> None:
    """Extract numbered blocks, each by its own array operation; outside the array is zero, or its nearest element."""
    rank, zero, known = positions.shape[1], np.zeros((), blocks.dtype), numbers.tolist()
    side, size, first, missed = blocks.shape[-rank:], array.shape[-rank:], positions[numbers], set(known)
    if nearest:  # of a block beyond the array, the elements next to it are extracted, and repeated
        first = first.clip(np.subtract(1, side), np.subtract(size, 1))
    for place, pixels, met in _placed(first.tolist(), side, size):
        missed.remove(number := known[place])
        block = blocks[number]
        if len(met) == 1:  # the whole block
            multiply(array[pixels], weights, block)
            continue
        if not nearest and block.nbytes <= BLOCK_BYTES:
            block[...] = zero
        multiply(array[pixels], None if nearest else part_of(weights, met), block[met])
        if nearest or block.nbytes > BLOCK_BYTES:
            _fill_around(block, met[1:], nearest)
        if nearest and weights is not None:
            multiply(block, weights, block)
    for number in missed:
        blocks[number] = zero


def _fill_around(array: Array, inside: tuple[slice, ...], nearest: bool) -> None:
    """Write the nearest elements, or zeros, around a part of an array's last axes."""
    zero = np.zeros((), array.dtype)
    for axis, part in enumerate(inside, array.ndim - len(inside)):
        along = array.swapaxes(0, axis)
        ends = zero, zero
        if nearest:  # copies, else NumPy copies the elements as often as they are repeated
            ends = along[part.start].copy(), along[part.stop - 1].copy()
        along[: part.start], along[part.stop :] = ends
        if not nearest:  # zeros are written once
            array = along[part].swapaxes(0, axis)


def _take_beyond(
    array: Array, blocks: Array, positions: Array, weights: Array | None, nearest: bool, few: Array
) -> None:
    """Extract numbered blocks that extend beyond the array, element by element."""
    along: list[Array] = []
    rank = positions.shape[1]
    lead, side = array.ndim - rank, blocks.shape[-rank:]
    first = np.clip(positions[few], np.negative(side), array.shape[lead:])  # beyond, nothing changes any more
    for axis, taps in enumerate(side):
        pixels = first[:, axis, None] + np.arange(taps)
        along.append(pixels.reshape(-1, *(1,) * axis, taps, *(1,) * (len(side) - 1 - axis)))
    inside: list[Any] = [pixels.clip(0, extent - 1) for pixels, extent in zip(along, array.shape[lead:], strict=True)]
    taken: Array = np.empty((len(few), *blocks.shape[1:]), blocks.dtype)
    multiply(np.moveaxis(array[(..., *inside)], lead, 0), weights, taken)
    if not nearest:
        beyond = reduce(np.logical_or, map(np.not_equal, along, inside)).reshape(-1, *(1,) * lead, *side)
        taken = np.where(beyond, np.zeros((), taken.dtype), taken)
    blocks[few] = taken
