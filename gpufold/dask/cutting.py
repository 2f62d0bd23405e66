"""What a call on dask arrays checks before anything is computed, and how its result is cut into chunks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from math import prod
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

import dask
import dask.array as da
import numpy as np
from dask.delayed import delayed
from dask.utils import parse_bytes

from gpufold.arrays import as_weights, check_bytes, device_of, library_of, result_dtype
from gpufold.calls import Call
from gpufold.elements import check_dtype
from gpufold.geometry import AverageGeometry, Axis, Geometry, PositionsGeometry, Size, as_integers
from gpufold.operations import OPERATIONS, check_variant

Chunks: TypeAlias = tuple[Size, ...]
"""The sizes of the chunks along each axis."""


def known_array(operation: str, name: str, array: Any) -> da.Array:
    """Return an array without its empty chunks, or raise unless it is dask's, of known sizes and a supported library.

    A boolean mask leaves empty chunks behind. Nothing comes of them, and no function of this front meets one.
    """
    if not isinstance(array, da.Array):
        raise TypeError(
            f"{operation}: {name} must be a dask.array.Array, got {type(array).__module__}.{type(array).__qualname__}; "
            f"convert it with dask.array.from_array({name})"
        )
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


def checked(call: Call, array: Any, window: Any = None) -> Any:
    """Check what is left to check of a call, and return the weights of its window as an item of the graph."""
    library = library_of(call.operation, "a chunk", array._meta)
    check_dtype(call.operation, OPERATIONS[call.operation].data, array.dtype)
    check_variant(call, library is np)
    return None if window is None else weights_of(call, library, window, array)


def weights_of(call: Call, library: ModuleType, window: Any, array: Any) -> Any:
    """Return the weights of a window as an item of the graph: copies, for the caller's may change before it runs."""
    weights = as_weights(call, library, window, array._meta)
    with device_of(library, weights[0]):
        return delayed(tuple(each.copy() for each in weights), pure=True)


GeometryT = TypeVar("GeometryT", bound=Geometry)


def geometry_of(call: Call, kind: type[GeometryT]) -> GeometryT:
    """Return the geometry of a call, which is of that kind."""
    assert isinstance(call.geometry, kind)
    return call.geometry


def axes_of(call: Call) -> tuple[Axis, ...]:
    """Return the axes of a call on blocks that slide."""
    assert not isinstance(call.geometry, PositionsGeometry | AverageGeometry)
    return call.geometry.axes


def cut_result(
    call: Call, lead: Sequence[Size], chunks: Any, shape: Size, data: Any, count: int | None = None
) -> Chunks:
    """Cut a result as `cut_axes` does; with "auto", what chunks are made from stays near the configured size too."""
    dtype = result_dtype(call, data.dtype)
    share = min(1, prod(shape) * dtype.itemsize / max(1, data.nbytes))  # of the size, where less is made from more
    limit = int(share * parse_bytes(dask.config.get("array.chunk-size")))
    axes = range(len(lead), len(lead) + (len(axes_of(call)) if count is None else count))
    return cut_axes(call, chunks, axes, (*lead, *shape[axes.stop :]), shape, dtype, limit)


def cut_axes(
    call: Call, chunks: Any, axes: range, others: Sequence[Any], shape: Size, dtype: Any, limit: int | None = None
) -> Chunks:
    """Cut a result of a shape: these axes as the caller's `chunks` say, the others as given."""
    check_bytes(call, shape, dtype.itemsize)
    chunks = chunks.tolist() if hasattr(chunks, "tolist") else chunks
    each = chunks if isinstance(chunks, list | tuple) else (chunks,) * len(axes)
    if len(each) != len(axes):
        raise ValueError(
            f"{call.operation}: chunks must be one value or {len(axes)}, one per axis that is cut, got {len(each)}: "
            f"{chunks!r}"
        )
    along = [_along(call, axis, shape[axis], wanted) for axis, wanted in zip(axes, each, strict=True)]
    limits = {wanted for wanted in along if isinstance(wanted, str)} - {"auto"}
    if len(limits) > 1:
        raise ValueError(f"{call.operation}: chunks must be of the same bytes along every axis, got {chunks!r}")
    if 0 in shape:  # nothing to cut, and no size to aim for
        along = [-1 if isinstance(wanted, str) else wanted for wanted in along]
    wanted = (*others[: axes.start], *along, *others[axes.start :])
    cut: Chunks = da.core.normalize_chunks(wanted, shape, None if limits else limit, dtype)
    return cut


def _along(call: Call, axis: int, size: int, wanted: Any) -> int | str | Size:
    """Return what a caller wants along an axis of the result, without empty chunks, as dask takes it."""
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
        f"that add up to {size} along axis {axis} of the result, got {wanted!r}"
    )


def whole(sizes: Size, unit: int) -> Size:
    """Move the ends of chunks up to whole units."""
    ends = sorted({-(-end // unit) * unit for end in accumulate(sizes)})
    return tuple(end - start for start, end in pairwise((0, *ends)) if end > start) or (0,)


def spans_of(sizes: Size) -> list[range]:
    """Return what every chunk of an axis holds."""
    return [range(start, stop) for start, stop in pairwise((0, *accumulate(sizes)))]


def zeros(call: Call, array: Any, cut: Chunks) -> da.Array:
    """Return what comes of an array without elements."""
    shape = tuple(map(sum, cut))
    blank: da.Array = da.zeros_like(array, dtype=result_dtype(call, array.dtype), shape=shape, chunks=cut)
    return blank
