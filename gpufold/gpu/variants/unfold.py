"""Plans of the kernels of kernels/unfold.cuh, which extract sliding blocks: im2col and space_to_batch."""

from __future__ import annotations

from math import prod

from gpufold.calls import Unsupported
from gpufold.gpu.parameters import INT32_MAX, Field, divisor, offset, offset_bits, wide
from gpufold.gpu.plan import MAX_GRID_ROWS, LaunchShape, Plan, Problem, make_plan, planes_per_thread
from gpufold.gpu.variants.columns import fusion_defines
from gpufold.gpu.variants.moves import (
    MOVING_THREADS,
    PLANES_PER_THREAD,
    Moves,
    chunk_size,
    device_threads,
    word_types,
)

OVERLAPPING_PLANES_PER_THREAD = 4
"""Guess: most planes that share a thread's index arithmetic if blocks overlap. More planes keep more columns in flight
and evict the image from the L2 cache before the next block reads it again."""

DIRECT_TAPS = 8
"""Guess, by registers: most taps that a thread of the per_block kernels holds at once."""


def types_of(problem: Problem, itemsize: int) -> dict[str, str]:
    """Return the types of elements and window; elements that are only copied have a type of their size."""
    if problem.fusion.window == "none":
        return word_types(itemsize)
    element, fused = problem.element, fusion_defines(problem)
    names = ("WINDOW", "WINDOW_AXES", "WEIGHT")
    types = {"SCALAR": element.scalar, "ACCUMULATOR": element.accumulator}
    return types | {name: fused[name] for name in names if name in fused}


def taps_at_once(moves: Moves) -> int:
    """Count the taps of a row whose pixels are one aligned word, which lies in the padding as a whole or not at all."""
    last = moves.axes[-1]
    return moves.pixels_at_once(moves.alignment, last.kernel, last.stride, last.pad) if last.dilation == 1 else 1


def sliding(moves: Moves) -> dict[str, Field]:
    """Return the members of Sliding in kernels/sliding.cuh."""
    axes = moves.axes
    return {
        "size": offset([axis.size for axis in axes]),
        "stride": offset([axis.stride for axis in axes]),
        "dilation": offset([axis.dilation for axis in axes]),
        "pad": offset([axis.pad for axis in axes]),
        "pixel_step": offset([axis.pixel_step for axis in axes]),
    }


def plane_steps(moves: Moves) -> dict[str, Field]:
    """Return the steps from an image or a plane to the next, in the array and in the columns."""
    return {
        "image_batch_step": wide(moves.array_batch_step),
        "image_plane_step": wide(moves.array_plane_step),
        "columns_batch_step": wide(moves.blocks_batch_step),
        "columns_plane_step": wide(moves.blocks_plane_step),
    }


def plan(problem: Problem, moves: Moves, variant: str, chunk_taps: int, reason: str, **defines: int) -> Plan:
    """Plan threads along the blocks, each with a few planes and chunks of taps; `defines` are the variant's own."""
    axes, kernel_width, enough = moves.axes, moves.axes[-1].kernel, device_threads(problem.device)
    if kernel_width > INT32_MAX:
        raise Unsupported(
            f"{variant} knows the taps of a row as it is compiled, in 32 bits, but the last axis has {kernel_width}"
        )
    chunks = moves.taps // kernel_width * -(-kernel_width // chunk_taps)
    places = moves.batch * prod(axis.blocks for axis in axes)
    overlapping = any(axis.kernel * axis.dilation > axis.stride for axis in axes)
    most = OVERLAPPING_PLANES_PER_THREAD if overlapping else PLANES_PER_THREAD
    apart = min(chunks, 2) if overlapping else chunks  # those with the same pixels stay together
    planes = planes_per_thread(moves.planes, places * apart, most, enough)
    groups = -(-moves.planes // planes)
    threads = places * groups
    grid_rows = min(chunks, MAX_GRID_ROWS, max(1, enough // threads))
    per_thread = -(-chunks // grid_rows)
    if overlapping and chunks <= 2 * per_thread:  # those that share pixels stay together
        per_thread = chunks
    bits = offset_bits(
        threads + MOVING_THREADS,
        moves.planes,
        moves.taps + chunks,
        chunks + per_thread,
        4 * max(axis.reach for axis in axes),
        sum(axis.reach * abs(axis.pixel_step) for axis in axes),
        moves.taps * abs(moves.tap_step) + sum(axis.blocks * abs(axis.block_step) for axis in axes),
    )
    shape = LaunchShape(
        threads,
        MOVING_THREADS,
        MOVING_THREADS,
        tuple(axis.blocks for axis in axes),
        groups,
        bits,
        rows=-(-chunks // per_thread),
    )
    return make_plan(
        problem,
        variant,
        shape,
        reason,
        {
            **types_of(problem, moves.itemsize),
            "SPATIAL_RANK": len(axes),
            "KERNEL_WIDTH": kernel_width,
            "CHUNK_TAPS": chunk_taps,
            "TAPS_AT_ONCE": 1,
            **defines,
        },
        {
            **sliding(moves),
            "block_step": offset([axis.block_step for axis in axes]),
            "tap_step": offset(moves.tap_step),
            "blocks": divisor(shape.extents),
            "kernel": divisor([axis.kernel for axis in axes]),
            "plane_groups": divisor(groups),
            "planes": offset(moves.planes),
            "planes_per_thread": offset(planes),
            "chunks": offset(chunks),
            "chunks_per_thread": offset(per_thread),
            "threads": offset(threads),
            **plane_steps(moves),
        },
        takes_window=problem.call.operation != "space_to_batch",
    )


def per_block(problem: Problem, moves: Moves) -> Plan:
    """Plan the kernel in which a thread stores what it loads."""
    moves = moves.with_rows_as_planes()
    taps = DIRECT_TAPS if moves.itemsize <= 8 else DIRECT_TAPS // 2
    at_once = taps_at_once(moves)
    if at_once > 1 and moves.itemsize <= 4:
        taps *= 2  # of half as many planes
    chunk = at_once * chunk_size(moves.axes[-1].kernel // at_once, taps // at_once)
    reason = "neighbouring threads take neighbouring blocks"
    return plan(problem, moves, "per_block", chunk, reason, TAPS_AT_ONCE=at_once)
