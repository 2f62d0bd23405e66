"""The NumPy path: operations on NumPy arrays, bitwise reproducible with any number of threads.

All operations except `average` and those with positions work on split columns, a view (N, C, *kernel, *blocks), and an
image (N, C, *size). `fold` adds or moves columns into the image, `unfold` copies pixels into the columns. Batch and
space are the case kernel = stride = block.

Images are cut into tiles, and folding.py chooses the algorithm. Every algorithm adds the taps of a pixel in
lexicographic order, starting from +0. A window's weights have the axes of the columns and are indexed alike.
"""

from __future__ import annotations

from functools import lru_cache

from gpufold.calls import SUMS, Call
from gpufold.cpu.arithmetic import Array
from gpufold.cpu.folding import fold, unfold
from gpufold.cpu.fused import MOVE, Weights, fused_arithmetic
from gpufold.geometry import Axes, BlocksGeometry, Size, SlidingGeometry, SpaceGeometry, blocks_as_columns


def fold_call(call: Call, data: Array, result: Array, weights: Weights = None) -> None:
    """Add the blocks of `data` into `result`, or move batch blocks into space. Every element is written."""
    columns, image, axes = _split(call, data, result)
    summed = call.operation in SUMS
    fold(columns, image, axes, fused_arithmetic(call.fusion, weights, columns, axes) if summed else MOVE)


def unfold_call(call: Call, data: Array, result: Array, weights: Weights = None) -> None:
    """Extract the blocks of `data` into `result`; taps outside are zero. Every element of `result` is written."""
    columns, image, axes = _split(call, result, data)
    fused = fused_arithmetic(call.fusion, weights, columns, axes)
    unfold(image, columns, axes, fused.factors or fused.weights)


def _split(call: Call, blocks: Array, array: Array) -> tuple[Array, Array, Axes]:
    """View blocks as split columns, and the array as an image."""
    geometry = call.geometry
    if isinstance(geometry, SlidingGeometry):
        image = array[None] if len(geometry.lead) == 1 else array
        return blocks.reshape(geometry.split_columns_shape), image, geometry.bounded_axes
    shape, order, image_shape, axes = (
        _split_batch(geometry)
        if isinstance(geometry, SpaceGeometry)
        else _split_blocks(geometry, blocks.strides, array.strides)
    )
    return blocks.reshape(shape, copy=False).transpose(order), array.reshape(image_shape, copy=False), axes


@lru_cache(maxsize=256)
def _split_batch(geometry: SpaceGeometry) -> tuple[Size, Size, Size, Axes]:
    """Return what `_split_blocks` returns, for (prod(block)*B, *D); a first axis of one block per pixel is channels."""
    first, *rest = geometry.axes
    by_plane = bool(rest) and first.kernel == 1 and first.pad_begin == first.pad_end == 0
    channels, axes = (first.size, tuple(rest)) if by_plane else (1, geometry.axes)
    rank = len(axes)
    return (
        (*(axis.kernel for axis in axes), geometry.batch, channels, *(axis.blocks for axis in axes)),
        (rank, rank + 1, *range(rank), *range(rank + 2, 2 * rank + 2)),
        (geometry.batch, channels, *(axis.size for axis in axes)),
        axes,
    )


@lru_cache(maxsize=256)
def _split_blocks(geometry: BlocksGeometry, blocks_strides: Size, array_strides: Size) -> tuple[Size, Size, Size, Axes]:
    """Return the shape of blocks with separate axes, their order in split columns, the image's shape and its axes."""
    sliding, _, _ = blocks_as_columns(geometry, blocks_strides, array_strides)
    batch, channels, *_ = sliding.split_columns_shape
    rank = len(sliding.axes)
    return (
        (batch, channels, *sliding.num_blocks, *sliding.block_shape),
        (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank)),
        (batch, channels, *sliding.size),
        sliding.bounded_axes,
    )
