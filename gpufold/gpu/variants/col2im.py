"""The kernel variants of col2im, as plans; whole_blocks.py has one more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import gcd, prod
from typing import Any

from gpufold.calls import Unsupported
from gpufold.geometry import Size
from gpufold.gpu.parameters import INT32_MAX, Field, are_contiguous, divisor, offset, offset_bits, struct, wide
from gpufold.gpu.plan import LaunchShape, Plan, Problem, check_atomics, make_plan, planes_per_thread
from gpufold.gpu.variants.columns import fusion_defines, view_of
from gpufold.gpu.variants.views import MOVING_THREADS, PLANES_PER_THREAD, SECTOR_BYTES, WARP, WIDEST_WORD, View

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


def plans_of(plan: Callable[[int], Plan], choices: Iterable[int]) -> tuple[Plan, ...]:
    """Return the plans that can be launched, of several choices; raise if there are none."""
    plans, refusals = [], []
    for choice in choices:
        try:
            plans.append(plan(choice))
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
    view = view_of(problem)
    axes, most = view.axes, max(axis.taps_per_pixel for axis in view.axes)
    if variant != "atomic" and MAX_UNROLLED * most > INT32_MAX:
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
        "SCALAR": problem.call.data_scalar,
        "RESULT": problem.element.scalar,
        "ACCUMULATOR": problem.element.accumulator,
        "KERNEL": view.kernel,
        "STRIDE": [axis.stride for axis in axes],
        "DILATION": [axis.dilation for axis in axes],
        "TAP_STEP": [axis.tap_step for axis in axes],
        "BLOCK_STEP": [axis.block_step for axis in axes],
        "INVERSE": [pow(axis.block_step, -1, axis.tap_step) for axis in axes],
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
        atomic_output=variant == "atomic",
        reads_output=problem.fusion.accumulate,
    )


# ---------------------------------------------------------------------------------------------
# gather, gather_pixels

THREADS = 128
"""Threads of a thread block: a multiprocessor has registers for five to seven such blocks, but only for two or three of
twice the size."""
PLANE_REGISTERS = 32
"""Most registers for a thread's sums or for its loads in flight: with more, the compiler would spill."""


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + "s" * (count > 1)


def _planes(problem: Problem, part: int, places: int, compiled: int) -> tuple[int, ...]:
    """Return candidates for the planes of a thread: one, or as many as are compiled in.

    Several come first if there are enough threads and planes share weights, or a thread loads less than a sector of one
    plane, as measured on an H100. They are no candidate if most planes of a thread would repeat another.
    """
    view, device = view_of(problem), problem.device
    if compiled == 1 or 2 * view.planes <= compiled:
        return (1,)
    loaded = part * prod(axis.taps_per_pixel for axis in view.axes) * view.itemsize
    enough = device.multiprocessors * device.threads_per_multiprocessor
    fills = planes_per_thread(view.planes, view.batch * places, compiled, enough) == compiled
    several = fills and (loaded < SECTOR_BYTES or problem.fusion.window != "none")
    return (compiled, 1) if several else (1, compiled)


PART_BYTES, PART_LOADED = 64, 96
"""Most bytes of a thread's neighbouring pixels (two sectors), and registers for its loads in flight, with a window's. A
part is half as long if taps are dilated, because the taps of each pixel are then kept."""
RUN_BYTES = 16
"""Bytes of shared memory for the place where a part is stored."""


def gather(problem: Problem) -> tuple[Plan, ...]:
    """Plan kernels/col2im_gather.cu for parts of cells."""
    view = view_of(problem)
    row, itemsize = view.axes[-1], view.itemsize
    part = max(_word(problem), PART_BYTES // itemsize // (2 if row.dilation != 1 else 1))
    of_pixel = row.taps_per_pixel * max(1, itemsize // 4)
    while part > _word(problem) and (part * of_pixel > PLANE_REGISTERS or part >= 2 * row.stride):
        part //= 2
    planes, weighed = PLANES_PER_THREAD // 2, problem.fusion.window != "none"
    while planes > 1 and (planes + weighed) * part * of_pixel > PART_LOADED:
        planes //= 2
    return _plans(problem, "gather", part, planes)


def gather_pixels(problem: Problem) -> tuple[Plan, ...]:
    """Plan kernels/col2im_gather.cu for pixels, or words of them."""
    part, itemsize = _pixels_with_words_of_taps(problem), problem.element.itemsize
    kept = part * (2 if itemsize == 1 else max(1, itemsize // 4))  # a byte is held widened, too
    planes = PLANES_PER_THREAD if itemsize == 2 else PLANES_PER_THREAD // 2
    while planes > 1 and planes * kept > PLANE_REGISTERS:
        planes //= 2
    return _plans(problem, "gather_pixels", part, planes)


def _pixels_with_words_of_taps(problem: Problem) -> int:
    """Return the number of pixels whose taps are one word, if both arrays consist of such words, else 1."""
    view = view_of(problem)
    *outer, row = view.axes
    itemsizes = problem.call.data_element.itemsize, view.itemsize
    word = gcd(WIDEST_WORD // max(itemsizes), row.kernel, row.stride) if row.dilation == 1 else 1
    columns = (*view.tap_strides[:-1], *(axis.block_stride for axis in view.axes), *view.blocks_strides)
    image = (*(axis.pixel_stride for axis in outer), *view.array_strides)
    whole = not any(extent % word for extent in (row.pad, row.size, *columns, *image))
    follow = row.tap_stride == row.pixel_stride == 1
    alignments = problem.input.alignment, problem.output.alignment
    aligned = not any(at % (word * size) for at, size in zip(alignments, itemsizes, strict=True))
    return word if whole and follow and aligned else 1


def _word(problem: Problem) -> int:
    """Return the pixels of the widest word that divides a stride."""
    row, itemsize = view_of(problem).axes[-1], problem.element.itemsize
    return gcd(row.stride * itemsize, WIDEST_WORD) // itemsize


def _stores_words(problem: Problem, word: int) -> bool:
    """Return whether rows of the image, counted from the padding, consist of aligned words of `word` pixels."""
    view = view_of(problem)
    *outer, row = view.axes
    steps = (*(axis.pixel_stride for axis in outer), *view.array_strides, row.size, row.pad)
    aligned = problem.output.alignment % (word * view.itemsize) == 0
    return word > 1 and row.pixel_stride == 1 and aligned and not any(step % word for step in steps)


def _plans(problem: Problem, variant: str, part: int, at_most: int) -> tuple[Plan, ...]:
    """Plan threads that own `part` neighbouring pixels and are numbered by pixels or by parts of cells."""
    view = view_of(problem)
    *outer, row = view.axes
    itemsize, of_pixels = view.itemsize, variant == "gather_pixels"
    if of_pixels:
        extents: Size = (*(axis.size for axis in outer), row.size // part)
        cells, past_row = (1,) * len(view.axes), 0
        word, words = part, part > 1
    else:
        parts, met = -(-row.stride // part), -(-row.size // part) + 1
        if parts > THREADS * met:  # with fewer, a race may decide
            raise Unsupported(
                f"gather has threads for all {row.stride} pixels of a stride along the last axis, which has {row.size}"
            )
        extents = (*(min(axis.stride, axis.size) for axis in outer), parts)
        in_row = (row.pad + row.size - 1) // row.stride - row.pad // row.stride + 1  # cells begin where blocks do
        cells = (*(-(-axis.size // axis.stride) for axis in outer), in_row)
        past_row = (row.stride + part) * (1 + abs(row.tap_stride) + abs(row.pixel_stride))
        word = _word(problem)
        words = _stores_words(problem, word)
    places = prod(extents) * prod(cells)

    def plan(planes: int) -> Plan:
        groups = -(-view.planes // planes)
        items = view.batch * groups * places
        bits = offset_bits(largest_offset(view) + past_row, items + THREADS)
        tile_bytes = THREADS // WARP * -(-planes * (WARP + 1) * part * itemsize // 16) * 16 + THREADS * RUN_BYTES
        return sum_plan(
            problem,
            variant,
            LaunchShape(items, THREADS, THREADS, extents, groups, bits, 0 if of_pixels else tile_bytes),
            f"each thread adds up the taps of {_counted(part, 'neighbouring pixel')} of {_counted(planes, 'plane')}, "
            f"stored {f'in words of {word * itemsize} bytes' if words else 'one by one'}",
            {
                "in_front": offset(row.pad % row.stride),
                "first_block": offset(row.pad // row.stride),
                "by_cells": divisor(cells),
            },
            {"file": "col2im_gather.cu", "symbol": "col2im_gather" + "_words" * words + "_planes" * (planes > 1)},
            NUMBERING="pixels" if of_pixels else "parts",
            PART=part,
            WORD=word,
            PLANES=at_most,
        )

    return plans_of(plan, _planes(problem, part, places, at_most))


# ---------------------------------------------------------------------------------------------
# atomic


def atomic(problem: Problem) -> Plan:
    """Plan for kernels/col2im_atomic.cu."""
    view = view_of(problem)
    check_atomics(problem.call.dtype)
    if problem.fusion.reduction != "sum":
        raise Unsupported("atomic cannot divide a pixel, whose last addition no thread knows of")
    if not problem.fusion.accumulate and not are_contiguous(problem.output.shape, problem.output.strides):
        raise Unsupported("atomic zeroes the image first, so out must be C-contiguous")
    items = view.batch * view.planes * view.taps * prod(view.blocks)
    bits = offset_bits(largest_offset(view), items + MOVING_THREADS)
    return sum_plan(
        problem,
        "atomic",
        LaunchShape(items, MOVING_THREADS, MOVING_THREADS, view.blocks, view.planes, bits),
        "each thread adds one element of the columns to its pixel with an atomic operation",
        {"by_tap": divisor(view.kernel)},
    )
