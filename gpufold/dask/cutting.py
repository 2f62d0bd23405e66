"""What a call on dask arrays checks before anything is computed, and how its result is cut into chunks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any, TypeAlias, TypeVar

import dask
import dask.array as da
import numpy as np
from dask.delayed import delayed
from dask.utils import parse_bytes

from gpufold.arrays import as_weights, library_of, result_dtype
from gpufold.calls import Call
from gpufold.elements import check_dtype
from gpufold.geometry import AverageGeometry, Axis, Geometry, PositionsGeometry, Size
from gpufold.operations import OPERATIONS, check_variant

Chunks: TypeAlias = tuple[Size, ...]
"""The sizes of the chunks along each axis."""


def check_array(operation: str, name: str, array: Any) -> None:
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


def checked(call: Call, array: Any, window: Any = None) -> Any:
    """Check what is left to check of a call, and return the weights of its window as an item of the graph."""
    library = library_of(call.operation, "a chunk", array._meta)
    check_dtype(call.operation, OPERATIONS[call.operation].data, array.dtype)
    check_variant(call, library is np)
    return None if window is None else delayed(as_weights(call, library, window, array._meta), pure=True)


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
    """Cut a result: its first axes as given, those of space, or `count`, as the caller wants, the others not at all."""
    each = per_axis(call, chunks, len(axes_of(call)) if count is None else count, shape)
    dtype = result_dtype(call, data.dtype)
    share = min(1, prod(shape) * dtype.itemsize / max(1, data.nbytes))  # of the size, where less is made from more
    limit = int(share * parse_bytes(dask.config.get("array.chunk-size")))
    whole = shape[len(lead) + len(each) :]
    cut: Chunks = da.core.normalize_chunks((*lead, *each, *whole), shape, limit, dtype)
    return cut


def per_axis(call: Call, chunks: Any, count: int, shape: Size) -> tuple[Any, ...]:
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
