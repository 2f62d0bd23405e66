"""Blocks added at positions of their own, tile by tile, and taken at them."""

from __future__ import annotations

from math import prod
from operator import lt
from typing import Any

import numpy as np

from gpufold.calls import Call
from gpufold.cpu import tiles
from gpufold.cpu.arithmetic import ALL, Array, Index, multiply
from gpufold.cpu.slices import add_slices
from gpufold.cpu.treatment import Weights, weights_of_block
from gpufold.elements import sum_dtype
from gpufold.geometry import Axis, PositionsGeometry
from gpufold.threads import for_each, get_num_threads

SCATTERED_BLOCK = 512
"""Elements of a block up to which they are added or taken by their indices, for less than an array operation costs."""


def add_blocks(
    call: Call, blocks: Array, array: Array, window: Weights, positions: Array, weight_out: Array | None = None
) -> None:
    """Add blocks into `array` at positions (count, rank), one after another, and drop what falls outside.

    The window, or one, is added to `weight_out` at the same positions.
    """
    geometry = call.geometry
    assert isinstance(geometry, PositionsGeometry)
    weights = None if window is None else weights_of_block(call.fusion.window, window, geometry.block_shape)
    _add(blocks, array, weights, positions)
    if weight_out is not None:
        ones = np.broadcast_to(np.ones((), weight_out.dtype), (geometry.count, *geometry.block_shape))
        _add(ones, weight_out, weights, positions)


def _add(blocks: Array, array: Array, weights: Array | None, positions: Array) -> None:
    """Add blocks, tile by tile."""
    lead = array.ndim - positions.shape[1]
    unit_axes = tuple(Axis(extent, 1, 1, 1, 0, 0) for extent in array.shape)
    scatters = blocks[0].size <= SCATTERED_BLOCK
    copies = sum_dtype(array.dtype) != array.dtype or (scatters and not array.flags.c_contiguous)
    limit = tiles.TILE_ELEMENTS if copies else array.size
    if blocks.size >= tiles.THREADED_ELEMENTS:
        limit = min(limit, -(-array.size // (tiles.TILES_PER_THREAD * get_num_threads())))
    with np.errstate(all="ignore"):
        for_each(
            _add_to_tile,
            [
                (
                    array[tile.pixels[2:]],
                    np.array([pixels.start for pixels in tile.pixels[2 + lead :]]),
                    blocks[(ALL, *tile.pixels[2 : 2 + lead])],
                    positions,
                    weights,
                    scatters,
                )
                for tile in tiles.cut_into_tiles((1, 1, *array.shape), unit_axes, limit)
            ],
        )


def _add_to_tile(
    tile: Array, begin: Array, blocks: Array, positions: Array, weights: Array | None, scatters: bool
) -> None:
    """Add what falls into a tile (*lead, *size) that begins at a pixel, block after block."""
    rank = len(begin)
    size, block = np.array(tile.shape[-rank:]), np.array(blocks.shape[-rank:])
    (met,) = ((positions < begin + size) & (positions > begin - block)).all(axis=1).nonzero()
    if not met.size:
        return
    total = tile.astype(sum_dtype(tile.dtype), order="C" if scatters else "K", copy=False)
    if scatters:
        _scatter_blocks(total, blocks, weights, met, positions[met] - begin)
    else:
        weights = None if weights is None else np.broadcast_to(weights, blocks.shape)
        add_slices(total, blocks, weights, met[:, None], positions[met] - begin)
    if total is not tile:
        tile[...] = total


def _scatter_blocks(total: Array, blocks: Array, weights: Array | None, met: Array, first: Array) -> None:
    """Add elements by their index, those of one block before those of the next, many blocks in one array operation."""
    rank, shape = first.shape[1], blocks.shape[1:]
    planes = np.arange(prod(shape[:-rank])).reshape(*shape[:-rank], *(1,) * rank)
    step = max(1, tiles.SCATTERED_ELEMENTS // prod(shape))
    for few in range(0, len(met), step):
        terms = blocks[met[few : few + step]].astype(total.dtype, copy=False)
        if weights is not None:
            products = np.empty(terms.shape, total.dtype)
            multiply(terms, weights, products)
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


def take_blocks(call: Call, array: Array, blocks: Array, window: Weights, positions: Array) -> None:
    """Take blocks out of `array` at positions (count, rank). Every element of `blocks` is written."""
    geometry = call.geometry
    assert isinstance(geometry, PositionsGeometry)
    if not array.size:
        blocks[...] = np.zeros((), blocks.dtype)
        return
    weights = None if window is None else weights_of_block(call.fusion.window, window, geometry.block_shape)
    first = np.clip(positions, np.negative(geometry.block_shape), geometry.size)  # beyond, nothing changes any more
    scatters = blocks[0].size <= SCATTERED_BLOCK
    step = max(1, tiles.SCATTERED_ELEMENTS // blocks[0].size) if scatters else len(blocks)
    if blocks.size >= tiles.THREADED_ELEMENTS:
        step = min(step, -(-len(blocks) // (tiles.TILES_PER_THREAD * get_num_threads())))
    with np.errstate(all="ignore"):
        for_each(
            _take_by_indices if scatters else _take_one_by_one,
            [
                (array, blocks[start : start + step], first[start : start + step], weights, call.fusion.mode == "edge")
                for start in range(0, len(blocks), step)
            ],
        )


def _take_one_by_one(array: Array, blocks: Array, first: Array, weights: Array | None, nearest: bool) -> None:
    """Take each block, from its first pixel on, by an array operation of its own."""
    size, side = array.shape[-first.shape[1] :], blocks.shape[-first.shape[1] :]
    last = first + side
    whole = ((first >= 0) & (last <= size)).all(axis=1)
    start, stop = np.clip(first, 0, size), np.clip(last, 0, size)
    corners = (corner.tolist() for corner in (whole, first, last, start, stop))
    for block, (is_whole, begin, end, starts, stops) in zip(blocks, zip(*corners, strict=True), strict=True):
        if nearest and not is_whole:
            along = (np.arange(*span).clip(0, extent - 1) for *span, extent in zip(begin, end, size, strict=True))
            clamped: Index = (..., *np.ix_(*along))
            _store(array[clamped], weights, block)
            continue
        if not is_whole:
            block[...] = np.zeros((), block.dtype)
        if all(map(lt, starts, stops)):
            elements: Index = (..., *(slice(a - p, b - p) for a, b, p in zip(starts, stops, begin, strict=True)))
            under: Index = (..., *map(slice, starts, stops))
            _store(array[under], None if weights is None else weights[elements], block[elements])


def _take_by_indices(array: Array, blocks: Array, first: Array, weights: Array | None, nearest: bool) -> None:
    """Take elements by their indices, those of all blocks in one array operation."""
    rank = first.shape[1]
    lead = array.ndim - rank
    pixels: list[Array] = []
    outside: Any = np.False_
    for axis in range(rank):
        extent, side = array.shape[lead + axis], blocks.shape[1 + lead + axis]
        along = (first[:, axis, None] + np.arange(side)).reshape(-1, *(1,) * axis, side, *(1,) * (rank - 1 - axis))
        pixels.append(along.clip(0, extent - 1))
        outside = outside | (along < 0) | (along >= extent)
    index: Index = (..., *pixels)
    _store(np.moveaxis(array[index], lead, 0), weights, blocks)
    if not nearest and outside.any():
        outside = outside.reshape(len(blocks), *(1,) * lead, *outside.shape[1:])
        blocks[np.broadcast_to(outside, blocks.shape)] = np.zeros((), blocks.dtype)


def _store(elements: Array, weights: Array | None, result: Array) -> None:
    if weights is None:
        result[...] = elements
    else:
        multiply(elements, weights, result)
