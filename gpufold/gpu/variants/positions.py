"""Plans of add_blocks, in which tiles search for their blocks or elements scatter, and of take_blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

from gpufold.calls import Unsupported
from gpufold.elements import ElementType
from gpufold.geometry import PositionsGeometry, Size, merged_axes
from gpufold.gpu.parameters import Field, divisor, offset, offset_bits, struct, wide
from gpufold.gpu.plan import (
    POINTER_BYTES,
    LaunchShape,
    Operand,
    Plan,
    Problem,
    check_atomics,
    make_plan,
    resident_blocks,
)
from gpufold.gpu.variants.views import SECTOR_BYTES, WARP, word_types
from gpufold.outside import BY_INDEX

THREADS = 256
CANDIDATES = 4
"""Most blocks that a thread tests at a time; tests may run that far past the last block."""
COUNT_BYTES = 4
"""Bytes of a warp's count of blocks."""
POSITION_BYTES = 8
"""Bytes of a block's coordinate."""


@dataclass(frozen=True, slots=True)
class PositionsView:
    """Blocks (count, batch, channels, *block) and image (batch, channels, *size) by their strides.

    Leading axes that cannot be merged into batch and channels are the first of `size` and `block`, without a position.
    """

    element: ElementType
    count: int
    batch: int
    channels: int
    fixed: int
    size: Size
    block: Size
    block_step: int
    blocks_batch: int
    blocks_channel: int
    tap_strides: Size
    image_batch: int
    image_channel: int
    pixel_strides: Size
    weight_strides: Size
    """Strides of the sums of weights; 0 along leading axes."""


@lru_cache(maxsize=256)
def positions_view(problem: Problem) -> PositionsView:
    """Name every stride, and merge leading axes that are contiguous in both arrays."""
    geometry = problem.geometry
    assert isinstance(geometry, PositionsGeometry)
    count = len(geometry.lead)
    takes = problem.call.operation == "take_blocks"
    blocks, image = (problem.output, problem.input) if takes else (problem.input, problem.output)
    block_step, *blocks_strides = blocks.strides
    lead = merged_axes(geometry.lead, tuple(blocks_strides[:count]), image.strides[:count])
    if len(lead) < 2:
        lead = [(1, 0, 0)] * (2 - len(lead)) + lead
    (batch, blocks_batch, image_batch), (channels, blocks_channel, image_channel), *rest = lead
    extents, rest_taps, rest_pixels = (tuple(axis[i] for axis in rest) for i in range(3))
    return PositionsView(
        problem.element,
        geometry.count,
        batch,
        channels,
        len(rest),
        (*extents, *geometry.size),
        (*extents, *geometry.block_shape),
        block_step,
        blocks_batch,
        blocks_channel,
        (*rest_taps, *blocks_strides[count:]),
        image_batch,
        image_channel,
        (*rest_pixels, *image.strides[count:]),
        (*(0,) * len(rest), *((0,) * len(geometry.size) if problem.weight_out is None else problem.weight_out.strides)),
    )


def weights_of(problem: Problem) -> int:
    """Count the weights that are loaded for an element."""
    view = positions_view(problem)
    return {"none": 0, "separable": len(view.size) - view.fixed, "full": 1}[problem.fusion.window]


def bits_of(problem: Problem, items: int, tile: Size, *others: int) -> int:
    """Return the width of an Offset for a kernel whose threads own tiles."""
    view = positions_view(problem)
    reach = [size + block + side for size, block, side in zip(view.size, view.block, tile, strict=True)]
    return offset_bits(
        items + THREADS,
        view.count + 2 * CANDIDATES * THREADS,  # tests run past the last
        view.channels,
        max(reach),
        sum(abs(stride) * extent for stride, extent in zip(view.tap_strides, reach, strict=True)),
        sum(abs(stride) * extent for stride, extent in zip(view.pixel_strides, reach, strict=True)),
        sum(abs(stride) * extent for stride, extent in zip(view.weight_strides, reach, strict=True)),
        prod(view.block),
        *others,
    )


def positions_plan(
    problem: Problem, variant: str, shape: LaunchShape, reason: str, members: dict[str, Field], **defines: Any
) -> Plan:
    """Make a plan with the common parts of all variants; `members` follow the Parameters of kernels/positions.cuh.

    `defines` follow the common macros and replace those of the same name.
    """
    operation, view, element = problem.call.operation, positions_view(problem), problem.element
    takes = operation == "take_blocks"
    shared = struct(
        block_step=wide(view.block_step),
        blocks_batch=wide(view.blocks_batch),
        blocks_channel=wide(view.blocks_channel),
        image_batch=wide(view.image_batch),
        image_channel=wide(view.image_channel),
        count=offset(view.count),
        channels=offset(view.channels),
        items=offset(shape.items),
        size=offset(view.size),
        block=offset(view.block),
        tap_stride=offset(view.tap_strides),
        pixel_stride=offset(view.pixel_strides),
        weight_stride=offset(view.weight_strides),
        by_extent=divisor(shape.extents),
        by_channels=divisor(shape.channel_groups),
    )
    return make_plan(
        problem,
        variant,
        shape,
        reason,
        {
            "SCALAR": problem.call.data_scalar,
            "RESULT": defines.get("SCALAR", element.scalar),
            "ACCUMULATOR": element.accumulator,
            "WEIGHT": element.weight_type,
            "WEIGHT_OUT": int(problem.weight_out is not None),
            "RANK": len(view.size),
            "FIXED": view.fixed,
            "WINDOW": problem.fusion.window,
            "WINDOW_AXES": len(view.size) - view.fixed,
            **defines,
        },
        {"shared": shared, **members},
        bytes_moved=_bytes_moved(problem),
        atomic_output=variant == "atomic",
        reads_output=not takes,
    )


def _bytes_moved(problem: Problem) -> int:
    """Count the minimum traffic: positions and blocks once, and the sectors under blocks once or twice."""
    geometry, itemsize = problem.geometry, problem.element.itemsize
    assert isinstance(geometry, PositionsGeometry)
    placed = geometry.count * len(geometry.size) * POSITION_BYTES
    if problem.call.operation == "take_blocks":
        return placed + prod(geometry.blocks_shape) * itemsize + _bytes_under_blocks(geometry, problem.input, itemsize)
    added = placed + prod(geometry.blocks_shape) * problem.call.data_element.itemsize
    changed = _bytes_under_blocks(geometry, problem.output, itemsize)
    if problem.weight_out is not None:
        changed += _bytes_under_blocks(replace(geometry, lead=()), problem.weight_out, problem.element.weight_bytes)
    return added + 2 * changed


def _bytes_under_blocks(geometry: PositionsGeometry, array: Operand, itemsize: int) -> int:
    """Count the bytes that memory moves of an array for blocks side by side: whole sectors.

    A row that begins anywhere touches, on average, one sector less an element more than it fills.
    """
    *_, columns = geometry.block_shape
    row = columns * itemsize + (SECTOR_BYTES - itemsize if array.strides[-1] == 1 else 0)
    return min(prod(array.shape) * itemsize, prod(geometry.blocks_shape) // columns * row)


def tiles_of(size: Size, tile: Size) -> Size:
    """Return the tiles along each axis."""
    return tuple(-(-extent // side) for extent, side in zip(size, tile, strict=True))


# ---------------------------------------------------------------------------------------------
# add_blocks

SUM_BYTES, LOADED_BYTES = 128, 192
"""Most bytes of the sums that a thread keeps in registers, and of its loads in flight."""
MAX_PLANES, MAX_ROWS, MAX_AT_ONCE = 4, 8, 4
"""Most planes and rows of a thread, and blocks whose elements it loads before it adds the first."""
LIST_BYTES = 40 << 10
"""Most bytes of shared memory for testing several blocks at a time."""
RESIDENT_BLOCKS = 2
"""Thread blocks per multiprocessor in the launch bounds."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """What a thread block of kernels/add_blocks_output_driven.cu owns."""

    planes: int
    rows: int
    """Rows of a thread."""
    at_once: int
    """Blocks whose elements a thread loads before it adds the first."""
    along: Size
    """Tiles along each axis."""


@lru_cache(maxsize=256)
def tiling_of(problem: Problem) -> Tiling:
    """Return what a thread block of output_driven owns: as many sums as fit into registers."""
    view = positions_view(problem)
    rank, sum_bytes = len(view.size), max(view.element.itemsize, 4)
    shared_by = 1 if problem.weight_out is None else 2  # sums of weights take as many registers
    sums = SUM_BYTES // sum_bytes // shared_by
    planes = max(few for few in range(1, min(MAX_PLANES, sums) + 1) if view.channels % few == 0)
    rows = 1 << (min(MAX_ROWS, sums // planes).bit_length() - 1)
    loaded = rows * (planes * sum_bytes + weights_of(problem) * view.element.weight_bytes)
    at_once = max(1, min(MAX_AT_ONCE, LOADED_BYTES // loaded) // shared_by)
    warps = THREADS // WARP
    tile = (rows * THREADS,) if rank == 1 else (*(1,) * (rank - 2), rows * warps // 2, 2 * WARP)
    return Tiling(planes, rows, at_once, tiles_of(view.size, tile))


def output_driven(problem: Problem) -> Plan:
    """Plan for kernels/add_blocks_output_driven.cu."""
    view, tiling = positions_view(problem), tiling_of(problem)
    groups = view.channels // tiling.planes
    items = view.batch * groups * prod(tiling.along)
    bits = bits_of(problem, items, (tiling.rows * THREADS,) * len(view.size))
    entry = POINTER_BYTES + (len(view.size) - view.fixed) * bits // 8  # of a list: where a block is, and its position
    entry = -(-entry // POINTER_BYTES) * POINTER_BYTES
    candidates = CANDIDATES if CANDIDATES * THREADS * entry <= LIST_BYTES else 1
    candidates = min(candidates, max(1, -(-view.count // THREADS)))
    list_bytes = (candidates * THREADS + 1) * entry + THREADS // WARP * COUNT_BYTES
    return positions_plan(
        problem,
        "output_driven",
        LaunchShape(items, 1, THREADS, tiling.along, groups, bits, list_bytes),
        "each thread block owns a tile of the image and adds the blocks that intersect it, in their order",
        {},
        PLANES=tiling.planes,
        ROWS=tiling.rows,
        AT_ONCE=tiling.at_once,
        CANDIDATES=candidates,
        RESIDENT_BLOCKS=RESIDENT_BLOCKS,
    )


def atomic(problem: Problem) -> Plan:
    """Plan for kernels/add_blocks_atomic.cu."""
    view = positions_view(problem)
    check_atomics(problem.call.dtype)
    items = view.count * view.batch * view.channels * prod(view.block)
    bits = bits_of(problem, items, (0,) * len(view.size))
    return positions_plan(
        problem,
        "atomic",
        LaunchShape(items, THREADS, THREADS, view.block, view.channels, bits),
        "each thread adds one element of the blocks to its pixel with an atomic operation",
        {"by_batch": divisor(view.batch)},
    )


# ---------------------------------------------------------------------------------------------
# take_blocks

PER_ELEMENT_BYTES, PER_ELEMENT_LOADS = 32, 8
"""Most bytes and loads that a thread has in flight, over its planes."""
PER_ELEMENT_REGISTERS = 22
"""Registers of a thread besides its elements and weights."""
PER_ELEMENT_RESIDENT_BLOCKS = 4
"""Most thread blocks per multiprocessor in the launch bounds; without a bound, the compiler stores some pixels before
it loads all."""


def _share(problem: Problem, rows: int) -> tuple[int, int]:
    """Return a thread's planes and elements per plane, powers of two: as many as allowed.

    If planes are many and rows of blocks short, whose sectors few neighbours share, it is half as many planes: an H100
    was faster then.
    """
    view = positions_view(problem)
    most = min(PER_ELEMENT_LOADS, PER_ELEMENT_BYTES // view.element.itemsize)
    if view.channels >= most and view.block[-1] < WARP:
        most //= 2
    planes = min(most, 1 << view.channels.bit_length() - 1)
    return planes, min(most // planes, 1 << rows.bit_length() - 1)


def per_element(problem: Problem) -> Plan:
    """Plan for kernels/take_blocks_per_element.cu."""
    if problem.fusion.mode in BY_INDEX:
        raise Unsupported(f"mode {problem.fusion.mode!r} is taken by index, by no kernel")
    view = positions_view(problem)
    axis = max(0, len(view.size) - 2)
    planes, elements = _share(problem, view.block[axis])
    groups = -(-view.channels // planes)
    step = -(-view.block[axis] // elements)
    owned = (*view.block[:axis], step, *view.block[axis + 1 :])
    items = view.count * view.batch * groups * prod(owned)
    bits = bits_of(problem, items, (elements * step,) * len(view.size))
    moved = dict(word_types(problem.element.itemsize)) if problem.fusion.window == "none" else {}
    weight_registers = weights_of(problem) * problem.element.weight_bytes // 4
    registers = PER_ELEMENT_REGISTERS + elements * (planes * -(-view.element.itemsize // 4) + weight_registers)
    return positions_plan(
        problem,
        "per_element",
        LaunchShape(items, THREADS, THREADS, owned, groups, bits),
        "each thread takes a few elements of a block, which neighbouring threads store side by side",
        {"by_batch": divisor(view.batch)},
        **moved,
        MODE=problem.fusion.mode,
        PLANES=planes,
        ALL_PLANES=int(view.channels % planes == 0),
        ELEMENTS=elements,
        RESIDENT_BLOCKS=min(PER_ELEMENT_RESIDENT_BLOCKS, resident_blocks(THREADS, registers)),
    )
