"""The kernel variants of batch_to_space and space_to_batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any

from gpufold.calls import Unsupported
from gpufold.geometry import SpaceGeometry
from gpufold.gpu.parameters import contiguous_strides, divisor, int32, offset, offset_bits, offset_type, pack, wide
from gpufold.gpu.plan import Operand, Plan, Problem, Variant, grid_of, planes_per_thread
from gpufold.gpu.variants import unfolding
from gpufold.gpu.variants.moves import (
    MOVING_THREADS,
    SECTOR_BYTES,
    WIDEST_WORD,
    MovedAxis,
    Moves,
    device_threads,
    word_elements,
    word_types,
)
from gpufold.gpu.variants.unfolding import PLANES_PER_THREAD, Unfold

TILE_BYTES = 20 << 10
"""Of the rows that a thread block of batch_to_space's staged kernel puts together: four fit into 100 KB."""

ROW_BYTES = 16
"""Of a row's addresses, in shared memory too."""

WORDS_IN_FLIGHT = 16
"""That a thread of the staged kernel loads before it stores the first, 64 bytes at most: a prediction of registers."""

LOADED_BYTES = 4
"""Of the words in which it loads narrower elements: what neighbouring lanes put of wider ones would share banks."""

TILES_AT_ONCE = 2
"""Prediction: tiles for each multiprocessor from which on tiles are made of more rows."""

MOST_PIECES = 8
"""Into how many more pieces than they must rows are cut at most, where more threads are then busy."""

INDEX_MAP_BLOCK = 4
"""Prediction: phases of the last axis from which batch_to_space puts rows together instead of mapping indices, whose
loads are that many runs; elements narrower than LOADED_BYTES, of which that loads several at once, from 2."""


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
        sum(axis.size * abs(axis.pixel_step) for axis in axes),
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
        grid=grid_of(operation, threads, MOVING_THREADS),
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


def _loaded_together(moves: Moves, batch: Operand) -> int:
    """Count the blocks of a word that the staged kernel may load wherever it begins, also across the ends of rows."""
    count = max(1, LOADED_BYTES // moves.itemsize)
    extent = 1 + sum((size - 1) * step for size, step in zip(batch.shape, batch.strides, strict=True))
    whole = min(batch.strides) >= 0 and word_elements(moves.itemsize, batch.alignment, [extent]) >= count
    return count if whole and moves.axes[-1].block_step == 1 else 1


@dataclass(frozen=True, slots=True)
class _Tile:
    """What a thread block of the staged kernel puts together: as many neighbouring blocks of each of a few rows."""

    blocks: int
    phase_words: int
    """That are loaded of a row and phase."""
    stored_words: int
    """Of a row."""
    row_pitch: int
    """In shared memory, in elements."""
    rows: int
    """None where one is too long."""
    loading_rows: int
    """That all threads load at a time."""
    rows_at_once: int
    words_at_once: int
    """Of so many rows, which a thread loads before it stores the first."""
    in_flight: float
    """Elements that a thread then has to load, on average."""

    @classmethod
    def of(cls, blocks: int, kernel: int, itemsize: int, loaded: int, stored: int, at_once: int) -> _Tile:
        """Return the tile of so many blocks and of as many rows as fit."""
        phase_words = 1 + -(-(blocks - 1) // loaded)
        stored_words = 1 + -(-(blocks * kernel - 1) // stored)
        word, free = loaded * kernel, WIDEST_WORD // itemsize
        pitch = stored_words * stored
        if word % (2 * free) == 0:
            pitch += (pitch - 1) // word * free
        fit = min(TILE_BYTES // (pitch * itemsize), MOVING_THREADS)
        loading_rows = max(1, min(MOVING_THREADS // (phase_words * kernel), MOVING_THREADS // at_once))
        rows_at_once = at_once
        while rows_at_once > 1 and rows_at_once * loading_rows > fit:
            rows_at_once //= 2
        passes = fit // (rows_at_once * loading_rows)
        turns = -(-phase_words * kernel // MOVING_THREADS)
        words_at_once = min(at_once // rows_at_once, 1 << (turns - 1).bit_length())
        turns = -(-turns // words_at_once)
        in_flight = rows_at_once * loading_rows * blocks * kernel / (turns * MOVING_THREADS)
        rows = passes * rows_at_once * loading_rows
        return cls(blocks, phase_words, stored_words, pitch, rows, loading_rows, rows_at_once, words_at_once, in_flight)


def _tile(kernel: int, row_blocks: int, itemsize: int, loaded: int, stored: int, alike: bool) -> _Tile:
    """Return the tile of pieces of rows of which threads have most in flight and which share few sectors."""
    at_once = min(WORDS_IN_FLIGHT if alike else WORDS_IN_FLIGHT // 2, 4 * WIDEST_WORD // (loaded * itemsize))
    sector = max(1, SECTOR_BYTES // itemsize)
    longest = max(4 * sector, MOVING_THREADS * loaded // kernel)
    least = max(-(-row_blocks // longest), -(-row_blocks * kernel * itemsize // TILE_BYTES))

    def worth(tile: _Tile) -> tuple[bool, float]:
        held = row_blocks / -(-row_blocks // tile.blocks) / (tile.blocks + sector / 2)
        return tile.rows > 0, tile.in_flight * held

    cuts = [-(-row_blocks // pieces) for pieces in range(least, least + MOST_PIECES)]
    cuts = [-(-cut // sector) * sector if sector <= cut < row_blocks else cut for cut in cuts]
    return max((_Tile.of(cut, kernel, itemsize, loaded, stored, at_once) for cut in cuts), key=worth)


def staged(problem: Problem) -> Plan:
    """Plan a thread block per tile of rows, put together in shared memory."""
    operation, moves = "batch_to_space", _moves(problem, writes_blocks=False).simplified()
    *outer, last = axes = moves.axes
    if last.is_unit:
        raise Unsupported(f"{operation}: staged stores need a last axis that is split")
    first = [axis.pad // axis.kernel for axis in axes]
    blocks = [-(-(axis.pad + axis.size) // axis.kernel) - begin for axis, begin in zip(axes, first, strict=True)]
    stored = WIDEST_WORD // moves.itemsize if last.pixel_step == 1 else 1
    loaded = _loaded_together(moves, problem.input)
    loads = [step for axis in outer for step in (axis.block_step, axis.tap_step)] + [moves.blocks_plane_step]
    stores = [axis.pixel_step for axis in outer] + [moves.array_plane_step]
    alike = all(step % loaded == 0 for step in loads) and all(step % stored == 0 for step in stores)
    tile = _tile(last.kernel, blocks[-1], moves.itemsize, loaded, stored, alike)
    if not tile.rows:
        raise Unsupported(
            f"{operation}: staged puts rows together in {TILE_BYTES} bytes, too few for blocks of {last.kernel} "
            f"elements of {moves.itemsize} bytes along the last axis"
        )
    pieces = -(-blocks[-1] // tile.blocks)
    rows = moves.planes * prod(count * axis.kernel for count, axis in zip(blocks[:-1], outer, strict=True))
    tiles = max(1, rows * pieces // (tile.rows_at_once * TILES_AT_ONCE * problem.device.multiprocessors))
    loading_rows = min(tile.loading_rows, tiles)
    tile_rows = tile.rows // tile.loading_rows * loading_rows
    bits = offset_bits(
        operation,
        rows + tile.rows,
        2 * max((axis.blocks + 1) * axis.kernel for axis in axes),
        sum((axis.blocks + 1) * abs(axis.block_step) + axis.kernel * abs(axis.tap_step) for axis in axes),
        sum((axis.size + axis.kernel) * abs(axis.pixel_step) for axis in axes),
    )
    return Plan(
        operation=operation,
        variant="staged",
        source="batch_to_space_staged.cu",
        symbol="batch_to_space_staged",
        defines=(
            *word_types(moves.itemsize),
            ("OFFSET", offset_type(bits)),
            ("SPATIAL_RANK", str(len(axes))),
            ("BLOCK_WIDTH", str(last.kernel)),
            ("LOADED", str(loaded)),
            ("STORED", str(stored)),
            ("ROWS_ALIKE", str(int(alike))),
            ("ROWS_AT_ONCE", str(tile.rows_at_once)),
            ("WORDS_AT_ONCE", str(tile.words_at_once)),
            ("TILE", str(TILE_BYTES // moves.itemsize)),
            ("THREADS", str(MOVING_THREADS)),
        ),
        grid=grid_of(operation, -(-rows // tile_rows) * pieces, 1),
        block=(MOVING_THREADS, 1, 1),
        parameters=pack(
            bits,
            crop=offset([axis.pad % axis.kernel for axis in axes]),
            size=offset([axis.size for axis in axes]),
            grid_step=offset([axis.block_step for axis in axes]),
            phase_step=offset([axis.tap_step for axis in axes]),
            pixel_step=offset([axis.pixel_step for axis in axes]),
            blocks=divisor([*blocks[:-1], pieces]),
            block=divisor([axis.kernel for axis in axes]),
            rows=offset(rows),
            row_blocks=offset(blocks[-1]),
            phase_words=divisor(tile.phase_words),
            loaded_words=divisor(last.kernel * tile.phase_words),
            stored_words=divisor(tile.stored_words),
            loading_rows=int32(loading_rows),
            storing_rows=int32(max(1, MOVING_THREADS // tile.stored_words)),
            tile_rows=int32(tile_rows),
            tile_blocks=int32(tile.blocks),
            row_pitch=int32(tile.row_pitch),
            batch_start=wide(sum(begin * axis.block_step for begin, axis in zip(first, axes, strict=True))),
            batch_plane_step=wide(moves.blocks_plane_step),
            space_plane_step=wide(moves.array_plane_step),
        ),
        bytes_moved=_bytes_moved(problem),
        reason=f"the last axis is split into {last.kernel} phases, whose rows are put together in shared memory",
        shared_bytes=TILE_BYTES + MOVING_THREADS * ROW_BYTES,
    )


def prefer_to_space(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield the variants that are predicted to be fastest, with why."""
    yield "interleave", ""
    moves = _simplified(problem)
    least = 2 if moves.itemsize < LOADED_BYTES else INDEX_MAP_BLOCK
    yield "staged" if moves.axes[-1].kernel >= least else "index_map", ""


BATCH_TO_SPACE: dict[str, Variant] = {"index_map": index_map, "interleave": interleave, "staged": staged}

SPACE_TO_BATCH: dict[str, Variant] = {
    "deinterleave": deinterleave,
    "direct": space_to_batch_direct,
    "staged": space_to_batch_staged,
}
