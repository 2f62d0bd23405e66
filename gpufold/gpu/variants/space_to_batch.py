"""The kernel variants of space_to_batch: sliding blocks whose stride is their size."""

from __future__ import annotations

from dataclasses import replace

from gpufold.calls import Unsupported
from gpufold.gpu.plan import Operand, Plan, Problem
from gpufold.gpu.variants import unfold
from gpufold.gpu.variants.moves import WIDEST_WORD, Moves, space_moves

APART_BYTES = 96
"""Guess, by registers: most bytes of the blocks that a thread deinterleaves."""


def _word_of_blocks(moves: Moves, space: Operand) -> int:
    """Count the pixels of the widest aligned word of whole blocks in rows of space."""
    last = moves.axes[-1]
    if last.is_unit:
        raise Unsupported("deinterleave needs a last axis that is split")
    if last.pixel_step != 1:
        raise Unsupported(f"deinterleave needs a contiguous last axis of space, not a step of {last.pixel_step}")
    if last.kernel & (last.kernel - 1) or last.kernel * moves.itemsize > WIDEST_WORD:
        raise Unsupported(
            f"deinterleave needs blocks of 2, 4, 8 or {WIDEST_WORD} bytes along the last axis, "
            f"not {last.kernel} elements of {moves.itemsize} bytes"
        )
    word_pixels = moves.pixels_at_once(space.alignment)
    if word_pixels < last.kernel:
        raise Unsupported(
            f"deinterleave needs rows of whole blocks, aligned to {last.kernel * moves.itemsize} bytes, "
            f"not of {last.size} elements of {moves.itemsize}"
        )
    return word_pixels


def per_block(problem: Problem) -> Plan:
    """Plan one thread per block: serves any call, and is fast if blocks are small."""
    return unfold.per_block(problem, space_moves(problem))


def blocks_taken_apart(problem: Problem) -> tuple[int, int]:
    """Count the blocks of a thread of deinterleave, and the elements that it loads at once.

    The blocks are loaded as one word, and the elements of each phase are stored as one word. Elements of up to 4 bytes
    are loaded as several words if blocks are no word, or if words of a phase would have less than 4 bytes.
    """
    moves = space_moves(problem)
    last = moves.axes[-1]
    count = stored = moves.blocks_at_once(problem.output.alignment)
    while count > 1 and (last.size % (count * last.kernel) or count * last.kernel * moves.itemsize > APART_BYTES):
        count //= 2
    loaded = moves.pixels_at_once(problem.input.alignment, count * last.kernel)
    in_words = moves.itemsize <= 4 <= min(count, loaded) * moves.itemsize and count > 1 and last.pixel_step == 1
    try:
        at_once = min(stored, _word_of_blocks(moves, problem.input) // last.kernel)
    except Unsupported:
        if in_words:
            return count, loaded
        raise
    return (count, loaded) if in_words and at_once * moves.itemsize < 4 else (at_once, at_once * last.kernel)


def deinterleave(problem: Problem) -> Plan:
    """Plan one thread per word of whole blocks, which it deinterleaves in registers."""
    moves = space_moves(problem)
    *outer, last = moves.axes
    count, loaded = blocks_taken_apart(problem)
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
    return unfold.plan(
        problem,
        replace(moves, axes=(*outer, words)),
        "deinterleave",
        last.kernel,
        f"rows are whole words of {width * moves.itemsize} bytes, each {blocks}",
        BLOCKS_PER_WORD=count,
        LOADED=loaded,
        PIXELS_BEFORE=ends_before,
    )
