"""What a chunk of the result is made from: one piece of the input for each, overlapping where their seams do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import dask.array as da

from gpufold.arrays import result_dtype
from gpufold.calls import Call
from gpufold.dask.cutting import Chunks, spans_of
from gpufold.geometry import Axis


def gather(array: Any, first: int, pieces: Sequence[Sequence[range]]) -> Any:
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


def under(axis: Axis, blocks: range) -> tuple[Axis, range]:
    """Return the pixels under consecutive blocks, maybe none, and the axis of them alone."""
    start = axis.pixel(blocks[0], 0)
    stop = axis.pixel(blocks[-1], 0) + axis.dilated_kernel
    first, last = min(max(start, 0), axis.size), min(max(stop, 0), axis.size)
    return Axis(last - first, axis.kernel, axis.stride, axis.dilation, first - start, stop - last), range(first, last)


def over(axis: Axis, start: int, stop: int) -> tuple[Axis, slice]:
    """Return the pixels of [start, stop) from the first to the last that blocks reach, and the axis of them alone.

    The slice counts from `start`. Without pixels that no block reaches at either end, no pad is negative.
    """
    blocks = axis.section(start, stop)[1]
    if not blocks:
        return Axis(0, axis.kernel, axis.stride, axis.dilation, 0, 0), slice(0)
    first = max(start, axis.pixel(blocks[0], 0))
    last = min(stop, axis.pixel(blocks[-1], 0) + axis.dilated_kernel)
    return axis.section(first, last)[0], slice(first - start, last - start)


def reach(axes: Sequence[Axis], cut: Chunks) -> list[list[range]]:
    """Return the blocks that reach each chunk of the pixels, along each axis."""
    return [
        [axis.section(span.start, span.stop)[1] for span in spans_of(sizes)]
        for axis, sizes in zip(axes, cut, strict=True)
    ]


def pixels_under(axes: Sequence[Axis], spans: Sequence[Sequence[range]]) -> list[list[range]]:
    """Return the pixels under each span of the blocks, along each axis."""
    return [[under(axis, span)[1] for span in along] for axis, along in zip(axes, spans, strict=True)]


def each_chunk(call: Call, work: Callable[..., Any], pieces: Any, cut: Chunks, **options: Any) -> da.Array:
    """Compute every chunk of a result from the piece in its place."""
    dtype = result_dtype(call, pieces.dtype)
    meta = da.utils.meta_from_array(pieces._meta, len(cut), dtype)
    array: da.Array = pieces.map_blocks(work, token=call.operation, chunks=cut, dtype=dtype, meta=meta, **options)
    return array
