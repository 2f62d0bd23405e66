"""Blocks on a grid: `col2im`, `im2col`, `blocks_to_array`, `array_to_blocks`, `batch_to_space` and `space_to_batch`.

Each chunk of a result is computed from one piece of the input. Pieces overlap at the seams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf, prod
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np

from gpufold import blocks, sliding, space
from gpufold.arrays import extended_call, result_dtype
from gpufold.calls import Call, Reduction, Variant
from gpufold.compute import run
from gpufold.dask.chunks import (
    Chunks,
    axes_of,
    cut_result,
    geometry_of,
    known_array,
    known_chunk,
    lazily,
    spans_of,
    whole,
    zeros,
)
from gpufold.geometry import (
    Axis,
    BlocksGeometry,
    Extents,
    LastSlidingBlock,
    Size,
    Sizes,
    SlidingGeometry,
    SpaceGeometry,
)
from gpufold.outside import extended

if TYPE_CHECKING:  # the signatures without NumPy's overloads

    def _col2im(
        data: da.Array, output_size: Extents, kernel_size: Sizes, *, strides: Sizes = 1, dilations: Sizes = 1,
        pads_begin: Sizes = 0, pads_end: Sizes = 0, reduction: Reduction = "sum", window: Any = None, dtype: Any = None,
        fill_value: complex | None = None, chunks: Any = "auto", variant: Variant = "auto", deterministic: bool = True,
    ) -> da.Array: ...  # fmt: skip
    def _blocks_to_array(
        blocks: da.Array, output_shape: Extents, block_shape: Sizes, *, strides: Sizes = 1,
        reduction: Reduction = "sum", window: Any = None, dtype: Any = None, last: LastSlidingBlock = "drop",
        fill_value: complex | None = None, chunks: Any = "auto", variant: Variant = "auto", deterministic: bool = True,
    ) -> da.Array: ...  # fmt: skip
else:
    _col2im, _blocks_to_array = sliding.col2im, blocks.blocks_to_array


@lazily(_col2im)
def col2im(call: Call, data: da.Array, weights: Any, chunks: Any) -> da.Array:
    """Each chunk of the image reads the blocks that overlap it.

    >>> import dask.array as da, gpufold.dask
    >>> columns = da.ones((1, 4, 9), chunks=(1, 4, 3))  # one channel of 2x2 blocks, 3x3 of them
    >>> gpufold.dask.col2im(columns, (4, 4), (2, 2), chunks=(2, 4)).chunks
    ((1,), (1,), (2, 2), (4,))

    `data` is rechunked if a chunk ends inside a channel's kernel elements or a row of blocks (along the first axis).

    `chunks` are those of the spatial axes: one value, or one per axis, as `dask.array.core.normalize_chunks` takes it.
    "auto" keeps chunks and their inputs near dask's `array.chunk-size`. Batch and channels keep the chunks of `data`.
    """
    geometry = geometry_of(call, SlidingGeometry)
    *batch, rows, length = data.chunks
    taps, num_blocks = prod(geometry.block_shape), geometry.num_blocks
    rows, length = whole(rows, taps), whole(length, prod(num_blocks[1:]))
    lead = (*batch, tuple(size // taps for size in rows))
    cut = cut_result(call, lead, chunks, geometry.array_shape, data)
    if 0 in data.shape:
        return zeros(call, data, cut)
    blocks = data.rechunk((*batch, rows, length)).reshape((*geometry.array_shape[: len(lead)], taps, *num_blocks))
    return fold(call, blocks, len(lead) + 1, [len(lead)], cut, weights)


@lazily(sliding.im2col)
def im2col(call: Call, image: da.Array, weights: Any, chunks: Any) -> da.Array:
    """Each chunk has whole rows of blocks and reads the pixels under them.

    >>> import dask.array as da, gpufold.dask
    >>> image = da.arange(9, chunks=3).reshape(1, 3, 3)
    >>> gpufold.dask.im2col(image, (2, 2), chunks=1).chunks
    ((4,), (2, 2))

    `chunks` counts rows of blocks, along the first axis: one value, or a sequence of one.
    """
    geometry = geometry_of(call, SlidingGeometry)
    *batch, channels = image.chunks[: -len(geometry.axes)]
    taps, (num_rows, *others) = prod(geometry.block_shape), geometry.num_blocks
    lead = (*batch, tuple(size * taps for size in channels))
    shape = (*geometry.blocks_shape[:-1], num_rows, prod(others))
    *_, rows, (row,) = cut_result(call, lead, chunks, shape, image, count=1)
    cut = (*lead, tuple(size * row for size in rows))
    if 0 in image.shape:
        return zeros(call, image, cut)
    spans = [spans_of(rows), *([range(axis.blocks)] for axis in geometry.axes[1:])]
    dropped = list(range(len(lead) + 1, image.ndim))
    return unfold(call, image, spans, cut, weights, drop_axis=dropped)


@lazily(_blocks_to_array)
def blocks_to_array(call: Call, blocks: da.Array, weights: Any, chunks: Any) -> da.Array:
    """Each chunk of the array reads the blocks that overlap it.

    `blocks` is rechunked if a chunk ends inside a block. `chunks` are those of the spatial axes, as in `col2im`.
    """
    geometry = geometry_of(call, BlocksGeometry)
    lead = len(geometry.lead)
    cut = cut_result(call, blocks.chunks[:lead], chunks, geometry.array_shape, blocks)
    if 0 in blocks.shape:
        return zeros(call, blocks, cut)
    taps = list(range(len(cut), blocks.ndim))
    return fold(call, blocks.rechunk(dict.fromkeys(taps, -1)), lead, taps, cut, weights)


@lazily(blocks.array_to_blocks)
def array_to_blocks(call: Call, array: da.Array, weights: Any, chunks: Any) -> da.Array:
    """Each chunk of the blocks reads the elements under it.

    >>> import dask.array as da, gpufold.dask
    >>> gpufold.dask.array_to_blocks(da.arange(7, chunks=4), (3,), strides=2, chunks=2).chunks
    ((2, 1), (3,))

    `chunks` are those of the axes that count blocks; blocks are never split.
    """
    geometry = geometry_of(call, BlocksGeometry)
    if call.fusion.mode != "constant":
        mode, (call, margins) = call.fusion.mode, extended_call(call, array.dtype.itemsize)
        array = known_array("array_to_blocks", "array", extended(da, np.arange, array, margins, mode))
        geometry = geometry.extended
    lead, rank = len(geometry.lead), len(geometry.axes)
    cut = cut_result(call, array.chunks[:lead], chunks, geometry.blocks_shape, array)
    if 0 in array.shape:
        return zeros(call, array, cut)
    spans = [spans_of(sizes) for sizes in cut[lead : lead + rank]]
    return unfold(call, array, spans, cut, weights, new_axis=list(range(lead + rank, lead + 2 * rank)))


@lazily(space.batch_to_space)
def batch_to_space(call: Call, data: da.Array, _: Any, chunks: Any) -> da.Array:
    """Each chunk reads ``prod(block_shape)`` parts of the batch.

    The batch keeps the chunks of its first images in `data`; `chunks` are those of the other axes, as in `col2im`.
    """
    geometry = geometry_of(call, SpaceGeometry)
    images = [data[first : first + geometry.batch] for first in range(0, len(data), max(1, geometry.batch))]
    lead = (images or [data])[0].chunks[:1]
    cut = cut_result(call, lead, chunks, geometry.array_shape, data)
    if 0 in data.shape or 0 in geometry.array_shape:
        return zeros(call, data, cut)
    batches = da.stack([part.rechunk({0: lead[0]}) for part in images])
    return fold(call, batches, 2, [0], cut)


@lazily(space.space_to_batch)
def space_to_batch(call: Call, data: da.Array, _: Any, chunks: Any) -> da.Array:
    """Repeat the chunks of `data` along the batch for each element of a block.

    `chunks` are those of the other axes, as in `col2im`.
    """
    geometry = geometry_of(call, SpaceGeometry)
    taps = prod(geometry.block_shape)
    lead = ((taps,), data.chunks[0])
    cut = cut_result(call, lead, chunks, (taps, geometry.batch, *geometry.num_blocks), data)
    if 0 in data.shape:
        return zeros(call, data, (data.chunks[0] * taps, *cut[2:]))
    batches = unfold(call, data, [spans_of(sizes) for sizes in cut[2:]], cut, new_axis=[0])
    batch: da.Array = da.concatenate(list(batches))
    return batch


# ---------------------------------------------------------------------------------------------
# Chunks from pieces


def with_halos(array: Any, first: int, pieces: Sequence[Sequence[range]]) -> Any:
    """Return an array with one chunk per range along each axis from `first` on; overlaps of ranges are repeated.

    An empty range gets a neighbouring element, because dask drops empty chunks; the result does not depend on it.
    """
    chunks = {}
    for axis, ranges in enumerate(pieces, first):
        size, lead = array.shape[axis], (slice(None),) * axis
        some = [span or range(start := min(span.start, size - 1), start + 1) for span in ranges]
        array = da.concatenate([array[(*lead, slice(span.start, span.stop))] for span in some], axis)
        chunks[axis] = tuple(map(len, some))
    return array.rechunk(chunks, threshold=inf, method="tasks")  # in one step: only neighbours are merged


def pixels_of_blocks(axis: Axis, blocks: range) -> tuple[Axis, range]:
    """Return the axis of consecutive blocks by themselves, and the range of the pixels under them, maybe empty."""
    start = axis.pixel(blocks[0], 0)
    stop = axis.pixel(blocks[-1], 0) + axis.dilated_kernel
    first, last = min(max(start, 0), axis.size), min(max(stop, 0), axis.size)
    return Axis(last - first, axis.kernel, axis.stride, axis.dilation, first - start, stop - last), range(first, last)


def covered_part(axis: Axis, start: int, stop: int) -> tuple[Axis, slice]:
    """Return the axis of the pixels in [start, stop) that blocks reach, by themselves, and the slice of these pixels.

    The slice counts from `start`. It omits uncovered pixels at both ends, so no pad is negative.
    """
    blocks = axis.section(start, stop)[1]
    if not blocks:
        return Axis(0, axis.kernel, axis.stride, axis.dilation, 0, 0), slice(0)
    first = max(start, axis.pixel(blocks[0], 0))
    last = min(stop, axis.pixel(blocks[-1], 0) + axis.dilated_kernel)
    return axis.section(first, last)[0], slice(first - start, last - start)


def each_chunk(call: Call, work: Callable[..., Any], pieces: Any, cut: Chunks, **options: Any) -> da.Array:
    """Compute every chunk of a result from the piece in its place."""
    dtype = result_dtype(call, pieces.dtype)
    meta = da.utils.meta_from_array(pieces._meta, len(cut), dtype)
    array: da.Array = pieces.map_blocks(work, token=call.operation, chunks=cut, dtype=dtype, meta=meta, **options)
    return array


def fold(call: Call, blocks: Any, first: int, taps: list[int], cut: Chunks, weights: Any = None) -> da.Array:
    """Assemble blocks, which are counted along the axes from `first` on; `taps` are the axes of their elements."""
    axes = axes_of(call)
    reached = [
        [axis.section(span.start, span.stop)[1] for span in spans_of(sizes)]
        for axis, sizes in zip(axes, cut[-len(axes) :], strict=True)
    ]
    pieces = with_halos(blocks, first, reached)
    return each_chunk(call, partial(_fold_chunk, call=call), pieces, cut, weights=weights, drop_axis=taps)


def _fold_chunk(blocks: Any, *, call: Call, weights: Any, block_info: Any) -> Any:
    """Compute a chunk of a sum, or of space, from all blocks that reach it."""
    chunk, axes = block_info[None], axes_of(call)
    shape, rank = chunk["chunk-shape"], len(axes)
    lead = shape[:-rank]
    sections, parts = zip(*map(covered_part, axes, *zip(*chunk["array-location"][-rank:], strict=True)), strict=True)
    reached = (*lead, *(axis.size for axis in sections))
    make = np.empty_like if reached == shape else np.zeros_like
    result = make(blocks, chunk["dtype"], order="C", shape=shape)
    if 0 in reached:
        return result
    geometry = _section(call, lead, sections)
    if isinstance(geometry, SlidingGeometry):
        blocks = blocks.reshape(geometry.split_columns_shape)
    elif isinstance(geometry, SpaceGeometry):
        blocks = blocks.reshape(geometry.blocks_shape)
    library = known_chunk(call.operation, blocks, call.data_dtype or call.dtype, ())
    run(call._replace(geometry=geometry), library, blocks, result[(..., *parts)], weights)
    return result


def _section(call: Call, lead: Size, axes: tuple[Axis, ...]) -> Any:
    """Return the geometry of a chunk: the call's, with other axes."""
    geometry: Any = call.geometry
    return replace(geometry, lead=lead, axes=axes)


def unfold(
    call: Call, image: Any, spans: Sequence[Sequence[range]], cut: Chunks, weights: Any = None, **changed: list[int]
) -> da.Array:
    """Extract blocks, cut along each axis by `spans`; `changed` names the axes that are dropped or added."""
    axes = axes_of(call)
    pixels = [[pixels_of_blocks(axis, span)[1] for span in along] for axis, along in zip(axes, spans, strict=True)]
    pieces = with_halos(image, image.ndim - len(axes), pixels)
    return each_chunk(call, partial(_unfold_chunk, call=call), pieces, cut, weights=weights, **changed)


def _unfold_chunk(image: Any, *, call: Call, weights: Any, block_info: Any) -> Any:
    """Extract the blocks of a chunk from all pixels under them."""
    chunk, axes = block_info[None], axes_of(call)
    rank = len(axes)
    lead = image.shape[:-rank]
    if isinstance(call.geometry, SlidingGeometry):
        row = prod(axis.blocks for axis in axes[1:])
        start, stop = chunk["array-location"][-1]
        spans = [range(start // row, stop // row), *(range(axis.blocks) for axis in axes[1:])]
    else:
        first = len(lead) + isinstance(call.geometry, SpaceGeometry)  # taps are the first axis
        spans = [range(*span) for span in chunk["array-location"][first : first + rank]]
    sections = tuple(pixels_of_blocks(axis, span)[0] for axis, span in zip(axes, spans, strict=True))
    size = [axis.size for axis in sections]
    if not all(size):
        return np.zeros_like(image, chunk["dtype"], order="C", shape=chunk["chunk-shape"])
    result = np.empty_like(image, chunk["dtype"], order="C", shape=chunk["chunk-shape"])
    library = known_chunk(call.operation, image, call.dtype, size)
    part = call._replace(geometry=_section(call, lead, sections))
    run(part, library, image, result.reshape(part.result_shape), weights)
    return result
