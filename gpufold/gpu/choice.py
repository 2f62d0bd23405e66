"""Which variant `auto` takes: for each operation those that are predicted to be fastest, behind thresholds.

Every threshold is a prediction; `python -m bench crossover` sweeps those that a GPU will decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from math import gcd, prod

from gpufold.calls import Unsupported
from gpufold.gpu.plan import Problem
from gpufold.gpu.variants import add_blocks, im2col, space_to_batch, take_blocks, tile_lists
from gpufold.gpu.variants.blockwise import as_col2im, as_im2col
from gpufold.gpu.variants.columns import ColumnsView, view_of
from gpufold.gpu.variants.moves import SECTOR_BYTES, WARP, WIDEST_WORD
from gpufold.gpu.variants.placed import THREADS, placed_view
from gpufold.gpu.variants.unfold import Unfold, is_direct

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


def of_blocks_to_array(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield what col2im prefers."""
    return of_col2im(as_col2im(problem))


# ---------------------------------------------------------------------------------------------
# im2col

WORDS_OF_A_ROW = 32
"""Words of rows that are not whole words pay from so many of a row on, whose first and last are stored in parts."""
PACKED_MAX_CONFLICTS = 2
"""Lanes whose words are in the same bank of shared memory, up to which packed wins."""


def of_im2col(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield the variants of im2col that are predicted to be fastest, with why."""
    view = im2col.columns_of(problem)
    if view.taps_are_closest:
        if _is_packed_fast(problem, view):
            yield "packed", ""
        yield "taps", "the taps of a block lie closer in memory than its blocks"
    elif im2col.even_tap_step(view) is None:
        yield "taps", "the taps of a block are not evenly apart in memory"
    else:
        unfold = im2col.unfold_of(problem)
        moves = unfold.simplified().moves
        count, whole = im2col.stored_word(moves)
        if whole or moves.axes[-1].blocks >= WORDS_OF_A_ROW * count:
            yield "words", ""
        yield from _staged_or_direct(unfold)


def _is_packed_fast(problem: Problem, view: ColumnsView) -> bool:
    """Return whether taps would store short words, while neighbouring threads of packed meet in no cache or bank."""
    row, itemsize = view.axes[-1], view.element.itemsize
    block_bytes = prod(view.kernel) * itemsize
    count = im2col.packed_blocks(block_bytes, row.stride * itemsize)
    return (
        im2col.words_of_taps(problem, view)["WORD"] * itemsize <= 4
        and gcd(count * block_bytes // 4, 32) <= PACKED_MAX_CONFLICTS
        and count * row.stride * itemsize <= im2col.PACKED_LANE_BYTES
    )


def _staged_or_direct(unfold: Unfold) -> Iterator[tuple[str, str]]:
    """Yield staged loads where those along the blocks would touch many lines, and those along the taps few."""
    moves = unfold.simplified().moves
    last = moves.axes[-1]
    tap_bytes = last.dilation * abs(last.pixel_step) * moves.itemsize
    if last.kernel > 1 and not is_direct(moves) and tap_bytes < SECTOR_BYTES:
        yield "staged", ""
    yield "direct", ""


def of_array_to_blocks(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield what im2col prefers."""
    return of_im2col(as_im2col(problem))


# ---------------------------------------------------------------------------------------------
# batch_to_space, space_to_batch, average

SINGLES_MIN_BYTES = 4
"""Of elements that space_to_batch stores one by one, from which on blocks need not be taken apart in registers."""


def of_batch_to_space(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield the kernel that packs words, which serves rows that are split."""
    yield "packed", ""


def of_space_to_batch(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield the kernel that takes blocks apart, where their elements are stored as words or are narrow."""
    with suppress(Unsupported):
        stored, _ = space_to_batch.blocks_taken_apart(problem)
        if stored > 1 or problem.element.itemsize < SINGLES_MIN_BYTES:
            yield "deinterleave", ""
    yield "direct", ""


def of_average(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield the one variant that there is."""
    yield "direct", ""


# ---------------------------------------------------------------------------------------------
# add_blocks, take_blocks

LISTS_MIN_TESTS, TESTS_OF_AN_ELEMENT = 1 << 19, 4
"""Prediction: tests of a block against a tile from which on lists are worth the launches that make them, in which time
atomic operations add as many elements; and for each element, of tiles that are too crowded to be added at once."""
PIXELS_OF_AN_ELEMENT, ELEMENTS_OF_A_TEST = 7, 4
"""Prediction: pixels that cost lists as much as an atomic addition; and such additions as a test, of crowded tiles."""


def of_add_blocks(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield lists where there is much to test, unless they are long; in any order, atomic in place of long ones."""
    view, tiling = placed_view(problem), add_blocks.tiling_of(problem)
    tests = view.batch * view.channels // tiling.planes * prod(tiling.along) * view.count
    elements, pixels = prod(problem.input.shape), prod(problem.output.shape)
    crowded = tile_lists.share_of(problem).bins.met > tile_lists.FILL * tile_lists.NOTED
    few = elements <= LISTS_MIN_TESTS + pixels // PIXELS_OF_AN_ELEMENT
    if problem.any_order and (few or (crowded and elements < tests * ELEMENTS_OF_A_TEST)):
        yield "atomic", "elements are few, or lists of the blocks that meet a tile would be long"
    if tests >= (max(LISTS_MIN_TESTS, elements * TESTS_OF_AN_ELEMENT) if crowded else LISTS_MIN_TESTS):
        yield "lists", "there is so much to test that a list of blocks for each tile is worth its launches"
    yield "gather", ""


TAKEN_MIN_ELEMENTS = 10
"""Prediction: elements of the blocks for each test, from which on the tests cost little beside the stores."""
TAKEN_MIN_OVERLAP = 1.5
"""Prediction: elements of the blocks for each of the image, from which on loading these once is worth a list."""


def of_take_blocks(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield what loads a pixel once for all blocks, if they overlap and threads that test one have enough to store."""
    view, tiles, elements = placed_view(problem), take_blocks.taken_tiles(problem), prod(problem.output.shape)
    tests = -(-view.count // THREADS) * THREADS * view.batch * (view.channels // tiles.planes) * prod(tiles.along)
    if elements >= max(TAKEN_MIN_ELEMENTS * tests, TAKEN_MIN_OVERLAP * prod(problem.input.shape)):
        yield "owners", ""
    yield "direct", ""
