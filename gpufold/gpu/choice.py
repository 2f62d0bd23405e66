"""Heuristics of `auto`: the preferred variants of each operation, by measurements on an H100."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from gpufold.gpu.plan import Problem
from gpufold.gpu.variants import im2col, positions
from gpufold.gpu.variants.columns import view_of
from gpufold.gpu.variants.views import SECTOR_BYTES, WIDEST_WORD, View

# ---------------------------------------------------------------------------------------------
# col2im

BLOCKS_MAX_STRIDE, BLOCKS_MIN_BYTES = 3, 96
"""Largest stride, and least bytes of a block (counting elements as 8 bytes at most), of contiguous overlapping blocks
for which threads with one tap each would look up a cache line for nearly every element."""


def of_col2im(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield gather_blocks if blocks overlap densely, gather_pixels if neighbours read along the columns, else gather.

    For elements of one byte with many taps per pixel, gather is faster at every stride.
    """
    view = view_of(problem)
    row, taps = view.axes[-1], prod(axis.taps_per_pixel for axis in view.axes)
    if view.taps_are_closest and _overlaps_densely(view):
        yield "gather_blocks", "the taps of a block lie closer in memory than its blocks, which overlap densely"
    if view.taps_are_closest or (row.stride == 1 and (view.itemsize > 1 or taps < SECTOR_BYTES)):
        yield "gather_pixels", ""
    if row.size >= row.stride:
        yield "gather", ""
    yield "gather_pixels", ""


def _overlaps_densely(view: View) -> bool:
    """Return whether contiguous blocks overlap so much that rows of taps should go through shared memory."""
    *outer, row = view.axes
    return (
        row.stride <= BLOCKS_MAX_STRIDE
        and row.stride < row.kernel
        and (row.stride == 1 or sum(axis.kernel > 1 for axis in outer) == 1)
        and row.blocks >= 2 * row.kernel
        and view.taps * min(view.itemsize, WIDEST_WORD // 2) >= BLOCKS_MIN_BYTES
    )


# ---------------------------------------------------------------------------------------------
# im2col

TAPS_BYTES = 8
"""Least bytes of a word of taps; narrower words are packed by a warp."""
LEAST_BLOCKS_OF_RUNS = 256
"""Least blocks of a plane for runs: with fewer, many sectors would be written in part."""
LEAST_PIXELS_OF_STAGED, WIDE_TAPS = 2048, 8
"""Least pixels along a plane's blocks, and least taps of a row, for which shared memory is worth its barriers."""
FAR_TAPS, FAR_BYTES = 4, 16
"""Least taps of a row for staging if pixels of neighbouring blocks are at least so many bytes apart."""
NARROW_BYTES = 4
"""Bytes below which an element takes as many instructions as a wider one."""
APART_BYTES = 128
"""Least distance, in bytes, at which neighbouring pixels of a row lie in different cache lines."""


def of_im2col(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield the preferred variants of im2col, with reasons."""
    view = view_of(problem)
    if view.taps_are_closest:
        if im2col.words_of_taps(problem)["WORD"] * view.itemsize < TAPS_BYTES:
            yield "packed", ""
        yield "taps", "the taps of a block lie closer in memory than its blocks"
    elif not view.taps_are_even:
        yield "taps", "the taps of a block are not evenly apart in memory"
    else:
        view = im2col.simplified_view_of(problem)
        is_weighed = problem.fusion.window != "none" and len(view.axes) > 1  # staged checks each pixel for padding
        if not (is_weighed and any(axis.pad for axis in view.axes)) and _is_better_staged(view):
            yield "staged", ""
        if prod(view.blocks) >= LEAST_BLOCKS_OF_RUNS and _stores_better_in_runs(view):
            yield "runs", ""
        yield "per_block", ""


def _is_better_staged(view: View) -> bool:
    """Return whether threads of neighbouring blocks would load pixels far apart, or the same pixels many times."""
    row, itemsize = view.axes[-1], view.itemsize
    if prod(view.blocks) * row.stride < LEAST_PIXELS_OF_STAGED:
        return False
    if row.pixel_stride != 1:
        return row.kernel > 1 and abs(row.pixel_stride) * itemsize >= APART_BYTES
    if row.stride * itemsize >= FAR_BYTES:
        return row.kernel >= FAR_TAPS and (itemsize >= NARROW_BYTES or row.kernel * row.dilation > row.stride)
    return row.kernel >= WIDE_TAPS and (itemsize > 1 or row.stride == 1)


def _stores_better_in_runs(view: View) -> bool:
    """Whether rows are no whole sectors, or blocks of long elements overlap."""
    if view.itemsize >= NARROW_BYTES and any(axis.kernel * axis.dilation > axis.stride for axis in view.axes):
        return True
    padded_bytes = view.itemsize == 1 and any(axis.pad for axis in view.axes)
    return view.tap_stride * view.itemsize % SECTOR_BYTES > 0 and not padded_bytes


# ---------------------------------------------------------------------------------------------
# add_blocks

BINNED_MIN_TESTS = 1 << 20
"""Least tests of a block against a tile for which lists are worth their launches, and most elements for which exact
atomic additions are taken, which no saved run measured."""


def of_add_blocks(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield atomic for few integers, binned if there is much to test, and output_driven."""
    view, tiling = positions.positions_view(problem), positions.tiling_of(problem)
    if problem.element.exact and prod(problem.input.shape) <= BINNED_MIN_TESTS:
        yield "atomic", "elements are few, and their sums exact in any order"
    if view.batch * view.channels // tiling.planes * prod(tiling.along) * view.count >= BINNED_MIN_TESTS:
        yield "binned", "there is so much to test that a list of blocks for each tile is worth its launches"
    yield "output_driven", ""
