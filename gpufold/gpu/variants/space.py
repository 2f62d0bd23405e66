"""The kernel variants of batch_to_space and space_to_batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any

from gpufold.calls import Unsupported
from gpufold.geometry import SpaceGeometry
from gpufold.gpu.parameters import (
    are_contiguous,
    contiguous_strides,
    divisor,
    offset,
    offset_bits,
    offset_type,
    pack,
    span,
    wide,
)
from gpufold.gpu.plan import Operand, Plan, Problem, Variant, grid_of, planes_per_thread, resident_blocks
from gpufold.gpu.variants import unfolding
from gpufold.gpu.variants.moves import (
    LINE_BYTES,
    MOVING_THREADS,
    WARP,
    WIDEST_WORD,
    MovedAxis,
    Moves,
    device_threads,
    word_elements,
    word_types,
)
from gpufold.gpu.variants.unfolding import PLANES_PER_THREAD, Unfold

WAVES = 2.5
"""Prediction: full loads of the device that batch_to_space keeps, the last of them half of one, before its threads take
more planes each."""

INTERLEAVED_LOADS = 2
PACKED_ROW = 16
"""Prediction: batch_to_space interleaves where threads load words of so many bytes, or rows are shorter than so many:
else the same words are packed faster."""

APART_BYTES = 96
"""Of the blocks that a thread of space_to_batch takes apart, at most: a prediction of registers."""

PACKED_BYTES = 128
PACKED_REGISTERS = 128
PACKED_OTHERS = 28
"""Of a piece of the packed kernel, where a block is no more; what its words take at most as they are loaded, and what a
thread needs besides them and one for each address: predictions."""

PACKED_WORDS = 48
"""Of 4 bytes, that a piece has at most where any way to share rows out has so few: the compiler may spill more."""

PACKED_PARTS = 8
"""Of a block at most, each a piece: with more, the lanes of a warp load few neighbouring elements."""

PACKED_TILES = 32 << 10
"""Bytes of shared memory up to which a thread block has all its threads."""

THREAD, PHASE, PHASE_ANYWHERE, LOAD, WORD, NARROW_WORD = 100, 6, 15, 3, 3, 6
"""Instructions of a thread of the packed kernel, of each phase, of one that begins anywhere in a word, of each load and
of each word that is put together, of narrow elements too: fitted to machine code."""


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


def _blocks_taken_apart(problem: Problem, moves: Moves) -> tuple[int, int]:
    """Count the blocks of a thread of the deinterleaving kernel, and the elements that it loads at once.

    Their elements of a phase are stored as one word, and they are loaded as one; as several, of elements of 4 bytes at
    most, where they are no word or where words of a phase would have less than 4 bytes.
    """
    *outer, last = moves.axes
    stored = 1
    if last.block_step == 1 and last.pad % last.kernel == 0:
        stores = [last.blocks, last.pad // last.kernel, moves.tap_step, *(axis.block_step for axis in outer)]
        stores += [moves.blocks_plane_step] if moves.planes > 1 else []
        stored = word_elements(moves.itemsize, problem.output.alignment, stores)
    count = stored
    while count > 1 and (last.size % (count * last.kernel) or count * last.kernel * moves.itemsize > APART_BYTES):
        count //= 2
    rows = [count * last.kernel, *(axis.pixel_step for axis in outer)]
    rows += [moves.array_plane_step] if moves.planes > 1 else []
    loaded = word_elements(moves.itemsize, problem.input.alignment, rows)
    in_words = moves.itemsize <= 4 <= min(count, loaded) * moves.itemsize and count > 1 and last.pixel_step == 1
    try:
        at_once = min(stored, _word_of_blocks("space_to_batch: deinterleave", moves, problem.input) // last.kernel)
    except Unsupported:
        if in_words:
            return count, loaded
        raise
    return (count, loaded) if in_words and at_once * moves.itemsize < 4 else (at_once, at_once * last.kernel)


def deinterleave(problem: Problem) -> Plan:
    """Plan one thread per word of whole blocks, taken apart in registers."""
    found = _unfold(problem).simplified()
    moves = found.moves.with_rows_as_planes(PLANES_PER_THREAD)
    *outer, last = moves.axes
    count, loaded = _blocks_taken_apart(problem, moves)
    ends_before = -last.pad % last.kernel
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
        LOADED=loaded,
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


def _planes(problem: Problem, moves: Moves, last_places: int, most: int = PLANES_PER_THREAD) -> int:
    """Return the planes of a thread where the last axis is cut into so many places."""
    places = prod(axis.size for axis in moves.axes[:-1]) * last_places
    return planes_per_thread(moves.planes, places, most, device_threads(problem.device, WAVES))


def _aligned_blocks(problem: Problem, moves: Moves) -> int:
    """Count the neighbouring blocks that have their elements of a phase in one word, wherever so many begin."""
    *outer, last = moves.axes
    if last.block_step != 1 or last.pad % last.kernel:
        return 1
    loads = [last.blocks, last.pad // last.kernel, last.tap_step]
    loads += [step for axis in outer for step in (axis.block_step, axis.tap_step)]
    loads += [moves.blocks_plane_step] if moves.planes > 1 else []
    return word_elements(moves.itemsize, problem.input.alignment, loads)


def _plan(
    problem: Problem,
    variant: str,
    last_places: int,
    reason: str,
    most_planes: int = PLANES_PER_THREAD,
    block_threads: int = MOVING_THREADS,
    shared_bytes: int = 0,
    **defines: Any,
) -> Plan:
    """Plan threads along the pixels of all axes but the last, which is cut into so many places."""
    operation, moves = "batch_to_space", _simplified(problem)
    axes = moves.axes
    places = (*(axis.size for axis in axes[:-1]), last_places)
    planes = _planes(problem, moves, last_places, most_planes)
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
            ("THREADS", str(block_threads)),
            *((name, str(value)) for name, value in defines.items()),
        ),
        grid=grid_of(operation, threads, block_threads),
        block=(block_threads, 1, 1),
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
    last = moves.axes[-1]
    word_pixels = _word_of_blocks("batch_to_space: interleave", moves, problem.output)
    count = word_pixels // last.kernel
    return _plan(
        problem,
        "interleave",
        last.size // word_pixels,
        f"rows are whole words of {word_pixels * moves.itemsize} bytes, each {count} blocks of {last.kernel}",
        BLOCK_WIDTH=last.kernel,
        BLOCKS_PER_WORD=count,
        WIDE_LOADS=int(_aligned_blocks(problem, moves) >= count),
    )


@dataclass(frozen=True, slots=True)
class _Pieces:
    """How threads of the packed kernel share out a row: blocks with all their phases, or a part of a block's phases."""

    itemsize: int
    count: int
    """Of a row."""
    parts: int
    """That a block is cut into."""
    phases: int
    blocks: int
    """Of a piece; one where it is a part."""
    loaded: int
    """Elements of a word that is loaded."""
    anywhere: bool
    """Whether a thread's elements begin anywhere in the words, of which it then loads one more."""
    whole: bool
    """Whether all pieces are words of 16 bytes."""

    @property
    def words(self) -> int:
        """Of 4 bytes, in a piece."""
        return self.blocks * self.phases * self.itemsize // 4

    @property
    def loads(self) -> int:
        """Of a thread."""
        return self.phases * (self.blocks // self.loaded + self.anywhere)

    @property
    def registers(self) -> int:
        """That the loaded words take."""
        return self.loads * -(-self.loaded * self.itemsize // 4)

    @property
    def cost(self) -> float:
        """Count what a thread issues, and twice its lines and passes over shared banks, for a pixel: a prediction."""
        of_word, of_phase = (NARROW_WORD if self.itemsize < 4 else WORD), (PHASE_ANYWHERE if self.anywhere else PHASE)
        issued = THREAD + self.phases * of_phase + self.loads * LOAD + self.words * of_word
        lines = self.loads * max(self.parts, -(-self.blocks * self.itemsize // 4))
        ways = 1 if self.whole else min(WARP, self.words & -self.words)
        return (issued + 2 * (lines + self.words * ways)) / (self.phases * self.blocks)


def _pieces(problem: Problem, moves: Moves) -> Iterator[_Pieces]:
    """Yield the ways to share out rows, such that a piece is words of 4 bytes, the last of a row one at least."""
    last, itemsize = moves.axes[-1], moves.itemsize
    of_word, aligned = 4 // itemsize, _aligned_blocks(problem, moves)
    shape, steps = problem.input.shape, problem.input.strides
    extent = 1 + span(shape, steps)
    in_words = last.block_step == 1 and min(steps) >= 0 and extent == prod(shape)  # no word reaches out of the array
    in_words = in_words and word_elements(itemsize, problem.input.alignment, [extent]) >= of_word
    in_row = 1 << (-(-last.size // last.kernel) - 1).bit_length()  # about so many blocks: rows of most sizes are alike
    most = min(max(of_word, PACKED_BYTES // (last.kernel * itemsize)), max(of_word, in_row))
    for parts in (parts for parts in range(1, min(last.kernel, PACKED_PARTS) + 1) if last.kernel % parts == 0):
        phases = last.kernel // parts
        for blocks in range(1, 1 + (most if parts == 1 else 1)):
            pixels, loaded = blocks * phases, gcd(aligned, blocks)
            rest = last.size % pixels
            whole = rest == 0 and blocks & (blocks - 1) == 0
            whole = whole and gcd(pixels * itemsize, problem.output.alignment) % WIDEST_WORD == 0
            pieces = _Pieces(itemsize, -(-last.size // pixels), parts, phases, blocks, loaded, False, whole)
            choices = [pieces]
            if in_words and loaded < of_word and blocks % of_word == 0:
                choices.append(replace(pieces, loaded=of_word, anywhere=True))
            if pixels % of_word == 0 and (rest == 0 or rest >= of_word):
                yield from (pieces for pieces in choices if pieces.registers <= PACKED_REGISTERS)


def packed(problem: Problem) -> Plan:
    """Plan one thread for a piece of a row, whose warp stores theirs as one run: contiguous space."""
    operation, moves = "batch_to_space", _simplified(problem)
    last, itemsize = moves.axes[-1], moves.itemsize
    if last.is_unit:
        raise Unsupported(f"{operation}: packed needs a last axis that is split")
    if itemsize > 4:
        raise Unsupported(f"{operation}: packed puts words of 4 bytes together, not elements of {itemsize}")
    shape, steps = problem.output.shape, problem.output.strides
    if not are_contiguous(shape, steps):
        raise Unsupported(f"{operation}: packed needs contiguous space, not steps of {steps}")
    choices = _pieces(problem, moves)
    pieces = min(choices, key=lambda choice: (choice.words > PACKED_WORDS, choice.cost), default=None)
    if pieces is None:
        raise Unsupported(
            f"{operation}: packed keeps blocks of the last axis, or up to {PACKED_PARTS} equal parts of one, in "
            f"{PACKED_REGISTERS} registers and as words of 4 bytes, not blocks of {last.kernel} elements of {itemsize} "
            f"bytes in rows of {last.size}"
        )
    tile = 4 * WARP * pieces.words + LINE_BYTES
    threads = MOVING_THREADS
    while threads // WARP * tile > PACKED_TILES:
        threads //= 2
    return _plan(
        problem,
        "packed",
        pieces.count,
        f"the last axis is split into {last.kernel} phases, which threads pack and warps store as runs of words",
        most_planes=1,
        block_threads=threads,
        shared_bytes=threads // WARP * tile,
        PHASES=pieces.phases,
        BLOCKS=pieces.blocks,
        LOADED=pieces.loaded,
        LOADED_ANYWHERE=int(pieces.anywhere),
        BEGINS_BLOCKS=int(pieces.parts == 1 and last.pad % last.kernel == 0),
        WHOLE=int(pieces.whole),
        RESIDENT_BLOCKS=resident_blocks(threads, pieces.registers + pieces.loads + PACKED_OTHERS),
    )


def prefer_to_space(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield the variants that are predicted to be fastest, with why."""
    moves = _simplified(problem)
    last, itemsize = moves.axes[-1], moves.itemsize
    with suppress(Unsupported):
        pixels = _word_of_blocks("batch_to_space: interleave", moves, problem.output)
        loaded = min(_aligned_blocks(problem, moves), pixels // last.kernel)
        if loaded * itemsize >= INTERLEAVED_LOADS or last.size * itemsize < PACKED_ROW:
            yield "interleave", ""
    if last.is_unit:
        yield "index_map", ""
    yield "packed", ""
    yield "interleave", ""


BATCH_TO_SPACE: dict[str, Variant] = {"index_map": index_map, "interleave": interleave, "packed": packed}

SPACE_TO_BATCH: dict[str, Variant] = {
    "deinterleave": deinterleave,
    "direct": space_to_batch_direct,
    "staged": space_to_batch_staged,
}
