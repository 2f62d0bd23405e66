"""The NumPy path: the operations on NumPy arrays, deterministic whatever the number of threads.

All but average and what has positions are one thing here: a split view of the columns, (N, C, *kernel, *blocks), and an
image, (N, C, *size). `fold` adds (or moves) columns into the image, `unfold` moves pixels into the columns. Batch and
space are the case kernel = stride = block.

Work is cut into tiles of the image, and ways.py chooses how each is served. All ways add the taps of a pixel in
lexicographic order, starting from +0. A window's weights are one more array with the columns' axes, indexed alike.
"""

from __future__ import annotations

from typing import TypeVar

from gpufold.calls import Call
from gpufold.cpu.arithmetic import Array
from gpufold.cpu.folding import fold
from gpufold.cpu.treatment import MOVE, Weights, treatment_of
from gpufold.cpu.unfolding import unfold
from gpufold.geometry import Axis, BlocksGeometry, Geometry, SlidingGeometry, SpaceGeometry, blocks_as_columns

_Geometry = TypeVar("_Geometry", bound=Geometry)


def col2im(call: Call, data: Array, image: Array, weights: Weights = None) -> None:
    """Add the columns' blocks into `image`, every element of which is written, or added to where it accumulates."""
    geometry = _geometry(call, SlidingGeometry)
    columns, axes = data.reshape(geometry.split_columns_shape), geometry.axes
    fold(columns, _batched(image, geometry), axes, treatment_of(call.fusion, weights, columns, axes))


def im2col(call: Call, image: Array, columns: Array, weights: Weights = None) -> None:
    """Take the blocks out of `image`; taps in the padding give zero. Every element of `columns` is written."""
    geometry = _geometry(call, SlidingGeometry)
    columns, axes = columns.reshape(geometry.split_columns_shape), geometry.axes
    unfold(_batched(image, geometry), columns, axes, treatment_of(call.fusion, weights, columns, axes).weights)


def blocks_to_array(call: Call, blocks: Array, array: Array, weights: Weights = None) -> None:
    """Add blocks of their own layout into `array`, every element of which is written, or added to."""
    columns, image, axes = _as_columns(blocks, array, _geometry(call, BlocksGeometry))
    fold(columns, image, axes, treatment_of(call.fusion, weights, columns, axes))


def array_to_blocks(call: Call, array: Array, blocks: Array, weights: Weights = None) -> None:
    """Take the blocks out of `array`. Every element of `blocks` is written."""
    columns, image, axes = _as_columns(blocks, array, _geometry(call, BlocksGeometry))
    unfold(image, columns, axes, treatment_of(call.fusion, weights, columns, axes).weights)


def batch_to_space(call: Call, data: Array, space: Array, weights: None = None) -> None:
    """Move batch blocks into space, every element of which is written."""
    geometry = _geometry(call, SpaceGeometry)
    fold(_blocks_first(data, geometry), space[:, None], geometry.axes, MOVE)


def space_to_batch(call: Call, space: Array, data: Array, weights: None = None) -> None:
    """Move space into batch blocks; the margins give zero. Every element of `data` is written."""
    geometry = _geometry(call, SpaceGeometry)
    unfold(space[:, None], _blocks_first(data, geometry), geometry.axes)


def _geometry(call: Call, kind: type[_Geometry]) -> _Geometry:
    assert isinstance(call.geometry, kind)
    return call.geometry


def _batched(image: Array, geometry: SlidingGeometry) -> Array:
    return image[None] if geometry.batch is None else image


def _as_columns(blocks: Array, array: Array, geometry: BlocksGeometry) -> tuple[Array, Array, tuple[Axis, ...]]:
    """View blocks as split columns, and the array as an image."""
    sliding, _, _ = blocks_as_columns(geometry, blocks.strides, array.strides)
    batch, channels, *_ = sliding.split_columns_shape
    rank = len(sliding.axes)
    columns = blocks.reshape(batch, channels, *sliding.num_blocks, *sliding.block_shape, copy=False)
    image = array.reshape(batch, channels, *sliding.image_size, copy=False)
    return columns.transpose(0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank)), image, sliding.axes


def _blocks_first(data: Array, geometry: SpaceGeometry) -> Array:
    """View (prod(block)*B, *D) as split columns (B, 1, *block, *D)."""
    rank = len(geometry.block)
    split = data.reshape(*geometry.block, geometry.batch, *geometry.grid)
    return split.transpose(rank, *range(rank), *range(rank + 1, 2 * rank + 1))[:, None]
