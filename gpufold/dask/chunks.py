"""Chunks of dask arrays: checks before a graph is built, the cutting of results, and tasks for blocks at positions.

Every pair of a part of the blocks and a chunk of the array that intersect becomes a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from itertools import accumulate, pairwise
from math import prod
from operator import getitem
from types import ModuleType
from typing import Any, ParamSpec, TypeAlias, TypeVar

import dask
import dask.array as da
import numpy as np
from dask.delayed import delayed
from dask.highlevelgraph import HighLevelGraph
from dask.utils import parse_bytes

from gpufold.arrays import as_positions, check_bytes, device_of, library_of, result_dtype
from gpufold.calls import Call, check_dtype
from gpufold.compute import check_variant
from gpufold.coverage import filled
from gpufold.dispatch import Like
from gpufold.elements import name_of
from gpufold.geometry import AverageGeometry, Axis, Geometry, PositionsGeometry, Size, as_integers
from gpufold.given import check_kind, shown, type_name
from gpufold.names import suggests_keywords
from gpufold.operations import OPERATIONS
from gpufold.windows import as_weights

Chunks: TypeAlias = tuple[Size, ...]
"""Sizes of the chunks along each axis."""


def known_array(operation: str, name: str, array: Any) -> da.Array:
    """Return a dask array without empty chunks; raise unless its sizes are known and its library is supported.

    A boolean mask leaves empty chunks behind.
    """
    check_kind(operation, name, array, da.Array, "dask.array.Array", "dask.array.from_array")
    if any(size != size for size in array.shape):  # NaN
        raise ValueError(
            f"{operation}: {name} must have chunks of known sizes, got shape {array.shape}; "
            f"find them with {name}.compute_chunk_sizes()"
        )
    library_of(operation, f"a chunk of {name}", array._meta)
    known: da.Array = array
    for axis, sizes in enumerate(array.chunks):
        if 0 in sizes and len(sizes) > 1:
            some = [at for at, size in enumerate(sizes) if size] or [0]
            known = known.blocks[(*(slice(None),) * axis, some)]
    return known


def known_chunk(operation: str, chunk: Any, dtype: str, size: Sequence[int]) -> ModuleType:
    """Return the library of a chunk; raise unless it has the dtype, and along the last axes the size, of its array.

    Kernels read what the array declares, and dask does not compare the two.
    """
    library = library_of(operation, "a chunk", chunk)
    if name_of(chunk.dtype) != dtype or chunk.shape[len(chunk.shape) - len(size) :] != tuple(size):
        raise ValueError(
            f"{operation}: a chunk must have the dtype {dtype} and last axes {tuple(size)} that its dask array "
            f"declares, got {chunk.dtype} and shape {chunk.shape}; pass the right dtype and chunks where the array is "
            f"made, such as to map_blocks"
        )
    return library


def checked(call: Call, array: Any, window: Any = None) -> Any:
    """Check a call's dtype, variant and window, and return the window's weights as a node of the graph."""
    check_dtype(call.operation, OPERATIONS[call.operation].data, array.dtype)
    check_variant(call, library_of(call.operation, "a chunk", array._meta) is np)
    return None if window is None else weights_of(call, window, array)


def weights_of(call: Call, window: Any, array: Any) -> Any:
    """Return copies of a window's weights as a node of the graph, because the caller may change them before it runs."""
    library = library_of(call.operation, "a chunk", array._meta)
    weights = as_weights(call, library, window, array._meta)
    with device_of(library, weights[0]):
        return delayed(tuple(each.copy() for each in weights), pure=True)


SAID = """As `gpufold.{name}`, lazily. Chunks are NumPy or CuPy arrays of known sizes; other arrays are of that
library. Errors are raised when the function is called.
"""


Parameters = ParamSpec("Parameters")


def lazily(
    function: Callable[Parameters, Any],
) -> Callable[[Callable[[Call, da.Array, Any, Any], da.Array]], Callable[Parameters, da.Array]]:
    """Return a decorator for a function that builds the graph of a checked call, from array, weights and `chunks`."""
    name, like = function.__name__, Like(function, "dask.array.Array")

    def decorate(graph: Callable[[Call, da.Array, Any, Any], da.Array]) -> Callable[Parameters, da.Array]:
        @wraps(graph)
        def lazy(*given: Any, chunks: Any = "auto", **named: Any) -> da.Array:
            known = like.first in named if not given else len(given) <= len(like.places)
            if not known or not named.keys() <= like.known:
                raise like.refused()
            array = given[0] if given else named.pop(like.first)
            array = known_array(name, like.first, array)
            call = OPERATIONS[name].describe(array, *given[1:], **named)
            result = graph(call, array, checked(call, array, named.get("window")), chunks)
            filled(call.geometry, result, named.get("fill_value"))
            return result

        return suggests_keywords(like.dress(lazy, SAID))

    return decorate


GeometryT = TypeVar("GeometryT", bound=Geometry)


def geometry_of(call: Call, kind: type[GeometryT]) -> GeometryT:
    """Return the geometry of a call, which is of the given type."""
    assert isinstance(call.geometry, kind)
    return call.geometry


def axes_of(call: Call) -> tuple[Axis, ...]:
    """Return the axes of a call on sliding blocks."""
    assert not isinstance(call.geometry, PositionsGeometry | AverageGeometry)
    return call.geometry.axes


def cut_result(
    call: Call, lead: Sequence[Size], chunks: Any, shape: Size, data: Any, count: int | None = None
) -> Chunks:
    """Cut a result as `cut_axes` does; with "auto", the inputs of chunks stay near the configured size too."""
    dtype = result_dtype(call, data.dtype)
    share = min(1, prod(shape) * dtype.itemsize / max(1, data.nbytes))  # for results smaller than data
    limit = int(share * parse_bytes(dask.config.get("array.chunk-size")))
    axes = range(len(lead), len(lead) + (len(axes_of(call)) if count is None else count))
    return cut_axes(call, chunks, axes, (*lead, *shape[axes.stop :]), shape, dtype, limit)


def cut_axes(
    call: Call, chunks: Any, axes: range, others: Sequence[Any], shape: Size, dtype: Any, limit: int | None = None
) -> Chunks:
    """Return the chunks of a result: along `axes` as the caller's `chunks` say, along the others as given."""
    check_bytes(call, shape, dtype.itemsize)
    if isinstance(chunks, np.ndarray):
        library_of(call.operation, "chunks", chunks)
    chunks = chunks.tolist() if isinstance(chunks, np.ndarray | np.generic) else chunks
    each = chunks if isinstance(chunks, list | tuple) else (chunks,) * len(axes)
    if len(each) != len(axes):
        raise ValueError(
            f"{call.operation}: chunks must be one value or {len(axes)}, one per axis that is cut, got {len(each)}: "
            f"{shown(chunks)}"
        )
    along = [_along(call, axis, shape[axis], wanted) for axis, wanted in zip(axes, each, strict=True)]
    limits = {wanted for wanted in along if isinstance(wanted, str)} - {"auto"}
    if len(limits) > 1:
        raise ValueError(f"{call.operation}: chunks must be of the same bytes along every axis, got {shown(chunks)}")
    if 0 in shape:  # nothing to cut, and no size to aim for
        along = [-1 if isinstance(wanted, str) else wanted for wanted in along]
    wanted = (*others[: axes.start], *along, *others[axes.start :])
    cut: Chunks = da.core.normalize_chunks(wanted, shape, None if limits else limit, dtype)
    return cut


def _along(call: Call, axis: int, size: int, wanted: Any) -> int | str | Size:
    """Return the caller's chunks along an axis of the result, without empty ones, as dask takes them."""
    if wanted is None or (isinstance(wanted, str) and wanted == "auto"):
        return wanted or -1
    if isinstance(wanted, str):
        with suppress(ValueError, OverflowError):
            if wanted.strip() and (limit := parse_bytes(wanted)) > 0:
                return str(limit)
    else:
        sizes = as_integers(call.operation, "chunks", wanted)
        if isinstance(sizes, int):
            if sizes > 0 or sizes == -1:
                return min(sizes, max(1, size))
        elif sum(sizes) == size and min(sizes, default=0) >= 0:
            return tuple(filter(None, sizes)) or (0,)
    raise ValueError(
        f"{call.operation}: chunks must be 'auto', bytes such as '64MiB', a positive integer, -1 for all, or integers "
        f"that add up to {size} along axis {axis} of the result, got {shown(wanted)}"
    )


def whole(sizes: Size, unit: int) -> Size:
    """Round the ends of chunks up to whole units."""
    ends = sorted({-(-end // unit) * unit for end in accumulate(sizes)})
    return tuple(end - start for start, end in pairwise((0, *ends)) if end > start) or (0,)


def spans_of(sizes: Size) -> list[range]:
    """Return the range of every chunk of an axis."""
    return [range(start, stop) for start, stop in pairwise((0, *accumulate(sizes)))]


def zeros(call: Call, array: Any, cut: Chunks) -> da.Array:
    """Return zeros with the chunks of a result, for an empty array."""
    shape = tuple(map(sum, cut))
    blank: da.Array = da.zeros_like(array, dtype=result_dtype(call, array.dtype), shape=shape, chunks=cut)
    return blank


# ---------------------------------------------------------------------------------------------
# Blocks at positions


def known_positions(operation: str, positions: Any, array: Any, name: str) -> Any:
    """Return positions as int64, or raise if they are lazy or on a GPU."""
    if hasattr(positions, "dtype") and not isinstance(positions, np.ndarray):
        raise TypeError(
            f"{operation}: positions must be a numpy.ndarray, because the graph depends on them, got "
            f"{type_name(positions)}; compute them first, on the CPU"
        )
    return as_positions(operation, np, positions, array, name)


def near_positions(geometry: PositionsGeometry, positions: Any) -> Any:
    """Return equivalent positions that lie at most just outside the array."""
    return np.clip(positions, np.negative(geometry.block_shape), geometry.size)


def intersections(call: Call, positions: Any, parts: Sequence[range], cut: Chunks) -> Iterator[tuple[int, Size, Any]]:
    """Yield every pair of a part of the blocks and a chunk of the array that intersect, and the numbers of the blocks.

    Parts and numbers ascend.
    """
    geometry = geometry_of(call, PositionsGeometry)
    chunks, counts = [], []  # along each axis: the first chunk that a block intersects, and how many
    for axis, (side, sizes) in enumerate(zip(geometry.block_shape, cut, strict=True)):
        begin, end = positions[:, axis], positions[:, axis] + side
        some = np.flatnonzero(sizes)  # the others are empty
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


def add_pieces(
    graph: dict[Any, Any], name: str, call: Call, blocks: Any, positions: Any, cut: Chunks
) -> Iterator[tuple[Size, list[Any], list[Any], list[Any]]]:
    """Add tasks to a graph that select the blocks intersecting each chunk from their parts.

    Yield, for every chunk of the array, its index, the tasks' keys, and positions and numbers of each task's blocks.
    """
    geometry = geometry_of(call, PositionsGeometry)
    lead, whole_blocks = len(geometry.lead), (0,) * len(geometry.size)
    parts, pixels = spans_of(blocks.chunks[0]), [spans_of(sizes) for sizes in cut[lead:]]
    found: dict[Size, list[tuple[int, Any]]] = {}
    for part, chunk, numbers in intersections(call, positions, parts, cut[lead:]):
        found.setdefault(chunk, []).append((part, numbers))
    for chunk in np.ndindex(*map(len, cut[lead:])):
        met, begin = found.get(chunk, []), [along.start for along in box_of(pixels, chunk)]
        chosen = [numbers for _, numbers in met]
        places = [positions[numbers] - begin for numbers in chosen]
        in_parts = [(part, numbers - parts[part].start) for part, numbers in met]
        for planes in np.ndindex(*map(len, cut[:lead])):
            pieces = [(f"{name}-met", part, *planes, *chunk) for part, _ in met]
            for piece, (part, numbers) in zip(pieces, in_parts, strict=True):
                graph[piece] = (getitem, (blocks.name, part, *planes, *whole_blocks), numbers)
            yield (*planes, *chunk), pieces, places, chosen


def box_of(spans: Sequence[Sequence[range]], chunk: Size) -> list[range]:
    """Return the range of a chunk along each axis."""
    return [along[at] for along, at in zip(spans, chunk, strict=True)]


def key_of(weights: Any) -> Any:
    """Return the key of weights in a graph, or None."""
    return None if weights is None else weights.key


def new_array(name: str, graph: dict[Any, Any], needed: Sequence[Any], cut: Chunks, dtype: np.dtype[Any]) -> da.Array:
    """Return the array that a graph computes from the collections in `needed`; the first is an array like it."""
    meta = da.utils.meta_from_array(needed[0]._meta, len(cut), dtype)
    dependencies = [collection for collection in needed if collection is not None]
    return da.Array(HighLevelGraph.from_collections(name, graph, dependencies), name, cut, meta=meta)
