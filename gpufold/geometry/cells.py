"""Axes by cells: groups of taps, or of blocks, that one array operation processes.

A cell is as many pixels of an axis as its stride, and a phase is the place of a pixel in its cell.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from gpufold.geometry.axes import Axes, Axis
from gpufold.keeping import kept

LONG_STRIDE = 8
"""Least stride of the last axis for which the phases of a cell are a long enough inner loop."""

FEWER, MANY_OPERATIONS = 1.25, 1 << 8
"""Ratio of groups of taps to groups of blocks above which an axis is processed by blocks: above 1, because blocks are
often contiguous; then many array operations."""


class Group(NamedTuple):
    """Consecutive taps of an axis that reach the same cell offset, each at its own phase of the cell."""

    taps: slice
    phases: slice
    cells: slice
    blocks: slice


class Segment(NamedTuple):
    """Pixels of an axis viewed as (cells, width): whole cells of a stride's width, or the shorter rest as one."""

    pixels: slice
    first_cell: int
    cells: int
    width: int


def segments_of(axis: Axis, begin: int = 0) -> Iterator[Segment]:
    """Yield the whole cells of an axis that begins at pixel `begin` of a cell, and the parts before and after them."""
    head = min(axis.size, -begin % axis.stride)
    tail = axis.size - (axis.size - head) % axis.stride
    for start, stop in ((0, head), (head, tail), (tail, axis.size)):
        if start < stop:
            width = min(stop - start, axis.stride)
            yield Segment(slice(start, stop), (start + begin) // axis.stride, (stop - start) // width, width)


def groups_of(axis: Axis, piece: Segment, group_phases: bool, begin: int = 0) -> Iterator[Group]:
    """Yield the groups that reach a piece, by ascending taps; the axis begins at pixel `begin` of a cell."""
    tap, blocks, step = 0, axis.blocks, max(1, axis.dilation)
    first = (piece.pixels.start + begin) % axis.stride if begin else 0  # phase of the piece
    while tap < axis.kernel:
        offset, phase = divmod(axis.pixel(0, tap) + begin, axis.stride)
        offset -= piece.first_cell
        most = axis.kernel - tap if group_phases and axis.dilation else 1
        count = min(most, (axis.stride - 1 - phase) // step + 1)
        phase -= first
        skipped, stop = max(0, -(phase // step)), min(count, (piece.width - 1 - phase) // step + 1)
        start, end = max(0, offset), min(piece.cells, offset + blocks)
        if skipped < stop and start < end:
            yield Group(
                slice(tap + skipped, tap + stop),
                slice(phase + skipped * step, phase + (stop - 1) * step + 1, step),
                slice(start, end),
                slice(start - offset, end - offset),
            )
        tap += count


def outside_of(axis: Axis, block_by_block: bool = False) -> Iterator[tuple[int | slice, int | slice]]:
    """Yield taps and blocks that lie outside the image: the blocks of each tap, or the taps of each block if fewer."""
    few = axis.turned if block_by_block and axis.dilation else axis.shorter
    for tap in range(few.kernel if axis.dilation else 1):
        inside, each = few.reach(tap), tap if axis.dilation else slice(None)
        for outside in (slice(0, inside.start), slice(inside.stop, few.blocks)):
            if outside.start < min(outside.stop, few.blocks):
                yield (each, outside) if few is axis else (outside, each)


class Plan(NamedTuple):
    """How axes are processed: each in groups of its taps or, if there are fewer, of its blocks."""

    axes: Axes
    turned: tuple[bool, ...]
    """Axes that are turned. Their groups come last to first: the last block on a pixel has its first tap."""
    once: bool
    """Whether blocks tile the image without gaps, overlaps or margins left open: each pixel has one tap."""
    apart: bool
    """Whether each pixel has one tap at most: blocks do not overlap, or their taps interlock."""
    operations: int
    """Most array operations."""


def groups_phases(axis: Axis, separate: bool) -> bool:
    """Return whether taps at several phases form a group; where phases are separate, only if the inner loop is long."""
    return axis.dilation > 0 and (not separate or axis.stride >= LONG_STRIDE)


@kept
def plan_of(axes: Axes, rows: bool = False) -> Plan:
    """Choose how axes are processed, with about as many array operations as the square root of the column elements.

    If `rows` are to be added whole, the last axis is processed by its blocks unless that makes many more operations.
    """
    counts: list[list[int]] = []
    last = len(axes) - 1
    for number, axis in enumerate(axes):
        counts.append([])
        for each in (axis, axis.turned) if axis.dilation else (axis,):
            cells = each.pixel(0, each.kernel - 1) // each.stride - each.pixel(0, 0) // each.stride + 1
            groups = min(each.kernel, cells) if groups_phases(each, number == last) else each.kernel
            counts[-1].append(groups * len(tuple(segments_of(each))))
    turned = [FEWER * count[-1] < count[0] for count in counts]
    if rows:
        operations = prod(count[turns] for count, turns in zip(counts, (*turned[:-1], True), strict=True))
        turned[-1] |= operations**2 <= prod(axis.kernel * axis.blocks for axis in axes)
    served = tuple(axis.turned if turns else axis for axis, turns in zip(axes, turned, strict=True))
    operations = prod(count[turns] for count, turns in zip(counts, turned, strict=True))
    once = all(
        (axis.kernel == axis.stride or axis.blocks == 1)
        and (axis.dilation == 1 or axis.kernel == 1)
        and axis.pixel(0, 0) <= 0
        and axis.pixel(axis.blocks - 1, axis.kernel - 1) >= axis.size - 1
        for axis in axes
    )
    return Plan(served, tuple(turned), once, all(axis.apart for axis in axes), operations)
