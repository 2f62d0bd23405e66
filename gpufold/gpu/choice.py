"""Which variant `auto` takes: for each operation those that it prefers, behind thresholds that nobody has measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from math import prod

from gpufold.calls import Unsupported
from gpufold.gpu.plan import Problem
from gpufold.gpu.variants import add_blocks, im2col, space_to_batch
from gpufold.gpu.variants.blockwise import as_col2im, as_im2col
from gpufold.gpu.variants.col2im import GATHER_MAX_KERNEL, GATHER_MAX_STRIDE
from gpufold.gpu.variants.columns import ColumnsView, cells_of, taps_per_pixel, view_of
from gpufold.gpu.variants.moves import SECTOR_BYTES, WARP, WIDEST_WORD
from gpufold.gpu.variants.placed import placed_view

# ---------------------------------------------------------------------------------------------
# col2im

MANY_TAPS = 128
SCATTERED_MAX_FILL = 0.04
"""Of the device's resident threads: below it a thread for each pixel of so many taps leaves the memory idle."""
PIXELS_MIN_TAPS = 32
"""Of a pixel, from which on threads for cells are too few where those for pixels would not be."""
BLOCKS_MAX_STRIDE = 3
"""Where blocks are contiguous and overlap, up to here threads that read neighbouring taps or blocks waste sectors."""
BLOCKS_MIN_BYTES, BLOCKS_MIN_PIXELS = 96, 600
"""Of a block, in elements of 8 bytes at most, from which on these waste more than lanes that have no tap; and of a
multiprocessor, for each axis and pixel of the stride, from which on tiles have enough rows for all lanes."""
PIXELS_MIN_STRIDE = 2
"""Where blocks are contiguous, from here on neighbouring pixels read neighbouring taps."""
PARTS_MIN_STRIDE = 5
"""Below it a warp of pixels reads whole sectors of each tap it needs."""
SHORT_ROWS_MIN_STRIDE = 8
"""From here on rows whose blocks fill no sector are added up by threads that are numbered by the cells of a plane."""
MIN_FILL = 0.75
"""Of the lanes of these warps that then have a cell."""


def of_col2im(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield the variants of col2im that `auto` prefers, with why."""
    view = view_of(problem)
    row, cells = view.axes[-1], prod(cells_of(view))
    resident = problem.device.multiprocessors * problem.device.threads_per_multiprocessor
    taps = prod(map(taps_per_pixel, view.axes))
    if problem.any_order and taps >= MANY_TAPS and view.planes * view.pixels < SCATTERED_MAX_FILL * resident:
        yield "atomic", f"{view.planes * view.pixels} pixels under up to {taps} taps each are too few for a thread each"
    if view.taps_are_closest:
        closest = "the taps of a block lie closer in memory than its blocks"
        if _overlaps_densely(view, problem.device.multiprocessors):
            yield "gather_blocks", f"{closest}, which overlap densely"
        if row.stride >= PIXELS_MIN_STRIDE:
            yield "gather_pixels", closest
    if taps >= PIXELS_MIN_TAPS and row.stride > 1 and view.planes * cells < SCATTERED_MAX_FILL * resident:
        yield "gather_pixels", f"{view.planes * cells} cells of many taps are too few for a thread each"
    if row.stride > GATHER_MAX_STRIDE and row.stride > row.size:
        yield "gather_pixels", f"a row of pixels is shorter than a stride of {row.stride}"
    if row.stride > GATHER_MAX_STRIDE:
        yield "gather_parts", f"a stride of {row.stride} is too many pixels for one thread"
    elif row.kernel > GATHER_MAX_KERNEL:
        many = f"{row.kernel} taps on the last axis are too many to unroll"
        yield "gather_parts" if row.stride >= PARTS_MIN_STRIDE else "gather_pixels", many
    elif row.stride >= SHORT_ROWS_MIN_STRIDE and row.stride < row.kernel and _rows_are_short(view, cells):
        yield "gather_parts", f"a row has {row.blocks} blocks or less, too few to fill a sector"
    else:
        yield "gather", "each column element is read once and each pixel written once, from end to end"


def _overlaps_densely(view: ColumnsView, multiprocessors: int) -> bool:
    """Whether contiguous blocks overlap so much, and tiles are so full, that whole blocks are best brought to tiles."""
    *outer, row = view.axes
    taps = prod(axis.kernel for axis in view.axes)
    return (
        row.stride <= BLOCKS_MAX_STRIDE
        and row.stride < row.kernel
        and (row.stride == 1 or sum(axis.kernel > 1 for axis in outer) == 1)
        and row.blocks >= 2 * row.kernel
        and taps * min(view.element.itemsize, WIDEST_WORD // 2) >= BLOCKS_MIN_BYTES
        and view.planes * view.pixels >= BLOCKS_MIN_PIXELS * multiprocessors * len(view.axes) * row.stride
    )


def _rows_are_short(view: ColumnsView, cells: int) -> bool:
    """Whether a row's blocks fill no sector, and the cells of a plane fill warps."""
    return view.axes[-1].blocks * view.element.itemsize <= SECTOR_BYTES and cells >= MIN_FILL * -(-cells // WARP) * WARP


def of_blocks_to_array(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield what col2im prefers."""
    return of_col2im(as_col2im(problem))


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


def of_array_to_blocks(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield what im2col prefers."""
    return of_im2col(as_im2col(problem))


# ---------------------------------------------------------------------------------------------
# batch_to_space, space_to_batch, average


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


def of_average(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield the one variant that there is."""
    yield "direct", ""


# ---------------------------------------------------------------------------------------------
# add_blocks, take_blocks

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


def of_take_blocks(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield the one variant that there is."""
    yield "direct", ""
