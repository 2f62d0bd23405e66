"""The kernels of kernels/unfold.cuh, which take sliding blocks out of an array: im2col and space_to_batch alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import gcd, prod

from gpufold.calls import Unsupported
from gpufold.gpu.parameters import INT32_MAX, divisor, offset, offset_bits, wide
from gpufold.gpu.plan import MAX_GRID_ROWS, Device, Plan, Work, planes_per_thread, planned
from gpufold.gpu.variants.moves import (
    LINE_BYTES,
    MOVING_THREADS,
    PLANES_PER_THREAD,
    WARP,
    Moves,
    chunk_size,
    device_threads,
    tile_bytes,
    word_elements,
    word_types,
)

OVERLAPPING_PLANES_PER_THREAD = 4
"""Planes that share a thread's index arithmetic at most where blocks overlap: more planes keep more columns in flight
and drive the image out of the L2 cache before the next block reads it again: predictions."""

DIRECT_TAPS = 8
"""Taps that a thread of the direct kernels holds at once, by a prediction of its registers."""

STAGED_TAPS = 16
"""Of a staged tile's row at most, no more than a cache line: a prediction of registers for so many loads."""

STAGED_WORDS = 4
"""Words of a staged tile's row that a lane each loads, where these are of several taps: fewer if those are more than
twice STAGED_TAPS, more up to STAGED_TAPS; by a prediction of registers."""

STAGED_LINES = 8
"""Prediction: cache lines that a warp's load along the blocks touches from which on loads are staged."""

NEAR_WORDS = 4
"""Prediction: words between neighbouring blocks up to which each thread loads those of its own taps all the same."""


@dataclass(frozen=True, slots=True)
class Unfold:
    """A call that takes blocks out of an array."""

    operation: str
    moves: Moves
    bytes_moved: int
    element_types: Mapping[str, str] = field(default_factory=dict)
    """The types to compile and the kind of window, where one is multiplied in; axes and elements then stay apart."""
    takes_window: bool = False
    """Whether the kernel has a window's pointers among its arguments."""

    def simplified(self) -> Unfold:
        """Merge axes and widen elements, where these are only moved."""
        moves = self.moves.with_batch_as_planes() if self.element_types else self.moves.simplified()
        return replace(self, moves=moves)


def _lines(moves: Moves) -> float:
    """Return the cache lines from which a warp loads a pixel of each of its blocks, where that is none of the pads."""
    lines, lanes = 1.0, float(WARP)
    distances = [(axis.blocks, axis.stride * axis.pixel_step) for axis in reversed(moves.axes)]
    for count, distance in (*distances, (moves.planes, moves.array_plane_step)):
        beside = max(1.0, min(lanes, count))
        lines = min(beside * lines, lines + (beside - 1) * abs(distance) * moves.itemsize / LINE_BYTES)
        lanes /= beside
    last = moves.axes[-1]
    return lines * min(1.0, last.size / (last.blocks * last.stride))


def _taps_at_once(moves: Moves) -> int:
    """Count the taps of a row whose pixels are one aligned word, which lies in the padding as a whole or not at all."""
    *outer, last = moves.axes
    if last.pixel_step != 1 or last.dilation != 1:
        return 1
    multiples = [last.kernel, last.stride, last.pad, last.size, *(axis.pixel_step for axis in outer)]
    multiples += [moves.array_plane_step] if moves.planes > 1 else []
    multiples += [moves.array_batch_step] if moves.batch > 1 else []
    return word_elements(moves.itemsize, moves.alignment, multiples)


def _loads_touch(moves: Moves) -> str:
    return f"loads along the blocks touch {_lines(moves):.0f} cache lines a warp"


def is_direct(moves: Moves) -> bool:
    """Return whether loads along the blocks touch few lines, or are words whose blocks lie side by side."""
    last, at_once = moves.axes[-1], _taps_at_once(moves)
    words = at_once > 1 and last.kernel <= last.stride <= NEAR_WORDS * at_once
    return words or _lines(moves) < STAGED_LINES


def _sharing_step(moves: Moves, chunk_taps: int) -> int:
    """Count the chunks of taps from one that reads a pixel to the next that reads it for a neighbouring block."""
    *outer, last = moves.axes
    chunks_per_row = -(-last.kernel // chunk_taps)
    if outer and outer[-1].kernel > 1:
        return outer[-1].stride // gcd(outer[-1].stride, outer[-1].dilation) * chunks_per_row
    return max(1, last.stride // max(1, chunk_taps * last.dilation))


def _warp_span(moves: Moves, planes: int) -> int:
    """Bound how far apart the planes of a warp's threads are in the array, where a thread has so many."""
    reached = moves.planes if moves.batch > 1 else min(moves.planes, WARP * planes)
    return (min(moves.batch, WARP) - 1) * abs(moves.array_batch_step) + reached * abs(moves.array_plane_step)


def plan(
    unfold: Unfold, variant: str, device: Device, chunk_taps: int, reason: str, row_blocks: int = 0, **defines: int
) -> Plan:
    """Plan threads along the blocks, each with a few planes and chunks of taps; `defines` are the variant's own."""
    moves, staged = unfold.moves, variant == "staged"
    axes, kernel_width = moves.axes, moves.axes[-1].kernel
    if kernel_width > INT32_MAX:
        raise Unsupported(
            f"{unfold.operation}: {variant} knows the taps of a row as it is compiled, in 32 bits, but the last axis "
            f"has {kernel_width}"
        )
    chunks = moves.taps // kernel_width * -(-kernel_width // chunk_taps)
    places = moves.batch * prod(axis.blocks for axis in axes)
    overlapping = any(axis.kernel * axis.dilation > axis.stride for axis in axes)
    most = OVERLAPPING_PLANES_PER_THREAD if overlapping else PLANES_PER_THREAD
    apart = min(chunks, 2) if overlapping else chunks  # those with the same pixels stay together
    planes = planes_per_thread(moves.planes, places * apart, most, device_threads(device))
    groups = -(-moves.planes // planes)
    threads = places * groups
    step = min(chunks, _sharing_step(moves, chunk_taps)) if staged else 1
    sharing = -(-chunks // step)
    turns = step * sharing
    grid_rows = min(turns, MAX_GRID_ROWS, max(1, device_threads(device) // threads))
    turns_per_thread = -(-turns // grid_rows)
    if overlapping and sharing <= 2 * turns_per_thread:  # chunks that share pixels stay together
        turns_per_thread = -(-turns_per_thread // sharing) * sharing
    bits = offset_bits(
        unfold.operation,
        threads + MOVING_THREADS,
        moves.planes,
        moves.taps + chunks,
        turns + turns_per_thread,
        4 * max(axis.reach for axis in axes),
        sum(axis.reach * abs(axis.pixel_step) for axis in axes) + (_warp_span(moves, planes) if staged else 0),
        moves.taps * abs(moves.tap_step) + sum(axis.blocks * abs(axis.block_step) for axis in axes),
    )
    work = Work(
        threads,
        MOVING_THREADS,
        MOVING_THREADS,
        tuple(axis.blocks for axis in axes),
        groups,
        bits,
        _staged_bytes(chunk_taps, moves.itemsize, defines["TAPS_AT_ONCE"]) if staged else 0,
        -(-turns // turns_per_thread),
    )
    return planned(
        unfold.operation,
        variant,
        work,
        reason,
        {
            **(unfold.element_types or word_types(moves.itemsize)),
            "SPATIAL_RANK": len(axes),
            "KERNEL_WIDTH": kernel_width,
            "CHUNK_TAPS": chunk_taps,
            "TAPS_AT_ONCE": 1,
            **defines,
        },
        {
            "size": offset([axis.size for axis in axes]),
            "stride": offset([axis.stride for axis in axes]),
            "dilation": offset([axis.dilation for axis in axes]),
            "pad": offset([axis.pad for axis in axes]),
            "pixel_step": offset([axis.pixel_step for axis in axes]),
            "block_step": offset([axis.block_step for axis in axes]),
            "tap_step": offset(moves.tap_step),
            "blocks": divisor(work.extents),
            "kernel": divisor([axis.kernel for axis in axes]),
            "plane_groups": divisor(groups),
            "planes": offset(moves.planes),
            "planes_per_thread": offset(planes),
            "chunks": offset(chunks),
            "turns": offset(turns),
            "turns_per_thread": offset(turns_per_thread),
            "sharing_chunks": divisor(sharing),
            "sharing_step": offset(step),
            "threads": offset(threads),
            "row_blocks": offset(row_blocks),
            "image_batch_step": wide(moves.array_batch_step),
            "image_plane_step": wide(moves.array_plane_step),
            "columns_batch_step": wide(moves.blocks_batch_step),
            "columns_plane_step": wide(moves.blocks_plane_step),
        },
        bytes_moved=unfold.bytes_moved,
        takes_window=unfold.takes_window,
    )


def _staged_bytes(chunk_taps: int, itemsize: int, at_once: int) -> int:
    """Count the shared memory of a thread block's tiles of kernels/unfold.cuh, one for each warp."""
    return MOVING_THREADS * chunk_taps * itemsize if at_once > 1 else tile_bytes(chunk_taps, itemsize)


def direct(unfold: Unfold, device: Device) -> Plan:
    """Plan the kernel in which a thread stores what it loads."""
    unfold = unfold.simplified()
    moves = unfold.moves.with_rows_as_planes(PLANES_PER_THREAD)
    taps = DIRECT_TAPS if moves.itemsize <= 8 else DIRECT_TAPS // 2
    at_once = _taps_at_once(moves)
    reason = f"{_loads_touch(moves)}, few enough for the L1 cache" if is_direct(moves) else "it serves every call"
    if at_once > 1 and moves.itemsize <= 4:
        taps *= 2  # of half as many planes
    chunk = at_once * chunk_size(moves.axes[-1].kernel // at_once, taps // at_once)
    return plan(replace(unfold, moves=moves), "direct", device, chunk, reason, TAPS_AT_ONCE=at_once)


def staged(unfold: Unfold, device: Device) -> Plan:
    """Plan the kernel that loads along the taps and stores along the blocks."""
    unfold = unfold.simplified()
    last = unfold.moves.axes[-1]
    if last.kernel == 1:
        raise Unsupported(f"{unfold.operation}: staged loads need more than one tap along the last axis to run along")
    at_once = _taps_at_once(unfold.moves)
    if at_once > 1:
        most = min(2 * STAGED_TAPS, max(STAGED_TAPS, STAGED_WORDS * at_once)) // at_once
        taps = at_once * min(most, 1 << (last.kernel // at_once - 1).bit_length())
    else:
        taps = chunk_size(last.kernel, min(STAGED_TAPS, LINE_BYTES // unfold.moves.itemsize))
    reason = f"{_loads_touch(unfold.moves)}, those along the taps fewer"
    return plan(unfold, "staged", device, taps, reason, TAPS_AT_ONCE=at_once)
