"""Where every element goes: the formulas and all the checks, in exact Python integers.

A call becomes one frozen geometry here or raises; nothing later checks sizes again. This module
knows no array library: it sees shapes and integers only, so sizes of 2**62 cost nothing.

    SlidingGeometry   col2im and im2col: columns (N, C*prod(kernel), L) <-> image (N, C, *size)
    BlocksGeometry    blocks_to_array and array_to_blocks: blocks (*lead, *blocks, *block) <-> array (*lead, *size)
    PositionsGeometry add_blocks, take_blocks: blocks (P, *lead, *block) <-> array (*lead, *size)
    AverageGeometry   average: array (*lead, *size) by weights (*size)
    SpaceGeometry     batch_to_space and space_to_batch: batch (B*prod(block), *D) <-> space (B, *E)
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from math import prod
from typing import Any, NamedTuple, TypeAlias

Size: TypeAlias = tuple[int, ...]
"""One integer per axis, height before width."""

PerAxis: TypeAlias = "int | Size"
"""An integer for every axis alike, or one integer per axis."""


def as_integers(operation: str, name: str, value: object) -> PerAxis:
    """Turn what a caller gave into an int or a tuple of ints, exactly, or raise TypeError.

    >>> as_integers("col2im", "strides", [2, 3])
    (2, 3)
    """
    if type(value) is int:
        return value
    if type(value) is tuple:
        for item in value:  # a loop, which starts faster than a generator or a list
            if type(item) is not int:
                break
        else:
            return value
    if hasattr(value, "tolist"):  # NumPy and CuPy arrays and scalars
        value = value.tolist()
    try:
        if hasattr(value, "__index__"):
            return operator.index(value)
        if not isinstance(value, str | bytes | bytearray | dict | set | frozenset):
            return tuple(map(operator.index, value))  # type: ignore[call-overload]
    except TypeError:
        pass
    raise TypeError(f"{operation}: {name} must be an integer or a sequence of integers, got {value!r}")


def _expand(operation: str, name: str, value: PerAxis, rank: int, source: str) -> Size:
    """Return one integer per axis; `source` says where the rank comes from."""
    if isinstance(value, int):
        return (value,) * rank
    if len(value) != rank:
        raise ValueError(
            f"{operation}: {name} must have {rank} values, one per axis of {source}, got {len(value)}: {name}={value}"
        )
    return value


def _sequence(operation: str, name: str, value: PerAxis, counted: str, why: str) -> Size:
    """Return a value whose length says how many axes there are, and raise where it has none."""
    if isinstance(value, int) or not value:
        raise (TypeError if isinstance(value, int) else ValueError)(
            f"{operation}: {name} must be a sequence with one integer per {counted}, at least one, "
            f"because its length says how many {why}; got {value!r}"
        )
    return value


def _at_least(operation: str, name: str, values: Size, least: int) -> None:
    for axis, value in enumerate(values):
        if value < least:
            raise ValueError(
                f"{operation}: {name} must be at least {least} on every axis, "
                f"got {value} on axis {axis}: {name}={values}"
            )


# ---------------------------------------------------------------------------------------------
# Sliding blocks


def hash_once(geometry: Any) -> int:
    """Return a geometry's hash, which is made once: the caches of every call ask for it.

    It is the same in every process that a geometry is sent to, as that of None is not.
    """
    known = geometry.__dict__
    if "hash" not in known:
        known["hash"] = hash(tuple([known[field.name] or 0 for field in fields(geometry)]))
    made: int = known["hash"]
    return made


class Axis(NamedTuple):
    """One spatial axis of sliding blocks: tap k of block b lands on pixel b*stride + k*dilation - pad_begin.

    A section of an image (see `section`) may have negative pads; what a caller gives may not.
    """

    size: int
    kernel: int
    stride: int
    dilation: int
    pad_begin: int
    pad_end: int

    @property
    def dilated_kernel(self) -> int:
        """Pixels from the first to the last tap of a block, both included."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def padded_size(self) -> int:
        """Pixels of the image with its padding."""
        return self.size + self.pad_begin + self.pad_end

    @property
    def blocks(self) -> int:
        """Blocks that fit along this axis; below 1 where the padded image is smaller than the dilated kernel.

        >>> Axis(size=16, kernel=3, stride=2, dilation=2, pad_begin=1, pad_end=1).blocks
        7
        """
        return (self.padded_size - self.dilated_kernel) // self.stride + 1

    def pixel(self, block: int, tap: int) -> int:
        """Return the pixel that a tap of a block lands on, outside [0, size) where it falls in the padding."""
        return block * self.stride + tap * self.dilation - self.pad_begin

    def reach(self, tap: int) -> range:
        """Return the blocks whose tap lands inside the image: consecutive, maybe none.

        >>> Axis(size=4, kernel=3, stride=1, dilation=1, pad_begin=1, pad_end=1).reach(0)
        range(1, 4)
        """
        offset = tap * self.dilation - self.pad_begin
        first = max(0, -(offset // self.stride))
        last = min(self.blocks, (self.size - 1 - offset) // self.stride + 1)
        return range(first, max(first, last))

    def section(self, start: int, stop: int) -> tuple[Axis, range]:
        """Return the axis as seen from pixels [start, stop), and the consecutive blocks that reach them.

        The blocks are numbered from the first of that range, so that a section is a geometry of its
        own; where no block reaches it, the range is empty and the axis has no block.

        >>> axis, blocks = Axis(size=100, kernel=8, stride=4, dilation=1, pad_begin=0, pad_end=0).section(20, 30)
        >>> blocks, axis.pixel(0, 0)
        (range(4, 8), -4)
        """
        first = max(0, -((self.dilated_kernel - 1 - self.pad_begin - start) // self.stride))
        last = min(self.blocks, (stop - 1 + self.pad_begin) // self.stride + 1)
        blocks = range(first, max(first, last))
        size, pad_begin = stop - start, self.pad_begin + start - first * self.stride
        pad_end = (len(blocks) - 1) * self.stride + self.dilated_kernel - size - pad_begin
        return Axis(size, self.kernel, self.stride, self.dilation, pad_begin, pad_end), blocks


class _OnAxes:
    """What sliding blocks have on their axes."""

    axes: tuple[Axis, ...]

    @cached_property
    def block_shape(self) -> Size:
        """The kernel: taps of a block along each axis."""
        return tuple(axis.kernel for axis in self.axes)

    @cached_property
    def num_blocks(self) -> Size:
        return tuple(axis.blocks for axis in self.axes)


@dataclass(frozen=True)
class SlidingGeometry(_OnAxes):
    """How columns (N, C*prod(kernel), L) and an image (N, C, *size) belong together; batch None: no N."""

    batch: int | None
    channels: int
    axes: tuple[Axis, ...]

    __hash__ = hash_once

    @cached_property
    def image_size(self) -> Size:
        return tuple(axis.size for axis in self.axes)

    @cached_property
    def planes(self) -> int:
        """Images of one channel each: N*C."""
        return (1 if self.batch is None else self.batch) * self.channels

    @cached_property
    def columns_shape(self) -> Size:
        lead = () if self.batch is None else (self.batch,)
        return (*lead, self.channels * prod(self.block_shape), prod(self.num_blocks))

    @cached_property
    def image_shape(self) -> Size:
        lead = () if self.batch is None else (self.batch,)
        return (*lead, self.channels, *self.image_size)

    @cached_property
    def split_columns_shape(self) -> Size:
        """The columns with every axis apart: (N, C, *kernel, *blocks), N = 1 where there is none."""
        batch = 1 if self.batch is None else self.batch
        return (batch, self.channels, *self.block_shape, *self.num_blocks)

    @cached_property
    def blocks_overlap(self) -> bool:
        """Whether two taps land on one pixel of the image, of one block or of two."""
        landed = [
            [axis.pixel(block, tap) for tap in range(axis.kernel) for block in axis.reach(tap)] for axis in self.axes
        ]
        return all(landed) and any(len(set(pixels)) < len(pixels) for pixels in landed)


def _sliding_axes(operation: str, size: Size, size_name: str, rank_name: str, **given: PerAxis) -> tuple[Axis, ...]:
    """Check every per-axis argument and that a block fits; the caller knows the image's size."""
    per_axis = {name: _expand(operation, name, value, len(size), rank_name) for name, value in given.items()}
    for name, values in {size_name: size, **per_axis}.items():
        _at_least(operation, name, values, 0 if name in ("dilations", "pads_begin", "pads_end") else 1)
    axes = tuple(map(Axis, size, *per_axis.values()))
    for number, axis in enumerate(axes):
        if axis.blocks < 1:
            raise ValueError(
                f"{operation}: the padded image is smaller than the dilated kernel on axis {number}: "
                f"{size_name} {axis.size} + pads_begin {axis.pad_begin} + pads_end {axis.pad_end} = "
                f"{axis.padded_size} pixels, but dilations {axis.dilation} * (kernel_size {axis.kernel} - 1) + 1 = "
                f"{axis.dilated_kernel}; at least one block must fit"
            )
    return axes


def col2im_geometry(
    shape: Size,
    output_size: Any,
    kernel_size: Any,
    strides: Any = 1,
    dilations: Any = 1,
    pads_begin: Any = 0,
    pads_end: Any = 0,
) -> SlidingGeometry:
    """Check the sizes of a col2im call, whose columns are given and whose rank is the length of output_size.

    >>> col2im_geometry((3, 12, 225), (16, 16), (2, 2)).image_shape
    (3, 3, 16, 16)
    """
    output_size = as_integers("col2im", "output_size", output_size)
    return _columns_geometry(
        shape, output_size, *_sliding_integers("col2im", kernel_size, strides, dilations, pads_begin, pads_end)
    )


def im2col_geometry(
    shape: Size, kernel_size: Any, strides: Any = 1, dilations: Any = 1, pads_begin: Any = 0, pads_end: Any = 0
) -> SlidingGeometry:
    """Check the sizes of an im2col call, whose image is given and whose rank is the length of kernel_size.

    >>> im2col_geometry((3, 3, 16, 16), (2, 2)).columns_shape
    (3, 12, 225)
    """
    return _image_geometry(shape, *_sliding_integers("im2col", kernel_size, strides, dilations, pads_begin, pads_end))


def _sliding_integers(
    operation: str, kernel_size: Any, strides: Any, dilations: Any, pads_begin: Any, pads_end: Any
) -> tuple[PerAxis, PerAxis, PerAxis, PerAxis, PerAxis]:
    return (
        as_integers(operation, "kernel_size", kernel_size),
        as_integers(operation, "strides", strides),
        as_integers(operation, "dilations", dilations),
        as_integers(operation, "pads_begin", pads_begin),
        as_integers(operation, "pads_end", pads_end),
    )


@lru_cache(maxsize=1024)
def _columns_geometry(
    columns_shape: Size, output_size: PerAxis, kernel_size: PerAxis, *steps: PerAxis
) -> SlidingGeometry:
    operation = "col2im"
    output_size = _sequence(operation, "output_size", output_size, "spatial axis", "axes there are")
    if len(columns_shape) not in (2, 3):
        raise ValueError(
            f"{operation}: data must be (N, C*prod(kernel_size), L) or (C*prod(kernel_size), L), "
            f"so of rank 3 or 2, got rank {len(columns_shape)}: shape {columns_shape}"
        )
    given = dict(zip(_PER_AXIS, (kernel_size, *steps), strict=True))
    axes = _sliding_axes(operation, output_size, "output_size", "output_size", **given)
    *lead, rows, length = columns_shape
    batch = lead[0] if lead else None
    taps = prod(axis.kernel for axis in axes)
    if rows % taps:
        raise ValueError(
            f"{operation}: data axis {len(lead)} must be C*prod(kernel_size), a multiple of {taps} for "
            f"kernel_size={tuple(axis.kernel for axis in axes)}, got {rows}: shape {columns_shape}"
        )
    geometry = SlidingGeometry(batch, rows // taps, axes)
    if length != geometry.columns_shape[-1]:
        raise ValueError(
            f"{operation}: data axis {len(lead) + 1} must be the number of blocks, got {length} "
            f"(shape {columns_shape}), but {_given(axes, 'output_size')} give "
            f"{' * '.join(map(str, geometry.num_blocks))} = {geometry.columns_shape[-1]} blocks"
        )
    return geometry


@lru_cache(maxsize=1024)
def _image_geometry(image_shape: Size, kernel_size: PerAxis, *steps: PerAxis) -> SlidingGeometry:
    operation = "im2col"
    kernel_size = _sequence(operation, "kernel_size", kernel_size, "spatial axis", "of the image's axes are spatial")
    rank = len(kernel_size)
    lead = len(image_shape) - rank
    if lead not in (1, 2):
        raise ValueError(
            f"{operation}: image must be (N, C, *size) or (C, *size) with {rank} spatial axes, one per value of "
            f"kernel_size={kernel_size}, so of rank {rank + 2} or {rank + 1}, "
            f"got rank {len(image_shape)}: shape {image_shape}"
        )
    given = dict(zip(_PER_AXIS, (kernel_size, *steps), strict=True))
    axes = _sliding_axes(operation, image_shape[lead:], "the image's size", "kernel_size", **given)
    return SlidingGeometry(image_shape[0] if lead == 2 else None, image_shape[lead - 1], axes)


_PER_AXIS = ("kernel_size", "strides", "dilations", "pads_begin", "pads_end")
"""The arguments of a call that become the fields of an `Axis` after its size, in their order."""


def _given(axes: tuple[Axis, ...], size_name: str) -> str:
    """Return the sizes of a call in words, for messages."""
    values = zip(*axes, strict=True)
    return ", ".join(f"{name}={value}" for name, value in zip((size_name, *_PER_AXIS), values, strict=True))


# ---------------------------------------------------------------------------------------------
# Blocks beside each other


@dataclass(frozen=True)
class BlocksGeometry(_OnAxes):
    """How blocks (*lead, *num_blocks, *block_shape) and an array (*lead, *size) belong together."""

    lead: Size
    axes: tuple[Axis, ...]

    __hash__ = hash_once

    @cached_property
    def array_shape(self) -> Size:
        return (*self.lead, *(axis.size for axis in self.axes))

    @cached_property
    def blocks_shape(self) -> Size:
        return (*self.lead, *self.num_blocks, *self.block_shape)

    @cached_property
    def blocks_overlap(self) -> bool:
        """Whether two blocks share an element of the array."""
        return any(axis.stride < axis.kernel and axis.blocks > 1 for axis in self.axes)


def merged_axes(extents: Size, first_strides: Size, second_strides: Size) -> list[tuple[int, int, int]]:
    """Make axes that two arrays walk as one to one; return the extents above 1, each with its stride in both arrays.

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


@lru_cache(maxsize=1024)
def blocks_as_columns(
    geometry: BlocksGeometry, blocks_strides: Size, array_strides: Size
) -> tuple[SlidingGeometry, Size, Size]:
    """Return blocks and array as columns and an image, with the strides of the split columns and of the image.

    Leading axes that both arrays walk as one become one. The first two that are left count as batch and channels, those
    after them as spatial axes whose every pixel is a block.

    >>> geometry = array_to_blocks_geometry((2, 3, 8), (4,), 2)
    >>> sliding, *strides = blocks_as_columns(geometry, (36, 12, 4, 1), (24, 8, 1))
    >>> sliding.split_columns_shape, strides
    ((1, 6, 4, 3), [(72, 12, 1, 4), (48, 8, 1)])
    """
    count, rank = len(geometry.lead), len(geometry.axes)
    lead = merged_axes(geometry.lead, blocks_strides[:count], array_strides[:count])
    if not lead:
        lead.append((1, geometry.num_blocks[0] * blocks_strides[count], geometry.axes[0].size * array_strides[count]))
    batch = lead[0][0] if len(lead) > 1 else None
    if batch is None:
        lead.insert(0, (1, lead[0][0] * lead[0][1], lead[0][0] * lead[0][2]))
    units = lead[2:]
    axes = (*(Axis(extent, 1, 1, 1, 0, 0) for extent, _, _ in units), *geometry.axes)
    _, lead_blocks, lead_array = zip(*lead, strict=True)
    columns_strides = (
        *lead_blocks[:2],
        *(0 for _ in units),
        *blocks_strides[count + rank :],
        *lead_blocks[2:],
        *blocks_strides[count : count + rank],
    )
    return SlidingGeometry(batch, lead[1][0], axes), columns_strides, (*lead_array, *array_strides[count:])


def _block_axes(
    operation: str, size: Size, block_shape: Size, block_strides: PerAxis, size_name: str
) -> tuple[Axis, ...]:
    """Check block and strides, and that a block fits."""
    block_strides = _expand(operation, "block_strides", block_strides, len(block_shape), "block_shape")
    _at_least(operation, "block_shape", block_shape, 1)
    _at_least(operation, "block_strides", block_strides, 1)
    for axis, (extent, block) in enumerate(zip(size, block_shape, strict=True)):
        if block > extent:
            raise ValueError(
                f"{operation}: a block must fit into the array, got block_shape {block} on axis {axis}, where "
                f"{size_name} is {extent}: block_shape={block_shape}, {size_name} {size} along the blocks' axes"
            )
    return tuple(
        Axis(extent, block, stride, 1, 0, 0)
        for extent, block, stride in zip(size, block_shape, block_strides, strict=True)
    )


def _block_shape(operation: str, block_shape: PerAxis) -> Size:
    return _sequence(operation, "block_shape", block_shape, "axis of a block", "of the array's axes are taken apart")


def array_to_blocks_geometry(shape: Size, block_shape: Any, block_strides: Any) -> BlocksGeometry:
    """Check the sizes of an array_to_blocks call, whose array is given.

    >>> array_to_blocks_geometry((2, 16, 16), (4, 4), (2, 3)).blocks_shape
    (2, 7, 5, 4, 4)
    """
    operation = "array_to_blocks"
    return _array_geometry(
        shape,
        as_integers(operation, "block_shape", block_shape),
        as_integers(operation, "block_strides", block_strides),
    )


def blocks_to_array_geometry(shape: Size, output_shape: Any, block_shape: Any, block_strides: Any) -> BlocksGeometry:
    """Check the sizes of a blocks_to_array call, whose blocks are given.

    >>> blocks_to_array_geometry((2, 7, 5, 4, 4), (2, 16, 16), (4, 4), (2, 3)).num_blocks
    (7, 5)
    """
    operation = "blocks_to_array"
    return _blocks_geometry(
        shape,
        as_integers(operation, "output_shape", output_shape),
        as_integers(operation, "block_shape", block_shape),
        as_integers(operation, "block_strides", block_strides),
    )


@lru_cache(maxsize=1024)
def _array_geometry(array_shape: Size, block_shape: PerAxis, block_strides: PerAxis) -> BlocksGeometry:
    operation = "array_to_blocks"
    block_shape = _block_shape(operation, block_shape)
    rank = len(block_shape)
    if len(array_shape) < rank:
        raise ValueError(
            f"{operation}: array must be (*lead, *size) with {rank} axes of size, one per value of "
            f"block_shape={block_shape}, got rank {len(array_shape)}: shape {array_shape}"
        )
    size = array_shape[len(array_shape) - rank :]
    axes = _block_axes(operation, size, block_shape, block_strides, "the array's size")
    return BlocksGeometry(array_shape[: len(array_shape) - rank], axes)


@lru_cache(maxsize=1024)
def _blocks_geometry(
    blocks_shape: Size, output_shape: PerAxis, block_shape: PerAxis, block_strides: PerAxis
) -> BlocksGeometry:
    operation = "blocks_to_array"
    block_shape = _block_shape(operation, block_shape)
    rank = len(block_shape)
    if isinstance(output_shape, int):
        raise TypeError(
            f"{operation}: output_shape must be a sequence, the whole shape of the array, got {output_shape!r}"
        )
    if len(output_shape) < rank:
        raise ValueError(
            f"{operation}: output_shape must be (*lead, *size) with {rank} axes of size, one per value of "
            f"block_shape={block_shape}, got {len(output_shape)} values: output_shape={output_shape}"
        )
    _at_least(operation, "output_shape", output_shape, 0)
    size = output_shape[len(output_shape) - rank :]
    axes = _block_axes(operation, size, block_shape, block_strides, "output_shape")
    geometry = BlocksGeometry(output_shape[: len(output_shape) - rank], axes)
    if blocks_shape != geometry.blocks_shape:
        raise ValueError(
            f"{operation}: blocks must be (*lead, *num_blocks, *block_shape) = {geometry.blocks_shape} for "
            f"output_shape={output_shape}, block_shape={block_shape}, "
            f"block_strides={tuple(axis.stride for axis in axes)}, got shape {blocks_shape}"
        )
    return geometry


# ---------------------------------------------------------------------------------------------
# Blocks anywhere


@dataclass(frozen=True)
class PositionsGeometry:
    """How blocks (count, *lead, *block_shape) lie on an array (*lead, *size), at positions that are an array."""

    count: int
    lead: Size
    size: Size
    block_shape: Size

    __hash__ = hash_once

    @cached_property
    def array_shape(self) -> Size:
        return (*self.lead, *self.size)

    @cached_property
    def blocks_shape(self) -> Size:
        return (self.count, *self.lead, *self.block_shape)


@lru_cache(maxsize=1024)
def add_blocks_geometry(array_shape: Size, blocks_shape: Size, positions_shape: Size) -> PositionsGeometry:
    """Check the sizes of an add_blocks call; positions say by their last axis how many axes of the array have any.

    >>> add_blocks_geometry((3, 100, 200), (7, 3, 8, 9), (7, 2)).block_shape
    (8, 9)
    """
    operation = "add_blocks"
    count, rank = _positions_shape(operation, positions_shape)
    lead = _leading_axes(operation, "out", array_shape, positions_shape)
    if len(blocks_shape) != 1 + len(array_shape) or blocks_shape[: 1 + lead] != (count, *array_shape[:lead]):
        expected = ", ".join(map(str, (count, *array_shape[:lead])))
        raise ValueError(
            f"{operation}: blocks must be (number of positions, *lead, *block_shape) = ({expected}, *block_shape) "
            f"with {rank} axes of block_shape, for out of shape {array_shape} and positions of shape "
            f"{positions_shape}, got shape {blocks_shape}"
        )
    return PositionsGeometry(count, array_shape[:lead], array_shape[lead:], blocks_shape[1 + lead :])


def take_blocks_geometry(array_shape: Size, positions_shape: Size, block_shape: Any) -> PositionsGeometry:
    """Check the sizes of a take_blocks call.

    >>> take_blocks_geometry((3, 100, 200), (7, 2), (8, 9)).blocks_shape
    (7, 3, 8, 9)
    """
    return _taken_geometry(array_shape, positions_shape, as_integers("take_blocks", "block_shape", block_shape))


@lru_cache(maxsize=1024)
def _taken_geometry(array_shape: Size, positions_shape: Size, block_shape: PerAxis) -> PositionsGeometry:
    operation = "take_blocks"
    count, rank = _positions_shape(operation, positions_shape)
    lead = _leading_axes(operation, "array", array_shape, positions_shape)
    block = _expand(operation, "block_shape", block_shape, rank, f"positions of shape {positions_shape}")
    _at_least(operation, "block_shape", block, 1)
    return PositionsGeometry(count, array_shape[:lead], array_shape[lead:], block)


def _positions_shape(operation: str, positions_shape: Size) -> tuple[int, int]:
    """Return the number of positions and of the axes that they have."""
    if len(positions_shape) != 2 or not positions_shape[1]:
        raise ValueError(
            f"{operation}: positions must be (number of blocks, number of spatial axes), at least one axis, "
            f"got shape {positions_shape}"
        )
    return positions_shape[0], positions_shape[1]


def _leading_axes(operation: str, name: str, array_shape: Size, positions_shape: Size) -> int:
    """Return the number of axes that an array has before those with positions."""
    rank = positions_shape[1]
    if len(array_shape) < rank:
        raise ValueError(
            f"{operation}: {name} must be (*lead, *size) with {rank} axes of size, one per column of positions "
            f"of shape {positions_shape}, got rank {len(array_shape)}: shape {array_shape}"
        )
    return len(array_shape) - rank


@dataclass(frozen=True)
class AverageGeometry:
    """How weights (*block_shape) lie on an array (*lead, *block_shape) that is divided by them."""

    lead: Size
    block_shape: Size

    __hash__ = hash_once

    @cached_property
    def array_shape(self) -> Size:
        return (*self.lead, *self.block_shape)


@lru_cache(maxsize=1024)
def average_geometry(array_shape: Size, weight_shape: Size) -> AverageGeometry:
    """Check the sizes of an average call.

    >>> average_geometry((3, 100, 200), (100, 200)).lead
    (3,)
    """
    lead = len(array_shape) - len(weight_shape)
    if lead < 0 or array_shape[lead:] != weight_shape:
        raise ValueError(
            f"average: weight must have the shape of numerator's last axes, where numerator has shape {array_shape}, "
            f"got {weight_shape}"
        )
    return AverageGeometry(array_shape[:lead], weight_shape)


LAST_BLOCKS = ("shift", "even", "over", "drop")
"""What becomes of a block that reaches beyond the end of an axis: see `gpufold.grid_positions`."""


def grid_of_blocks(size: Any, block_shape: Any, strides: Any, last: object) -> tuple[Sequence[int], ...]:
    """Check the sizes of a grid_positions call, and return where blocks begin along each axis.

    >>> grid_of_blocks((10, 4), (4, 4), 3, "shift")
    ([0, 3, 6], [0])
    """
    operation = "grid_positions"
    given = [
        as_integers(operation, name, value)
        for name, value in (("size", size), ("block_shape", block_shape), ("strides", strides))
    ]
    extents = (given[0],) if isinstance(given[0], int) else given[0]
    if not extents:
        raise ValueError(f"{operation}: size must have at least one axis, got size={size!r}")
    blocks, steps = (
        _expand(operation, name, value, len(extents), f"size={extents}")
        for name, value in zip(("block_shape", "strides"), given[1:], strict=True)
    )
    for name, values in (("size", extents), ("block_shape", blocks), ("strides", steps)):
        _at_least(operation, name, values, 1)
    if last not in LAST_BLOCKS:
        raise ValueError(f"{operation}: last must be one of {', '.join(LAST_BLOCKS)}, got {last!r}")
    for axis, (extent, block) in enumerate(zip(extents, blocks, strict=True)):
        if block > extent and last != "over":
            raise ValueError(
                f"{operation}: a block must fit into the array, got block_shape {block} on axis {axis}, where size is "
                f"{extent}: block_shape={blocks}, size={extents}; last='over' lets blocks hang over"
            )
    return tuple(
        _begins(extent, block, step, str(last)) for extent, block, step in zip(extents, blocks, steps, strict=True)
    )


def _begins(extent: int, block: int, stride: int, last: str) -> Sequence[int]:
    """Return where blocks begin along one axis, in ascending order."""
    free = max(0, extent - block)  # where the last block begins that ends with the axis
    if last == "drop":
        return range(0, free + 1, stride)
    steps = -(-free // stride)
    if last == "even":
        distance = free / max(1, steps)  # in double precision, as in nnU-Net, whose tiles these are
        return [*(min(free, round(distance * number)) for number in range(steps)), free]
    begins = range(0, steps * stride + 1, stride)
    return begins if last == "over" else [min(begin, free) for begin in begins]


# ---------------------------------------------------------------------------------------------
# Blocks between batch and space


@dataclass(frozen=True)
class SpaceGeometry:
    """How batch (B*prod(block), *D) and space (B, *E) belong together.

    Element (offset*B + b, *d) of the batch array is pixel d*block + offset - margin_begin of image b, where
    offset runs over the block in lexicographic order; the margins are crops of the image (batch_to_space) or
    pads in front of it (space_to_batch). All tuples hold the spatial axes only, without the batch axis.
    """

    batch: int
    block: Size
    margin_begin: Size
    margin_end: Size
    grid: Size
    """D: the spatial extents of the batch array, blocks per axis."""

    __hash__ = hash_once

    @cached_property
    def space_size(self) -> Size:
        """E: the image's extents without the margins."""
        return tuple(
            count * block - begin - end
            for count, block, begin, end in zip(self.grid, self.block, self.margin_begin, self.margin_end, strict=True)
        )

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The same as sliding blocks: kernel = stride = block, and the margins are the padding."""
        return tuple(
            Axis(size, block, block, 1, begin, end)
            for size, block, begin, end in zip(
                self.space_size, self.block, self.margin_begin, self.margin_end, strict=True
            )
        )

    @cached_property
    def batch_shape(self) -> Size:
        return (self.batch * prod(self.block), *self.grid)

    @cached_property
    def space_shape(self) -> Size:
        return (self.batch, *self.space_size)


def _block_arguments(operation: str, shape: Size, block_shape: PerAxis, **given: PerAxis) -> tuple[Size, Size, Size]:
    """Check block shape and margins against the rank; return their spatial parts."""
    rank = len(shape)
    if rank < 2:
        raise ValueError(
            f"{operation}: data must be (batch, *spatial axes), so of rank 2 or more, got rank {rank}: shape {shape}"
        )
    if isinstance(block_shape, int):
        raise TypeError(
            f"{operation}: block_shape must be a sequence with one integer per axis of data, the first of them 1, "
            f"got {block_shape!r}"
        )
    block_shape = _expand(operation, "block_shape", block_shape, rank, "data")
    _at_least(operation, "block_shape", block_shape, 1)
    if block_shape[0] != 1:
        raise ValueError(
            f"{operation}: block_shape must be 1 on axis 0, the batch axis, "
            f"got {block_shape[0]}: block_shape={block_shape}"
        )
    margins = []
    for name, margin in given.items():
        if isinstance(margin, int):  # the same on every spatial axis; the batch axis has none
            margin = (0, *(margin,) * (rank - 1))
        margin = _expand(operation, name, margin, rank, "data")
        _at_least(operation, name, margin, 0)
        if margin[0] != 0:
            raise ValueError(
                f"{operation}: {name} must be 0 on axis 0, the batch axis, got {margin[0]}: {name}={margin}"
            )
        margins.append(margin[1:])
    return block_shape[1:], margins[0], margins[1]


def batch_to_space_geometry(shape: Size, block_shape: Any, crops_begin: Any = 0, crops_end: Any = 0) -> SpaceGeometry:
    """Check the sizes of a batch_to_space call.

    >>> batch_to_space_geometry((10, 2), (1, 5), (0, 2)).space_shape
    (2, 8)
    """
    operation = "batch_to_space"
    return _batch_geometry(
        shape,
        as_integers(operation, "block_shape", block_shape),
        as_integers(operation, "crops_begin", crops_begin),
        as_integers(operation, "crops_end", crops_end),
    )


def space_to_batch_geometry(shape: Size, block_shape: Any, pads_begin: Any = 0, pads_end: Any = 0) -> SpaceGeometry:
    """Check the sizes of a space_to_batch call.

    >>> space_to_batch_geometry((2, 8), (1, 5), (0, 2)).batch_shape
    (10, 2)
    """
    operation = "space_to_batch"
    return _space_geometry(
        shape,
        as_integers(operation, "block_shape", block_shape),
        as_integers(operation, "pads_begin", pads_begin),
        as_integers(operation, "pads_end", pads_end),
    )


@lru_cache(maxsize=1024)
def _batch_geometry(data_shape: Size, block_shape: PerAxis, crops_begin: PerAxis, crops_end: PerAxis) -> SpaceGeometry:
    operation = "batch_to_space"
    block, begin, end = _block_arguments(
        operation, data_shape, block_shape, crops_begin=crops_begin, crops_end=crops_end
    )
    batch, *grid = data_shape
    if batch % prod(block):
        raise ValueError(
            f"{operation}: data axis 0, the batch, must be a multiple of prod(block_shape) = {prod(block)} "
            f"for block_shape={(1, *block)}, got {batch}: shape {data_shape}"
        )
    geometry = SpaceGeometry(batch // prod(block), block, begin, end, tuple(grid))
    for axis, extent in enumerate(geometry.space_size):
        if extent < 0:
            raise ValueError(
                f"{operation}: crops_begin + crops_end must not exceed data * block_shape on any axis, "
                f"got {begin[axis]} + {end[axis]} = {begin[axis] + end[axis]} on axis {axis + 1}, "
                f"where {grid[axis]} * {block[axis]} = {grid[axis] * block[axis]}"
            )
    return geometry


@lru_cache(maxsize=1024)
def _space_geometry(data_shape: Size, block_shape: PerAxis, pads_begin: PerAxis, pads_end: PerAxis) -> SpaceGeometry:
    operation = "space_to_batch"
    block, begin, end = _block_arguments(operation, data_shape, block_shape, pads_begin=pads_begin, pads_end=pads_end)
    batch, *size = data_shape
    grid = []
    for axis, extent in enumerate(size):
        padded = extent + begin[axis] + end[axis]
        if padded % block[axis]:
            raise ValueError(
                f"{operation}: data + pads_begin + pads_end must be a multiple of block_shape on every axis, "
                f"got {extent} + {begin[axis]} + {end[axis]} = {padded} on axis {axis + 1}, "
                f"where block_shape is {block[axis]}"
            )
        grid.append(padded // block[axis])
    return SpaceGeometry(batch, block, begin, end, tuple(grid))


Geometry: TypeAlias = SlidingGeometry | BlocksGeometry | PositionsGeometry | AverageGeometry | SpaceGeometry
"""What a call becomes."""

GEOMETRIES = {
    "col2im": _columns_geometry,
    "im2col": _image_geometry,
    "blocks_to_array": _blocks_geometry,
    "array_to_blocks": _array_geometry,
    "add_blocks": add_blocks_geometry,
    "take_blocks": _taken_geometry,
    "average": average_geometry,
    "batch_to_space": _batch_geometry,
    "space_to_batch": _space_geometry,
}
"""The checks of each operation, once its sizes are ints or tuples of them.

They cache what they return, by arguments that can be hashed; the symbols that a compiler has for sizes cannot, and are
for the function that each wraps, `GEOMETRIES[operation].__wrapped__`.
"""
