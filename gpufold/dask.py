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

dask arrays are never written into, so there is no `accumulate` here, and `add_blocks` leaves its `out` as it is:
`to_zarr` and `dask.array.store` write the chunks of a result as they come. dask walks a result row of chunks by row,
and holds the pieces that the next row needs too: of a picture too wide for that, store one part after the other,
`image[:4096, :4096]` and so on, with `dask.config.set({"optimization.fuse.active": False})`. Else dask fuses the tasks
that parts share differently in each, which `distributed`'s scheduler does not survive while results of an earlier part
are held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from math import inf, prod
from operator import getitem
from typing import Any, TypeAlias, TypeVar

import numpy as np

from gpufold import calls, extras, space
from gpufold.arrays import as_positions, as_weights, check_bytes, check_library, library_of, result_dtype
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
from gpufold.operations import OPERATIONS
from gpufold.positions import average as average_chunk

try:
    import dask
    import dask.array as da
    from dask.base import tokenize
    from dask.delayed import delayed
    from dask.highlevelgraph import HighLevelGraph
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
    work = partial(_batch_to_space_chunk, axes=geometry.axes, variant=variant)
    return _each_chunk(call, work, _gather(batches, 2, _reach(geometry.axes, cut[1:])), cut, drop_axis=[0])


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
    pixels = _pixels(geometry.axes, [_spans(sizes) for sizes in cut[2:]])
    work = partial(_space_to_batch_chunk, axes=geometry.axes, variant=variant)
    batches = _each_chunk(call, work, _gather(data, 1, pixels), cut, new_axis=[0])
    return da.concatenate(list(batches))


def add_blocks(
    out: Any,
    blocks: Any,
    positions: Any,
    window: Any = None,
    *,
    variant: str = "auto",
    deterministic: bool = True,
) -> Any:
    """Add blocks to an array, each at a position of its own: `gpufold.add_blocks`, lazily, into a new array.

    >>> import dask.array as da, numpy as np, gpufold.dask
    >>> picture = da.zeros((3, 6), chunks=(3, 3), dtype=np.float32)
    >>> tiles = da.ones((2, 2, 3), chunks=(1, 2, 3), dtype=np.float32)
    >>> gpufold.dask.add_blocks(picture, tiles, [(0, 0), (1, 2)]).compute()
    array([[1., 1., 1., 0., 0., 0.],
           [1., 1., 2., 1., 1., 0.],
           [0., 0., 1., 1., 1., 0.]], dtype=float32)

    A chunk of the result is made from that of `out` and the blocks that meet it, and is that of `out` where none does.
    Chunks of `blocks` that cut a block, or leading axes elsewhere than those of `out`, are rechunked.

    Parameters
    ----------
    out : dask.array.Array
        Array of shape (*lead, *size) to add to, as in `gpufold.add_blocks`, in NumPy or CuPy chunks, such as
        `dask.array.zeros`; it stays as it is.
    blocks : dask.array.Array
        Blocks of shape (P, *lead, *block_shape), as in `gpufold.add_blocks`, in chunks of the same library.
    positions : numpy.ndarray or sequence of sequences of int
        Where each block's first element lies, of shape (P, rank), as in `gpufold.add_blocks`: numbers that are known,
        for the graph is made from them.
    window
        As in `col2im`.
    variant, deterministic
        As in `gpufold.add_blocks`.

    Returns
    -------
    dask.array.Array
        The sums, chunked as `out`.

    Raises
    ------
    TypeError, ValueError
        As in `gpufold.add_blocks`, here and not when the result is computed; TypeError where positions are an array of
        another library, ValueError where sizes of chunks are unknown.
    """
    _check_array("add_blocks", "out", out)
    _check_array("add_blocks", "blocks", blocks)
    library = library_of("add_blocks", "a chunk of out", out._meta)
    check_library("add_blocks", "a chunk of blocks", blocks._meta, library, "one of out")
    positions = _known_positions("add_blocks", positions, out, "out")
    call = calls.add_blocks(out, blocks, positions, window, variant=variant, deterministic=deterministic)
    geometry, weights = _geometry(call, PositionsGeometry), _checked(call, blocks, window)
    positions = _near_positions(geometry, positions)
    lead, rank = len(geometry.lead), len(geometry.size)
    whole = dict.fromkeys(range(1 + lead, 1 + lead + rank), -1)
    blocks = blocks.rechunk({**dict(enumerate(out.chunks[:lead], 1)), **whole})
    name = f"add_blocks-{tokenize(call, out, blocks, positions, weights)}"
    graph: dict[Any, Any] = {(name, *index): (out.name, *index) for index in np.ndindex(*out.numblocks)}
    found: dict[Size, list[tuple[int, Any]]] = {}
    parts = _spans(blocks.chunks[0])
    for part, chunk, numbers in _meetings(call, positions, parts, out.chunks[lead:]):
        found.setdefault(chunk, []).append((part, numbers))
    for chunk, met in found.items():
        begin = [pixels.start for pixels in _chunk_at(out.chunks[lead:], chunk)]
        work = partial(_add_chunk, call=call, positions=[positions[numbers] - begin for _, numbers in met])
        in_parts = [(part, numbers - parts[part].start) for part, numbers in met]
        for planes in np.ndindex(*out.numblocks[:lead]):
            pieces = [(f"{name}-met", part, *planes, *chunk) for part, _ in met]
            for piece, (part, numbers) in zip(pieces, in_parts, strict=True):
                graph[piece] = (getitem, (blocks.name, part, *planes, *(0,) * rank), numbers)
            graph[name, *planes, *chunk] = (work, (out.name, *planes, *chunk), pieces, _key(weights))
    return _new_array(name, graph, (out, blocks, weights), out.chunks, np.dtype(call.dtype))


def take_blocks(
    array: Any,
    positions: Any,
    block_shape: Any,
    *,
    window: Any = None,
    mode: str = "constant",
    chunks: Any = "auto",
    variant: str = "auto",
) -> Any:
    """Take blocks out of an array, each at a position of its own: `gpufold.take_blocks`, lazily.

    >>> import dask.array as da, gpufold.dask
    >>> picture = da.arange(12, chunks=4).reshape(3, 4)
    >>> gpufold.dask.take_blocks(picture, [(0, 1), (2, -1)], (2, 3), chunks=1).compute()
    array([[[1, 2, 3],
            [5, 6, 7]],
    <BLANKLINE>
           [[0, 8, 9],
            [0, 0, 0]]])

    Of each chunk of the array that a chunk of the blocks meets, it reads what its blocks take from there and no more,
    so that blocks in any order can be taken out of an array that does not fit into memory.

    Parameters
    ----------
    array : dask.array.Array
        Array of shape (*lead, *size), as in `gpufold.take_blocks`, without strings, in NumPy or CuPy chunks.
    positions
        As in `add_blocks`.
    block_shape, mode, variant
        As in `gpufold.take_blocks`.
    window
        As in `col2im`.
    chunks : str, int or sequence
        Blocks in a chunk: one value, or a sequence of one, as in `col2im`. The blocks themselves are never cut.

    Returns
    -------
    dask.array.Array
        The blocks, with the leading axes chunked as in `array`.

    Raises
    ------
    TypeError, ValueError
        As in `add_blocks`.
    """
    _check_array("take_blocks", "array", array)
    positions = _known_positions("take_blocks", positions, array, "array")
    call = calls.take_blocks(array, positions, block_shape, window=window, mode=mode, variant=variant)
    geometry, weights = _geometry(call, PositionsGeometry), _checked(call, array, window)
    positions = _near_positions(geometry, positions)
    lead, rank = len(geometry.lead), len(geometry.size)
    dtype, (along,) = result_dtype(call, array.dtype), _per_axis(call, chunks, 1, geometry.blocks_shape)
    wanted = (along, *array.chunks[:lead], *geometry.block_shape)
    check_bytes(call, geometry.blocks_shape, dtype.itemsize)
    cut: Chunks = da.core.normalize_chunks(wanted, geometry.blocks_shape, dtype=dtype)
    name = f"take_blocks-{tokenize(call, array, positions, weights, cut)}"
    spans = _spans(cut[0])
    found: list[list[tuple[Size, Any]]] = [[] for _ in spans]
    for part, chunk, numbers in _meetings(call, positions, spans, array.chunks[lead:]):
        found[part].append((chunk, numbers))
    graph: dict[Any, Any] = {}
    for part, (span, met) in enumerate(zip(spans, found, strict=True)):
        boxes = [_chunk_at(array.chunks[lead:], chunk) for chunk, _ in met]
        takes = []
        for box, (_, numbers) in zip(boxes, met, strict=True):
            begin = [pixels.start for pixels in box]
            takes.append(partial(_take_chunk, call=call, positions=positions[numbers] - begin))
        numbers_in_part = [numbers - span.start for _, numbers in met]
        join = partial(
            _join_blocks, call=call, positions=positions[span.start : span.stop], numbers=numbers_in_part, boxes=boxes
        )
        for planes in np.ndindex(*array.numblocks[:lead]):
            pieces = [(f"{name}-met", part, *planes, *chunk) for chunk, _ in met]
            for piece, take, (chunk, _) in zip(pieces, takes, met, strict=True):
                graph[piece] = (take, (array.name, *planes, *chunk), _key(weights))
            shape = (len(span), *(cut[1 + axis][at] for axis, at in enumerate(planes)), *geometry.block_shape)
            zeros = partial(np.zeros_like, array._meta, dtype, shape=shape)
            graph[name, part, *planes, *(0,) * rank] = (join, zeros, pieces)
    return _new_array(name, graph, (array, weights), cut, dtype)


def average(numerator: Any, weight: Any, *, variant: str = "auto") -> Any:
    """Divide sums by the sums of their weights: `gpufold.average`, lazily.

    The sums of a window's weights are those of blocks of ones, weighted by it, at the same positions:

    >>> import dask.array as da, numpy as np, gpufold.dask
    >>> tiles, positions = da.full((2, 3), 5.0, chunks=(1, 3)), [(0,), (2,)]
    >>> window = np.array([1.0, 2.0, 1.0])
    >>> sums = gpufold.dask.add_blocks(da.zeros(6, chunks=4), tiles, positions, window)
    >>> weight = gpufold.dask.add_blocks(da.zeros(6, chunks=4), da.ones_like(tiles), positions, window)
    >>> weight.compute(), gpufold.dask.average(sums, weight).compute()
    (array([1., 2., 2., 2., 1., 0.]), array([5., 5., 5., 5., 5., 0.]))

    Parameters
    ----------
    numerator : dask.array.Array
        Sums of shape (*lead, *size), as in `gpufold.average`, in NumPy or CuPy chunks.
    weight : dask.array.Array
        Weights of numerator's last axes, as in `gpufold.average`, in chunks of the same library.
    variant
        As in `gpufold.average`.

    Returns
    -------
    dask.array.Array
        The quotients, chunked as `numerator`, and where chunks of `weight` end inside of its own, there too.

    Raises
    ------
    TypeError, ValueError
        As in `add_blocks`.
    """
    _check_array("average", "numerator", numerator)
    _check_array("average", "weight", weight)
    library = library_of("average", "a chunk of numerator", numerator._meta)
    check_library("average", "a chunk of weight", weight._meta, library, "one of numerator")
    call = calls.average(numerator, weight, variant=variant)
    meta = average_chunk(numerator._meta, weight._meta, variant=variant)  # which checks what shapes do not show
    axes = range(numerator.ndim)
    of_weight = axes[len(_geometry(call, AverageGeometry).lead) :]
    return da.blockwise(
        average_chunk, axes, numerator, axes, weight, of_weight, variant=variant, token="average", meta=meta
    )


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
    check_dtype(call.operation, OPERATIONS[call.operation].data, array.dtype)
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
    each = _per_axis(call, chunks, len(_axes(call)) if count is None else count, shape)
    dtype = result_dtype(call, data.dtype)
    share = min(1, prod(shape) * dtype.itemsize / max(1, data.nbytes))  # of the size, where less is made from more
    limit = int(share * parse_bytes(dask.config.get("array.chunk-size")))
    whole = shape[len(lead) + len(each) :]
    cut: Chunks = da.core.normalize_chunks((*lead, *each, *whole), shape, limit, dtype)
    return cut


def _per_axis(call: Call, chunks: Any, count: int, shape: Size) -> tuple[Any, ...]:
    """Return what a caller wants for each of the axes that are cut, of a result of a shape."""
    each = tuple(chunks) if isinstance(chunks, list | tuple) else (chunks,) * count
    if len(each) != count:
        raise ValueError(
            f"{call.operation}: chunks must be one value or {count}, one per axis that is cut, got {len(each)}: "
            f"{chunks!r}"
        )
    if 0 in shape:  # nothing to cut, and no size to aim for
        each = tuple(-1 if size == "auto" else size for size in each)
    return each


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


def _reach(axes: Sequence[Axis], cut: Chunks) -> list[list[range]]:
    """Return the blocks that reach each chunk of the pixels, along each axis."""
    return [
        [axis.section(span.start, span.stop)[1] for span in _spans(sizes)]
        for axis, sizes in zip(axes, cut, strict=True)
    ]


def _pixels(axes: Sequence[Axis], spans: Sequence[Sequence[range]]) -> list[list[range]]:
    """Return the pixels under each span of the blocks, along each axis."""
    return [[_under(axis, span)[1] for span in along] for axis, along in zip(axes, spans, strict=True)]


def _fold(call: Call, blocks: Any, first: int, cut: Chunks, weights: Any) -> Any:
    """Put together blocks whose axes are counted from `first` on; the axes of their taps are those of no chunk."""
    axes = _axes(call)
    rank = len(axes)
    pieces = _gather(blocks, first, _reach(axes, cut[-rank:]))
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
    columns = isinstance(call.geometry, SlidingGeometry)
    return _each_chunk(
        call,
        partial(_unfold_chunk, call=call),
        _gather(image, lead, _pixels(axes, spans)),
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
    return space.batch_to_space(batches.reshape(-1, *batches.shape[2:]), *_block_and_margins(sections), variant=variant)


def _space_to_batch_chunk(array: Any, *, axes: tuple[Axis, ...], variant: str, block_info: Any) -> Any:
    """Compute a chunk of the batches, from all pixels under its grid points."""
    chunk = block_info[None]
    spans = [range(*span) for span in chunk["array-location"][2:]]
    sections = [_under(axis, span)[0] for axis, span in zip(axes, spans, strict=True)]
    if not all(axis.size for axis in sections):
        return np.zeros_like(array, chunk["dtype"], order="C", shape=chunk["chunk-shape"])
    batches = space.space_to_batch(array, *_block_and_margins(sections), variant=variant)
    return batches.reshape(chunk["chunk-shape"])


def _block_and_margins(axes: Sequence[Axis]) -> tuple[Size, Size, Size]:
    """Return block shape, begins and ends of the margins with those of the batch axis in front."""
    _, block, _, _, begin, end = zip(*axes, strict=True)
    return (1, *block), (0, *begin), (0, *end)


def _each_chunk(call: Call, work: Callable[..., Any], pieces: Any, cut: Chunks, **options: Any) -> Any:
    """Compute every chunk of a result from the piece in its place."""
    dtype = result_dtype(call, pieces.dtype)
    meta = da.utils.meta_from_array(pieces._meta, len(cut), dtype)
    return pieces.map_blocks(work, token=call.operation, chunks=cut, dtype=dtype, meta=meta, **options)


# ---------------------------------------------------------------------------------------------
# Blocks at positions


def _known_positions(operation: str, positions: Any, array: Any, name: str) -> Any:
    """Return positions as int64, or raise where they are not known yet, or only to a GPU."""
    if hasattr(positions, "dtype") and not isinstance(positions, np.ndarray):
        raise TypeError(
            f"{operation}: positions must be a numpy.ndarray, for the graph is made from them, got "
            f"{type(positions).__module__}.{type(positions).__qualname__}; compute them first, on the CPU"
        )
    return as_positions(operation, np, positions, array, name)


def _near_positions(geometry: PositionsGeometry, positions: Any) -> Any:
    """Return positions at which all is as at those given, no farther away than just outside of the array."""
    return np.clip(positions, np.negative(geometry.block_shape), geometry.size)


def _meetings(call: Call, positions: Any, parts: Sequence[range], cut: Chunks) -> Iterator[tuple[int, Size, Any]]:
    """Yield every pair of a part of the blocks and a chunk of the array that meet, and which blocks do.

    Parts ascend, and so do the numbers of the blocks. With mode "edge" a block meets where its elements come from.
    """
    geometry = _geometry(call, PositionsGeometry)
    chunks, counts = [], []  # along each axis: the first chunk that a block meets, and how many it does
    for axis, (size, side, sizes) in enumerate(zip(geometry.size, geometry.block_shape, cut, strict=True)):
        begin, end = positions[:, axis], positions[:, axis] + side
        if call.fusion.mode == "edge":
            begin, end = begin.clip(0, size - 1), end.clip(1, size)
        some = np.flatnonzero(sizes)  # nothing is in the others
        ends = np.cumsum(sizes)[some]
        first = np.searchsorted(ends, begin, "right")
        counts.append(np.maximum(np.searchsorted(ends - np.array(sizes)[some], end, "left") - first, 0))
        chunks.append((some, first))
    pairs = prod(counts)
    block = np.repeat(np.arange(len(positions)), pairs)
    rest = np.arange(len(block)) - np.repeat(np.cumsum(pairs) - pairs, pairs)
    index = [np.searchsorted([span.stop for span in parts], block, "right")]
    for (some, first), count in zip(reversed(chunks), reversed(counts), strict=True):
        rest, along = np.divmod(rest, count[block])
        index.insert(1, some[first[block] + along])
    shape = (len(parts), *map(len, cut))
    pair = np.ravel_multi_index(tuple(index), shape)
    order = np.argsort(pair, kind="stable")
    pair, block = pair[order], block[order]
    starts = np.flatnonzero(np.diff(pair, prepend=-1))
    for start, stop in pairwise((*starts.tolist(), len(pair))):
        part, *chunk = map(int, np.unravel_index(pair[start], shape))
        yield part, tuple(chunk), block[start:stop]


def _chunk_at(cut: Chunks, chunk: Size) -> list[range]:
    """Return what a chunk holds along each axis."""
    return [range(start := sum(sizes[:at]), start + sizes[at]) for sizes, at in zip(cut, chunk, strict=True)]


def _key(weights: Any) -> Any:
    """Return by what a task of a graph refers to weights, where there are any."""
    return None if weights is None else weights.key


def _new_array(name: str, graph: dict[Any, Any], needed: Sequence[Any], cut: Chunks, dtype: np.dtype[Any]) -> Any:
    """Return the array that a graph computes from what is needed, of which the first is an array like it."""
    meta = da.utils.meta_from_array(needed[0]._meta, len(cut), dtype)
    dependencies = [collection for collection in needed if collection is not None]
    return da.Array(HighLevelGraph.from_collections(name, graph, dependencies), name, cut, meta=meta)


def _part_of(call: Call, count: int, array: Any) -> Call:
    """Return the call that some of the blocks make on a chunk of the array."""
    geometry = _geometry(call, PositionsGeometry)
    lead = array.ndim - len(geometry.size)
    part = PositionsGeometry(count, array.shape[:lead], array.shape[lead:], geometry.block_shape)
    return call._replace(geometry=part)


def _add_chunk(out: Any, pieces: list[Any], weights: Any, *, call: Call, positions: list[Any]) -> Any:
    """Add the blocks that meet a chunk to a copy of it, those of one piece after those of another."""
    library, result = library_of(call.operation, "a chunk", out), out.copy(order="C")
    if call.element.is_half:  # which is rounded once
        pieces, positions = [library.concatenate(pieces)], [np.concatenate(positions)]
    for blocks, places in zip(pieces, positions, strict=True):
        run(_part_of(call, len(places), out), library, blocks, result, weights, library.asarray(places))
    return result


def _take_chunk(array: Any, weights: Any, *, call: Call, positions: Any) -> Any:
    """Take blocks out of a chunk; what lies outside of it is zero, or another chunk's."""
    part = _part_of(call, len(positions), array)
    library, geometry = library_of(call.operation, "a chunk", array), _geometry(part, PositionsGeometry)
    blocks = np.empty_like(array, result_dtype(call, array.dtype), order="C", shape=geometry.blocks_shape)
    run(part, library, array, blocks, weights, library.asarray(positions))
    return blocks


def _join_blocks(
    zeros: Callable[[], Any],
    pieces: list[Any],
    *,
    call: Call,
    positions: Any,
    numbers: list[Any],
    boxes: list[list[range]],
) -> Any:
    """Put together blocks whose elements lie in several chunks: of each piece those that its chunk has."""
    if len(pieces) == 1 and len(pieces[0]) == len(positions):
        return pieces[0]
    geometry, blocks = _geometry(call, PositionsGeometry), zeros()
    library, rank = library_of(call.operation, "a chunk", blocks), len(geometry.size)
    for piece, chosen, box in zip(pieces, numbers, boxes, strict=True):
        inside: Any = np.True_
        for axis, (pixels, side, size) in enumerate(zip(box, geometry.block_shape, geometry.size, strict=True)):
            along = positions[chosen, axis, None] + np.arange(side)
            if call.fusion.mode == "edge":
                along = along.clip(0, size - 1)
            lies = (along >= pixels.start) & (along < pixels.stop)
            ones = (1,) * len(geometry.lead)
            inside = inside & lies.reshape(-1, *ones, *(1,) * axis, side, *(1,) * (rank - 1 - axis))
        into = library.asarray(chosen)
        blocks[into] = library.where(library.asarray(inside), piece, blocks[into])
    return blocks
