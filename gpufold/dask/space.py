"""Batch-to-space: `batch_to_space` and `space_to_batch`."""

from __future__ import annotations

from math import prod
from typing import Any

import dask.array as da

from gpufold import space
from gpufold.calls import Call
from gpufold.dask.chunks import cut_result, geometry_of, lazily, spans_of, zeros
from gpufold.dask.sliding import fold, unfold
from gpufold.geometry import SpaceGeometry


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
    cut = cut_result(call, lead, chunks, geometry.array_shape, data)
    if 0 in data.shape or 0 in geometry.array_shape:
        return zeros(call, data, cut)
    batches = da.stack([part.rechunk({0: lead[0]}) for part in images])
    return fold(call, batches, 2, [0], cut)


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
    taps = prod(geometry.block_shape)
    lead = ((taps,), data.chunks[0])
    cut = cut_result(call, lead, chunks, (taps, geometry.batch, *geometry.num_blocks), data)
    if 0 in data.shape:
        return zeros(call, data, (data.chunks[0] * taps, *cut[2:]))
    batches = unfold(call, data, [spans_of(sizes) for sizes in cut[2:]], cut, new_axis=[0])
    batch: da.Array = da.concatenate(list(batches))
    return batch
