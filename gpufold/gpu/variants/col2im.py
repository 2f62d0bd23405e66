"""The kernel variants of col2im, as plans."""

from __future__ import annotations

from math import gcd, prod

from gpufold.calls import Unsupported
from gpufold.elements import ElementType
from gpufold.gpu.parameters import contiguous_strides, divisor, int32, offset, offset_bits
from gpufold.gpu.plan import Plan, Problem, Variant, Work, check_atomics, planes_per_thread
from gpufold.gpu.variants.columns import cells_of, taps_per_pixel, view_of
from gpufold.gpu.variants.moves import WARP, WIDEST_WORD
from gpufold.gpu.variants.sums import OPERATION, largest_offset, sum_plan
from gpufold.gpu.variants.whole_blocks import gather_blocks

# ---------------------------------------------------------------------------------------------
# gather

GATHER_THREADS, GATHER_WORD_THREADS = 256, 224
"""Of a block, the latter where elements are words of 4 bytes: a multiprocessor then has registers for 28 warps, which
are four such blocks, and else for 24."""
GATHER_MAX_STRIDE = 16
GATHER_MAX_KERNEL = 32
"""A gathering thread keeps a cell's sums and the offsets of a row's taps in registers."""
GATHER_MAX_PLANES, GATHER_FEW_PLANES = 8, 4
"""Planes of one thread: they share its index arithmetic. Fewer of wide elements where more would be spilled."""
GATHER_ROW_REGISTERS = 32
"""Registers for the sums of a cell, and for a row of taps, of all planes: more would be spilled."""
GATHER_WAVES = 2
"""Guess: several planes per thread pay while this many times the resident threads are left."""
GATHER_RESIDENT_THREADS = 768
"""Threads per multiprocessor that the registers of several planes leave room for."""
STAGED_BYTES = 40 * 1024
"""What a block may stage, of the 48 KB that static shared memory may have."""


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + "s" * (count > 1)


def _planes_at_most(element: ElementType, row_taps: int, cell: int, few: bool) -> int:
    """Return the planes that one thread has registers for, which is compiled in."""
    words = max(1, element.itemsize // 4) if element.itemsize > 1 else 2  # a byte is held widened, too
    planes = GATHER_FEW_PLANES if few and element.itemsize > 2 else GATHER_MAX_PLANES
    while planes > 1 and planes * words * max(row_taps, cell) > GATHER_ROW_REGISTERS:
        planes //= 2
    return planes


def _planes(problem: Problem, places: int, compiled: int) -> int:
    """Return the planes a thread that are compiled in, where they leave enough threads, else one."""
    view, enough = view_of(problem), GATHER_WAVES * GATHER_RESIDENT_THREADS * problem.device.multiprocessors
    return compiled if planes_per_thread(view.channels, view.batch * places, compiled, enough) == compiled else 1


def gather(problem: Problem) -> Plan:
    """Plan for kernels/col2im_gather.cu."""
    view = view_of(problem)
    *outer, row = view.axes
    if row.stride > GATHER_MAX_STRIDE:
        raise Unsupported(
            f"{OPERATION}: gather keeps a stride's worth of pixels in registers, {GATHER_MAX_STRIDE} at most, "
            f"but strides is {row.stride} on the last axis"
        )
    if row.kernel > GATHER_MAX_KERNEL:
        raise Unsupported(
            f"{OPERATION}: gather unrolls the taps of the last axis, {GATHER_MAX_KERNEL} at most, "
            f"but kernel_size is {row.kernel} there"
        )
    itemsize = view.element.itemsize
    cells = -(-row.size // row.stride)
    extents = (*(axis.size for axis in outer), cells)
    whole_cells = row.size % row.stride == 0 and view.pixel_strides[-1] == 1
    word = gcd(row.stride * itemsize, WIDEST_WORD)  # in bytes
    outer_strides = (*view.pixel_strides[:-1], view.image_channel, view.image_batch)
    aligned = problem.output.alignment % word == 0 and not any(stride * itemsize % word for stride in outer_strides)
    at_most = _planes_at_most(view.element, row.kernel, row.stride, few=len(outer) > 1)
    planes = _planes(problem, prod(extents), at_most)
    words = word > itemsize and whole_cells and aligned and (planes > 1 or at_most == 1)
    groups = -(-view.channels // planes)
    items = view.batch * groups * prod(extents)
    block = GATHER_WORD_THREADS if problem.call.source_element.itemsize == 4 else GATHER_THREADS
    block = min(block, STAGED_BYTES // (33 * row.stride * itemsize) * WARP)
    contiguous = view.pixel_strides == contiguous_strides(tuple(axis.size for axis in view.axes))
    stored = f"in words of {word} bytes" if words else "one by one"
    staged = row.stride * itemsize > (word if words else 2 * itemsize)
    if staged:
        stored = f"{stored}, staged in shared memory so that warps write whole runs"
    staged_bytes = block // WARP * (33 * row.stride * itemsize + WARP * (8 + 4)) if staged else 0
    bits = offset_bits(OPERATION, largest_offset(view), items + block)
    return sum_plan(
        problem,
        "gather",
        Work(items, block, block, extents, groups, bits, staged_bytes),
        f"each thread adds up the taps of {_counted(row.stride, 'neighbouring pixel')} "
        f"of {_counted(planes, 'plane')}, stored {stored}",
        {"cells_form_runs": int32(int(contiguous and prod(extents) >= WARP))},
        PLANES=at_most,
        WORD=word // itemsize,
        PHASE=row.pad_begin % row.stride,
        symbol="col2im_gather" + ("_words" if words else "_planes" * (planes > 1)),
    )


# ---------------------------------------------------------------------------------------------
# gather_pixels

PIXELS_THREADS = 128
"""Of a block: a multiprocessor has registers for five such blocks with a window, where two of twice as many fit."""


def _pixels_per_word(problem: Problem) -> tuple[int, bool]:
    """Return the pixels that get a word of taps, by what is compiled in, and whether the arrays have such words."""
    view = view_of(problem)
    row, itemsizes = view.axes[-1], (problem.call.source_element.itemsize, view.element.itemsize)
    word = gcd(WIDEST_WORD // max(itemsizes), row.kernel, row.stride) if row.dilation == 1 else 1
    columns = (*view.tap_strides[:-1], *view.block_strides, view.columns_channel, view.columns_batch)
    image = (*view.pixel_strides[:-1], view.image_channel, view.image_batch)
    whole = not any(extent % word for extent in (row.pad_begin, row.size, *columns, *image))
    follow = view.tap_strides[-1] == view.pixel_strides[-1] == 1
    alignments = problem.input.alignment, problem.output.alignment
    aligned = not any(at % (word * size) for at, size in zip(alignments, itemsizes, strict=True))
    return word, word > 1 and whole and follow and aligned


def gather_pixels(problem: Problem) -> Plan:
    """Plan for kernels/col2im_gather_pixels.cu, which serves everything."""
    view = view_of(problem)
    *outer, row = (axis.size for axis in view.axes)
    word, words = _pixels_per_word(problem)
    at_most, words_at_most = (_planes_at_most(view.element, 1, cell, few=True) for cell in (1, word))
    if words:
        row //= word
    extents = (*outer, row)
    planes = _planes(problem, prod(extents), words_at_most if words else at_most)
    groups = -(-view.channels // planes)
    items = view.batch * groups * prod(extents)
    threads = PIXELS_THREADS
    pixels = "one pixel" if not words else f"{word} pixels"
    bits = offset_bits(OPERATION, largest_offset(view), items + threads)
    return sum_plan(
        problem,
        "gather_pixels",
        Work(items, threads, threads, extents, groups, bits),
        f"each thread adds up the taps of {pixels} of {_counted(planes, 'plane')}",
        PLANES=at_most,
        WORD=word,
        WORD_PLANES=words_at_most,
        symbol="col2im_gather_pixels" + "_words" * words + "_planes" * (planes > 1),
    )


# ---------------------------------------------------------------------------------------------
# gather_parts

PARTS_THREADS = 128
"""Of a block: a multiprocessor has registers for five or seven such blocks, where two or three of twice as many fit."""
PARTS_BYTES, PARTS_REGISTERS, PARTS_PLANES, PARTS_LOADED = 64, 32, 4, 96
"""Of a thread: what neighbouring pixels it owns, two sectors, the registers of a plane that loads in flight together
fill, planes, and the registers for the loads of all of them, a window's among these. A part is half as long where the
taps of each pixel are kept, because they are dilated."""
PARTS_RUN_BYTES = 16
"""What shared memory holds of where a part is stored."""


def gather_parts(problem: Problem) -> Plan:
    """Plan for kernels/col2im_gather_parts.cu."""
    view = view_of(problem)
    *outer, row = view.axes
    itemsize = view.element.itemsize
    word = gcd(row.stride * itemsize, WIDEST_WORD) // itemsize
    part = max(word, PARTS_BYTES // itemsize // (2 if row.dilation != 1 else 1))
    of_pixel = taps_per_pixel(row) * max(1, itemsize // 4)
    while part > word and (part * of_pixel > PARTS_REGISTERS or part >= 2 * row.stride):
        part //= 2
    steps = (*view.pixel_strides[:-1], view.image_channel, view.image_batch, row.size, row.pad_begin)
    in_words = view.pixel_strides[-1] == 1 and not any(step % word for step in steps)
    in_words = in_words and problem.output.alignment % (word * itemsize) == 0
    extents = (*(min(axis.stride, axis.size) for axis in outer), -(-row.stride // part))
    cells = cells_of(view)
    at_most, weighed = PARTS_PLANES, problem.fusion.window != "none"
    while at_most > 1 and (at_most + weighed) * part * of_pixel > PARTS_LOADED:
        at_most //= 2
    planes = _planes(problem, prod(extents) * prod(cells), at_most)
    groups = -(-view.channels // planes)
    items = view.batch * groups * prod(extents) * prod(cells)
    past_row = (row.stride + part) * (1 + abs(view.tap_strides[-1]) + abs(view.pixel_strides[-1]))
    bits = offset_bits(OPERATION, largest_offset(view) + past_row, items + PARTS_THREADS)
    tile_bytes = PARTS_THREADS * (planes * (part + word) * itemsize + PARTS_RUN_BYTES)
    return sum_plan(
        problem,
        "gather_parts",
        Work(items, PARTS_THREADS, PARTS_THREADS, extents, groups, bits, tile_bytes),
        f"each thread adds up {_counted(part, 'neighbouring pixel')} of a stride in {_counted(planes, 'plane')}",
        {
            "in_words": int32(int(in_words)),
            "in_front": offset(row.pad_begin % row.stride),
            "first_block": offset(row.pad_begin // row.stride),
            "by_cells": divisor(cells),
        },
        PART=part,
        WORD=word,
        PLANES=at_most,
        symbol="col2im_gather_parts" + "_planes" * (planes > 1),
    )


# ---------------------------------------------------------------------------------------------
# atomic


def atomic(problem: Problem) -> Plan:
    """Plan for kernels/col2im_atomic.cu."""
    view = view_of(problem)
    check_atomics(OPERATION, problem.call.dtype)
    if problem.fusion.reduction != "sum":
        raise Unsupported(f"{OPERATION}: atomic cannot divide a pixel, whose last addition no thread knows of")
    if not problem.fusion.accumulate and problem.output.strides != contiguous_strides(problem.output.shape):
        raise Unsupported(f"{OPERATION}: atomic zeroes the image first, so out must be C-contiguous")
    extents = view.blocks
    kernel = tuple(axis.kernel for axis in view.axes)
    items = view.planes * prod(kernel) * prod(extents)
    bits = offset_bits(OPERATION, largest_offset(view), items + GATHER_THREADS)
    return sum_plan(
        problem,
        "atomic",
        Work(items, GATHER_THREADS, GATHER_THREADS, extents, view.channels, bits),
        "each thread adds one element of the columns to its pixel with an atomic operation",
        {"by_tap": divisor(kernel)},
    )


VARIANTS: dict[str, Variant] = {
    "gather": gather,
    "gather_blocks": gather_blocks,
    "gather_parts": gather_parts,
    "gather_pixels": gather_pixels,
    "atomic": atomic,
}
