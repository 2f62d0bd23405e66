"""Averages of tiles at arbitrary positions: `stitch`, and batches of dask arrays in a `Stitcher`."""

from __future__ import annotations

from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize

from gpufold.arrays import check_bytes
from gpufold.calls import REDUCTIONS, Call, Reduction, check_dtype
from gpufold.dask.chunks import (
    add_pieces,
    cut_axes,
    key_of,
    known_array,
    known_chunk,
    known_positions,
    near_positions,
    new_array,
    weights_of,
)
from gpufold.elements import name_of, stitched_dtype
from gpufold.geometry import Extents, PositionsGeometry, Size, as_integers, whole_shape
from gpufold.given import word
from gpufold.names import speaking_for, suggests_keywords
from gpufold.stitching import Stitcher
from gpufold.windows import known_window


@suggests_keywords
def stitch(
    blocks: da.Array,
    positions: Any,
    output_shape: Extents,
    *,
    window: Any = None,
    reduction: Reduction = "mean",
    chunks: Any = "auto",
) -> da.Array:
    """Average overlapping tiles at arbitrary positions: `gpufold.Stitcher`, lazily.

    ``(P, *lead, *block_shape), (P, rank) -> output_shape``, which is ``(*lead, *size)``.

    >>> import dask.array as da, gpufold.dask
    >>> image = da.arange(48, chunks=16, dtype=float).reshape(6, 8)
    >>> positions = gpufold.grid_positions((6, 8), 4, strides=3)
    >>> tiles = gpufold.dask.take_blocks(image, positions, 4, chunks=2)
    >>> stitched = gpufold.dask.stitch(tiles, positions, (6, 8), chunks=4)
    >>> stitched.chunks, bool((stitched == image).all())
    (((4, 2), (4, 4)), True)

    Each chunk of the result averages the tiles that overlap it in their order, bitwise identical to `Stitcher`.
    `blocks` is rechunked if a chunk ends inside a tile. Leading axes keep the chunks of `blocks`; `chunks` are those
    of the axes of `size`, as in `col2im`. Positions and window are as in `add_blocks`, the dtype as in `Stitcher`.

    See Also
    --------
    gpufold.Stitcher : Parameters and errors; the same for batches in memory.
    """
    blocks = known_array("stitch", "blocks", blocks)
    call = _described(blocks, positions, output_shape, window, reduction)
    geometry = call.geometry
    assert isinstance(geometry, PositionsGeometry)
    lead, rank, dtype, given = len(geometry.lead), len(geometry.size), np.dtype(call.dtype), name_of(blocks.dtype)
    positions = near_positions(geometry, known_positions("stitch", positions, blocks, "blocks"))
    weights = None
    if window is not None:
        weights = weights_of(call, known_window("stitch", window, geometry.block_shape), blocks)
    axes, shape = range(lead, lead + rank), geometry.array_shape
    cut = cut_axes(call, chunks, axes, blocks.chunks[1 : 1 + lead], shape, dtype)
    blocks = blocks.rechunk({axis: -1 for axis in range(1 + lead, 1 + lead + rank)})
    name = f"stitch-{tokenize(call, blocks, positions, weights, reduction, cut)}"
    graph: dict[Any, Any] = {}
    for index, pieces, places, _ in add_pieces(graph, name, call, blocks, positions, cut):
        extents = tuple([sizes[at] for sizes, at in zip(cut, index, strict=True)])
        if pieces:
            tile = (*extents[:lead], *geometry.block_shape)
            work = partial(_stitch_chunk, shape=extents, tile=tile, dtype=given, places=places, reduction=reduction)
            graph[name, *index] = (work, pieces, key_of(weights))
        else:
            graph[name, *index] = (partial(np.zeros_like, blocks._meta, dtype, shape=extents),)
    return new_array(name, graph, (blocks, weights), cut, dtype)


class LazyTiles:
    """Batches of dask arrays in a `Stitcher`, kept until its result is requested."""

    torn = False

    def __init__(self, shape: Size, block: Size, options: dict[str, Any]) -> None:
        self._shape, self._block, self._options = shape, block, options
        self._batches: list[da.Array] = []
        self._positions: list[Any] = []

    def add(self, blocks: da.Array, positions: Any) -> None:
        """Keep a batch of whole tiles, which have the dtype of the first batch."""
        blocks = known_array("Stitcher.add", "blocks", blocks)
        rank, first = len(self._block), self._batches[0] if self._batches else blocks
        places = known_positions("Stitcher.add", positions, blocks, "blocks")
        tiles = (*self._shape[:-rank], *self._block)
        if blocks.shape[1:] != tiles or blocks.dtype != first.dtype or places.shape != (len(blocks), rank):
            raise ValueError(
                f"Stitcher.add: blocks that are dask arrays must be (P, *{tiles}) of the first batch's dtype "
                f"{first.dtype}, and positions (P, {rank}), got {blocks.shape} of {blocks.dtype} and {places.shape}"
            )
        if blocks is first:
            with speaking_for("Stitcher.add", "stitch"):
                stitch(blocks, places, self._shape, **self._options)  # raises what the result would
        self._batches.append(blocks)
        self._positions.append(np.array(places))  # a copy, which the caller cannot change

    def check(self, backend: Any, averaged: bool) -> None:
        """Refuse tiles of another type."""
        raise TypeError(f"Stitcher.add: blocks must be a dask.array.Array, got {backend.kind}: the first batch decides")

    def result(self) -> da.Array:
        """Stitch all batches."""
        tiles, places = da.concatenate(self._batches), np.concatenate(self._positions)
        with speaking_for("Stitcher.result", "stitch"):
            return stitch(tiles, places, self._shape, **self._options)


def _described(blocks: Any, positions: Any, output_shape: Any, window: Any, reduction: str) -> Call:
    """Check the arguments of `stitch`, and describe its call."""
    extents = whole_shape("stitch", "output_shape", as_integers("stitch", "output_shape", output_shape))
    places = known_positions("stitch", positions, blocks, "blocks")
    rank = places.shape[1] if places.ndim == 2 else 0
    if not rank or len(places) != len(blocks):
        raise ValueError(
            f"stitch: positions must be (number of blocks, number of spatial axes), of {len(blocks)} blocks, got shape "
            f"{places.shape}"
        )
    lead = extents[: max(0, len(extents) - rank)]
    if rank > len(extents) or blocks.shape[1:-rank] != lead or min(extents) < 0:
        raise ValueError(
            f"stitch: output_shape must be (*lead, *size) with {rank} axes of size, one per column of positions, and "
            f"the leading axes of blocks (P, *lead, *block_shape), got {extents} for blocks of shape {blocks.shape}"
        )
    reduction = word("stitch", "reduction", reduction, REDUCTIONS)
    check_dtype("stitch", "blocks", blocks.dtype)
    dtype, block = name_of(blocks.dtype), blocks.shape[1 + len(lead) :]
    geometry = PositionsGeometry(len(blocks), lead, extents[len(lead) :], block)
    call = Call("stitch", geometry, stitched_dtype(dtype, reduction != "sum" or window is not None))
    check_bytes(call, extents, np.dtype(call.dtype).itemsize)
    return call


def _stitch_chunk(
    pieces: list[Any], weights: Any, *, shape: Size, tile: Size, dtype: str, places: list[Any], reduction: Reduction
) -> Any:
    """Average the tiles that intersect a chunk, piece after piece."""
    block = tile[-places[0].shape[1] :]
    window = weights if weights is None or len(weights) == len(block) else weights[0]
    stitcher = Stitcher(shape, block, window=window, reduction=reduction)
    for tiles, positions in zip(pieces, places, strict=True):
        known_chunk("stitch", tiles, dtype, tile)
        stitcher.add(tiles, positions)
    return stitcher.result()
