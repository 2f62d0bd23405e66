"""Which blocks at positions of their own meet which chunks of an array, and the graphs that are made from that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph

from gpufold.arrays import as_positions
from gpufold.calls import Call
from gpufold.dask.cutting import Chunks, geometry_of
from gpufold.geometry import PositionsGeometry, Size


def known_positions(operation: str, positions: Any, array: Any, name: str) -> Any:
    """Return positions as int64, or raise where they are not known yet, or only to a GPU."""
    if hasattr(positions, "dtype") and not isinstance(positions, np.ndarray):
        raise TypeError(
            f"{operation}: positions must be a numpy.ndarray, for the graph is made from them, got "
            f"{type(positions).__module__}.{type(positions).__qualname__}; compute them first, on the CPU"
        )
    return as_positions(operation, np, positions, array, name)


def near_positions(geometry: PositionsGeometry, positions: Any) -> Any:
    """Return positions at which all is as at those given, no farther away than just outside of the array."""
    return np.clip(positions, np.negative(geometry.block_shape), geometry.size)


def meetings(call: Call, positions: Any, parts: Sequence[range], cut: Chunks) -> Iterator[tuple[int, Size, Any]]:
    """Yield every pair of a part of the blocks and a chunk of the array that meet, and which blocks do.

    Parts ascend, and so do the numbers of the blocks. With mode "edge" a block meets where its elements come from.
    """
    geometry = geometry_of(call, PositionsGeometry)
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


def box_of(spans: Sequence[Sequence[range]], chunk: Size) -> list[range]:
    """Return what a chunk holds along each axis, of what all of them hold."""
    return [along[at] for along, at in zip(spans, chunk, strict=True)]


def key_of(weights: Any) -> Any:
    """Return by what a task of a graph refers to weights, where there are any."""
    return None if weights is None else weights.key


def new_array(name: str, graph: dict[Any, Any], needed: Sequence[Any], cut: Chunks, dtype: np.dtype[Any]) -> da.Array:
    """Return the array that a graph computes from what is needed, of which the first is an array like it."""
    meta = da.utils.meta_from_array(needed[0]._meta, len(cut), dtype)
    dependencies = [collection for collection in needed if collection is not None]
    return da.Array(HighLevelGraph.from_collections(name, graph, dependencies), name, cut, meta=meta)
