"""Common parts of the plans of col2im."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any, TypeVar

from gpufold.calls import Unsupported
from gpufold.gpu.parameters import INT32_MAX, Field, divisor, offset, span, struct, wide
from gpufold.gpu.plan import LaunchShape, Plan, Problem, make_plan
from gpufold.gpu.variants.columns import ColumnsView, block_step, fusion_defines, tap_step, taps_per_pixel, view_of

MAX_UNROLLED = 128
"""Bound of the registers that kernels/col2im.cuh counts for the loads of a tap."""


def largest_offset(view: ColumnsView) -> int:
    """Bound the offsets of a kernel in a plane, including those of taps that do not exist, and to the next plane."""
    columns = sum(
        (axis.kernel + tap_step(axis)) * abs(tap_stride)
        + (axis.blocks + 2 * (axis.dilated_kernel // axis.stride + 1) + block_step(axis)) * abs(block_stride)
        for axis, tap_stride, block_stride in zip(view.axes, view.tap_strides, view.block_strides, strict=True)
    )
    image = span(tuple(axis.size + axis.stride for axis in view.axes), view.pixel_strides)
    padded = max(axis.padded_size + axis.stride + axis.dilated_kernel for axis in view.axes)
    taps = prod(axis.kernel for axis in view.axes)
    unrolled = MAX_UNROLLED * prod(map(taps_per_pixel, view.axes))
    steps = (tap_step(axis) * max(tap_step(axis), block_step(axis)) for axis in view.axes)
    planes = abs(view.columns_channel), abs(view.image_channel)
    return max(columns, image, padded, taps, unrolled, view.channels, *planes, *steps)


Way = TypeVar("Way")


def plans_of(plan: Callable[[Way], Plan], ways: Iterable[Way]) -> tuple[Plan, ...]:
    """Return the plans that can be launched, of several ways; raise if there are none."""
    plans, refusals = [], []
    for way in ways:
        try:
            plans.append(plan(way))
        except Unsupported as unsupported:
            refusals.append(unsupported)
    if not plans:
        raise refusals[0]
    return tuple(plans)


def sum_plan(
    problem: Problem,
    variant: str,
    shape: LaunchShape,
    reason: str,
    members: Mapping[str, Field] | None = None,
    kernel: Mapping[str, str] | None = None,
    **defines: Any,
) -> Plan:
    """Make a plan with the common parts of all variants; `members` follow the Parameters of kernels/col2im.cuh.

    `kernel` names a file and its function, if their names differ from the variant's.
    """
    view, scatters = view_of(problem), variant == "atomic"
    axes = view.axes
    if not scatters and MAX_UNROLLED * max(map(taps_per_pixel, axes)) > INT32_MAX:
        raise Unsupported(
            f"{variant} counts the taps of a pixel along an axis, {INT32_MAX // MAX_UNROLLED} at most, "
            f"but up to {max(map(taps_per_pixel, axes))} land on one"
        )
    steps = [
        tap_step(axis) * tap_stride - block_step(axis) * block_stride if taps_per_pixel(axis) > 1 else 0
        for axis, tap_stride, block_stride in zip(axes, view.tap_strides, view.block_strides, strict=True)
    ]
    shared = struct(
        columns_batch=wide(view.columns_batch),
        image_batch=wide(view.image_batch),
        columns_channel=offset(view.columns_channel),
        image_channel=offset(view.image_channel),
        channels=offset(view.channels),
        items=offset(shape.items),
        size=offset([axis.size for axis in axes]),
        blocks=offset(view.blocks),
        pad=offset([axis.pad_begin for axis in axes]),
        tap_stride=offset(view.tap_strides),
        block_stride=offset(view.block_strides),
        tap_step_stride=offset(steps),
        pixel_stride=offset(view.pixel_strides),
        by_extent=divisor(shape.extents),
        by_channels=divisor(shape.channel_groups),
    )
    compiled = {
        "SCALAR": problem.call.source_scalar,
        "RESULT": view.element.scalar,
        "ACCUMULATOR": view.element.accumulator,
        "KERNEL": view.kernel,
        "STRIDE": [axis.stride for axis in axes],
        "DILATION": [axis.dilation for axis in axes],
        **fusion_defines(problem),
        **defines,
    }
    return make_plan(
        problem,
        variant,
        shape,
        reason,
        compiled,
        {"shared": shared, **(members or {})},
        **(kernel or {}),
        takes_window=True,
        atomic_output=scatters,
        reads_output=problem.fusion.accumulate,
    )
