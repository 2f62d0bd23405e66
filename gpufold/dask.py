"""The functions of gpufold on dask arrays, for what is larger than one GPU or one machine.

Chunks are NumPy or CuPy arrays, and a chunk of the result is one call on the pieces of the input that reach it: the
taps of a pixel are added in one place and in one order, so that results have the bits of the eager functions, seams
included. Batches, channels and leading axes stay chunked as they are and never meet; `chunks` says how the result is
cut along its spatial axes. Nothing is computed until dask is asked to, by any of its schedulers.

>>> import dask.array as da, numpy as np, gpufold.dask
>>> blocks = da.ones((63, 63, 16, 16), chunks=(9, 9, 16, 16), dtype=np.float32)
>>> image = gpufold.dask.blocks_to_array(blocks, (512, 512), (16, 16), 8, reduction="mean", chunks=128)
>>> image.chunks[0], bool((image == 1).all())
((128, 128, 128, 128), True)

dask arrays are never written into, so `out` and `accumulate` have no place here: `to_zarr` and `dask.array.store` write
the chunks of a result as they come. dask walks a result row of chunks by row, and holds the pieces that the next row
needs too: of a picture too wide for that, store one part after the other, `image[:4096, :4096]` and so on, with
`dask.config.set({"optimization.fuse.active": False})`. Else dask fuses the tasks that parts share differently in each,
which `distributed`'s scheduler does not survive while results of an earlier part are held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from math import inf, prod
from typing import Any, TypeAlias, TypeVar

import numpy as np

from gpufold import calls, extras, space
from gpufold.arrays import as_weights, library_of, result_dtype
from gpufold.calls import Call
from gpufold.compute import check_variant, run
from gpufold.elements import check_dtype
from gpufold.geometry import (
    AverageGeometry,
    Axis,
    BlocksGeometry,
    Geometry,
    PositionsGeometry,
    Size,
    SlidingGeometry,
    SpaceGeometry,
)

try:
    import dask
    import dask.array as da
    from dask.delayed import delayed
    from dask.utils import parse_bytes
except ImportError as error:
    raise extras.missing("gpufold.dask", "dask", "dask") from error

Chunks: TypeAlias = tuple[Size, ...]
"""The sizes of the chunks along each axis."""


def col2im(
    data: Any,
    output_size: Any,
    kernel_size: Any,
    *,
    strides: Any = 1,
    dilations: Any = 1,
    pads_begin: Any = 0,
    pads_end: Any = 0,
    reduction: str = "sum",
    window: Any = None,
    dtype: Any = None,
    chunks: Any = "auto",
    variant: str = "auto",
    deterministic: bool = True,
) -> Any:
    """Put sliding blocks back together into an image, adding where they overlap: `gpufold.col2im`, lazily.

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
        Columns as in `gpufold.col2im`, without strings, in NumPy or CuPy chunks.
    output_size, kernel_size, strides, dilations, pads_begin, pads_end, reduction, dtype, variant, deterministic
        As in `gpufold.col2im`.
    window : numpy.ndarray, cupy.ndarray or sequence of them, optional
        As in `gpufold.col2im`, of the library of the chunks.
    chunks : str, int or sequence
        Chunks of the result's spatial axes: one value for all of them or a sequence of one per axis, each as
        `dask.array.core.normalize_chunks` takes it. With "auto", chunks of the result and what each is made from stay
        near dask's configured `array.chunk-size`.

    Returns
    -------
    dask.array.Array
        The image, with the batch and channels chunked as in `data`.

    Raises
    ------
    TypeError, ValueError
        As in `gpufold.col2im`, here and not when the result is computed; ValueError where sizes of chunks are unknown
        or `chunks` does not fit.
    """
    _check_array("col2im", "data", data)
    call = calls.col2im(
        data,
        output_size,
        kernel_size,
        strides,
        dilations,
        pads_begin,
        pads_end,
        reduction=reduction,
        window=window,
        dtype=dtype,
        variant=variant,
        deterministic=deterministic,
    )
    geometry, weights = _geometry(call, SlidingGeometry), _checked(call, data, window)
    *batch, rows, length = data.chunks
    taps, num_blocks = prod(geometry.block_shape), geometry.num_blocks
    rows, length = _whole(rows, taps), _whole(length, prod(num_blocks[1:]))
    lead = (*batch, tuple(size // taps for size in rows))
    cut = _cut(call, lead, chunks, geometry.image_shape, data)
    if 0 in data.shape:
        return _zeros(call, data, cut)
    blocks = data.rechunk((*batch, rows, length)).reshape((*geometry.image_shape[: len(lead)], taps, *num_blocks))
    return _fold(call, blocks, len(lead) + 1, cut, weights)


def im2col(
    image: Any,
    kernel_size: Any,
    *,
    strides: Any = 1,
    dilations: Any = 1,
    pads_begin: Any = 0,
    pads_end: Any = 0,
    window: Any = None,
    chunks: Any = "auto",
    variant: str = "auto",
) -> Any:
    """Take sliding blocks out of an image: `gpufold.im2col`, lazily.

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
        Image as in `gpufold.im2col`, without strings, in NumPy or CuPy chunks.
    kernel_size, strides, dilations, pads_begin, pads_end, variant
        As in `gpufold.im2col`.
    window : numpy.ndarray, cupy.ndarray or sequence of them, optional
        As in `gpufold.im2col`, of the library of the chunks.
    chunks : str, int or sequence
        Rows of blocks in a chunk: one value, or a sequence of one, as in `col2im`.

    Returns
    -------
    dask.array.Array
        The columns, with the batch and channels chunked as in `image`.

    Raises
    ------
    TypeError, ValueError
        As in `col2im`.
    """
    _check_array("im2col", "image", image)
    call = calls.im2col(image, kernel_size, strides, dilations, pads_begin, pads_end, window=window, variant=variant)
    geometry, weights = _geometry(call, SlidingGeometry), _checked(call, image, window)
    *batch, channels = image.chunks[: -len(geometry.axes)]
    taps, (num_rows, *others) = prod(geometry.block_shape), geometry.num_blocks
    lead = (*batch, tuple(size * taps for size in channels))
    shape = (*geometry.columns_shape[:-1], num_rows, prod(others))
    *_, rows, (row,) = _cut(call, lead, chunks, shape, image, count=1)
    cut = (*lead, tuple(size * row for size in rows))
    if 0 in image.shape:
        return _zeros(call, image, cut)
    spans = [_spans(rows), *([range(axis.blocks)] for axis in geometry.axes[1:])]
    return _unfold(call, image, spans, cut, weights)


def blocks_to_array(
    blocks: Any,
    output_shape: Any,
    block_shape: Any,
    block_strides: Any,
    *,
    reduction: str = "sum",
    window: Any = None,
    dtype: Any = None,
    chunks: Any = "auto",
    variant: str = "auto",
    deterministic: bool = True,
) -> Any:
    """Put sliding blocks back together, the taps last: `gpufold.blocks_to_array`, lazily.

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
        Blocks as in `gpufold.blocks_to_array`, without strings, in NumPy or CuPy chunks.
    output_shape, block_shape, block_strides, reduction, dtype, variant, deterministic
        As in `gpufold.blocks_to_array`.
    window, chunks
        As in `col2im`.

    Returns
    -------
    dask.array.Array
        The array, with the leading axes chunked as in `blocks`.

    Raises
    ------
    TypeError, ValueError
        As in `col2im`.
    """
    _check_array("blocks_to_array", "blocks", blocks)
    call = calls.blocks_to_array(
        blocks,
        output_shape,
        block_shape,
        block_strides,
        reduction=reduction,
        window=window,
        dtype=dtype,
        variant=variant,
        deterministic=deterministic,
    )
    geometry, weights = _geometry(call, BlocksGeometry), _checked(call, blocks, window)
    lead = len(geometry.lead)
    cut = _cut(call, blocks.chunks[:lead], chunks, geometry.array_shape, blocks)
    if 0 in blocks.shape:
        return _zeros(call, blocks, cut)
    return _fold(call, blocks, lead, cut, weights)


def array_to_blocks(
    array: Any,
    block_shape: Any,
    block_strides: Any,
    *,
    window: Any = None,
    chunks: Any = "auto",
    variant: str = "auto",
) -> Any:
    """Take sliding blocks out of an array, the taps last: `gpufold.array_to_blocks`, lazily.

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
        Array as in `gpufold.array_to_blocks`, without strings, in NumPy or CuPy chunks.
    block_shape, block_strides, variant
        As in `gpufold.array_to_blocks`.
    window
        As in `col2im`.
    chunks : str, int or sequence
        Chunks of the axes that count the blocks: one value for all of them or a sequence of one per axis, as in
        `col2im`. The blocks themselves are never cut.

    Returns
    -------
    dask.array.Array
        The blocks, with the leading axes chunked as in `array`.

    Raises
    ------
    TypeError, ValueError
        As in `col2im`.
    """
    _check_array("array_to_blocks", "array", array)
    call = calls.array_to_blocks(array, block_shape, block_strides, window=window, variant=variant)
    geometry, weights = _geometry(call, BlocksGeometry), _checked(call, array, window)
    lead, rank = len(geometry.lead), len(geometry.axes)
    cut = _cut(call, array.chunks[:lead], chunks, geometry.blocks_shape, array)
    if 0 in array.shape:
        return _zeros(call, array, cut)
    return _unfold(call, array, [_spans(sizes) for sizes in cut[lead : lead + rank]], cut, weights)


def batch_to_space(
    data: Any,
    block_shape: Any,
    crops_begin: Any = 0,
    crops_end: Any = 0,
    *,
    chunks: Any = "auto",
    variant: str = "auto",
) -> Any:
    """Move blocks of the batch axis into the spatial axes, and crop: `gpufold.batch_to_space`, lazily.

    >>> import dask.array as da, gpufold.dask
    >>> data = da.arange(12, chunks=5).reshape(4, 1, 3)
    >>> gpufold.dask.batch_to_space(data, (1, 2, 2), (0, 0, 1), (0, 0, 0), chunks=2).compute()
    array([[[ 3,  1,  4,  2,  5],
            [ 9,  7, 10,  8, 11]]])

    An image comes from ``prod(block_shape)`` places in the batch. The result's batch is chunked as its first images
    are in `data`, and the others are rechunked to match.

    Parameters
    ----------
    data : dask.array.Array
        Array as in `gpufold.batch_to_space`, without strings, in NumPy or CuPy chunks.
    block_shape, crops_begin, crops_end, variant
        As in `gpufold.batch_to_space`.
    chunks
        As in `col2im`.

    Returns
    -------
    dask.array.Array
        The result.

    Raises
    ------
    TypeError, ValueError
        As in `col2im`.
    """
    _check_array("batch_to_space", "data", data)
    call = calls.batch_to_space(data, block_shape, crops_begin, crops_end, variant=variant)
    geometry, _ = _geometry(call, SpaceGeometry), _checked(call, data)
    images = [data[first : first + geometry.batch] for first in range(0, len(data), max(1, geometry.batch))]
    lead = (images or [data])[0].chunks[:1]
    cut = _cut(call, lead, chunks, geometry.space_shape, data)
    if 0 in data.shape or 0 in geometry.space_shape:
        return _zeros(call, data, cut)
    batches = da.stack([part.rechunk({0: lead[0]}) for part in images])
    reach = [
        [axis.section(span.start, span.stop)[1] for span in _spans(sizes)]
        for axis, sizes in zip(geometry.axes, cut[1:], strict=True)
    ]
    work = partial(_batch_to_space_chunk, axes=geometry.axes, variant=variant)
    return _each_chunk(call, work, _gather(batches, 2, reach), cut, drop_axis=[0])


def space_to_batch(
    data: Any, block_shape: Any, pads_begin: Any = 0, pads_end: Any = 0, *, chunks: Any = "auto", variant: str = "auto"
) -> Any:
    """Pad the spatial axes and move their blocks into the batch axis: `gpufold.space_to_batch`, lazily.

    >>> import dask.array as da, gpufold.dask
    >>> data = da.arange(1, 6, chunks=3).reshape(1, 5)
    >>> gpufold.dask.space_to_batch(data, (1, 2), (0, 1), (0, 0), chunks=2).compute()
    array([[0, 2, 4],
           [1, 3, 5]])

    Parameters
    ----------
    data : dask.array.Array
        Array as in `gpufold.space_to_batch`, without strings, in NumPy or CuPy chunks.
    block_shape, pads_begin, pads_end, variant
        As in `gpufold.space_to_batch`.
    chunks
        As in `col2im`.

    Returns
    -------
    dask.array.Array
        The result, with the batch chunked as in `data`, once for each element of a block.

    Raises
    ------
    TypeError, ValueError
        As in `col2im`.
    """
    _check_array("space_to_batch", "data", data)
    call = calls.space_to_batch(data, block_shape, pads_begin, pads_end, variant=variant)
    geometry, _ = _geometry(call, SpaceGeometry), _checked(call, data)
    taps = prod(geometry.block)
    lead = ((taps,), data.chunks[0])
    cut = _cut(call, lead, chunks, (taps, geometry.batch, *geometry.grid), data)
    if 0 in data.shape:
        return _zeros(call, data, (data.chunks[0] * taps, *cut[2:]))
    spans = [_spans(sizes) for sizes in cut[2:]]
    pixels = [[_under(axis, span)[1] for span in along] for axis, along in zip(geometry.axes, spans, strict=True)]
    work = partial(_space_to_batch_chunk, axes=geometry.axes, variant=variant)
    batches = _each_chunk(call, work, _gather(data, 1, pixels), cut, new_axis=[0])
    return da.concatenate(list(batches))


# ---------------------------------------------------------------------------------------------
# Checks, and how a result is cut


def _check_array(operation: str, name: str, array: Any) -> None:
    """Raise unless an array is dask's, of chunks of known sizes and of a supported library."""
    if not isinstance(array, da.Array):
        raise TypeError(
            f"{operation}: {name} must be a dask.array.Array, got {type(array).__module__}.{type(array).__qualname__}; "
            f"convert it with dask.array.from_array({name}), or call gpufold.{operation}"
        )
    if np.isnan(array.shape).any():
        raise ValueError(
            f"{operation}: {name} must have chunks of known sizes, got shape {array.shape}; "
            f"find them with {name}.compute_chunk_sizes()"
        )
    library_of(operation, f"a chunk of {name}", array._meta)


def _checked(call: Call, array: Any, window: Any = None) -> Any:
    """Check what is left to check of a call, and return the weights of its window as an item of the graph."""
    library = library_of(call.operation, "a chunk", array._meta)
    check_dtype(call.operation, "data", array.dtype)
    check_variant(call, library)
    return None if window is None else delayed(as_weights(call, library, window, array._meta), pure=True)


_Geometry = TypeVar("_Geometry", bound=Geometry)


def _geometry(call: Call, kind: type[_Geometry]) -> _Geometry:
    assert isinstance(call.geometry, kind)
    return call.geometry


def _axes(call: Call) -> tuple[Axis, ...]:
    assert not isinstance(call.geometry, PositionsGeometry | AverageGeometry)
    return call.geometry.axes


def _cut(call: Call, lead: Sequence[Size], chunks: Any, shape: Size, data: Any, count: int | None = None) -> Chunks:
    """Cut a result: its first axes as given, those of space, or `count`, as the caller wants, the others not at all."""
    if count is None:
        count = len(_axes(call))
    each = tuple(chunks) if isinstance(chunks, list | tuple) else (chunks,) * count
    if len(each) != count:
        raise ValueError(
            f"{call.operation}: chunks must be one value or {count}, one per axis that is cut, got {len(each)}: "
            f"{chunks!r}"
        )
    if 0 in shape:  # nothing to cut, and no size to aim for
        each = tuple(-1 if size == "auto" else size for size in each)
    dtype = result_dtype(call, data.dtype)
    share = min(1, prod(shape) * dtype.itemsize / max(1, data.nbytes))  # of the size, where less is made from more
    limit = int(share * parse_bytes(dask.config.get("array.chunk-size")))
    whole = shape[len(lead) + count :]
    cut: Chunks = da.core.normalize_chunks((*lead, *each, *whole), shape, limit, dtype)
    return cut


def _whole(sizes: Size, unit: int) -> Size:
    """Move the ends of chunks up to whole units."""
    ends = sorted({-(-end // unit) * unit for end in accumulate(sizes)})
    return tuple(end - start for start, end in pairwise((0, *ends)) if end > start) or (0,)


def _spans(sizes: Size) -> list[range]:
    """Return what every chunk of an axis holds."""
    return [range(start, stop) for start, stop in pairwise((0, *accumulate(sizes)))]


def _zeros(call: Call, array: Any, cut: Chunks) -> Any:
    """Return what comes of an array without elements."""
    return da.zeros_like(array, dtype=result_dtype(call, array.dtype), shape=tuple(map(sum, cut)), chunks=cut)


# ---------------------------------------------------------------------------------------------
# What a chunk of the result is made from


def _gather(array: Any, first: int, pieces: Sequence[Sequence[range]]) -> Any:
    """Return an array with one chunk per range along each axis from `first` on; where ranges overlap it repeats itself.

    An empty range gets the element next to it, which its chunk of the result does not look at: dask drops chunks
    without elements.
    """
    chunks = {}
    for axis, ranges in enumerate(pieces, first):
        size, lead = array.shape[axis], (slice(None),) * axis
        some = [span or range(start := min(span.start, size - 1), start + 1) for span in ranges]
        array = da.concatenate([array[(*lead, slice(span.start, span.stop))] for span in some], axis)
        chunks[axis] = tuple(map(len, some))
    return array.rechunk(chunks, threshold=inf, method="tasks")  # in one step: only neighbours are merged


def _under(axis: Axis, blocks: range) -> tuple[Axis, range]:
    """Return the pixels under consecutive blocks, maybe none, and the axis of them alone."""
    start = axis.pixel(blocks[0], 0)
    stop = axis.pixel(blocks[-1], 0) + axis.dilated_kernel
    first, last = min(max(start, 0), axis.size), min(max(stop, 0), axis.size)
    return Axis(last - first, axis.kernel, axis.stride, axis.dilation, first - start, stop - last), range(first, last)


def _over(axis: Axis, start: int, stop: int) -> tuple[Axis, slice]:
    """Return the pixels of [start, stop) from the first to the last that blocks reach, and the axis of them alone.

    The slice counts from `start`. Without pixels that no block reaches at either end, no pad is negative.
    """
    blocks = axis.section(start, stop)[1]
    if not blocks:
        return Axis(0, axis.kernel, axis.stride, axis.dilation, 0, 0), slice(0)
    first = max(start, axis.pixel(blocks[0], 0))
    last = min(stop, axis.pixel(blocks[-1], 0) + axis.dilated_kernel)
    return axis.section(first, last)[0], slice(first - start, last - start)


def _fold(call: Call, blocks: Any, first: int, cut: Chunks, weights: Any) -> Any:
    """Put together blocks whose axes are counted from `first` on; the axes of their taps are those of no chunk."""
    axes = _axes(call)
    rank = len(axes)
    reach = [
        [axis.section(span.start, span.stop)[1] for span in _spans(sizes)]
        for axis, sizes in zip(axes, cut[-rank:], strict=True)
    ]
    pieces = _gather(blocks, first, reach)
    taps = [axis for axis in range(len(cut) - rank, blocks.ndim) if not first <= axis < first + rank]
    pieces = pieces.rechunk(dict.fromkeys(taps, -1))
    return _each_chunk(call, partial(_fold_chunk, call=call), pieces, cut, weights=weights, drop_axis=taps)


def _fold_chunk(blocks: Any, *, call: Call, weights: Any, block_info: Any) -> Any:
    """Compute a chunk of a sum, from all blocks that reach it."""
    chunk, axes = block_info[None], _axes(call)
    shape, rank = chunk["chunk-shape"], len(axes)
    lead = shape[:-rank]
    sections, parts = zip(*map(_over, axes, *zip(*chunk["array-location"][-rank:], strict=True)), strict=True)
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


def _unfold(call: Call, image: Any, spans: Sequence[Sequence[range]], cut: Chunks, weights: Any) -> Any:
    """Take blocks apart along each axis as the spans say."""
    axes = _axes(call)
    rank, lead = len(axes), image.ndim - len(axes)
    pixels = [[_under(axis, span)[1] for span in along] for axis, along in zip(axes, spans, strict=True)]
    columns = isinstance(call.geometry, SlidingGeometry)
    return _each_chunk(
        call,
        partial(_unfold_chunk, call=call),
        _gather(image, lead, pixels),
        cut,
        weights=weights,
        drop_axis=list(range(lead + 1, lead + rank)) if columns else [],
        new_axis=[] if columns else list(range(lead + rank, lead + 2 * rank)),
    )


def _unfold_chunk(image: Any, *, call: Call, weights: Any, block_info: Any) -> Any:
    """Take the blocks of a chunk out of all pixels under them."""
    chunk, axes = block_info[None], _axes(call)
    rank = len(axes)
    lead = image.shape[:-rank]
    if isinstance(call.geometry, SlidingGeometry):
        row = prod(axis.blocks for axis in axes[1:])
        start, stop = chunk["array-location"][-1]
        spans = [range(start // row, stop // row), *(range(axis.blocks) for axis in axes[1:])]
    else:
        spans = [range(*span) for span in chunk["array-location"][len(lead) : len(lead) + rank]]
    sections = tuple(_under(axis, span)[0] for axis, span in zip(axes, spans, strict=True))
    if not all(axis.size for axis in sections):
        return np.zeros_like(image, chunk["dtype"], order="C", shape=chunk["chunk-shape"])
    result = np.empty_like(image, chunk["dtype"], order="C", shape=chunk["chunk-shape"])
    library = library_of(call.operation, "a chunk", image)
    run(call._replace(geometry=_section(call, lead, sections)), library, image, result, weights)
    return result


def _batch_to_space_chunk(batches: Any, *, axes: tuple[Axis, ...], variant: str, block_info: Any) -> Any:
    """Compute a chunk of space, from all grid points whose blocks reach it."""
    spans = block_info[None]["array-location"][1:]
    sections = [axis.section(*span)[0] for axis, span in zip(axes, spans, strict=True)]
    return space.batch_to_space(
        batches.reshape(-1, *batches.shape[2:]),
        (1, *(axis.kernel for axis in sections)),
        (0, *(axis.pad_begin for axis in sections)),
        (0, *(axis.pad_end for axis in sections)),
        variant=variant,
    )


def _space_to_batch_chunk(array: Any, *, axes: tuple[Axis, ...], variant: str, block_info: Any) -> Any:
    """Compute a chunk of the batches, from all pixels under its grid points."""
    chunk = block_info[None]
    spans = [range(*span) for span in chunk["array-location"][2:]]
    sections = [_under(axis, span)[0] for axis, span in zip(axes, spans, strict=True)]
    if not all(axis.size for axis in sections):
        return np.zeros_like(array, chunk["dtype"], order="C", shape=chunk["chunk-shape"])
    batches = space.space_to_batch(
        array,
        (1, *(axis.kernel for axis in sections)),
        (0, *(axis.pad_begin for axis in sections)),
        (0, *(axis.pad_end for axis in sections)),
        variant=variant,
    )
    return batches.reshape(chunk["chunk-shape"])


def _each_chunk(call: Call, work: Callable[..., Any], pieces: Any, cut: Chunks, **options: Any) -> Any:
    """Compute every chunk of a result from the piece in its place."""
    dtype = result_dtype(call, pieces.dtype)
    meta = da.utils.meta_from_array(pieces._meta, len(cut), dtype)
    return pieces.map_blocks(work, token=call.operation, chunks=cut, dtype=dtype, meta=meta, **options)
