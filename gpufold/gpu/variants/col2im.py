"""The kernel variants of col2im, as plans."""

from __future__ import annotations

from math import gcd, prod

from gpufold.calls import Unsupported
from gpufold.elements import ElementType
from gpufold.geometry import Size
from gpufold.gpu.parameters import are_contiguous, contiguous_strides, divisor, int32, offset, offset_bits
from gpufold.gpu.plan import LaunchShape, Plan, Problem, check_atomics, planes_per_thread
from gpufold.gpu.variants.columns import cells_of, taps_per_pixel, view_of
from gpufold.gpu.variants.moves import MOVING_THREADS, PLANES_PER_THREAD, WARP, WIDEST_WORD
from gpufold.gpu.variants.sums import largest_offset, plans_of, sum_plan

THREADS = 128
"""Of a thread block: a multiprocessor has registers for five to seven such blocks, where two or three of twice as many
fit."""
PLANE_REGISTERS = 32
"""For what a thread keeps of its planes, or of one: its sums, and what it loads together. Of more, some would be
spilled."""

FEW_BYTES, FEW_TAPS = 2, 16
"""Of an element, and of a pixel, up to which several planes of a thread are faster than one: measured on an H100."""


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + "s" * (count > 1)


def _planes_at_most(element: ElementType, kept: int, few: bool) -> int:
    """Return the planes that one thread has registers for, which is compiled in; it keeps so many elements of each."""
    words = max(1, element.itemsize // 4) if element.itemsize > 1 else 2  # a byte is held widened, too
    most = PLANES_PER_THREAD // 2 if few else PLANES_PER_THREAD
    while most > 1 and most * words * kept > PLANE_REGISTERS:
        most //= 2
    return most


def _planes(problem: Problem, places: int, compiled: int) -> tuple[int, ...]:
    """Return the planes that a thread may serve, one or as many as are compiled in.

    These come first for narrow elements of which few land on a pixel, if threads are enough. They are no choice where
    most of them would repeat another.
    """
    view, device = view_of(problem), problem.device
    if compiled == 1 or 2 * view.channels <= compiled:
        return (1,)
    if view.element.itemsize > FEW_BYTES or prod(map(taps_per_pixel, view.axes)) > FEW_TAPS:
        return (1, compiled)
    enough = device.multiprocessors * device.threads_per_multiprocessor
    fills = planes_per_thread(view.channels, view.batch * places, compiled, enough) == compiled
    return (compiled, 1) if fills else (1, compiled)


# ---------------------------------------------------------------------------------------------
# gather, gather_parts, gather_pixels

GATHER_MAX_STRIDE, GATHER_MAX_KERNEL = 16, 32
"""A gathering thread keeps a cell's sums and the offsets of a row's taps in registers."""
PART_BYTES, PART_LOADED = 64, 96
"""Of a thread: what neighbouring pixels it owns, two sectors, and the registers for the loads in flight of all planes,
a window's among these. A part is half as long where the taps of each pixel are kept, because they are dilated."""
RUN_BYTES = 16
"""What shared memory holds of where a part is stored."""


def gather(problem: Problem) -> tuple[Plan, ...]:
    """Plan kernels/col2im_gather.cu for cells."""
    view = view_of(problem)
    *outer, row = view.axes
    if row.stride > GATHER_MAX_STRIDE:
        raise Unsupported(
            f"gather keeps a stride's worth of pixels in registers, {GATHER_MAX_STRIDE} at most, "
            f"but strides is {row.stride} on the last axis"
        )
    if row.kernel > GATHER_MAX_KERNEL:
        raise Unsupported(
            f"gather unrolls the taps of the last axis, {GATHER_MAX_KERNEL} at most, "
            f"but kernel_size is {row.kernel} there"
        )
    few = len(outer) > 1 and view.element.itemsize > 2
    planes = _planes_at_most(view.element, max(row.kernel, row.stride), few)
    return _gather(problem, "cells", row.stride, planes)


def gather_parts(problem: Problem) -> tuple[Plan, ...]:
    """Plan kernels/col2im_gather.cu for parts of cells."""
    view = view_of(problem)
    row, itemsize = view.axes[-1], view.element.itemsize
    part = max(_word(problem), PART_BYTES // itemsize // (2 if row.dilation != 1 else 1))
    of_pixel = taps_per_pixel(row) * max(1, itemsize // 4)
    while part > _word(problem) and (part * of_pixel > PLANE_REGISTERS or part >= 2 * row.stride):
        part //= 2
    planes, weighed = PLANES_PER_THREAD // 2, problem.fusion.window != "none"
    while planes > 1 and (planes + weighed) * part * of_pixel > PART_LOADED:
        planes //= 2
    return _gather(problem, "parts", part, planes)


def gather_pixels(problem: Problem) -> tuple[Plan, ...]:
    """Plan kernels/col2im_gather.cu for pixels, or words of them, which serves everything."""
    part = _pixels_with_words_of_taps(problem)
    return _gather(problem, "pixels", part, _planes_at_most(problem.element, part, problem.element.itemsize != 2))


def _pixels_with_words_of_taps(problem: Problem) -> int:
    """Return the pixels that get a word of taps where the arrays have such words, else 1."""
    view = view_of(problem)
    row, itemsizes = view.axes[-1], (problem.call.source_element.itemsize, view.element.itemsize)
    word = gcd(WIDEST_WORD // max(itemsizes), row.kernel, row.stride) if row.dilation == 1 else 1
    columns = (*view.tap_strides[:-1], *view.block_strides, view.columns_channel, view.columns_batch)
    image = (*view.pixel_strides[:-1], view.image_channel, view.image_batch)
    whole = not any(extent % word for extent in (row.pad_begin, row.size, *columns, *image))
    follow = view.tap_strides[-1] == view.pixel_strides[-1] == 1
    alignments = problem.input.alignment, problem.output.alignment
    aligned = not any(at % (word * size) for at, size in zip(alignments, itemsizes, strict=True))
    return word if whole and follow and aligned else 1


def _word(problem: Problem) -> int:
    """Return the pixels of the widest word that divides a stride."""
    row, itemsize = view_of(problem).axes[-1], problem.element.itemsize
    return gcd(row.stride * itemsize, WIDEST_WORD) // itemsize


def _stores_words(problem: Problem, word: int, pad: int) -> bool:
    """Whether the image has words of so many pixels, the first of a row behind so much padding."""
    view, row = view_of(problem), view_of(problem).axes[-1]
    steps = (*view.pixel_strides[:-1], view.image_channel, view.image_batch, row.size, pad)
    aligned = problem.output.alignment % (word * view.element.itemsize) == 0
    return word > 1 and view.pixel_strides[-1] == 1 and aligned and not any(step % word for step in steps)


def _gather(problem: Problem, numbering: str, part: int, at_most: int) -> tuple[Plan, ...]:
    """Plan for threads that own so many neighbouring pixels and are numbered by these, by cells or by their parts."""
    view = view_of(problem)
    *outer, row = view.axes
    variant = {"cells": "gather", "parts": "gather_parts", "pixels": "gather_pixels"}[numbering]
    itemsize, sizes, cells = view.element.itemsize, tuple(axis.size for axis in outer), (1,) * len(view.axes)
    in_front, past_row = row.pad_begin % row.stride, 0
    word, whole = part if numbering == "pixels" else _word(problem), row.size % row.stride == 0
    if numbering == "pixels":
        extents: Size = (*sizes, row.size // part)
        words = word > 1
    elif numbering == "cells":
        extents = (*sizes, -(-row.size // row.stride))
        words = whole and _stores_words(problem, word, 0)
    else:
        extents, cells = (*(min(axis.stride, axis.size) for axis in outer), -(-row.stride // part)), cells_of(view)
        words = _stores_words(problem, word, row.pad_begin)
        past_row = (row.stride + part) * (1 + abs(view.tap_strides[-1]) + abs(view.pixel_strides[-1]))
    places = prod(extents) * prod(cells)
    is_staged = numbering == "parts" or (numbering == "cells" and part > (word if words else 2))
    in_runs = whole and prod(extents) >= WARP and view.pixel_strides == contiguous_strides((*sizes, row.size))

    def plan(planes: int) -> Plan:
        groups = -(-view.channels // planes)
        items = view.batch * groups * places
        bits = offset_bits(largest_offset(view) + past_row, items + THREADS)
        tile_bytes = THREADS // WARP * -(-planes * (WARP + 1) * part * itemsize // 16) * 16 + THREADS * RUN_BYTES
        return sum_plan(
            problem,
            variant,
            LaunchShape(items, THREADS, THREADS, extents, groups, bits, tile_bytes if is_staged else 0),
            f"each thread adds up the taps of {_counted(part, 'neighbouring pixel')} of {_counted(planes, 'plane')}, "
            f"stored {f'in words of {word * itemsize} bytes' if words else 'one by one'}",
            {
                "in_runs": int32(int(in_runs)),
                "in_front": offset(in_front),
                "first_block": offset(row.pad_begin // row.stride),
                "by_cells": divisor(cells),
            },
            {"source": "col2im_gather.cu", "symbol": "col2im_gather" + "_words" * words + "_planes" * (planes > 1)},
            NUMBERING=numbering,
            PHASE=in_front if numbering == "cells" else 0,
            PART=part,
            WORD=word,
            PLANES=at_most,
        )

    return plans_of(plan, _planes(problem, places, at_most))


# ---------------------------------------------------------------------------------------------
# atomic


def atomic(problem: Problem) -> Plan:
    """Plan for kernels/col2im_atomic.cu."""
    view = view_of(problem)
    check_atomics(problem.call.dtype)
    if problem.fusion.reduction != "sum":
        raise Unsupported("atomic cannot divide a pixel, whose last addition no thread knows of")
    if not problem.fusion.accumulate and not are_contiguous(problem.output.shape, problem.output.strides):
        raise Unsupported("atomic zeroes the image first, so out must be C-contiguous")
    kernel = tuple(axis.kernel for axis in view.axes)
    items = view.planes * prod(kernel) * prod(view.blocks)
    bits = offset_bits(largest_offset(view), items + MOVING_THREADS)
    return sum_plan(
        problem,
        "atomic",
        LaunchShape(items, MOVING_THREADS, MOVING_THREADS, view.blocks, view.channels, bits),
        "each thread adds one element of the columns to its pixel with an atomic operation",
        {"by_tap": divisor(kernel)},
    )
