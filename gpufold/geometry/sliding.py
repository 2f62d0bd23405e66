"""Sliding blocks in column layout: `col2im` and `im2col`."""

from __future__ import annotations

from functools import cached_property
from math import prod

from gpufold.geometry.axes import Axes, Axis, OnAxes
from gpufold.geometry.integers import PerAxis, Size, check_at_least, check_axes, check_of_sizes, expand, sequence

SPATIAL = "spatial axis"
PER_AXIS = ("kernel_size", "strides", "dilations", "pads_begin", "pads_end")
"""The arguments of a call that become the fields of an `Axis` after its size, in their order."""
MOST_CHANNELS = 4
"""Most channels for which an error asks whether an image is channels last."""


class SlidingGeometry(OnAxes):
    """Geometry of columns (N, C*prod(kernel), L) and an image (N, C, *size); lead is (N, C) or (C,)."""

    @property
    def batch(self) -> int:
        """N, or 1 without a batch axis."""
        return prod(self.lead[:-1])

    @property
    def channels(self) -> int:
        return self.lead[-1]

    @cached_property
    def planes(self) -> int:
        """Images of one channel each: N*C."""
        return prod(self.lead)

    @cached_property
    def blocks_shape(self) -> Size:
        return (*self.lead[:-1], self.channels * prod(self.block_shape), prod(self.num_blocks))

    @cached_property
    def split_columns_shape(self) -> Size:
        """The shape of columns with separate axes: (N, C, *kernel, *blocks), with N = 1 without a batch axis."""
        return (self.batch, self.channels, *self.block_shape, *self.num_blocks)

    @cached_property
    def blocks_overlap(self) -> bool:
        """Whether two taps, of one block or of two, land on the same pixel of the image."""
        return all(axis.lands for axis in self.axes) and any(axis.overlap.lands for axis in self.axes)


def _sliding_axes(
    operation: str, size: Size, size_name: str, rank_name: str, given: tuple[PerAxis, ...], image_shape: Size = ()
) -> Axes:
    """Check every per-axis argument, and that a block fits into the image; return the axes."""
    check_axes(operation, rank_name, size, 2 + 2 * len(size), "columns with kernel and blocks apart")
    named = zip(PER_AXIS, given, strict=True)
    per_axis = {name: expand(operation, name, value, len(size), rank_name) for name, value in named}
    for name, values in {size_name: size, **per_axis}.items():
        check_at_least(operation, name, values, 0 if name in ("dilations", "pads_begin", "pads_end") else 1, SPATIAL)
    axes = tuple(map(Axis, size, *per_axis.values()))
    for number, axis in enumerate(axes):
        if axis.blocks < 1:
            lead = len(image_shape) - len(axes)
            where = f"{SPATIAL} {number}{f' (image axis {lead + number})' if image_shape else ''}"
            last = 0 < len(image_shape) == lead + number + 1 and axis.size <= MOST_CHANNELS < image_shape[lead - 1]
            hint = f"; channels are axis {lead - 1}: is this image channels last?" if image_shape and last else ""
            raise ValueError(
                f"{operation}: the padded image is smaller than the dilated kernel on {where}: "
                f"{size_name} {axis.size} + pads_begin {axis.pad_begin} + pads_end {axis.pad_end} = "
                f"{axis.padded_size} pixels, but dilations {axis.dilation} * (kernel_size {axis.kernel} - 1) + 1 = "
                f"{axis.dilated_kernel}; at least one block must fit{hint}"
            )
    return axes


@check_of_sizes()
def col2im_geometry(
    columns_shape: Size,
    output_size: PerAxis,
    kernel_size: PerAxis,
    strides: PerAxis = 1,
    dilations: PerAxis = 1,
    pads_begin: PerAxis = 0,
    pads_end: PerAxis = 0,
) -> SlidingGeometry:
    """Check the sizes of a col2im call; the length of output_size is the number of spatial axes."""
    operation = "col2im"
    output_size = sequence(operation, "output_size", output_size)
    if len(columns_shape) not in (2, 3):
        raise ValueError(
            f"{operation}: data must be (N, C*prod(kernel_size), L) or (C*prod(kernel_size), L), "
            f"so of rank 3 or 2, got rank {len(columns_shape)}: shape {columns_shape}"
        )
    given = kernel_size, strides, dilations, pads_begin, pads_end
    axes = _sliding_axes(operation, output_size, "output_size", "output_size", given)
    *lead, rows, length = columns_shape
    taps = prod(axis.kernel for axis in axes)
    if rows % taps:
        raise ValueError(
            f"{operation}: data axis {len(lead)} must be C*prod(kernel_size), a multiple of {taps} for "
            f"kernel_size={tuple(axis.kernel for axis in axes)}, got {rows}: shape {columns_shape}"
        )
    geometry = SlidingGeometry((*lead, rows // taps), axes)
    if length != geometry.blocks_shape[-1]:
        named = zip(("output_size", *PER_AXIS), zip(*axes, strict=True), strict=True)
        raise ValueError(
            f"{operation}: data axis {len(lead) + 1} must be the number of blocks, got {length} "
            f"(shape {columns_shape}), but {', '.join(f'{name}={values}' for name, values in named)} give "
            f"{' * '.join(map(str, geometry.num_blocks))} = {geometry.blocks_shape[-1]} blocks"
        )
    return geometry


@check_of_sizes()
def im2col_geometry(
    image_shape: Size,
    kernel_size: PerAxis,
    strides: PerAxis = 1,
    dilations: PerAxis = 1,
    pads_begin: PerAxis = 0,
    pads_end: PerAxis = 0,
) -> SlidingGeometry:
    """Check the sizes of an im2col call; the length of kernel_size is the number of spatial axes."""
    operation = "im2col"
    kernel_size = sequence(operation, "kernel_size", kernel_size)
    rank = len(kernel_size)
    lead = len(image_shape) - rank
    if lead not in (1, 2):
        raise ValueError(
            f"{operation}: image must be (N, C, *size) or (C, *size) with {rank} spatial axes, one per value of "
            f"kernel_size={kernel_size}, so of rank {rank + 2} or {rank + 1}, "
            f"got rank {len(image_shape)}: shape {image_shape}"
        )
    given = kernel_size, strides, dilations, pads_begin, pads_end
    axes = _sliding_axes(operation, image_shape[lead:], "the image's size", "kernel_size", given, image_shape)
    return SlidingGeometry(image_shape[:lead], axes)
