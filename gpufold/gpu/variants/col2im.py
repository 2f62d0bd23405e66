"""The kernel variants of col2im, as plans, and the choice among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from gpufold.calls import Unsupported
from gpufold.elements import ElementType
from gpufold.geometry import Axis, Size
from gpufold.gpu.parameters import (
    INT32_MAX,
    Field,
    are_contiguous,
    contiguous_strides,
    divisor,
    int32,
    offset,
    offset_bits,
    offset_type,
    pack,
    span,
    struct,
    wide,
)
from gpufold.gpu.plan import (
    Plan,
    Problem,
    Variant,
    Work,
    check_atomics,
    grid_of,
    planes_per_thread,
)
from gpufold.gpu.variants.moves import LINE_BYTES, SECTOR_BYTES, WARP, WIDEST_WORD
from gpufold.gpu.variants.sliding import (
    View,
    block_step,
    fusion_defines,
    sliding_bytes,
    tap_step,
    taps_per_pixel,
    view_of,
    weight_bytes,
)

OPERATION = "col2im"
MAX_UNROLLED = 128
"""Bound of the registers that kernels/col2im.cuh counts for the loads of a tap."""


def _largest_offset(view: View) -> int:
    """Bound what a kernel computes inside a plane, of taps that turn out not to exist too."""
    columns = sum(
        (axis.kernel + tap_step(axis)) * abs(tap_stride)
        + (axis.blocks + 2 * (axis.dilated_kernel // axis.stride + 1) + block_step(axis)) * abs(block_stride)
        for axis, tap_stride, block_stride in zip(view.axes, view.tap_strides, view.block_strides, strict=True)
    )
    image = span(tuple(axis.size + axis.stride for axis in view.axes), view.pixel_strides)
    padded = max(axis.padded_size + axis.stride + axis.dilated_kernel for axis in view.axes)
    taps = prod(axis.kernel for axis in view.axes)
    unrolled = MAX_UNROLLED * prod(map(taps_per_pixel, view.axes))
    steps = (tap_step(axis) * max(tap_step(axis), block_step(axis)) for axis in view.axes)
    return max(columns, image, padded, taps, unrolled, view.channels, *steps)


# ---------------------------------------------------------------------------------------------
# Launches


def _plan(
    problem: Problem,
    variant: str,
    symbol: str,
    work: Work,
    reason: str,
    members: dict[str, Field] | None = None,
    **defines: Any,
) -> Plan:
    """Fill in what all variants have in common; `members` follow kernels/col2im.cuh's Parameters in a kernel's own."""
    view, scatters = view_of(problem), variant == "atomic"
    axes = view.axes
    if not scatters and MAX_UNROLLED * max(map(taps_per_pixel, axes)) > INT32_MAX:
        raise Unsupported(
            f"{OPERATION}: {variant} counts the taps of a pixel along an axis, {INT32_MAX // MAX_UNROLLED} at most, "
            f"but up to {max(map(taps_per_pixel, axes))} land on one"
        )
    steps = [
        tap_step(axis) * tap_stride - block_step(axis) * block_stride if taps_per_pixel(axis) > 1 else 0
        for axis, tap_stride, block_stride in zip(axes, view.tap_strides, view.block_strides, strict=True)
    ]
    shared = struct(
        columns_batch=wide(view.columns_batch),
        columns_channel=wide(view.columns_channel),
        image_batch=wide(view.image_batch),
        image_channel=wide(view.image_channel),
        channels=offset(view.channels),
        items=offset(work.items),
        size=offset([axis.size for axis in axes]),
        blocks=offset(view.blocks),
        pad=offset([axis.pad_begin for axis in axes]),
        tap_stride=offset(view.tap_strides),
        block_stride=offset(view.block_strides),
        tap_step_stride=offset(steps),
        pixel_stride=offset(view.pixel_strides),
        by_extent=divisor(work.extents),
        by_channels=divisor(work.channel_groups),
    )
    return Plan(
        OPERATION,
        variant,
        f"col2im_{variant}.cu",
        symbol,
        tuple(
            (name, ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value))
            for name, value in {
                "SCALAR": problem.call.source_element.scalar,
                "ACCUMULATOR": view.element.accumulator,
                "OFFSET": offset_type(work.bits),
                "KERNEL": view.kernel,
                "STRIDE": [axis.stride for axis in axes],
                "DILATION": [axis.dilation for axis in axes],
                "THREADS": work.threads,
                **({"RESULT": view.element.scalar} if problem.call.source else {}),
                **fusion_defines(problem),
                **defines,
            }.items()
        ),
        grid_of(OPERATION, work.items, work.per_block),
        (work.threads, 1, 1),
        pack(work.bits, shared=shared, **(members or {})),
        sliding_bytes(problem),
        reason,
        takes_window=True,
        scatters=scatters,
        reads_output=problem.fusion.accumulate,
        shared_bytes=work.shared_bytes,
    )


# ---------------------------------------------------------------------------------------------
# gather

GATHER_THREADS = 256
GATHER_MAX_STRIDE = 16
GATHER_MAX_KERNEL = 32
"""A gathering thread keeps a cell's sums and the offsets of a row's taps in registers."""
GATHER_MAX_PLANES, GATHER_FEW_PLANES = 8, 4
"""Planes of one thread: they share its index arithmetic. Fewer of wide elements where more would be spilled."""
GATHER_ROW_REGISTERS = 32
"""Registers for the sums of a cell, and for a row of taps, of all planes: more would be spilled."""
GATHER_WAVES = 2
"""Prediction: several planes per thread pay while this many times the resident threads are left."""
GATHER_RESIDENT_THREADS = 768
"""Threads per multiprocessor that the registers of several planes leave room for."""
STAGED_BYTES = 40 * 1024
"""What a block may stage, of the 48 KB that static shared memory may have."""


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + "s" * (count > 1)


def _planes_at_most(element: ElementType, row_taps: int, cell: int, few: bool) -> int:
    """Return the planes that one thread has registers for, which is compiled in."""
    words = max(1, element.itemsize // 4)
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
    block = GATHER_THREADS
    while row.stride > 1 and 33 * block // WARP * row.stride * itemsize > STAGED_BYTES:
        block //= 2
    contiguous = view.pixel_strides == contiguous_strides(tuple(axis.size for axis in view.axes))
    stored = f"in words of {word} bytes" if words else "one by one"
    staged = row.stride * itemsize > (word if words else 2 * itemsize)
    if staged:
        stored = f"{stored}, staged in shared memory so that warps write whole runs"
    return _plan(
        problem,
        "gather",
        "col2im_gather" + ("_words" if words else "_planes" * (planes > 1)),
        Work(
            items,
            block,
            block,
            extents,
            groups,
            offset_bits(OPERATION, _largest_offset(view), items + block),
            block // WARP * (33 * row.stride * itemsize + WARP * (8 + 4)) if staged else 0,
        ),
        f"each thread adds up the taps of {_counted(row.stride, 'neighbouring pixel')} "
        f"of {_counted(planes, 'plane')}, stored {stored}",
        {"cells_form_runs": int32(int(contiguous and prod(extents) >= WARP))},
        PLANES=at_most,
        WORD=word // itemsize,
        PHASE=row.pad_begin % row.stride,
    )


# ---------------------------------------------------------------------------------------------
# gather_pixels

PIXELS_WEIGHED_THREADS = 128
"""Threads of a block with a window: a multiprocessor has registers for five such blocks, where two of twice the threads
fit and a third does not."""


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
    threads = PIXELS_WEIGHED_THREADS if problem.fusion.window != "none" else GATHER_THREADS
    pixels = "one pixel" if not words else f"{word} pixels"
    return _plan(
        problem,
        "gather_pixels",
        "col2im_gather_pixels" + "_words" * words + "_planes" * (planes > 1),
        Work(
            items,
            threads,
            threads,
            extents,
            groups,
            offset_bits(OPERATION, _largest_offset(view), items + threads),
        ),
        f"each thread adds up the taps of {pixels} of {_counted(planes, 'plane')}",
        PLANES=at_most,
        WORD=word,
        WORD_PLANES=words_at_most,
    )


# ---------------------------------------------------------------------------------------------
# gather_parts

PARTS_BYTES, PARTS_LOADS, PARTS_PLANES = 32, 32, 2
"""Of a thread: what neighbouring pixels it owns, a sector, the loads of a plane for them, which are in flight together,
and planes. A part is half as long where the taps of each pixel are kept, because they are dilated."""
PARTS_RUN_BYTES = 16
"""What shared memory holds of where a part is stored."""


def _cells(view: View) -> Size:
    """Return the cells of a plane along each axis; along the last one they begin where blocks do."""
    *outer, row = view.axes
    in_row = (row.pad_begin + row.size - 1) // row.stride - row.pad_begin // row.stride + 1
    return (*(-(-axis.size // axis.stride) for axis in outer), in_row)


def gather_parts(problem: Problem) -> Plan:
    """Plan for kernels/col2im_gather_parts.cu."""
    view = view_of(problem)
    *outer, row = view.axes
    itemsize = view.element.itemsize
    word = gcd(row.stride * itemsize, WIDEST_WORD) // itemsize
    part = max(word, PARTS_BYTES // itemsize // (2 if row.dilation != 1 else 1))
    while part > word and (part * taps_per_pixel(row) > PARTS_LOADS or part >= 2 * row.stride):
        part //= 2
    steps = (*view.pixel_strides[:-1], view.image_channel, view.image_batch, row.size, row.pad_begin)
    in_words = view.pixel_strides[-1] == 1 and not any(step % word for step in steps)
    in_words = in_words and problem.output.alignment % (word * itemsize) == 0
    extents = (*(min(axis.stride, axis.size) for axis in outer), -(-row.stride // part))
    cells = _cells(view)
    planes = _planes(problem, prod(extents) * prod(cells), PARTS_PLANES)
    groups = -(-view.channels // planes)
    items = view.batch * groups * prod(extents) * prod(cells)
    past_row = (row.stride + part) * (1 + abs(view.tap_strides[-1]) + abs(view.pixel_strides[-1]))
    bits = offset_bits(OPERATION, _largest_offset(view) + past_row, items + GATHER_THREADS)
    return _plan(
        problem,
        "gather_parts",
        "col2im_gather_parts" + "_planes" * (planes > 1),
        Work(
            items,
            GATHER_THREADS,
            GATHER_THREADS,
            extents,
            groups,
            bits,
            GATHER_THREADS * (planes * (part + word) * itemsize + PARTS_RUN_BYTES),
        ),
        f"each thread adds up {_counted(part, 'neighbouring pixel')} of a stride in {_counted(planes, 'plane')}",
        {
            "in_words": int32(int(in_words)),
            "in_front": offset(row.pad_begin % row.stride),
            "first_block": offset(row.pad_begin // row.stride),
            "by_cells": divisor(cells),
        },
        PART=part,
        WORD=word,
        PLANES=PARTS_PLANES,
    )


# ---------------------------------------------------------------------------------------------
# gather_blocks

BLOCKS_COLUMNS, BLOCKS_STAGED_COLUMNS = 512, 128
"""Pixels of a tile along a row, at most. Longer rows read fewer blocks twice, and lanes that stage have more to do."""
BLOCKS_RESIDENT_WARPS = 20
"""Prediction: of a multiprocessor, for which it has registers."""
BLOCKS_SUM_BYTES, BLOCKS_FEW_SUM_BYTES = 10 * 1024, 5300
"""What a tile's sums take of shared memory, the latter where these warps have less."""
BLOCKS_STAGED_BYTES = 4 * 1024
"""What the taps of a batch may take of it."""
BLOCK_SHARED_BYTES = 1024
"""Shared memory that the system takes for each resident thread block."""
BLOCKS_MAX_SPAN = 1 << 14
"""Blocks along an axis from the first to the last that reach a pixel: a thread block walks over all of them."""
BLOCKS_PIECE = 8
"""Taps of a lane, at most, whose sums it has in registers: a word, or several where taps are staged."""
BLOCKS_ROWS = 4
"""Rows of taps of a group where they are not staged, or as many as fill a cache line: with more of them more lanes are
idle at the ends of a tile, with fewer strips are shorter, which share blocks."""
BLOCKS_BATCH, BLOCKS_STAGED_BATCH = 15, 8
BLOCKS_BATCH_TAPS, BLOCKS_BATCH_BYTES, BLOCKS_STAGED_BATCH_BYTES = 72, 240, 256
"""Blocks whose taps a lane has in flight, these taps, and their bytes."""
BLOCKS_HOLE_BYTES = 128
"""Prediction: taps between those that a tile needs are worth bringing while they are no more than a cache line."""


@dataclass(frozen=True, slots=True)
class BlocksLanes:
    """How the lanes of a warp of kernels/col2im_gather_blocks.cu share out a block's taps."""

    vector: int
    """Taps of a word."""
    piece: int
    """Taps of a lane."""
    pieces: int
    """Of a row of taps."""
    rows: int
    """Of taps, of a group of lanes."""
    batch: int
    """Blocks at a time."""
    staged: int
    """Taps in shared memory, or 1 where lanes load those that they add up."""
    columns: int
    """Of a tile, at most."""

    @property
    def groups(self) -> int:
        return WARP // (self.rows * self.pieces)

    def batches(self, row: Axis, strip: int) -> int:
        """Count the batches of a chain of the blocks that reach a strip."""
        return -(-self._in_chain(row, strip) // self.batch)

    def spare(self, row: Axis, strip: int) -> int:
        """Count the places between the sums of rows, for the pixels before and after a strip that batches reach."""
        reach, step = self._reach(row), block_step(row)
        walked = min(step, self._reaching(row, strip)) + (self.batches(row, strip) * self.batch - 1) * step
        before = max(0, walked * row.stride - strip)
        return max(reach, before) if self.batches(row, strip) > 1 else reach + before  # one batch uses both at once

    def _reach(self, row: Axis) -> int:
        return (self.pieces * self.piece - 1) * row.dilation

    def _reaching(self, row: Axis, strip: int) -> int:
        return (strip - 1 + self._reach(row)) // row.stride + 1

    def _in_chain(self, row: Axis, strip: int) -> int:
        return (self._reaching(row, strip) - 1) // block_step(row) + 1

    def strip_places(self, row: Axis, strip: int, tile_rows: int) -> int:
        """Count the places from the sums of one strip to those of the next."""
        places = tile_rows * (strip + self.spare(row, strip) | 1)
        return places + (self.rows * self.pieces - places) % WARP  # the groups' lanes meet in no bank

    def places(self, row: Axis, strip: int, tile_rows: int) -> int:
        """Count a tile's places for sums."""
        return self.spare(row, strip) + self.groups * self.strip_places(row, strip, tile_rows)


def _blocks_lanes(problem: Problem) -> BlocksLanes:
    view, itemsize = view_of(problem), problem.call.source_element.itemsize
    row, tap_rows = view.axes[-1], prod(view.kernel[:-1])
    vector, row_bytes = _vector(problem), row.kernel * itemsize
    piece = vector
    while piece < BLOCKS_PIECE and -(-row.kernel // piece) > WARP:
        piece *= 2
    rows = min(tap_rows, max(BLOCKS_ROWS, LINE_BYTES // row_bytes), max(1, WARP // -(-row.kernel // piece)))
    batch = min(BLOCKS_BATCH, BLOCKS_BATCH_TAPS // piece, BLOCKS_BATCH_BYTES // (piece * itemsize))
    columns = BLOCKS_COLUMNS
    staged = vector * itemsize < WIDEST_WORD or rows * row_bytes < LINE_BYTES
    if staged:
        piece = _multiple(-(-row.kernel // -(-row.kernel // BLOCKS_PIECE)), vector)
    pieces = -(-row.kernel // piece)
    if pieces > WARP:
        raise Unsupported(
            f"{OPERATION}: gather_blocks shares out a row of taps to the lanes of a warp, {WARP * piece} at most, "
            f"but kernel_size is {row.kernel} on the last axis"
        )
    places = 1
    if staged:
        rows = -(-tap_rows // -(-tap_rows // (WARP // pieces)))
        places = WARP // (rows * pieces) * rows * row.kernel
        batch = min(
            BLOCKS_STAGED_BATCH,
            BLOCKS_STAGED_BATCH_BYTES // (piece * itemsize),
            BLOCKS_STAGED_BYTES // (places * itemsize),
        )
        batch, columns = max(1, batch), BLOCKS_STAGED_COLUMNS
        places *= batch
    return BlocksLanes(vector, piece, pieces, rows, batch, places, columns)


def _blocks_sums(problem: Problem) -> int:
    """Return the places that a tile has for sums, which are compiled in."""
    of_warp = problem.device.shared_bytes // BLOCKS_RESIDENT_WARPS - BLOCK_SHARED_BYTES
    most = BLOCKS_SUM_BYTES if of_warp >= BLOCKS_SUM_BYTES else BLOCKS_FEW_SUM_BYTES
    return most // view_of(problem).element.accumulator_bytes


def _tile_box(problem: Problem, lanes: BlocksLanes) -> Size:
    """Return the extents of a tile with which the waves of all tiles are done soonest.

    They are a row that is as long as others and as many rows as there are places for, or fewer. Rows of an axis share
    the blocks that reach more than one of them.
    """
    view, device, sums = view_of(problem), problem.device, _blocks_sums(problem)
    *outer, row = view.axes
    row_bytes = problem.call.source_element.itemsize * row.kernel
    shared_bytes = _blocks_shared_bytes(problem, lanes) + BLOCK_SHARED_BYTES
    at_once = device.multiprocessors * max(1, min(BLOCKS_RESIDENT_WARPS, device.shared_bytes // shared_bytes))
    grows = [
        number == len(outer) - 1 or prod(axis.kernel for axis in outer[number + 1 :]) * row_bytes <= BLOCKS_HOLE_BYTES
        for number in range(len(outer))
    ]

    def places(box: Size) -> int:
        return lanes.places(row, box[-1] // lanes.groups, prod(box[:-1]))

    def of_row(columns: int) -> Size:
        across = -(-row.size // columns)
        return (*(1,) * len(outer), -(-row.size // (across * lanes.groups)) * lanes.groups)

    def higher(box: Size) -> Size | None:
        """Return a tile with one more row, where that saves most: more than a group has rows of taps save little."""
        shared = [
            (axis.dilated_kernel - 1) / box[number] if grows[number] and box[number] < axis.size else 0
            for number, axis in enumerate(outer)
        ]
        best = max(range(len(outer)), key=lambda number: (shared[number], number), default=0)
        grown = tuple(extent + (number == best) for number, extent in enumerate(box))
        most = prod(grown[:-1]) if lanes.staged > 1 else lanes.rows
        return grown if any(shared) and prod(grown[:-1]) <= most and places(grown) <= sums else None

    def passes(axis: Axis, extent: int, rows: int) -> int:
        """Count the rows of blocks that reach a tile, each once for so many of its rows of taps that land there."""
        reaching, step = extent + axis.dilated_kernel - 1, max(1, axis.dilation)
        few = [-(-taps // rows) for taps in range(1, -(-min(extent, axis.dilated_kernel) // step) + 1)]
        return 2 * step * sum(few[:-1]) + max(0, reaching - 2 * step * (len(few) - 1)) * few[-1]

    def rounds(box: Size) -> int:
        tiles = view.planes * prod(-(-axis.size // extent) for axis, extent in zip(view.axes, box, strict=True))
        walked = [
            passes(axis, extent, lanes.rows if axis is outer[-1] else axis.kernel)
            for axis, extent in zip(outer, box[:-1], strict=True)
        ]
        return -(-tiles // at_once) * prod(walked) * lanes.batches(row, box[-1] // lanes.groups)

    columns = lanes.columns
    while columns > lanes.groups and places(of_row(columns)) > sums:
        columns //= 2
    if (needed := places(of_row(columns))) > sums:
        raise Unsupported(
            f"{OPERATION}: gather_blocks keeps sums of pixels and of those that their blocks reach, {sums} at most, "
            f"but kernel_size {row.kernel} and dilations {row.dilation} make it {needed} on the last axis"
        )
    boxes: list[Size] = []
    for longest in (columns, max(columns // 2, lanes.groups)):
        box: Size | None = of_row(longest)
        while box:
            boxes.append(box)
            box = higher(box)
    return min(boxes, key=lambda box: (rounds(box), -prod(box)))


def _blocks_shared_bytes(problem: Problem, lanes: BlocksLanes) -> int:
    """Count the bytes of the tiles of kernels/col2im_gather_blocks.cu."""
    view, fusion, sums = view_of(problem), problem.fusion, _blocks_sums(problem)
    divides_by_taps = fusion.reduction != "sum" and (
        fusion.window == "full" or (fusion.window == "separable" and len(view.axes) == 1)
    )
    itemsize = problem.call.source_element.itemsize
    end = widest = 0
    for alignment, size in (
        (view.element.accumulator_bytes, view.element.accumulator_bytes * sums),
        (weight_bytes(problem), weight_bytes(problem) * (sums if divides_by_taps else 1)),
        (itemsize * lanes.vector, itemsize * lanes.staged),
    ):
        end = _multiple(end, alignment) + size
        widest = max(widest, alignment)
    return _multiple(end, widest)


def _multiple(number: int, of: int) -> int:
    """Round up to a multiple."""
    return -(-number // of) * of


def _vector(problem: Problem) -> int:
    """Return the elements of the widest word that divides a row of taps and is aligned in every block."""
    view = view_of(problem)
    itemsize = problem.call.source_element.itemsize
    strides = (*view.block_strides, view.columns_channel, view.columns_batch)
    apart = gcd(view.kernel[-1] * itemsize, problem.input.alignment, *(stride * itemsize for stride in strides))
    return max(1, gcd(apart, WIDEST_WORD) // itemsize)


def gather_blocks(problem: Problem) -> Plan:
    """Plan for kernels/col2im_gather_blocks.cu."""
    view = view_of(problem)
    row = view.axes[-1]
    kernel = tuple(axis.kernel for axis in view.axes)
    if not are_contiguous(kernel, view.tap_strides):
        raise Unsupported(
            f"{OPERATION}: gather_blocks loads rows of taps in whole blocks, so a block's taps must be "
            f"contiguous in the columns, but their strides are {view.tap_strides} elements"
        )
    for number, axis in enumerate(view.axes):
        if axis.dilation == 0 and axis.kernel > 1:
            raise Unsupported(
                f"{OPERATION}: gather_blocks takes one tap of a block for each pixel, but dilations is 0 on "
                f"axis {number}, where every tap lands on the same"
            )
        if (span := (axis.kernel - 1) * axis.dilation // axis.stride) > BLOCKS_MAX_SPAN:
            raise Unsupported(
                f"{OPERATION}: gather_blocks walks over {BLOCKS_MAX_SPAN} blocks at most between those that reach a "
                f"pixel, but kernel_size {axis.kernel} and dilations {axis.dilation} put {span} there on axis {number}"
            )
    lanes = _blocks_lanes(problem)
    box = _tile_box(problem, lanes)
    strip = box[-1] // lanes.groups
    extents = tuple(-(-axis.size // extent) for axis, extent in zip(view.axes, box, strict=True))
    items = view.planes * prod(extents)
    reaching = 2 * ((box[-1] + (row.kernel + lanes.piece) * row.dilation) // row.stride + lanes.batch * block_step(row))
    return _plan(
        problem,
        "gather_blocks",
        "col2im_gather_blocks",
        Work(
            items,
            1,
            WARP,
            extents,
            view.channels,
            offset_bits(
                OPERATION,
                _largest_offset(view) + reaching * max(abs(view.block_strides[-1]), row.stride) + max(box),
                items,
            ),
            _blocks_shared_bytes(problem, lanes),
        ),
        f"each warp moves the sums of {' x '.join(map(str, box))} pixels along their blocks",
        {
            "box": offset(box),
            "strip": divisor(strip),
            "strip_sums": int32(lanes.strip_places(row, strip, prod(box[:-1]))),
            "spare": int32(lanes.spare(row, strip)),
        },
        PIECE=lanes.piece,
        ROWS=lanes.rows,
        VECTOR=lanes.vector,
        BATCH=lanes.batch,
        STAGED=lanes.staged,
        PITCH=prod(kernel) if view.block_strides[-1] == prod(kernel) else 0,
        PIXELS=_blocks_sums(problem),
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
    bits = offset_bits(OPERATION, _largest_offset(view), items + GATHER_THREADS)
    return _plan(
        problem,
        "atomic",
        "col2im_atomic",
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


# ---------------------------------------------------------------------------------------------
# The choice; every threshold is a prediction

MANY_TAPS = 128
SCATTERED_MAX_FILL = 0.04
"""Of the device's resident threads: below it a thread for each pixel of so many taps leaves the memory idle."""
PIXELS_MIN_TAPS = 32
"""Prediction: of a pixel, from which on threads for cells are too few where those for pixels would not be."""
BLOCKS_MAX_STRIDE = 3
"""Where blocks are contiguous and overlap, up to here threads that read neighbouring taps or blocks waste sectors."""
BLOCKS_MIN_BYTES, BLOCKS_MIN_PIXELS = 96, 600
"""Prediction: of a block, in elements of 8 bytes at most, from which on these waste more than lanes that have no tap;
and of a multiprocessor, for each axis and pixel of the stride, from which on tiles have enough rows for all lanes."""
PIXELS_MIN_STRIDE = 2
"""Where blocks are contiguous, from here on neighbouring pixels read neighbouring taps."""
PARTS_MIN_STRIDE = 5
"""Below it a warp of pixels reads whole sectors of each tap it needs."""
SHORT_ROWS_MIN_STRIDE = 8
"""From here on rows whose blocks fill no sector are added up by a lane for each cell of a plane."""
MIN_FILL = 0.75
"""Of the lanes of these warps that then have a cell."""


def prefer(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield the variants that are predicted to be fastest, with why."""
    view = view_of(problem)
    row = view.axes[-1]
    resident = problem.device.multiprocessors * problem.device.threads_per_multiprocessor
    taps = prod(map(taps_per_pixel, view.axes))
    if problem.any_order and taps >= MANY_TAPS and view.planes * view.pixels < SCATTERED_MAX_FILL * resident:
        few = f"{view.planes * view.pixels} pixels under up to {taps} taps each are too few for a thread each"
        yield "atomic", few
    if view.taps_are_closest:
        closest = "the taps of a block lie closer in memory than its blocks"
        if _overlaps_densely(view, problem.device.multiprocessors):
            yield "gather_blocks", f"{closest}, which overlap densely"
        if row.stride >= PIXELS_MIN_STRIDE:
            yield "gather_pixels", closest
    if taps >= PIXELS_MIN_TAPS and row.stride > 1 and view.planes * prod(_cells(view)) < SCATTERED_MAX_FILL * resident:
        yield "gather_pixels", f"{view.planes * prod(_cells(view))} cells of many taps are too few for a thread each"
    if row.stride > GATHER_MAX_STRIDE and row.stride > row.size:
        yield "gather_pixels", f"a row of pixels is shorter than a stride of {row.stride}"
    if row.stride > GATHER_MAX_STRIDE:
        yield "gather_parts", f"a stride of {row.stride} is too many pixels for one thread"
    elif row.kernel > GATHER_MAX_KERNEL:
        many = f"{row.kernel} taps on the last axis are too many to unroll"
        yield "gather_parts" if row.stride >= PARTS_MIN_STRIDE else "gather_pixels", many
    elif row.stride >= SHORT_ROWS_MIN_STRIDE and row.stride < row.kernel and _rows_are_short(view):
        yield "gather_parts", f"a row has {_counted(row.blocks, 'block')}, too few to fill a sector"
    else:
        yield "gather", "each column element is read once and each pixel written once, from end to end"


def _overlaps_densely(view: View, multiprocessors: int) -> bool:
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


def _rows_are_short(view: View) -> bool:
    """Whether a row's blocks fill no sector, and the cells of a plane fill warps."""
    cells = prod(_cells(view))
    return view.axes[-1].blocks * view.element.itemsize <= SECTOR_BYTES and cells >= MIN_FILL * _multiple(cells, WARP)
