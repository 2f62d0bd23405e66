"""Blocks at arbitrary positions: `add_blocks`, `take_blocks` and `average`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.delayed import delayed

from gpufold import calls
from gpufold.arrays import check_bytes, check_library, device_of, library_of, result_dtype
from gpufold.calls import Call, Mode, Variant
from gpufold.compute import run
from gpufold.dask.chunks import (
    add_pieces,
    box_of,
    checked,
    cut_axes,
    geometry_of,
    intersections,
    key_of,
    known_array,
    known_chunk,
    known_positions,
    near_positions,
    new_array,
    spans_of,
)
from gpufold.dispatch import linked
from gpufold.geometry import AverageGeometry, PositionsGeometry, Size, Sizes
from gpufold.names import suggests_keywords
from gpufold.outside import extended, in_memory_of, period_of
from gpufold.positions import add_weighted
from gpufold.positions import average as average_chunk
from gpufold.weights import BlockWeights
from gpufold.windows import check_block_weights, narrowed


@suggests_keywords
@linked
def add_blocks(
    array: da.Array,
    blocks: da.Array,
    positions: Any,
    *,
    window: Any = None,
    weights: Any = None,
    variant: Variant = "auto",
    deterministic: bool = True,
) -> da.Array:
    """Scatter-add blocks at arbitrary positions: `gpufold.add_blocks`, lazily.

    ``(*lead, *size), (P, *lead, *block_shape), (P, rank) -> (*lead, *size)``

    Each chunk of the result reads the chunk of `array` and the blocks that overlap it. `blocks` is rechunked if a chunk
    ends inside a block. Chunks should not be smaller than blocks: memory holds a whole block for each chunk that it
    meets. Positions are a numpy.ndarray or a sequence, because the graph depends on them. Window and weights are of the
    chunks' library. Errors are raised when the function is called.
    """
    array = known_array("add_blocks", "array", array)
    blocks = known_array("add_blocks", "blocks", blocks)
    library = library_of("add_blocks", "a chunk of array", array._meta)
    check_library("add_blocks", "a chunk of blocks", blocks._meta, library, "one of array")
    positions = known_positions("add_blocks", positions, array, "array")
    call = calls.add_blocks(array, blocks, positions, window=window, variant=variant, deterministic=deterministic)
    geometry, factors = geometry_of(call, PositionsGeometry), checked(call, blocks, window)
    positions = near_positions(geometry, positions)
    lead, rank = len(geometry.lead), len(geometry.size)
    whole = dict.fromkeys(range(1 + lead, 1 + lead + rank), -1)
    blocks = blocks.rechunk({**dict(enumerate(array.chunks[:lead], 1)), **whole})
    by_block = None if weights is None else _weights_of_blocks(call, blocks, weights)
    name = f"add_blocks-{tokenize(call, array, blocks, positions, factors, by_block)}"
    graph: dict[Any, Any] = {}
    for index, pieces, places, numbers in add_pieces(graph, name, call, blocks, positions, array.chunks):
        shape = tuple([sizes[at] for sizes, at in zip(array.chunks, index, strict=True)])
        work = partial(_add_chunk, call=_part_of(call, 0, shape), positions=places, numbers=numbers)
        chunk = (array.name, *index)
        graph[name, *index] = (work, chunk, pieces, key_of(factors), key_of(by_block)) if pieces else chunk
    return new_array(name, graph, (array, blocks, factors, by_block), array.chunks, np.dtype(call.dtype))


@suggests_keywords
@linked
def take_blocks(
    array: da.Array,
    positions: Any,
    block_shape: Sizes,
    *,
    window: Any = None,
    mode: Mode = "constant",
    chunks: Any = "auto",
    variant: Variant = "auto",
) -> da.Array:
    """Extract blocks at arbitrary positions: `gpufold.take_blocks`, lazily.

    ``(*lead, *size), (P, rank) -> (P, *lead, *block_shape)``

    Each chunk reads only the elements of its blocks, so positions may be in any order. `chunks` counts blocks: one
    value, or a sequence of one. Leading axes keep their chunks. Positions and window are as in `add_blocks`.
    """
    array = known_array("take_blocks", "array", array)
    positions = known_positions("take_blocks", positions, array, "array")
    call = calls.take_blocks(array, positions, block_shape, window=window, mode=mode, variant=variant)
    if call.fusion.mode != "constant" and 0 not in geometry_of(call, PositionsGeometry).blocks_shape:
        check_bytes(call, call.result_shape, array.dtype.itemsize)
        with in_memory_of("take_blocks", np):
            array, positions = _extended(array, positions, call)
        call = calls.take_blocks(array, positions, block_shape, window=window, variant=variant)
    geometry, weights = geometry_of(call, PositionsGeometry), checked(call, array, window)
    positions = near_positions(geometry, positions)
    lead, rank = len(geometry.lead), len(geometry.size)
    dtype, others = result_dtype(call, array.dtype), (*array.chunks[:lead], *geometry.block_shape)
    cut = cut_axes(call, chunks, range(1), others, geometry.blocks_shape, dtype)
    name = f"take_blocks-{tokenize(call, array, positions, weights, cut)}"
    spans, pixels = spans_of(cut[0]), [spans_of(sizes) for sizes in array.chunks[lead:]]
    found: list[list[tuple[Size, Any]]] = [[] for _ in spans]
    for part, chunk, numbers in intersections(call, positions, spans, array.chunks[lead:]):
        found[part].append((chunk, numbers))
    graph: dict[Any, Any] = {}
    for part, (span, met) in enumerate(zip(spans, found, strict=True)):
        boxes = [box_of(pixels, chunk) for chunk, _ in met]
        takes = []
        for box, (_, numbers) in zip(boxes, met, strict=True):
            begin = [along.start for along in box]
            size = [*map(len, box)]
            takes.append(partial(_take_chunk, call=call, positions=positions[numbers] - begin, size=size))
        numbers_in_part = [numbers - span.start for _, numbers in met]
        join = partial(
            _join_blocks, call=call, positions=positions[span.start : span.stop], numbers=numbers_in_part, boxes=boxes
        )
        for planes in np.ndindex(*array.numblocks[:lead]):
            pieces = [(f"{name}-met", part, *planes, *chunk) for chunk, _ in met]
            for piece, take, (chunk, _) in zip(pieces, takes, met, strict=True):
                graph[piece] = (take, (array.name, *planes, *chunk), key_of(weights))
            shape = (len(span), *(cut[1 + axis][at] for axis, at in enumerate(planes)), *geometry.block_shape)
            zeros = partial(np.zeros_like, array._meta, dtype, shape=shape)
            graph[name, part, *planes, *(0,) * rank] = (join, zeros, pieces)
    return new_array(name, graph, (array, weights), cut, dtype)


@suggests_keywords
@linked
def average(numerator: da.Array, weight: da.Array, *, variant: Variant = "auto") -> da.Array:
    """Divide sums by the sums of their weights: `gpufold.average`, lazily.

    ``(*lead, *size), (*size) -> (*lead, *size)``

    To sum the weights of a window, add blocks of ones with that window at the same positions:

    >>> import dask.array as da, numpy as np, gpufold.dask
    >>> tiles, positions = da.full((2, 3), 5.0, chunks=(1, 3)), [(0,), (2,)]
    >>> window = np.array([1.0, 2.0, 1.0])
    >>> sums = gpufold.dask.add_blocks(da.zeros(6, chunks=4), tiles, positions, window=window)
    >>> weight = gpufold.dask.add_blocks(da.zeros(6, chunks=4), da.ones_like(tiles), positions, window=window)
    >>> weight.compute(), gpufold.dask.average(sums, weight).compute()
    (array([1., 2., 2., 2., 1., 0.]), array([5., 5., 5., 5., 5., 0.]))

    The quotients have the chunks of `numerator`, split where chunks of `weight` end.
    """
    numerator = known_array("average", "numerator", numerator)
    weight = known_array("average", "weight", weight)
    library = library_of("average", "a chunk of numerator", numerator._meta)
    check_library("average", "a chunk of weight", weight._meta, library, "one of numerator")
    call = calls.average(numerator, weight, variant=variant)
    meta = average_chunk(numerator._meta, weight._meta, variant=variant)  # checks what shapes do not show
    axes = range(numerator.ndim)
    of_weight = axes[len(geometry_of(call, AverageGeometry).lead) :]
    quotients: da.Array = da.blockwise(
        average_chunk, axes, numerator, axes, weight, of_weight, variant=variant, token="average", meta=meta
    )
    return quotients


def _extended(array: da.Array, positions: Any, call: Call) -> tuple[da.Array, Any]:
    """Return an array padded as far as blocks reach, and their positions in it."""
    geometry, mode = geometry_of(call, PositionsGeometry), call.fusion.mode
    sizes = np.array(geometry.size)
    if mode == "edge":
        positions = near_positions(geometry, positions)
    else:
        far = (positions < -sizes) | (positions > sizes)
        positions = np.where(far, positions % [period_of(size, mode) for size in geometry.size], positions)
    begins = -positions.min(axis=0, initial=0)
    ends = (positions.max(axis=0, initial=0) + geometry.block_shape - sizes).clip(0)
    array = extended(da, np.arange, array, zip(begins.tolist(), ends.tolist(), strict=True), mode)
    return known_array("take_blocks", "array", array), positions + begins


def _weights_of_blocks(call: Call, blocks: Any, weights: Any) -> Any:
    """Return a copy of the weights of blocks as a node of the graph."""
    library = library_of(call.operation, "a chunk", blocks._meta)
    check_library(call.operation, "weights", weights, library, "a chunk of blocks")
    check_block_weights(call.operation, weights, call.dtype, len(blocks))
    with device_of(library, weights):
        return delayed(library.array(narrowed(library, weights, call.element.weight_dtype)), pure=True)


def _part_of(call: Call, count: int, shape: Size, block: Size | None = None) -> Call:
    """Return the call of `count` blocks, whole or of a smaller shape, on a chunk of the array, of a shape."""
    geometry = geometry_of(call, PositionsGeometry)
    lead = len(shape) - len(geometry.size)
    part = PositionsGeometry(count, shape[:lead], shape[lead:], block or geometry.block_shape)
    return call._replace(geometry=part)


def _add_chunk(
    out: Any, pieces: list[Any], window: Any, weights: Any, *, call: Call, positions: list[Any], numbers: list[Any]
) -> Any:
    """Add the blocks that intersect a chunk to a copy of it, piece after piece; `call` has the chunk's sizes."""
    shape = geometry_of(call, PositionsGeometry).array_shape
    library, result = known_chunk(call.operation, out, call.dtype, shape), out.copy(order="C")
    if call.element.is_half:  # is rounded once
        pieces = [library.concatenate(pieces)]
        positions, numbers = [np.concatenate(positions)], [np.concatenate(numbers)]
    for blocks, places, chosen in zip(pieces, positions, numbers, strict=True):
        part, some = _part_of(call, len(places), shape), library.asarray(places)
        known_chunk(call.operation, blocks, call.data_dtype or call.dtype, part.data_shape[1:])
        if weights is None:
            run(part, library, blocks, result, window, some)
        else:
            arrays = blocks, result, some, None
            add_weighted(part, library, arrays, window, BlockWeights(weights[library.asarray(chosen)]))
    return result


def _met(positions: Any, size: Sequence[int], block: Size) -> tuple[slice, ...]:
    """Return the part of blocks that reaches into a chunk, relative to which their positions are, along each axis."""
    begins = (-positions.max(axis=0)).clip(0)
    ends = np.minimum(block, size - positions.min(axis=0))
    return tuple(map(slice, begins.tolist(), ends.tolist()))


def _take_chunk(array: Any, weights: Any, *, call: Call, positions: Any, size: list[int]) -> Any:
    """Extract the part of blocks that reaches into a chunk; elements outside it are zero here, and come from others."""
    block = geometry_of(call, PositionsGeometry).block_shape
    met = _met(positions, size, block)
    library = known_chunk(call.operation, array, call.dtype, size)
    part = _part_of(call, len(positions), array.shape, tuple([each.stop - each.start for each in met]))
    if weights is not None and len(weights) == len(block):
        weights = tuple([each[taps] for each, taps in zip(weights, met, strict=True)])
    elif weights is not None:
        weights = (library.ascontiguousarray(weights[0].reshape(block)[met]),)
    shape = geometry_of(part, PositionsGeometry).blocks_shape
    blocks = np.empty_like(array, result_dtype(call, array.dtype), order="C", shape=shape)
    run(part, library, array, blocks, weights, library.asarray(positions + [each.start for each in met]))
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
    """Assemble blocks whose elements lie in several chunks; each piece has the elements of one chunk."""
    geometry = geometry_of(call, PositionsGeometry)
    rank, lead = len(geometry.size), len(geometry.lead)
    if len(pieces) == 1 and len(pieces[0]) == len(positions) and pieces[0].shape[1 + lead :] == geometry.block_shape:
        return pieces[0]
    blocks = zeros()
    library = library_of(call.operation, "a chunk", blocks)
    for piece, chosen, box in zip(pieces, numbers, boxes, strict=True):
        inside: Any = np.True_
        places = positions[chosen] - [pixels.start for pixels in box]
        met = _met(places, [*map(len, box)], geometry.block_shape)
        for axis, (pixels, part) in enumerate(zip(box, met, strict=True)):
            along = places[:, axis, None] + np.arange(part.start, part.stop)
            lies = (along >= 0) & (along < len(pixels))
            inside = inside & lies.reshape(-1, *(1,) * (lead + axis), along.shape[1], *(1,) * (rank - 1 - axis))
        into = (library.asarray(chosen), *(slice(None),) * lead, *met)
        blocks[into] = library.where(library.asarray(inside), piece, blocks[into])
    return blocks
