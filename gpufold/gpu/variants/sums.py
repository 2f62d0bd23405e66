"""Common parts of the plans of col2im."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any, TypeVar

from gpufold.calls import Unsupported
from gpufold.gpu.parameters import INT32_MAX, Field, divisor, offset, struct, wide
from gpufold.gpu.plan import LaunchShape, Plan, Problem, make_plan
from gpufold.gpu.variants.columns import fusion_defines, view_of
from gpufold.gpu.variants.views import View

MAX_UNROLLED = 128
"""Bound of the registers that kernels/col2im.cuh counts for the loads of a tap."""


def largest_offset(view: View) -> int:
    """Bound the offsets of a kernel in a plane, including those of taps that do not exist, and to the next plane."""
    columns = sum(
        (axis.kernel + axis.tap_step) * abs(axis.tap_stride)
        + (axis.blocks + 2 * (axis.dilated_kernel // axis.stride + 1) + axis.block_step) * abs(axis.block_stride)
        for axis in view.axes
    )
    image = sum((axis.size + axis.stride - 1) * abs(axis.pixel_stride) for axis in view.axes)
    padded = max(axis.padded_size + axis.stride + axis.dilated_kernel for axis in view.axes)
    unrolled = MAX_UNROLLED * prod(axis.taps_per_pixel for axis in view.axes)
    steps = (axis.tap_step * max(axis.tap_step, axis.block_step) for axis in view.axes)
    planes = abs(view.blocks_plane), abs(view.array_plane)
    return max(columns, image, padded, view.taps, unrolled, view.planes, *planes, *steps)


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
    axes, most = view.axes, max(axis.taps_per_pixel for axis in view.axes)
    if not scatters and MAX_UNROLLED * most > INT32_MAX:
        raise Unsupported(
            f"{variant} counts the taps of a pixel along an axis, {INT32_MAX // MAX_UNROLLED} at most, "
            f"but up to {most} land on one"
        )
    steps = [
        axis.tap_step * axis.tap_stride - axis.block_step * axis.block_stride if axis.taps_per_pixel > 1 else 0
        for axis in axes
    ]
    shared = struct(
        columns_batch=wide(view.blocks_batch),
        image_batch=wide(view.array_batch),
        columns_channel=offset(view.blocks_plane),
        image_channel=offset(view.array_plane),
        channels=offset(view.planes),
        items=offset(shape.items),
        size=offset([axis.size for axis in axes]),
        blocks=offset(view.blocks),
        pad=offset([axis.pad for axis in axes]),
        tap_stride=offset(view.tap_strides),
        block_stride=offset([axis.block_stride for axis in axes]),
        tap_step_stride=offset(steps),
        pixel_stride=offset([axis.pixel_stride for axis in axes]),
        by_extent=divisor(shape.extents),
        by_channels=divisor(shape.channel_groups),
    )
    compiled = {
        "SCALAR": problem.call.source_scalar,
        "RESULT": problem.element.scalar,
        "ACCUMULATOR": problem.element.accumulator,
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
        atomic_output=scatters,
        reads_output=problem.fusion.accumulate,
    )
