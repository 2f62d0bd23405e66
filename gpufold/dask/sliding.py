"""Sliding blocks: `col2im`, `im2col`, `blocks_to_array` and `array_to_blocks`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import dask.array as da
import numpy as np

from gpufold import calls
from gpufold.arrays import library_of
from gpufold.calls import Call, Reduction
from gpufold.compute import run
from gpufold.dask.cutting import Chunks, axes_of, checked, cut_result, geometry_of, known_array, spans_of, whole, zeros
from gpufold.dask.pieces import each_chunk, gather, over, pixels_under, reach, under
from gpufold.geometry import Axis, BlocksGeometry, Extents, Size, Sizes, SlidingGeometry
from gpufold.names import answers


@answers
def col2im(
    data: da.Array,
    output_size: Extents,
    kernel_size: Sizes,
    *,
    strides: Sizes = 1,
    dilations: Sizes = 1,
    pads_begin: Sizes = 0,
    pads_end: Sizes = 0,
    reduction: Reduction = "sum",
    window: Any = None,
    dtype: Any = None,
    chunks: Any = "auto",
    variant: str = "auto",
    deterministic: bool = True,
) -> da.Array:
    """Put sliding blocks back together into an image, adding where they overlap: `gpufold.col2im`, lazily.

    ``(N, C*prod(kernel_size), L) -> (N, C, *output_size)``

    >>> import dask.array as da, numpy as np, gpufold.dask
    >>> columns = da.ones((1, 4, 9), chunks=(1, 4, 3), dtype=np.int32)  # one channel of 2x2 blocks, 3x3 of them
    >>> image = gpufold.dask.col2im(columns, (4, 4), (2, 2), chunks=(2, 4))
    >>> image.chunks
    ((1,), (1,), (2, 2), (4,))
    >>> image.compute()[0, 0]
    array([[1, 2, 2, 1],
           [2, 4, 4, 2],
           [2, 4, 4, 2],
           [1, 2, 2, 1]], dtype=int32)

    Chunks of `data` that cut the taps of a channel or a row of blocks (those that are one along the first axis) are
    rechunked, to the end of that channel or row; others are taken as they are. A chunk of the image reads the blocks
    that reach it, so both sides of a seam read the blocks on it.

    Parameters
    ----------
    data : dask.array.Array
        Columns of numbers, in NumPy or CuPy chunks of known sizes.
    window : numpy.ndarray, cupy.ndarray or sequence of them, optional
        As in `gpufold.col2im`, of the library of the chunks; it is copied.
    chunks : str, int or sequence
        Chunks of the result's spatial axes: one value for all of them or a sequence of one per axis, each as
        `dask.array.core.normalize_chunks` takes it. With "auto", chunks of the result and what each is made from stay
        near dask's configured `array.chunk-size`. The batch and channels are chunked as in `data`.

    See Also
    --------
    gpufold.col2im : The other parameters; its errors are raised here too, not when the result is computed.
    """
    data = known_array("col2im", "data", data)
    steps = kernel_size, strides, dilations, pads_begin, pads_end
    call = calls.col2im(
        data,
        output_size,
        *steps,
        reduction=reduction,
        window=window,
        dtype=dtype,
        variant=variant,
        deterministic=deterministic,
    )
    geometry, weights = geometry_of(call, SlidingGeometry), checked(call, data, window)
    *batch, rows, length = data.chunks
    taps, num_blocks = prod(geometry.block_shape), geometry.num_blocks
    rows, length = whole(rows, taps), whole(length, prod(num_blocks[1:]))
    lead = (*batch, tuple(size // taps for size in rows))
    cut = cut_result(call, lead, chunks, geometry.image_shape, data)
    if 0 in data.shape:
        return zeros(call, data, cut)
    blocks = data.rechunk((*batch, rows, length)).reshape((*geometry.image_shape[: len(lead)], taps, *num_blocks))
    return _fold(call, blocks, len(lead) + 1, cut, weights)


@answers
def im2col(
    image: da.Array,
    kernel_size: Extents,
    *,
    strides: Sizes = 1,
    dilations: Sizes = 1,
    pads_begin: Sizes = 0,
    pads_end: Sizes = 0,
    window: Any = None,
    chunks: Any = "auto",
    variant: str = "auto",
) -> da.Array:
    """Take sliding blocks out of an image: `gpufold.im2col`, lazily.

    ``(N, C, *size) -> (N, C*prod(kernel_size), L)``

    >>> import dask.array as da, gpufold.dask
    >>> image = da.arange(9, chunks=3).reshape(1, 3, 3)
    >>> columns = gpufold.dask.im2col(image, (2, 2), chunks=1)
    >>> columns.chunks
    ((4,), (2, 2))
    >>> columns.compute()
    array([[0, 1, 3, 4],
           [1, 2, 4, 5],
           [3, 4, 6, 7],
           [4, 5, 7, 8]])

    Chunks of the columns are whole rows of blocks, those that are one along the first axis, and read the pixels of the
    image that lie under them.

    Parameters
    ----------
    image : dask.array.Array
        Image of numbers, in NumPy or CuPy chunks of known sizes, as which batch and channels stay chunked.
    window, chunks
        As in `col2im`, `chunks` counting rows of blocks: one value, or a sequence of one.

    See Also
    --------
    gpufold.im2col : The other parameters; its errors are raised here too, not when the result is computed.
    """
    image = known_array("im2col", "image", image)
    call = calls.im2col(image, kernel_size, strides, dilations, pads_begin, pads_end, window=window, variant=variant)
    geometry, weights = geometry_of(call, SlidingGeometry), checked(call, image, window)
    *batch, channels = image.chunks[: -len(geometry.axes)]
    taps, (num_rows, *others) = prod(geometry.block_shape), geometry.num_blocks
    lead = (*batch, tuple(size * taps for size in channels))
    shape = (*geometry.columns_shape[:-1], num_rows, prod(others))
    *_, rows, (row,) = cut_result(call, lead, chunks, shape, image, count=1)
    cut = (*lead, tuple(size * row for size in rows))
    if 0 in image.shape:
        return zeros(call, image, cut)
    spans = [spans_of(rows), *([range(axis.blocks)] for axis in geometry.axes[1:])]
    return _unfold(call, image, spans, cut, weights)


@answers
def blocks_to_array(
    blocks: da.Array,
    output_shape: Extents,
    block_shape: Extents,
    strides: Sizes = 1,
    *,
    reduction: Reduction = "sum",
    window: Any = None,
    dtype: Any = None,
    chunks: Any = "auto",
    variant: str = "auto",
    deterministic: bool = True,
) -> da.Array:
    """Put sliding blocks back together, the taps last: `gpufold.blocks_to_array`, lazily.

    ``(*lead, *num_blocks, *block_shape) -> (*lead, *size)``

    >>> import dask.array as da, gpufold.dask
    >>> array = da.arange(7, chunks=4)
    >>> blocks = gpufold.dask.array_to_blocks(array, (3,), 2)
    >>> gpufold.dask.blocks_to_array(blocks, (7,), (3,), 2, chunks=4).compute()
    array([0, 1, 4, 3, 8, 5, 6])

    Chunks that cut a block are rechunked, to whole blocks; others are taken as they are. A chunk of the array reads the
    blocks that reach it, so both sides of a seam read the blocks on it.

    Parameters
    ----------
    blocks : dask.array.Array
        Blocks of numbers, in NumPy or CuPy chunks of known sizes, as which the leading axes stay chunked.
    window, chunks
        As in `col2im`.

    See Also
    --------
    gpufold.blocks_to_array : The other parameters; its errors are raised here too, not when the result is computed.
    """
    blocks = known_array("blocks_to_array", "blocks", blocks)
    call = calls.blocks_to_array(
        blocks,
        output_shape,
        block_shape,
        strides,
        reduction=reduction,
        window=window,
        dtype=dtype,
        variant=variant,
        deterministic=deterministic,
    )
    geometry, weights = geometry_of(call, BlocksGeometry), checked(call, blocks, window)
    lead = len(geometry.lead)
    cut = cut_result(call, blocks.chunks[:lead], chunks, geometry.array_shape, blocks)
    if 0 in blocks.shape:
        return zeros(call, blocks, cut)
    return _fold(call, blocks, lead, cut, weights)


@answers
def array_to_blocks(
    array: da.Array,
    block_shape: Extents,
    strides: Sizes = 1,
    *,
    window: Any = None,
    chunks: Any = "auto",
    variant: str = "auto",
) -> da.Array:
    """Take sliding blocks out of an array, the taps last: `gpufold.array_to_blocks`, lazily.

    ``(*lead, *size) -> (*lead, *num_blocks, *block_shape)``

    >>> import dask.array as da, gpufold.dask
    >>> blocks = gpufold.dask.array_to_blocks(da.arange(7, chunks=4), (3,), 2, chunks=2)
    >>> blocks.chunks
    ((2, 1), (3,))
    >>> blocks.compute()
    array([[0, 1, 2],
           [2, 3, 4],
           [4, 5, 6]])

    A chunk of the blocks reads the elements of the array that lie under it.

    Parameters
    ----------
    array : dask.array.Array
        Array of numbers, in NumPy or CuPy chunks of known sizes, as which the leading axes stay chunked.
    window, chunks
        As in `col2im`, `chunks` of the axes that count the blocks, which are never cut themselves.

    See Also
    --------
    gpufold.array_to_blocks : The other parameters; its errors are raised here too, not when the result is computed.
    """
    array = known_array("array_to_blocks", "array", array)
    call = calls.array_to_blocks(array, block_shape, strides, window=window, variant=variant)
    geometry, weights = geometry_of(call, BlocksGeometry), checked(call, array, window)
    lead, rank = len(geometry.lead), len(geometry.axes)
    cut = cut_result(call, array.chunks[:lead], chunks, geometry.blocks_shape, array)
    if 0 in array.shape:
        return zeros(call, array, cut)
    return _unfold(call, array, [spans_of(sizes) for sizes in cut[lead : lead + rank]], cut, weights)


def _fold(call: Call, blocks: Any, first: int, cut: Chunks, weights: Any) -> da.Array:
    """Put together blocks whose axes are counted from `first` on; the axes of their taps are those of no chunk."""
    axes = axes_of(call)
    rank = len(axes)
    pieces = gather(blocks, first, reach(axes, cut[-rank:]))
    taps = [axis for axis in range(len(cut) - rank, blocks.ndim) if not first <= axis < first + rank]
    pieces = pieces.rechunk(dict.fromkeys(taps, -1))
    return each_chunk(call, partial(_fold_chunk, call=call), pieces, cut, weights=weights, drop_axis=taps)


def _fold_chunk(blocks: Any, *, call: Call, weights: Any, block_info: Any) -> Any:
    """Compute a chunk of a sum, from all blocks that reach it."""
    chunk, axes = block_info[None], axes_of(call)
    shape, rank = chunk["chunk-shape"], len(axes)
    lead = shape[:-rank]
    sections, parts = zip(*map(over, axes, *zip(*chunk["array-location"][-rank:], strict=True)), strict=True)
    reached = (*lead, *(axis.size for axis in sections))
    make = np.empty_like if reached == shape else np.zeros_like
    result = make(blocks, chunk["dtype"], order="C", shape=shape)
    if 0 in reached:
        return result
    geometry = _section(call, lead, sections)
    if isinstance(geometry, SlidingGeometry):
        blocks = blocks.reshape(geometry.split_columns_shape)
    library = library_of(call.operation, "a chunk", blocks)
    run(call._replace(geometry=geometry), library, blocks, result[(..., *parts)], weights)
    return result


def _section(call: Call, lead: Size, axes: tuple[Axis, ...]) -> SlidingGeometry | BlocksGeometry:
    """Return the geometry of a chunk: that of the call along other axes."""
    if isinstance(call.geometry, SlidingGeometry):
        return SlidingGeometry(lead[0] if len(lead) == 2 else None, lead[-1], axes)
    return BlocksGeometry(lead, axes)


def _unfold(call: Call, image: Any, spans: Sequence[Sequence[range]], cut: Chunks, weights: Any) -> da.Array:
    """Take blocks apart along each axis as the spans say."""
    axes = axes_of(call)
    rank, lead = len(axes), image.ndim - len(axes)
    columns = isinstance(call.geometry, SlidingGeometry)
    return each_chunk(
        call,
        partial(_unfold_chunk, call=call),
        gather(image, lead, pixels_under(axes, spans)),
        cut,
        weights=weights,
        drop_axis=list(range(lead + 1, lead + rank)) if columns else [],
        new_axis=[] if columns else list(range(lead + rank, lead + 2 * rank)),
    )


def _unfold_chunk(image: Any, *, call: Call, weights: Any, block_info: Any) -> Any:
    """Take the blocks of a chunk out of all pixels under them."""
    chunk, axes = block_info[None], axes_of(call)
    rank = len(axes)
    lead = image.shape[:-rank]
    if isinstance(call.geometry, SlidingGeometry):
        row = prod(axis.blocks for axis in axes[1:])
        start, stop = chunk["array-location"][-1]
        spans = [range(start // row, stop // row), *(range(axis.blocks) for axis in axes[1:])]
    else:
        spans = [range(*span) for span in chunk["array-location"][len(lead) : len(lead) + rank]]
    sections = tuple(under(axis, span)[0] for axis, span in zip(axes, spans, strict=True))
    if not all(axis.size for axis in sections):
        return np.zeros_like(image, chunk["dtype"], order="C", shape=chunk["chunk-shape"])
    result = np.empty_like(image, chunk["dtype"], order="C", shape=chunk["chunk-shape"])
    library = library_of(call.operation, "a chunk", image)
    run(call._replace(geometry=_section(call, lead, sections)), library, image, result, weights)
    return result
