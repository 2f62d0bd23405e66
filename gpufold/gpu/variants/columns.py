"""Columns and image as the kernels of col2im and im2col see them: strides, cells and fused arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd, inf, prod

from gpufold.calls import PLAIN
from gpufold.elements import ElementType
from gpufold.geometry import Axis, Size, SlidingGeometry
from gpufold.gpu.parameters import contiguous_strides
from gpufold.gpu.plan import Problem


@dataclass(frozen=True, slots=True)
class ColumnsView:
    """Columns (batch, channels, *kernel, *blocks) and image (batch, channels, *size) by their strides.

    The strides of a single batch or channel are 0, which every word divides.
    """

    axes: tuple[Axis, ...]
    element: ElementType
    batch: int
    channels: int
    """Planes at even distances in both arrays: N*C if the layouts allow, else C."""
    columns_batch: int
    columns_channel: int
    tap_strides: Size
    block_strides: Size
    image_batch: int
    image_channel: int
    pixel_strides: Size

    @property
    def kernel(self) -> Size:
        return tuple(axis.kernel for axis in self.axes)

    @property
    def planes(self) -> int:
        return self.batch * self.channels

    @property
    def blocks(self) -> Size:
        return tuple(axis.blocks for axis in self.axes)

    @property
    def taps_are_closest(self) -> bool:
        """Whether neighbouring taps are nearer to each other in memory than neighbouring blocks."""
        taps = (abs(s) for axis, s in zip(self.axes, self.tap_strides, strict=True) if axis.kernel > 1)
        blocks = (abs(s) for axis, s in zip(self.axes, self.block_strides, strict=True) if axis.blocks > 1)
        return min(taps, default=inf) < min(blocks, default=inf)


@lru_cache(maxsize=256)
def view_of(problem: Problem) -> ColumnsView:
    """Name every stride, and merge batch and channels into planes if the strides allow it."""
    geometry = problem.geometry
    assert isinstance(geometry, SlidingGeometry)
    # No dilation moves the single tap of an axis.
    axes = tuple(axis._replace(dilation=1) if axis.kernel == 1 else axis for axis in geometry.axes)
    rank = len(axes)
    batch, channels = geometry.batch, geometry.channels
    if problem.input.shape == geometry.split_columns_shape:
        columns_batch, columns_channel, *strides = problem.input.strides
        tap_strides, block_strides = tuple(strides[:rank]), tuple(strides[rank:])
    else:
        *lead, row, block = problem.input.strides
        columns_batch = lead[0] if lead else 0
        columns_channel = row * prod(geometry.block_shape)
        tap_strides = tuple(row * step for step in contiguous_strides(geometry.block_shape))
        block_strides = tuple(block * step for step in contiguous_strides(geometry.num_blocks))
    *lead, image_channel = problem.output.strides[:-rank]
    image_batch = lead[0] if lead else 0
    if channels == 1:
        batch, channels, columns_channel, image_channel = 1, batch, columns_batch, image_batch
    elif columns_batch == channels * columns_channel and image_batch == channels * image_channel:
        batch, channels = 1, batch * channels
    return ColumnsView(
        axes,
        problem.element,
        batch,
        channels,
        columns_batch if batch > 1 else 0,
        columns_channel if channels > 1 else 0,
        tap_strides,
        block_strides,
        image_batch if batch > 1 else 0,
        image_channel if channels > 1 else 0,
        problem.output.strides[-rank:],
    )


def tap_step(axis: Axis) -> int:
    """Return the distance of adjacent taps that land on the same pixel of an axis."""
    return axis.stride // gcd(axis.stride, axis.dilation)


def block_step(axis: Axis) -> int:
    """Return the distance of the blocks of adjacent taps that land on the same pixel of an axis."""
    return axis.dilation // gcd(axis.stride, axis.dilation)


def taps_per_pixel(axis: Axis) -> int:
    """Bound the number of taps that land on one pixel of an axis."""
    return -(-axis.kernel // tap_step(axis))


def cells_of(view: ColumnsView) -> Size:
    """Return the number of cells of a plane along each axis; along the last axis, cells begin where blocks do."""
    *outer, row = view.axes
    in_row = (row.pad_begin + row.size - 1) // row.stride - row.pad_begin // row.stride + 1
    return (*(-(-axis.size // axis.stride) for axis in outer), in_row)


# ---------------------------------------------------------------------------------------------
# Fused arithmetic


def fusion_defines(problem: Problem) -> dict[str, str]:
    """Return the macros of the fused arithmetic, if there is any."""
    fusion, geometry = problem.fusion, problem.geometry
    assert isinstance(geometry, SlidingGeometry)
    if fusion == PLAIN:
        return {}
    return {
        **({"WINDOW_AXES": str(fusion.window_axes or len(geometry.axes))} if fusion.window == "separable" else {}),
        "REDUCTION": fusion.reduction,
        "WINDOW": fusion.window,
        "ACCUMULATE": "true" if fusion.accumulate else "false",
        "WEIGHT": problem.element.weight_type,
    }
