"""Which variant `auto` takes: for each operation those that it prefers, behind thresholds that nobody has measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from math import prod

from gpufold.calls import Unsupported
from gpufold.gpu.plan import Problem
from gpufold.gpu.variants import add_blocks, im2col, space_to_batch
from gpufold.gpu.variants.columns import ColumnsView, view_of
from gpufold.gpu.variants.moves import SECTOR_BYTES, WARP, WIDEST_WORD
from gpufold.gpu.variants.placed import placed_view

# ---------------------------------------------------------------------------------------------
# col2im

BLOCKS_MAX_STRIDE, BLOCKS_MIN_BYTES = 3, 96
"""Where blocks are contiguous and overlap, up to here threads that read neighbouring taps or blocks waste sectors; and
bytes of a block, in elements of 8 at most, from which on these waste more than lanes that have no tap."""


def of_col2im(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield whole blocks where they overlap densely, pixels where neighbours read along the columns, else cells."""
    view = view_of(problem)
    row = view.axes[-1]
    if view.taps_are_closest and _overlaps_densely(view):
        yield "gather_blocks", "the taps of a block lie closer in memory than its blocks, which overlap densely"
    if view.taps_are_closest or row.stride == 1:
        yield "gather_pixels", ""
    yield "gather", ""
    if row.size >= row.stride > WARP * view.element.itemsize // SECTOR_BYTES:  # a warp of pixels reads less of each tap
        yield "gather_parts", ""
    yield "gather_pixels", ""


def _overlaps_densely(view: ColumnsView) -> bool:
    """Whether contiguous blocks overlap so much that they are best brought to tiles whole."""
    *outer, row = view.axes
    return (
        row.stride <= BLOCKS_MAX_STRIDE
        and row.stride < row.kernel
        and (row.stride == 1 or sum(axis.kernel > 1 for axis in outer) == 1)
        and row.blocks >= 2 * row.kernel
        and prod(view.kernel) * min(view.element.itemsize, WIDEST_WORD // 2) >= BLOCKS_MIN_BYTES
    )


# ---------------------------------------------------------------------------------------------
# im2col

WORDS_OF_A_ROW = 32
"""Words of rows that are not whole words pay from so many of a row on, whose first and last are stored in parts."""
NARROW_BYTES = 4
"""Elements of fewer bytes are put together to words first, others moved one by one."""


def of_im2col(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield the variants of im2col to take first, with why."""
    view, narrow = im2col.columns_of(problem), problem.element.itemsize < NARROW_BYTES
    if view.taps_are_closest:
        if narrow:
            yield "packed", ""
        yield "taps", "the taps of a block lie closer in memory than its blocks"
    elif im2col.even_tap_step(view) is None:
        yield "taps", "the taps of a block are not evenly apart in memory"
    else:
        moves = im2col.unfold_of(problem).simplified().moves
        count, whole = im2col.stored_word(moves)
        if narrow and (whole or moves.axes[-1].blocks >= WORDS_OF_A_ROW * count):
            yield "words", ""
        yield "direct", ""


# ---------------------------------------------------------------------------------------------
# batch_to_space, space_to_batch


def of_batch_to_space(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield the kernel that packs words first where elements are narrow."""
    yield ("packed" if problem.element.itemsize < NARROW_BYTES else "index_map"), ""


def of_space_to_batch(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield the kernel that takes blocks apart, where their elements are stored as words or are narrow."""
    with suppress(Unsupported):
        stored, _ = space_to_batch.blocks_taken_apart(problem)
        if stored > 1 or problem.element.itemsize < NARROW_BYTES:
            yield "deinterleave", ""
    yield "direct", ""


# ---------------------------------------------------------------------------------------------
# add_blocks

LISTS_MIN_TESTS = 1 << 19
"""Tests of a block against a tile from which on lists are worth the launches that make them; and elements up to which
atomic additions that are exact take less than either."""


def of_add_blocks(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield lists where there is much to test, and atomic additions of few integers."""
    view, tiling = placed_view(problem), add_blocks.tiling_of(problem)
    if problem.element.exact and prod(problem.input.shape) <= LISTS_MIN_TESTS:
        yield "atomic", "elements are few, and their sums exact in any order"
    if view.batch * view.channels // tiling.planes * prod(tiling.along) * view.count >= LISTS_MIN_TESTS:
        yield "lists", "there is so much to test that a list of blocks for each tile is worth its launches"
    yield "gather", ""
