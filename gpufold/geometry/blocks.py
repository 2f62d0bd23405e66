"""Sliding blocks in a block-major layout: `blocks_to_array` and `array_to_blocks`."""

from __future__ import annotations

from functools import cached_property, lru_cache

from gpufold.geometry.axes import Axis, OnAxes
from gpufold.geometry.grids import LAST_BLOCKS
from gpufold.geometry.integers import (
    PerAxis,
    Size,
    check_at_least,
    check_axes,
    check_of_sizes,
    expand,
    sequence,
    whole_shape,
)
from gpufold.geometry.sliding import SPATIAL, SlidingGeometry
from gpufold.given import word


class BlocksGeometry(OnAxes):
    """Geometry of blocks (*lead, *num_blocks, *block_shape) and an array (*lead, *size)."""

    @cached_property
    def blocks_shape(self) -> Size:
        return (*self.lead, *self.num_blocks, *self.block_shape)

    @cached_property
    def extended(self) -> BlocksGeometry:
        """The geometry of the same blocks in an array that ends with the last of them."""
        return BlocksGeometry(self.lead, tuple(axis._replace(size=axis.padded_size, pad_end=0) for axis in self.axes))

    @cached_property
    def hangs_over(self) -> bool:
        """Whether blocks may extend beyond the end of an axis; symbolic sizes count as if they did."""
        return any(type(axis.pad_end) is not int or axis.pad_end > 0 for axis in self.axes)

    @cached_property
    def blocks_overlap(self) -> bool:
        """Whether two blocks share an element of the array."""
        return any(axis.stride < axis.kernel and axis.blocks > 1 for axis in self.axes)


def merged_axes(extents: Size, first_strides: Size, second_strides: Size) -> list[tuple[int, int, int]]:
    """Merge axes that are contiguous in two arrays; return the extents above 1, each with its strides in both.

    >>> merged_axes((4, 1, 2, 3), (60, 60, 30, 10), (100, 7, 6, 2))
    [(4, 60, 100), (6, 10, 2)]
    """
    merged: list[tuple[int, int, int]] = []
    for extent, first, second in zip(extents, first_strides, second_strides, strict=True):
        if extent == 1:
            continue
        if merged and merged[-1][1:] == (extent * first, extent * second):
            extent *= merged.pop()[0]
        merged.append((extent, first, second))
    return merged


@lru_cache(maxsize=256)
def blocks_as_columns(
    geometry: BlocksGeometry, blocks_strides: Size, array_strides: Size
) -> tuple[SlidingGeometry, Size, Size]:
    """Return blocks and array as columns and an image, with the strides of the split columns and of the image.

    Leading axes that are contiguous in both arrays are merged. The first two that remain become batch and channels; the
    others become spatial axes with one block per pixel.

    >>> geometry = array_to_blocks_geometry((2, 3, 8), (4,), 2)
    >>> sliding, *strides = blocks_as_columns(geometry, (36, 12, 4, 1), (24, 8, 1))
    >>> sliding.split_columns_shape, strides
    ((1, 6, 4, 3), [(72, 12, 1, 4), (48, 8, 1)])
    """
    count, rank = len(geometry.lead), len(geometry.axes)
    lead = merged_axes(geometry.lead, blocks_strides[:count], array_strides[:count])
    if not lead:
        lead.append((1, geometry.num_blocks[0] * blocks_strides[count], geometry.axes[0].size * array_strides[count]))
    batched = len(lead) > 1
    if not batched:
        lead.insert(0, (1, lead[0][0] * lead[0][1], lead[0][0] * lead[0][2]))
    units = lead[2:]
    axes = (*(Axis(extent, 1, 1, 1, 0, 0) for extent, _, _ in units), *geometry.axes)
    extents, lead_blocks, lead_array = zip(*lead, strict=True)
    columns_strides = (
        *lead_blocks[:2],
        *(0 for _ in units),
        *blocks_strides[count + rank :],
        *lead_blocks[2:],
        *blocks_strides[count : count + rank],
    )
    return SlidingGeometry(extents[not batched : 2], axes), columns_strides, (*lead_array, *array_strides[count:])


def _last(operation: str, name: str, last: object, _: Size) -> str:
    """Return how to place the last of blocks at multiples of the strides, "drop" or "over", or raise."""
    known = word(operation, name, last, LAST_BLOCKS)
    if known in ("over", "drop"):
        return known
    raise ValueError(
        f"{operation}: last must be 'drop' or 'over' for blocks at multiples of the strides, got {last!r}; "
        "for other placements use take_blocks and Stitcher at gpufold.grid_positions"
    )


def _geometry(
    operation: str, shape: Size, block_shape: PerAxis, strides: PerAxis, last: str, name: str, size_name: str
) -> BlocksGeometry:
    """Check block and strides, and that a block fits into an array or, with last="over", may extend beyond it."""
    hint = "last='over' lets blocks extend beyond it"
    if isinstance(block_shape, int) and shape:
        if len(shape) > 1:
            hint = f"an int means every axis: give one value per spatial axis, such as ({block_shape},) for one; {hint}"
        block_shape = (block_shape,) * len(shape)
    block_shape = sequence(operation, "block_shape", block_shape)
    rank, over = len(block_shape), last == "over"
    lead = len(shape) - rank
    if lead < 0:
        got = f"{len(shape)} values: {name}={shape}" if name == size_name else f"rank {len(shape)}: shape {shape}"
        raise ValueError(
            f"{operation}: {name} must be (*lead, *size) with {rank} axes of size, one per value of "
            f"block_shape={block_shape}, got {got}"
        )
    check_at_least(operation, name, shape, 0)
    long = sum(type(extent) is not int or extent > 1 for extent in shape[:lead])  # a symbol may be
    size, apart = shape[lead:], max(0, long - 2)  # as in blocks_as_columns
    most = max(len(shape) + rank, 2 + 2 * (apart + rank))
    check_axes(operation, "block_shape", block_shape, most, f"blocks of an array of {len(shape)}")
    strides = expand(operation, "strides", strides, rank, "block_shape")
    check_at_least(operation, "block_shape", block_shape, 1, SPATIAL)
    check_at_least(operation, "strides", strides, 1, SPATIAL)
    for axis, (extent, block) in enumerate(zip(size, block_shape, strict=True)):
        if block > extent and not over:
            raise ValueError(
                f"{operation}: a block must fit into the array, got block_shape {block} on {SPATIAL} {axis} (array "
                f"axis {lead + axis}), where {size_name} is {extent}: block_shape={block_shape}, "
                f"{size_name} {size} along the spatial axes; {hint}"
            )
    axes = tuple(
        Axis(extent, block, stride, 1, 0, over_the_end(extent, block, stride) if over else 0)
        for extent, block, stride in zip(size, block_shape, strides, strict=True)
    )
    return BlocksGeometry(shape[:lead], axes)


def over_the_end(extent: int, block: int, stride: int) -> int:
    """Return how far the last of the blocks that cover an axis extends beyond its end."""
    return max(0, (extent - block + stride - 1) // stride) * stride + block - extent  # ONNX divides towards zero


@check_of_sizes(last=_last)
def array_to_blocks_geometry(
    array_shape: Size, block_shape: PerAxis, strides: PerAxis, last: str = "drop"
) -> BlocksGeometry:
    """Check the sizes of an array_to_blocks call; with last="over" blocks may extend beyond the array."""
    return _geometry("array_to_blocks", array_shape, block_shape, strides, last, "array", "the array's size")


@check_of_sizes(last=_last)
def blocks_to_array_geometry(
    blocks_shape: Size, output_shape: PerAxis, block_shape: PerAxis, strides: PerAxis, last: str = "drop"
) -> BlocksGeometry:
    """Check the sizes of a blocks_to_array call; with last="over" blocks may extend beyond the array."""
    operation = "blocks_to_array"
    output_shape = whole_shape(operation, "output_shape", output_shape)
    geometry = _geometry(operation, output_shape, block_shape, strides, last, "output_shape", "output_shape")
    if blocks_shape != geometry.blocks_shape:
        rank = len(geometry.axes)
        lead, size = blocks_shape[: max(0, len(blocks_shape) - 2 * rank)], geometry.size
        if lead and lead != geometry.lead and blocks_shape[len(lead) :] == geometry.blocks_shape[-2 * rank :]:
            raise ValueError(
                f"{operation}: output_shape must be the whole shape of the array, (*lead, *size) = {(*lead, *size)} "
                f"for blocks of shape {blocks_shape}, got {output_shape}"
            )
        raise ValueError(
            f"{operation}: blocks must be (*lead, *num_blocks, *block_shape) = {geometry.blocks_shape} for "
            f"output_shape={output_shape}, block_shape={geometry.block_shape}, "
            f"strides={tuple(axis.stride for axis in geometry.axes)}{', last=over' * (last == 'over')}, "
            f"got shape {blocks_shape}"
        )
    return geometry
