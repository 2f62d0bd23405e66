"""The plan of im2col_per_block, for im2col and space_to_batch, and what other plans of im2col share with it."""

from __future__ import annotations

from math import prod

from gpufold.calls import Unsupported
from gpufold.gpu.parameters import INT32_MAX, Field, divisor, offset, offset_bits, wide
from gpufold.gpu.plan import MAX_GRID_ROWS, LaunchShape, Plan, Problem, make_plan, planes_per_thread
from gpufold.gpu.variants.columns import fusion_defines
from gpufold.gpu.variants.views import MOVING_THREADS, PLANES_PER_THREAD, View, chunk_size, device_threads, word_types

OVERLAPPING_PLANES_PER_THREAD = 4
"""Guess: most planes that share a thread's index arithmetic if blocks overlap. More planes keep more columns in flight
and evict the image from the L2 cache before the next block reads it again."""

PER_BLOCK_TAPS = 8
"""Guess, by registers: most taps that a thread of per_block holds at once."""


def types_of(problem: Problem, itemsize: int) -> dict[str, str]:
    """Return the types of elements and window; elements that are only copied have a type of their size."""
    if problem.fusion.window == "none":
        return word_types(itemsize)
    types = {"SCALAR": problem.element.scalar, "ACCUMULATOR": problem.element.accumulator}
    return types | fusion_defines(problem)


def taps_at_once(view: View) -> int:
    """Count the taps of a row whose pixels are one aligned word, which lies in the padding as a whole or not at all."""
    last = view.axes[-1]
    return view.pixels_at_once(view.alignment, last.kernel, last.stride, last.pad) if last.dilation == 1 else 1


def sliding(view: View) -> dict[str, Field]:
    """Return the members of Sliding in kernels/sliding.cuh."""
    axes = view.axes
    return {
        "size": offset([axis.size for axis in axes]),
        "stride": offset([axis.stride for axis in axes]),
        "dilation": offset([axis.dilation for axis in axes]),
        "pad": offset([axis.pad for axis in axes]),
        "pixel_step": offset([axis.pixel_stride for axis in axes]),
    }


def plane_steps(view: View) -> dict[str, Field]:
    """Return the steps from an image or a plane to the next, which are the last members."""
    return {
        "image_batch_step": wide(view.array_batch),
        "image_plane_step": wide(view.array_plane),
        "columns_batch_step": wide(view.blocks_batch),
        "columns_plane_step": wide(view.blocks_plane),
    }


def per_block(problem: Problem, view: View) -> Plan:
    """Plan kernels/im2col_per_block.cu: threads along the blocks, each with a few planes and chunks of taps."""
    view = view.with_rows_as_planes()
    axes, kernel_width, enough = view.axes, view.axes[-1].kernel, device_threads(problem.device)
    if kernel_width > INT32_MAX:
        raise Unsupported(
            f"per_block knows the taps of a row as it is compiled, in 32 bits, but the last axis has {kernel_width}"
        )
    at_once = taps_at_once(view)
    taps = PER_BLOCK_TAPS if view.itemsize <= 8 else PER_BLOCK_TAPS // 2
    if at_once > 1 and view.itemsize <= 4:
        taps *= 2  # of half as many planes
    chunk_taps = at_once * chunk_size(kernel_width // at_once, taps // at_once)
    chunks = view.taps // kernel_width * -(-kernel_width // chunk_taps)
    places = view.batch * prod(view.blocks)
    overlapping = any(axis.kernel * axis.dilation > axis.stride for axis in axes)
    most = OVERLAPPING_PLANES_PER_THREAD if overlapping else PLANES_PER_THREAD
    apart = min(chunks, 2) if overlapping else chunks  # those with the same pixels stay together
    planes = planes_per_thread(view.planes, places * apart, most, enough)
    groups = -(-view.planes // planes)
    threads = places * groups
    grid_rows = min(chunks, MAX_GRID_ROWS, max(1, enough // threads))
    per_thread = -(-chunks // grid_rows)
    if overlapping and chunks <= 2 * per_thread:  # those that share pixels stay together
        per_thread = chunks
    bits = offset_bits(
        threads + MOVING_THREADS,
        view.planes,
        view.taps + chunks,
        chunks + per_thread,
        4 * max(axis.reach for axis in axes),
        sum(axis.reach * abs(axis.pixel_stride) for axis in axes),
        view.taps * abs(view.tap_stride) + sum(axis.blocks * abs(axis.block_stride) for axis in axes),
    )
    rows = -(-chunks // per_thread)
    return make_plan(
        problem,
        "per_block",
        LaunchShape(threads, MOVING_THREADS, MOVING_THREADS, view.blocks, groups, bits, rows=rows),
        "neighbouring threads take neighbouring blocks",
        {
            **types_of(problem, view.itemsize),
            "SPATIAL_RANK": len(axes),
            "KERNEL_WIDTH": kernel_width,
            "CHUNK_TAPS": chunk_taps,
            "TAPS_AT_ONCE": at_once,
        },
        {
            **sliding(view),
            "block_step": offset([axis.block_stride for axis in axes]),
            "tap_step": offset(view.tap_stride),
            "blocks": divisor(view.blocks),
            "kernel": divisor(view.kernel),
            "plane_groups": divisor(groups),
            "planes": offset(view.planes),
            "planes_per_thread": offset(planes),
            "chunks": offset(chunks),
            "chunks_per_thread": offset(per_thread),
            "threads": offset(threads),
            **plane_steps(view),
        },
        file="im2col_per_block.cu",
        symbol="im2col_per_block",
    )
