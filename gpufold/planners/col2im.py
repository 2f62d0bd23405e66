"""The kernel variants of col2im, as plans, and the choice among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd, inf, prod
from typing import Any

import numpy as np

from gpufold.geometry import Axis, Size, SlidingGeometry
from gpufold.plan import (
    ELEMENT_TYPES,
    INT32_MAX,
    MAX_SHARED_BYTES,
    PLAIN,
    ElementType,
    Plan,
    Problem,
    Unsupported,
    Variant,
    check_atomics,
    contiguous_strides,
    divisor,
    fusion_defines,
    grid_blocks,
    offset_bits,
    offset_type,
    pack,
    parameter_type,
    sliding_bytes,
    span,
)

OPERATION = "col2im"
WARP = 32
MAX_UNROLLED = 128
"""Bound of the registers that kernels/col2im.cuh counts for the loads of a tap."""

# ---------------------------------------------------------------------------------------------
# A problem as the kernels see it


@dataclass(frozen=True, slots=True)
class View:
    """Columns (batch, channels, *kernel, *blocks) and image (batch, channels, *size) by their strides."""

    axes: tuple[Axis, ...]
    element: ElementType
    batch: int
    channels: int
    """Planes that follow each other at even distances in both arrays: N*C where the layouts allow, else C."""
    columns_batch: int
    columns_channel: int
    tap_strides: Size
    block_strides: Size
    image_batch: int
    image_channel: int
    pixel_strides: Size

    @property
    def planes(self) -> int:
        return self.batch * self.channels

    @property
    def blocks(self) -> Size:
        return tuple(axis.blocks for axis in self.axes)

    @property
    def pixels(self) -> int:
        """Pixels of one plane."""
        return prod(axis.size for axis in self.axes)


@lru_cache(maxsize=256)
def view(problem: Problem) -> View:
    """Name every stride and collapse batch and channels into one run of planes where the strides allow it."""
    geometry = problem.geometry
    assert isinstance(geometry, SlidingGeometry)
    axes, rank = tuple(map(_with_dilation_of_one_tap, geometry.axes)), len(geometry.axes)
    batch, channels = 1 if geometry.batch is None else geometry.batch, geometry.channels
    if problem.input.shape == geometry.split_columns_shape:
        columns_batch, columns_channel, *strides = problem.input.strides
        tap_strides, block_strides = tuple(strides[:rank]), tuple(strides[rank:])
    else:
        *lead, row, block = problem.input.strides
        columns_batch = lead[0] if lead else 0
        columns_channel = row * prod(geometry.kernel_size)
        tap_strides = tuple(row * step for step in contiguous_strides(geometry.kernel_size))
        block_strides = tuple(block * step for step in contiguous_strides(geometry.num_blocks))
    *lead, image_channel = problem.output.strides[:-rank]
    image_batch = lead[0] if lead else 0
    if channels == 1:
        batch, channels, columns_channel, image_channel = 1, batch, columns_batch, image_batch
    elif columns_batch == channels * columns_channel and image_batch == channels * image_channel:
        batch, channels = 1, batch * channels
    return View(
        tuple(replace(axis, dilation=1) if axis.kernel == 1 else axis for axis in axes),  # no tap is beside another
        ELEMENT_TYPES[problem.dtype],
        batch,
        channels,
        columns_batch,
        columns_channel,
        tap_strides,
        block_strides,
        image_batch,
        image_channel,
        problem.output.strides[-rank:],
    )


def _with_dilation_of_one_tap(axis: Axis) -> Axis:
    """Return the axis with dilation 1 where its kernel has a single tap, which no dilation moves."""
    return replace(axis, dilation=1) if axis.kernel == 1 else axis


def tap_step(axis: Axis) -> int:
    """Give the distance of two taps that land on one pixel of an axis."""
    return axis.stride // gcd(axis.stride, axis.dilation)


def block_step(axis: Axis) -> int:
    """Return the distance of their blocks."""
    return axis.dilation // gcd(axis.stride, axis.dilation)


def taps_per_pixel(axis: Axis) -> int:
    """Bound the number of taps that land on one pixel of an axis."""
    return -(-axis.kernel // tap_step(axis))


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


def _parameter_type(rank: int, bits: int, **fields: Any) -> np.dtype[Any]:
    """Lay out the Parameters of kernels/col2im.cuh and what a kernel adds to them."""
    shared = parameter_type(
        bits,
        columns_batch="long",
        columns_channel="long",
        image_batch="long",
        image_channel="long",
        channels="offset",
        items="offset",
        size=("offset", rank),
        blocks=("offset", rank),
        pad=("offset", rank),
        tap_stride=("offset", rank),
        block_stride=("offset", rank),
        tap_step_stride=("offset", rank),
        pixel_stride=("offset", rank),
        by_extent=("divisor", rank),
        by_channels="divisor",
    )
    return parameter_type(bits, shared=shared, **fields)


def _plan(
    problem: Problem,
    variant: str,
    symbol: str,
    *,
    items: int,
    per_block: int,
    extents: Size,
    channel_groups: int,
    block: int,
    bits: int,
    reason: str,
    defines: dict[str, Any] | None = None,
    fields: dict[str, tuple[Any, Any]] | None = None,
    shared_bytes: int = 0,
    scatters: bool = False,
) -> Plan:
    """Fill in what all variants have in common; an item is (batch, channel group, *extents)."""
    seen = view(problem)
    axes, fields = seen.axes, fields or {}
    if not scatters and MAX_UNROLLED * max(map(taps_per_pixel, axes)) > INT32_MAX:
        raise Unsupported(
            f"{OPERATION}: {variant} counts the taps of a pixel along an axis, {INT32_MAX // MAX_UNROLLED} at most, "
            f"but up to {max(map(taps_per_pixel, axes))} land on one"
        )
    steps = [
        tap_step(axis) * tap_stride - block_step(axis) * block_stride if taps_per_pixel(axis) > 1 else 0
        for axis, tap_stride, block_stride in zip(axes, seen.tap_strides, seen.block_strides, strict=True)
    ]
    shared = (
        seen.columns_batch,
        seen.columns_channel,
        seen.image_batch,
        seen.image_channel,
        seen.channels,
        items,
        [axis.size for axis in axes],
        [axis.blocks for axis in axes],
        [axis.pad_begin for axis in axes],
        seen.tap_strides,
        seen.block_strides,
        steps,
        seen.pixel_strides,
        [divisor(extent, bits) for extent in extents],
        divisor(channel_groups, bits),
    )
    layout = _parameter_type(len(axes), bits, **{name: kind for name, (kind, _) in fields.items()})
    return Plan(
        OPERATION,
        variant,
        f"col2im_{variant}.cu",
        symbol,
        tuple(
            (name, ",".join(map(str, value)) if isinstance(value, list) else str(value))
            for name, value in {
                "SCALAR": seen.element.scalar,
                "ACCUMULATOR": seen.element.accumulator,
                "OFFSET": offset_type(bits),
                "KERNEL": [axis.kernel for axis in axes],
                "STRIDE": [axis.stride for axis in axes],
                "DILATION": [axis.dilation for axis in axes],
                "THREADS": block,
                **fusion_defines(problem),
                **(defines or {}),
            }.items()
        ),
        grid_blocks(OPERATION, items, per_block),
        (block, 1, 1),
        pack(layout, shared=shared, **{name: value for name, (_, value) in fields.items()}),
        sliding_bytes(problem),
        reason,
        takes_window=True,
        scatters=scatters,
        reads_output=problem.fusion.accumulate,
        shared_bytes=shared_bytes,
    )


def _weight_bytes(problem: Problem) -> int:
    """Count the bytes of the kernels' Weight, which is a float where nothing is fused."""
    weight = "" if problem.fusion == PLAIN else view(problem).element.weight
    return np.dtype(weight or "float32").itemsize


# ---------------------------------------------------------------------------------------------
# gather

GATHER_THREADS = 256
GATHER_MAX_STRIDE = 16
GATHER_MAX_KERNEL = 32
"""A gathering thread keeps a cell's sums and the offsets of a row's taps in registers."""
GATHER_MAX_PLANES = 4
GATHER_MAX_NARROW_PLANES = 8
"""Planes of one thread: they share its index arithmetic. Elements of one or two bytes need more of it saved."""
GATHER_ROW_REGISTERS = 32
"""Registers for the sums of a cell, and for a row of taps, of all planes: more would be spilled."""
GATHER_WAVES = 2
"""Prediction: several planes per thread pay while this many times the resident threads are left."""
GATHER_RESIDENT_THREADS = 768
"""Threads per multiprocessor that the registers of several planes leave room for."""
STAGED_BYTES = 40 * 1024
"""What a block may stage, of the 48 KB that static shared memory may have."""
WIDEST_WORD = 16


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + "s" * (count > 1)


def _planes_at_most(element: ElementType, row_taps: int, cell: int) -> int:
    """Give the planes that one thread has registers for, which is compiled in."""
    words = max(1, element.itemsize // 4)
    planes = GATHER_MAX_NARROW_PLANES if element.itemsize <= 2 else GATHER_MAX_PLANES
    while planes > 1 and planes * words * max(row_taps, cell) > GATHER_ROW_REGISTERS:
        planes //= 2
    return planes


def _planes_per_thread(problem: Problem, planes: int, places: int) -> int:
    """Give one instead of several, where these would leave too few threads for the device or repeat too many."""
    seen, device = view(problem), problem.device
    enough = GATHER_WAVES * GATHER_RESIDENT_THREADS * device.multiprocessors
    groups = -(-seen.channels // planes)
    return planes if 2 * groups * planes <= 3 * seen.channels and seen.batch * groups * places >= enough else 1


def gather(problem: Problem) -> Plan:
    """Plan for kernels/col2im_gather.cu."""
    seen = view(problem)
    *outer, row = seen.axes
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
    itemsize = seen.element.itemsize
    cells = -(-row.size // row.stride)
    extents = (*(axis.size for axis in outer), cells)
    whole_cells = row.size % row.stride == 0 and seen.pixel_strides[-1] == 1
    word = gcd(row.stride * itemsize, WIDEST_WORD)  # in bytes
    outer_strides = (*seen.pixel_strides[:-1], seen.image_channel, seen.image_batch)
    aligned = problem.output.alignment % word == 0 and not any(stride * itemsize % word for stride in outer_strides)
    at_most = _planes_at_most(seen.element, row.kernel, row.stride)
    planes = _planes_per_thread(problem, at_most, prod(extents))
    words = word > itemsize and whole_cells and aligned and planes == at_most
    groups = -(-seen.channels // planes)
    items = seen.batch * groups * prod(extents)
    block = GATHER_THREADS
    while row.stride > 1 and 33 * block // WARP * row.stride * itemsize > STAGED_BYTES:
        block //= 2
    contiguous = seen.pixel_strides == contiguous_strides(tuple(axis.size for axis in seen.axes))
    stored = f"in words of {word} bytes" if words else "one by one"
    staged = row.stride * itemsize > (word if words else 2 * itemsize)
    if staged:
        stored = f"{stored}, staged in shared memory so that warps write whole runs"
    return _plan(
        problem,
        "gather",
        "col2im_gather" + ("_words" if words else "_planes" if planes > 1 else ""),
        items=items,
        per_block=block,
        extents=extents,
        channel_groups=groups,
        block=block,
        bits=offset_bits(OPERATION, _largest_offset(seen), items + block),
        defines={"PLANES": at_most, "WORD": word // itemsize, "PHASE": row.pad_begin % row.stride},
        fields={"cells_form_runs": ("int", int(contiguous and prod(extents) >= WARP))},
        shared_bytes=block // WARP * (33 * row.stride * itemsize + WARP * (8 + 4)) if staged else 0,
        reason=f"each thread adds up the taps of {_counted(row.stride, 'neighbouring pixel')} "
        f"of {_counted(planes, 'plane')}, stored {stored}",
    )


# ---------------------------------------------------------------------------------------------
# gather_pixels


def gather_pixels(problem: Problem) -> Plan:
    """Plan for kernels/col2im_gather_pixels.cu, which serves everything."""
    seen = view(problem)
    extents = tuple(axis.size for axis in seen.axes)
    at_most = _planes_at_most(seen.element, 1, 1)
    planes = _planes_per_thread(problem, at_most, prod(extents))
    groups = -(-seen.channels // planes)
    items = seen.batch * groups * prod(extents)
    return _plan(
        problem,
        "gather_pixels",
        "col2im_gather_pixels" + ("_planes" if planes > 1 else ""),
        items=items,
        per_block=GATHER_THREADS,
        extents=extents,
        channel_groups=groups,
        block=GATHER_THREADS,
        bits=offset_bits(OPERATION, _largest_offset(seen), items + GATHER_THREADS),
        defines={"PLANES": at_most},
        reason=f"each thread adds up the taps of one pixel of {_counted(planes, 'plane')}",
    )


# ---------------------------------------------------------------------------------------------
# gather_phases

PHASES_SHARE = {1: 8, 2: 8, 4: 4, 8: 4, 16: 2}
"""Cells or planes of one lane, by the size of an element: they share its index arithmetic and fit shared memory."""
PHASES_MAX_WASTE = 1.25
"""Prediction: several cells per lane pay while they leave no more lanes idle than this."""


def gather_phases(problem: Problem) -> Plan:
    """Plan for kernels/col2im_gather_phases.cu."""
    seen = view(problem)
    *outer, row = seen.axes
    share = PHASES_SHARE[seen.element.itemsize]
    row_cells = -(-row.size // row.stride)
    phase_tiles = -(-row.stride // WARP)
    cells = share if -(-row_cells // (WARP * share)) * WARP * share <= PHASES_MAX_WASTE * row_cells else 1
    tiles = -(-row_cells // (WARP * cells)) * phase_tiles
    extents = (*(axis.size for axis in outer), tiles)
    planes = 1 if cells > 1 else _planes_per_thread(problem, share, prod(extents) * GATHER_THREADS)
    groups = -(-seen.channels // planes)
    items = seen.batch * groups * prod(extents)
    tile_end = row_cells + 2 * WARP * cells
    tiled = seen.element.accumulator_bytes if problem.fusion.accumulate else seen.element.itemsize
    return _plan(
        problem,
        "gather_phases",
        "col2im_gather_phases" + ("_cells" if cells > 1 else "_planes" if planes > 1 else ""),
        items=items,
        per_block=1,
        extents=extents,
        channel_groups=groups,
        block=GATHER_THREADS,
        bits=offset_bits(
            OPERATION, _largest_offset(seen), items, tile_end * max(row.stride, abs(seen.block_strides[-1]))
        ),
        defines={"SHARE": share},
        shared_bytes=cells * planes * WARP * (-(-row.stride // phase_tiles) | 1) * tiled,
        reason=f"each lane adds up one pixel of {_counted(cells, 'stride')} of {_counted(planes, 'plane')} at a time, "
        "and its block writes whole rows",
    )


# ---------------------------------------------------------------------------------------------
# gather_blocks

BLOCKS_COLUMNS = 128
BLOCKS_SUM_BYTES = 8 * 1024
BLOCKS_STAGED_BYTES = 32 * 1024
"""A tile's pixels along a row, and what its sums and its staged taps may take of shared memory, besides divisors."""
BLOCKS_HOLE_BYTES = 128
"""Prediction: taps between those that a tile needs are worth bringing while they are no more than a cache line."""
BLOCKS_TILES = 6
"""Prediction: smaller tiles, which bring some sectors twice, pay until each multiprocessor has so many."""


def _tile_box(problem: Problem, pixels: int) -> Size:
    """Give the extents of a tile: a long row, then as many rows as fit, where they save most, while tiles are enough.

    Rows of an axis share the blocks that reach more than one of them.
    """
    seen = view(problem)
    *outer, row = seen.axes
    width = BLOCKS_COLUMNS
    while width > WARP and width >= 2 * row.size:
        width //= 2
    box = [1] * len(outer)
    row_bytes = seen.element.itemsize * row.kernel
    grows = [
        number == len(outer) - 1 or prod(axis.kernel for axis in outer[number + 1 :]) * row_bytes <= BLOCKS_HOLE_BYTES
        for number in range(len(outer))
    ]

    def tiles() -> int:
        return (
            seen.planes
            * -(-row.size // width)
            * prod(-(-axis.size // extent) for axis, extent in zip(outer, box, strict=True))
        )

    while 2 * width * prod(box) <= pixels:
        shared = [
            (axis.dilated_kernel - 1) / box[number] if grows[number] and box[number] < axis.size else 0
            for number, axis in enumerate(outer)
        ]
        best = max(range(len(outer)), key=lambda number: (shared[number], number), default=None)
        if best is None or not shared[best] or tiles() < 2 * BLOCKS_TILES * problem.device.multiprocessors:
            break
        box[best] *= 2
    return (*box, width)


def _blocks_shared_bytes(problem: Problem, pixels: int, staged: int) -> int:
    """Count the bytes of a Tile of kernels/col2im_gather_blocks.cu with so many sums and places for staged taps."""
    seen, fusion = view(problem), problem.fusion
    divides_by_taps = fusion.reduction != "sum" and (
        fusion.window == "full" or (fusion.window == "separable" and len(seen.axes) == 1)
    )
    end = alignment = 0
    for size, count in (
        (seen.element.accumulator_bytes, pixels),
        (_weight_bytes(problem), pixels if divides_by_taps else 1),
        (seen.element.itemsize, staged),
    ):
        end = _multiple(end, size) + size * count
        alignment = max(alignment, size)
    return _multiple(end, alignment)


def _multiple(number: int, of: int) -> int:
    """Round up to a multiple."""
    return -(-number // of) * of


def gather_blocks(problem: Problem) -> Plan:
    """Plan for kernels/col2im_gather_blocks.cu."""
    seen = view(problem)
    *outer, row = seen.axes
    itemsize = seen.element.itemsize
    kernel = tuple(axis.kernel for axis in seen.axes)
    if any(
        extent > 1 and step != contiguous
        for extent, step, contiguous in zip(kernel, seen.tap_strides, contiguous_strides(kernel), strict=True)
    ):
        raise Unsupported(
            f"{OPERATION}: gather_blocks brings whole blocks through shared memory, so a block's taps must be "
            f"contiguous in the columns, but their strides are {seen.tap_strides} elements"
        )
    for number, axis in enumerate(outer):
        if axis.dilation == 0 and axis.kernel > 1:
            raise Unsupported(
                f"{OPERATION}: gather_blocks takes one tap of a block for each row of pixels, but dilations is 0 on "
                f"axis {number}, where every tap lands on the same"
            )
    reaching = -(-(BLOCKS_COLUMNS - 1) // row.stride) + -(-((row.kernel - 1) * row.dilation) // row.stride) + 1
    row_bytes = (reaching * row.kernel * itemsize * 33) // 32
    if row_bytes > BLOCKS_STAGED_BYTES:
        raise Unsupported(
            f"{OPERATION}: gather_blocks brings the taps of a row through shared memory, of which {reaching} blocks "
            f"need {row_bytes} bytes and {BLOCKS_STAGED_BYTES} are there"
        )
    tap_rows = prod(kernel[:-1])
    pixels = BLOCKS_SUM_BYTES // max(4, itemsize)
    rows = BLOCKS_STAGED_BYTES // row_bytes

    def staged(rows: int) -> int:
        taps = reaching * rows * row.kernel
        return taps + (taps // 32 if row.kernel % 2 == 0 else 0) + 1  # spread over the banks of shared memory

    while rows > 1 and _blocks_shared_bytes(problem, pixels, staged(rows)) > MAX_SHARED_BYTES:
        rows -= 1
    chunk = -(-tap_rows // -(-tap_rows // rows))
    box = _tile_box(problem, pixels)
    extents = tuple(-(-axis.size // extent) for axis, extent in zip(seen.axes, box, strict=True))
    items = seen.planes * prod(extents)
    return _plan(
        problem,
        "gather_blocks",
        "col2im_gather_blocks",
        items=items,
        per_block=1,
        extents=extents,
        channel_groups=seen.channels,
        block=GATHER_THREADS,
        bits=offset_bits(
            OPERATION,
            _largest_offset(seen) + 2 * reaching * abs(seen.block_strides[-1]) + max(box),
            items,
        ),
        defines={"CHUNK": chunk, "PIXELS": pixels, "COLUMNS": BLOCKS_COLUMNS, "STAGED": staged(chunk)},
        fields={"box": (("offset", len(box)), box)},
        shared_bytes=_blocks_shared_bytes(problem, pixels, staged(chunk)),
        reason=f"each thread block brings whole blocks through shared memory for {' x '.join(map(str, box))} pixels",
    )


# ---------------------------------------------------------------------------------------------
# split

SPLIT_THREADS = 512
SPLIT_TAP_BYTES = 32
"""What a loading warp's lane stages in a round, so that two rounds of 15 warps fit shared memory."""


def split(problem: Problem) -> Plan:
    """Plan for kernels/col2im_split.cu."""
    seen = view(problem)
    extents = tuple(axis.size for axis in seen.axes)
    items = seen.planes * prod(extents)
    taps = prod(map(taps_per_pixel, seen.axes))
    staged = seen.element.itemsize
    if problem.fusion.window != "none":
        staged += _weight_bytes(problem)
    round_taps = SPLIT_TAP_BYTES // max(4, staged)  # of a loading warp
    return _plan(
        problem,
        "split",
        "col2im_split",
        items=items,
        per_block=WARP,
        extents=extents,
        channel_groups=seen.channels,
        block=SPLIT_THREADS,
        bits=offset_bits(OPERATION, _largest_offset(seen), items + WARP, taps + SPLIT_THREADS),
        defines={"TAPS": round_taps},
        shared_bytes=2 * (SPLIT_THREADS // WARP - 1) * round_taps * WARP * staged,
        reason=f"the warps of a block split the {taps} taps of {WARP} pixels and one of them adds these up",
    )


# ---------------------------------------------------------------------------------------------
# atomic


def atomic(problem: Problem) -> Plan:
    """Plan for kernels/col2im_atomic.cu."""
    seen = view(problem)
    check_atomics(OPERATION, problem.dtype)
    if problem.fusion.reduction != "sum":
        raise Unsupported(f"{OPERATION}: atomic cannot divide a pixel, whose last addition no thread knows of")
    if not problem.fusion.accumulate and problem.output.strides != contiguous_strides(problem.output.shape):
        raise Unsupported(f"{OPERATION}: atomic zeroes the image first, so out must be C-contiguous")
    extents = seen.blocks
    kernel = tuple(axis.kernel for axis in seen.axes)
    items = seen.planes * prod(kernel) * prod(extents)
    bits = offset_bits(OPERATION, _largest_offset(seen), items + GATHER_THREADS)
    return _plan(
        problem,
        "atomic",
        "col2im_atomic",
        items=items,
        per_block=GATHER_THREADS,
        extents=extents,
        channel_groups=seen.channels,
        block=GATHER_THREADS,
        bits=bits,
        fields={"by_tap": (("divisor", len(kernel)), [divisor(extent, bits) for extent in kernel])},
        scatters=True,
        reason="each thread adds one element of the columns to its pixel with an atomic operation",
    )


VARIANTS: dict[str, Variant] = {
    "gather": gather,
    "gather_blocks": gather_blocks,
    "gather_phases": gather_phases,
    "gather_pixels": gather_pixels,
    "split": split,
    "atomic": atomic,
}


# ---------------------------------------------------------------------------------------------
# The choice; every threshold is a prediction

SPLIT_MIN_TAPS = 128
SPLIT_MAX_FILL = 0.1
"""Of the device's resident threads: below it a thread per pixel leaves the memory idle while it adds."""
BLOCKS_MAX_STRIDE = 3
"""Where blocks are contiguous and overlap, up to here threads that read neighbouring taps or blocks waste sectors."""
PIXELS_MIN_STRIDE = 2
"""Where blocks are contiguous, from here on neighbouring pixels read neighbouring taps."""
PHASES_MIN_STRIDE = 5
"""Below it a warp of pixels reads whole sectors of each tap it needs."""


def prefer(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield the variants that are predicted to be fastest, with why."""
    seen = view(problem)
    row = seen.axes[-1]
    resident = problem.device.multiprocessors * problem.device.threads_per_multiprocessor
    taps = prod(map(taps_per_pixel, seen.axes))
    if taps >= SPLIT_MIN_TAPS and seen.planes * seen.pixels < SPLIT_MAX_FILL * resident:
        few = f"{seen.planes * seen.pixels} pixels under up to {taps} taps each are too few for a thread each"
        if seen.element.exact or not problem.deterministic:
            yield "atomic", few
        yield "split", few
    if taps_are_closest(seen):
        closest = "the taps of a block lie closer in memory than its blocks"
        if row.stride <= BLOCKS_MAX_STRIDE and row.stride < row.kernel and _rows_share_blocks(seen):
            yield "gather_blocks", f"{closest}, which overlap densely"
        if row.stride >= PIXELS_MIN_STRIDE:
            yield "gather_pixels", closest
    if row.stride > GATHER_MAX_STRIDE and row.stride > row.size:
        yield "gather_pixels", f"a row of pixels is shorter than a stride of {row.stride}"
    if row.stride > GATHER_MAX_STRIDE:
        yield "gather_phases", f"a stride of {row.stride} is too many pixels for one thread"
    elif row.kernel > GATHER_MAX_KERNEL:
        many = f"{row.kernel} taps on the last axis are too many to unroll"
        yield "gather_phases" if row.stride >= PHASES_MIN_STRIDE else "gather_pixels", many
    else:
        yield "gather", "each column element is read once and each pixel written once, from end to end"


def _rows_share_blocks(seen: View) -> bool:
    """Whether the blocks that reach a row of pixels reach other rows too."""
    return any(axis.kernel > 1 for axis in seen.axes[:-1])


def taps_are_closest(seen: View) -> bool:
    """Whether neighbouring taps are nearer to each other in memory than neighbouring blocks."""
    taps = (abs(s) for axis, s in zip(seen.axes, seen.tap_strides, strict=True) if axis.kernel > 1)
    blocks = (abs(s) for axis, s in zip(seen.axes, seen.block_strides, strict=True) if axis.blocks > 1)
    return min(taps, default=inf) < min(blocks, default=inf)
