"""Blocks between batch and space: `batch_to_space` and `space_to_batch`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import dask.array as da
import numpy as np

from gpufold import space
from gpufold.calls import Call
from gpufold.dask.chunks import (
    cut_result,
    each_chunk,
    gather,
    geometry_of,
    lazily,
    pixels_under,
    reach,
    spans_of,
    under,
    zeros,
)
from gpufold.geometry import Axis, Size, SpaceGeometry


@lazily(space.batch_to_space)
def batch_to_space(call: Call, data: da.Array, _: Any, chunks: Any) -> da.Array:
    """Each chunk reads ``prod(block_shape)`` parts of the batch.

    >>> import dask.array as da, gpufold.dask
    >>> data = da.arange(12, chunks=5).reshape(4, 1, 3)
    >>> gpufold.dask.batch_to_space(data, (1, 2, 2), crops_begin=(0, 0, 1), crops_end=(0, 0, 0), chunks=2).compute()
    array([[[ 3,  1,  4,  2,  5],
            [ 9,  7, 10,  8, 11]]])

    The batch keeps the chunks of its first images in `data`; `chunks` are those of the other axes, as in `col2im`.
    """
    geometry = geometry_of(call, SpaceGeometry)
    images = [data[first : first + geometry.batch] for first in range(0, len(data), max(1, geometry.batch))]
    lead = (images or [data])[0].chunks[:1]
    cut = cut_result(call, lead, chunks, geometry.space_shape, data)
    if 0 in data.shape or 0 in geometry.space_shape:
        return zeros(call, data, cut)
    batches = da.stack([part.rechunk({0: lead[0]}) for part in images])
    work = partial(_batch_to_space_chunk, axes=geometry.axes, variant=call.variant)
    return each_chunk(call, work, gather(batches, 2, reach(geometry.axes, cut[1:])), cut, drop_axis=[0])


@lazily(space.space_to_batch)
def space_to_batch(call: Call, data: da.Array, _: Any, chunks: Any) -> da.Array:
    """Keep the chunks of `data` along the batch, once for each element of a block.

    >>> import dask.array as da, gpufold.dask
    >>> data = da.arange(1, 6, chunks=3).reshape(1, 5)
    >>> gpufold.dask.space_to_batch(data, (1, 2), pads_begin=(0, 1), pads_end=(0, 0), chunks=2).compute()
    array([[0, 2, 4],
           [1, 3, 5]])

    `chunks` are those of the other axes, as in `col2im`.
    """
    geometry = geometry_of(call, SpaceGeometry)
    taps = prod(geometry.block)
    lead = ((taps,), data.chunks[0])
    cut = cut_result(call, lead, chunks, (taps, geometry.batch, *geometry.grid), data)
    if 0 in data.shape:
        return zeros(call, data, (data.chunks[0] * taps, *cut[2:]))
    pixels = pixels_under(geometry.axes, [spans_of(sizes) for sizes in cut[2:]])
    work = partial(_space_to_batch_chunk, axes=geometry.axes, variant=call.variant)
    batches = each_chunk(call, work, gather(data, 1, pixels), cut, new_axis=[0])
    batch: da.Array = da.concatenate(list(batches))
    return batch


def _batch_to_space_chunk(batches: Any, *, axes: tuple[Axis, ...], variant: Any, block_info: Any) -> Any:
    """Compute a chunk of space, from all grid points whose blocks reach it."""
    spans = block_info[None]["array-location"][1:]
    sections = [axis.section(*span)[0] for axis, span in zip(axes, spans, strict=True)]
    block, begin, end = _block_and_margins(sections)
    batch = batches.reshape(-1, *batches.shape[2:])
    return space.batch_to_space(batch, block, crops_begin=begin, crops_end=end, variant=variant)


def _space_to_batch_chunk(array: Any, *, axes: tuple[Axis, ...], variant: Any, block_info: Any) -> Any:
    """Compute a chunk of the batches, from all pixels under its grid points."""
    chunk = block_info[None]
    spans = [range(*span) for span in chunk["array-location"][2:]]
    sections = [under(axis, span)[0] for axis, span in zip(axes, spans, strict=True)]
    if not all(axis.size for axis in sections):
        return np.zeros_like(array, chunk["dtype"], order="C", shape=chunk["chunk-shape"])
    block, begin, end = _block_and_margins(sections)
    batches = space.space_to_batch(array, block, pads_begin=begin, pads_end=end, variant=variant)
    return batches.reshape(chunk["chunk-shape"])


def _block_and_margins(axes: Sequence[Axis]) -> tuple[Size, Size, Size]:
    """Return block shape, begins and ends of the margins with those of the batch axis in front."""
    _, block, _, _, begin, end = zip(*axes, strict=True)
    return (1, *block), (0, *begin), (0, *end)
