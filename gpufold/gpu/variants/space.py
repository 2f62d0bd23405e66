"""The kernel variants of batch_to_space and space_to_batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd, prod
from typing import Any

from gpufold.calls import Unsupported
from gpufold.geometry import SpaceGeometry
from gpufold.gpu.parameters import contiguous_strides, divisor, offset, offset_bits, offset_type, pack, wide
from gpufold.gpu.plan import MAX_GRID_ROWS, Operand, Plan, Problem, Variant, grid_of, planes_per_thread
from gpufold.gpu.variants import unfolding
from gpufold.gpu.variants.moves import (
    MOVING_THREADS,
    WIDEST_WORD,
    MovedAxis,
    Moves,
    chunk_size,
    device_threads,
    tile_bytes,
    word_elements,
    word_types,
)
from gpufold.gpu.variants.unfolding import PLANES_PER_THREAD, STAGED_ROW_BYTES, STAGED_TAPS, Unfold

INDEX_MAP_BLOCK = 3
"""Prediction: phases of the last axis from which batch_to_space stages its loads, where each of a warp's loads would be
that many runs."""


def _moves(problem: Problem, writes_blocks: bool) -> Moves:
    """Describe the batch as blocks whose stride is their size, and space as the array they tile."""
    geometry = problem.geometry
    assert isinstance(geometry, SpaceGeometry)
    batch, space = (problem.output, problem.input) if writes_blocks else (problem.input, problem.output)
    tap_steps = (geometry.batch * batch.strides[0] * step for step in contiguous_strides(geometry.block))
    axes = zip(geometry.axes, geometry.grid, space.strides[1:], tap_steps, batch.strides[1:], strict=True)
    return Moves(
        itemsize=problem.element.itemsize,
        alignment=gcd(problem.input.alignment, problem.output.alignment),
        writes_blocks=writes_blocks,
        batch=1,
        planes=geometry.batch,
        array_batch_step=0,
        array_plane_step=space.strides[0],
        blocks_batch_step=0,
        blocks_plane_step=batch.strides[0],
        axes=tuple(
            MovedAxis(axis.size, axis.kernel, axis.stride, 1, axis.pad_begin, count, *steps)
            for axis, count, *steps in axes
        ),
    )


def _bytes_moved(problem: Problem) -> int:
    return (prod(problem.input.shape) + prod(problem.output.shape)) * problem.element.itemsize


def _word_of_blocks(variant: str, moves: Moves, space: Operand) -> int:
    """Count the pixels of the widest word of whole blocks that rows of space consist of."""
    *outer, last = moves.axes
    if last.is_unit:
        raise Unsupported(f"{variant} needs a last axis that is split")
    if last.pixel_step != 1:
        raise Unsupported(f"{variant} needs a contiguous last axis of space, not a step of {last.pixel_step}")
    if last.kernel & (last.kernel - 1) or last.kernel * moves.itemsize > WIDEST_WORD:
        raise Unsupported(
            f"{variant} needs blocks of 2, 4, 8 or {WIDEST_WORD} bytes along the last axis, "
            f"not {last.kernel} elements of {moves.itemsize} bytes"
        )
    pixels = [last.size, *(axis.pixel_step for axis in outer)]
    pixels += [moves.array_plane_step] if moves.planes > 1 else []
    word_pixels = word_elements(moves.itemsize, space.alignment, pixels)
    if word_pixels < last.kernel:
        raise Unsupported(
            f"{variant} needs rows of whole blocks, aligned to {last.kernel * moves.itemsize} bytes, "
            f"not of {last.size} elements of {moves.itemsize}"
        )
    return word_pixels


# ---------------------------------------------------------------------------------------------
# space_to_batch: sliding blocks whose stride is their size


def _unfold(problem: Problem) -> Unfold:
    return Unfold("space_to_batch", _moves(problem, writes_blocks=True), _bytes_moved(problem))


def space_to_batch_direct(problem: Problem) -> Plan:
    """Plan one thread per block: any call, fast while blocks are small."""
    return unfolding.direct(_unfold(problem), problem.device)


def space_to_batch_staged(problem: Problem) -> Plan:
    """Plan one warp per 32 blocks through shared memory: large blocks."""
    return unfolding.staged(_unfold(problem), problem.device)


def deinterleave(problem: Problem) -> Plan:
    """Plan one thread per word of whole blocks, taken apart in registers."""
    found = _unfold(problem).simplified()
    moves = found.moves.with_rows_as_planes(PLANES_PER_THREAD)
    *outer, last = moves.axes
    word_pixels = _word_of_blocks("space_to_batch: deinterleave", moves, problem.input)
    ends_before = -last.pad % last.kernel
    count = 1
    if last.block_step == 1 and not ends_before:
        stores = [last.blocks, last.pad // last.kernel, moves.tap_step, *(axis.block_step for axis in outer)]
        stores += [moves.blocks_plane_step] if moves.planes > 1 else []
        count = min(word_pixels // last.kernel, word_elements(moves.itemsize, problem.output.alignment, stores))
    width = count * last.kernel
    words = replace(
        last,
        stride=width,
        pad=last.pad + ends_before,
        blocks=last.blocks // count + (ends_before > 0),
        block_step=last.block_step * count,
    )
    blocks = "the end of a block and the beginning of the next" if ends_before else f"{count} blocks of {last.kernel}"
    return unfolding.plan(
        replace(found, moves=replace(moves, axes=(*outer, words))),
        "deinterleave",
        problem.device,
        last.kernel,
        f"rows are whole words of {width * moves.itemsize} bytes, each {blocks}",
        BLOCKS_PER_WORD=count,
        PIXELS_BEFORE=ends_before,
    )


def prefer_to_batch(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield the variants that are predicted to be fastest, with why."""
    yield "deinterleave", ""
    yield from unfolding.prefer(_unfold(problem))


# ---------------------------------------------------------------------------------------------
# batch_to_space: pixel e is phase (e + pad) % kernel of block (e + pad) // kernel along each axis


def _simplified(problem: Problem) -> Moves:
    return _moves(problem, writes_blocks=False).simplified().with_rows_as_planes(PLANES_PER_THREAD)


def _plan(
    problem: Problem,
    variant: str,
    last_places: int,
    reason: str,
    grid_rows: int = 1,
    shared_bytes: int = 0,
    **defines: Any,
) -> Plan:
    """Plan threads along the pixels of all axes but the last, which is cut into so many places."""
    operation, moves = "batch_to_space", _simplified(problem)
    axes = moves.axes
    places = (*(axis.size for axis in axes[:-1]), last_places)
    planes = planes_per_thread(moves.planes, prod(places), PLANES_PER_THREAD, device_threads(problem.device))
    threads = prod(places) * -(-moves.planes // planes)
    bits = offset_bits(
        operation,
        threads + MOVING_THREADS,
        moves.planes,
        2 * max((axis.blocks + 1) * axis.kernel for axis in axes),
        sum((axis.blocks + 1) * abs(axis.block_step) + axis.kernel * abs(axis.tap_step) for axis in axes),
        sum(axis.size * abs(axis.pixel_step) for axis in axes)
        + min(moves.planes, 32 * planes) * abs(moves.array_plane_step) * (variant == "staged"),
    )
    symbol = f"{operation}_{variant}"
    return Plan(
        operation=operation,
        variant=variant,
        source=f"{symbol}.cu",
        symbol=symbol,
        defines=(
            *word_types(moves.itemsize),
            ("OFFSET", offset_type(bits)),
            ("SPATIAL_RANK", str(len(axes))),
            ("THREADS", str(MOVING_THREADS)),
            *((name, str(value)) for name, value in defines.items()),
        ),
        grid=grid_of(operation, threads, MOVING_THREADS, rows=grid_rows),
        block=(MOVING_THREADS, 1, 1),
        parameters=pack(
            bits,
            crop=offset([axis.pad for axis in axes]),
            grid_step=offset([axis.block_step for axis in axes]),
            phase_step=offset([axis.tap_step for axis in axes]),
            pixel_step=offset([axis.pixel_step for axis in axes]),
            block=divisor([axis.kernel for axis in axes]),
            places=divisor(places),
            width=offset(axes[-1].size),
            planes=offset(moves.planes),
            planes_per_thread=offset(planes),
            threads=offset(threads),
            batch_plane_step=wide(moves.blocks_plane_step),
            space_plane_step=wide(moves.array_plane_step),
        ),
        bytes_moved=_bytes_moved(problem),
        reason=reason,
        shared_bytes=shared_bytes,
    )


def index_map(problem: Problem) -> Plan:
    """Plan one thread per pixel: any call, fast while the last axis is not split or into few phases."""
    moves = _simplified(problem)
    last = moves.axes[-1]
    reason = (
        f"the last axis is not split, so {moves.itemsize} bytes move as one word"
        if last.is_unit
        else f"the last axis is split into {last.kernel} phases, whose loads share cache lines"
    )
    return _plan(problem, "index_map", last.size, reason)


def interleave(problem: Problem) -> Plan:
    """Plan one thread per word of whole blocks, put together in registers."""
    moves = _simplified(problem)
    *outer, last = moves.axes
    word_pixels = _word_of_blocks("batch_to_space: interleave", moves, problem.output)
    count = word_pixels // last.kernel
    loads = [last.pad // last.kernel, last.tap_step]
    loads += [step for axis in outer for step in (axis.block_step, axis.tap_step)]
    loads += [moves.blocks_plane_step] if moves.planes > 1 else []
    wide_loads = (
        last.pad % last.kernel == 0
        and last.block_step == 1
        and word_elements(moves.itemsize, problem.input.alignment, loads) >= count
    )
    return _plan(
        problem,
        "interleave",
        last.size // word_pixels,
        f"rows are whole words of {word_pixels * moves.itemsize} bytes, each {count} blocks of {last.kernel}",
        BLOCK_WIDTH=last.kernel,
        BLOCKS_PER_WORD=count,
        WIDE_LOADS=int(wide_loads),
    )


def staged(problem: Problem) -> Plan:
    """Plan one warp per 32 blocks through shared memory."""
    moves = _simplified(problem)
    last = moves.axes[-1]
    if last.is_unit:
        raise Unsupported("batch_to_space: staged stores need a last axis that is split")
    chunk = chunk_size(last.kernel, min(STAGED_TAPS, STAGED_ROW_BYTES // moves.itemsize))
    grid_rows = -(-last.kernel // chunk)
    if grid_rows > MAX_GRID_ROWS:
        raise Unsupported(f"batch_to_space: staged serves no blocks of {last.kernel} pixels along the last axis")
    return _plan(
        problem,
        "staged",
        -(-last.size // last.kernel),
        f"the last axis is split into {last.kernel} phases, too many runs for one load",
        grid_rows,
        tile_bytes(chunk, moves.itemsize),
        BLOCK_WIDTH=last.kernel,
        CHUNK_PHASES=chunk,
    )


def prefer_to_space(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield the variants that are predicted to be fastest, with why."""
    yield "interleave", ""
    yield "staged" if _simplified(problem).axes[-1].kernel >= INDEX_MAP_BLOCK else "index_map", ""


BATCH_TO_SPACE: dict[str, Variant] = {"index_map": index_map, "interleave": interleave, "staged": staged}

SPACE_TO_BATCH: dict[str, Variant] = {
    "deinterleave": deinterleave,
    "direct": space_to_batch_direct,
    "staged": space_to_batch_staged,
}
