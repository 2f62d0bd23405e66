"""The kernel variants of add_blocks and take_blocks, which alone know positions, and the choices between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import ceil, prod
from typing import Any

from gpufold.elements import ElementType
from gpufold.geometry import PositionsGeometry, Size, merged_axes
from gpufold.gpu.parameters import Field, divisor, offset, offset_bits, offset_type, pack, struct, wide
from gpufold.gpu.plan import (
    MAX_SHARED_BYTES,
    POINTER_BYTES,
    REGISTERS,
    REGISTERS_AT_ONCE,
    Operand,
    Plan,
    Problem,
    Variant,
    Work,
    check_atomics,
    grid_of,
    resident_blocks,
)
from gpufold.gpu.variants.moves import SECTOR_BYTES, WARP, word_types

THREADS = 256
COUNT_BYTES = 4
"""Of the number of blocks that a warp has found."""
POSITION_BYTES = 8
"""Of a coordinate of a block."""


@dataclass(frozen=True, slots=True)
class View:
    """Blocks (count, batch, channels, *block) and image (batch, channels, *size) by their strides.

    Leading axes that no plane's number can count are the first of `size` and `block`, and have no position.
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
    """Of the sums of weights, which leading axes do not have."""


@lru_cache(maxsize=256)
def view_of(problem: Problem) -> View:
    """Name every stride, and make leading axes one where both arrays walk them as one."""
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
    return View(
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


def _bits(problem: Problem, items: int, tile: Size, *others: int) -> int:
    """Return the width of a kernel's Offset, whose threads own tiles."""
    view = view_of(problem)
    reach = [size + block + side for size, block, side in zip(view.size, view.block, tile, strict=True)]
    return offset_bits(
        problem.call.operation,
        items + THREADS,
        view.count + 2 * GATHER_CANDIDATES * THREADS,  # tests run past the last
        view.channels,
        max(reach),
        sum(abs(stride) * extent for stride, extent in zip(view.tap_strides, reach, strict=True)),
        sum(abs(stride) * extent for stride, extent in zip(view.pixel_strides, reach, strict=True)),
        sum(abs(stride) * extent for stride, extent in zip(view.weight_strides, reach, strict=True)),
        prod(view.block),
        *others,
    )


def _plan(problem: Problem, variant: str, work: Work, reason: str, members: dict[str, Field], **defines: Any) -> Plan:
    """Fill in what all variants have in common; `members` follow kernels/positions.cuh's Parameters in their own.

    `defines` come after the common ones, in whose place they are where their names are the same.
    """
    operation, view, element = problem.call.operation, view_of(problem), problem.element
    takes = operation == "take_blocks"
    shared = struct(
        block_step=wide(view.block_step),
        blocks_batch=wide(view.blocks_batch),
        blocks_channel=wide(view.blocks_channel),
        image_batch=wide(view.image_batch),
        image_channel=wide(view.image_channel),
        count=offset(view.count),
        channels=offset(view.channels),
        items=offset(work.items),
        size=offset(view.size),
        block=offset(view.block),
        tap_stride=offset(view.tap_strides),
        pixel_stride=offset(view.pixel_strides),
        weight_stride=offset(view.weight_strides),
        by_extent=divisor(work.extents),
        by_channels=divisor(work.channel_groups),
    )
    return Plan(
        operation,
        variant,
        f"{operation}_{variant}.cu",
        f"{operation}_{variant}",
        tuple(
            (name, str(value))
            for name, value in {
                "SCALAR": problem.call.source_element.scalar,
                "ACCUMULATOR": element.accumulator,
                "WEIGHT": element.weight_type,
                "OFFSET": offset_type(work.bits),
                "RANK": len(view.size),
                "FIXED": view.fixed,
                "WINDOW": problem.fusion.window,
                "WINDOW_AXES": len(view.size) - view.fixed,
                "THREADS": work.threads,
                **({"WEIGHT_OUT": 1} if problem.weight_out else {}),
                **({"RESULT": element.scalar} if problem.call.source else {}),
                **defines,
            }.items()
        ),
        grid_of(operation, work.items, work.per_block),
        (work.threads, 1, 1),
        pack(work.bits, shared=shared, **members),
        _bytes_moved(problem),
        reason,
        takes_positions=True,
        takes_window=True,
        takes_weight_out=problem.weight_out is not None,
        scatters=variant == "atomic",
        skips=not takes,
        reads_output=not takes,
        shared_bytes=work.shared_bytes,
    )


def _bytes_moved(problem: Problem) -> int:
    """Count the floor: positions and blocks once, and the sectors that lie under blocks once or twice."""
    geometry, itemsize = problem.geometry, problem.element.itemsize
    assert isinstance(geometry, PositionsGeometry)
    placed = geometry.count * len(geometry.size) * POSITION_BYTES
    if problem.call.operation == "take_blocks":
        return placed + prod(geometry.blocks_shape) * itemsize + _bytes_under_blocks(geometry, problem.input, itemsize)
    added = placed + prod(geometry.blocks_shape) * problem.call.source_element.itemsize
    changed = _bytes_under_blocks(geometry, problem.output, itemsize)
    if problem.weight_out is not None:
        changed += _bytes_under_blocks(replace(geometry, lead=()), problem.weight_out, problem.element.weight_bytes)
    return added + 2 * changed


def _bytes_under_blocks(geometry: PositionsGeometry, array: Operand, itemsize: int) -> int:
    """Count what memory moves of an array for blocks that lie beside each other: whole sectors.

    A row that begins anywhere reaches, on the average, all but an element of one sector more than it fills.
    """
    *_, columns = geometry.block_shape
    row = columns * itemsize + (SECTOR_BYTES - itemsize if array.strides[-1] == 1 else 0)
    return min(prod(array.shape) * itemsize, prod(geometry.blocks_shape) // columns * row)


# ---------------------------------------------------------------------------------------------
# gather

GATHER_SUM_BYTES, GATHER_LOADED_BYTES = 32, 64
"""Of the sums that a thread keeps in registers, and of what it has asked for of blocks, as far as their number goes."""
GATHER_MAX_PLANES, GATHER_MAX_ROWS, GATHER_MAX_AT_ONCE = 4, 8, 4
"""Of a thread, the last of the blocks whose elements it loads before it adds the first."""
GATHER_CANDIDATES = 4
"""Blocks that a thread tests at a time, where their list fits into shared memory."""
GATHER_LIST_BYTES = 40 << 10
GATHER_RESIDENT_BLOCKS = 4
"""Thread blocks on a multiprocessor that registers have to suffice for."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """What a thread block of kernels/add_blocks_gather.cu owns."""

    planes: int
    rows: int
    """Of a thread."""
    at_once: int
    """Blocks whose elements a thread loads before it adds the first."""
    along: Size
    """Tiles along each axis."""


@lru_cache(maxsize=256)
def _tiling(problem: Problem) -> Tiling:
    view = view_of(problem)
    rank, sum_bytes = len(view.size), max(view.element.itemsize, 4)
    weights = {"none": 0, "separable": rank - view.fixed, "full": 1}[problem.fusion.window]
    sums = max(1, GATHER_SUM_BYTES // sum_bytes)
    planes = max(few for few in range(1, min(GATHER_MAX_PLANES, sums) + 1) if view.channels % few == 0)
    rows = 1 << (min(GATHER_MAX_ROWS, sums // planes).bit_length() - 1)
    loaded = rows * (planes * sum_bytes + weights * view.element.weight_bytes)
    at_once = max(1, min(GATHER_MAX_AT_ONCE, GATHER_LOADED_BYTES // loaded))
    warps = THREADS // WARP
    tile = (rows * THREADS,) if rank == 1 else (*(1,) * (rank - 2), rows * warps // 2, 2 * WARP)
    return Tiling(planes, rows, at_once, _tiles(view.size, tile))


def gather(problem: Problem) -> Plan:
    """Plan for kernels/add_blocks_gather.cu."""
    view, tiling = view_of(problem), _tiling(problem)
    groups = view.channels // tiling.planes
    items = view.batch * groups * prod(tiling.along)
    bits = _bits(problem, items, (tiling.rows * THREADS,) * len(view.size))
    entry = POINTER_BYTES + (len(view.size) - view.fixed) * bits // 8  # of a list: where a block is, and its position
    entry = -(-entry // POINTER_BYTES) * POINTER_BYTES
    candidates = GATHER_CANDIDATES if GATHER_CANDIDATES * THREADS * entry <= GATHER_LIST_BYTES else 1
    candidates = min(candidates, max(1, -(-view.count // THREADS)))
    return _plan(
        problem,
        "gather",
        Work(
            items,
            1,
            THREADS,
            tiling.along,
            groups,
            bits,
            (candidates * THREADS + 1) * entry + THREADS // WARP * COUNT_BYTES,
        ),
        "each thread block owns a tile of the image and adds the blocks that meet it, in their order",
        {},
        PLANES=tiling.planes,
        ROWS=tiling.rows,
        AT_ONCE=tiling.at_once,
        CANDIDATES=candidates,
        RESIDENT_BLOCKS=GATHER_RESIDENT_BLOCKS,
    )


def _tiles(size: Size, tile: Size) -> Size:
    return tuple(-(-extent // side) for extent, side in zip(size, tile, strict=True))


# ---------------------------------------------------------------------------------------------
# atomic


def atomic(problem: Problem) -> Plan:
    """Plan for kernels/add_blocks_atomic.cu."""
    view = view_of(problem)
    check_atomics("add_blocks", problem.call.dtype)
    items = view.count * view.batch * view.channels * prod(view.block)
    bits = _bits(problem, items, (0,) * len(view.size))
    return _plan(
        problem,
        "atomic",
        Work(items, THREADS, THREADS, view.block, view.channels, bits),
        "each thread adds one element of the blocks to its pixel with an atomic operation",
        {"by_batch": divisor(view.batch)},
    )


# ---------------------------------------------------------------------------------------------
# owners

COLUMNS = WARP
"""Pixels of a tile's row, a lane each."""
NOTED = 32
"""Blocks that are noted of a tile, and that a warp adds at a time: a bit of a word each. Where more meet it, it is
crowded."""
OWNERS_FILL = 0.75
"""Prediction: of these, the blocks that meet a tile where they are spread evenly."""
OWNERS_TILE_ROWS = 32
"""Of a tile, at most: a bit of a word each."""
OWNERS_MAX_PLANES = 4
"""Of a thread."""
OWNERS_SUM_BYTES = 64
"""Of the sums that a thread keeps in registers."""
OWNERS_MAX_ROWS, OWNERS_MANY_ROWS = 4, 8
"""Of a thread at a time, the latter where a row is one sum and has no weight; each is a load in flight."""
OWNERS_RESIDENT_BLOCKS = 4
"""Thread blocks on a multiprocessor that registers have to suffice for, one less for each register of a sum of weights
where these are asked for."""
OWNERS_CROWD = 1024
"""Prediction: blocks of a crowded tile up to which comparing each with all puts them in order fastest."""
LIST_DEFINES = ("OFFSET", "NOTE", "RANK", "FIXED", "THREADS")
"""What lists of blocks depend on: those of every dtype and window are made by the same kernels."""
NOTED_AT_ONCE = 2
"""Blocks that a thread notes at a time."""
MARKS_OF_THREAD = 64
"""For blocks that follow each other, where more than those meet a tile."""


@dataclass(frozen=True, slots=True)
class Bins:
    """The tiles whose lists kernels/bins.cu makes."""

    side: Size
    """Pixels of a tile along each axis with a position; 1 along the others."""
    along: Size
    """Tiles along each axis with a position; places along the others."""
    entries: int
    """Of all lists, at most."""
    met: float
    """Blocks that meet a tile, where they are spread evenly over all places that reach the image."""


@dataclass(frozen=True, slots=True)
class Owned:
    """What a thread of kernels/add_blocks_owners.cu has at a time."""

    planes: int
    rows: int
    bins: Bins


@lru_cache(maxsize=256)
def _owned(problem: Problem) -> Owned:
    """Return as many planes and rows as registers suffice for, with weights too."""
    view, weighed = view_of(problem), problem.fusion.window != "none" or problem.weight_out is not None
    sum_bytes = max(view.element.itemsize, 4)
    sums = max(1, OWNERS_SUM_BYTES // sum_bytes // (2 if weighed else 1))
    planes = max(few for few in range(1, min(OWNERS_MAX_PLANES, sums) + 1) if view.channels % few == 0)
    most_rows = OWNERS_MAX_ROWS if weighed or planes * sum_bytes > 4 else OWNERS_MANY_ROWS
    rows = 1 << (min(most_rows, sums // planes).bit_length() - 1)
    bins = _bins(view, rows)
    return Owned(planes, min(rows, prod(bins.side) // COLUMNS), bins)


@lru_cache(maxsize=256)
def _bins(view: View, least_rows: int) -> Bins:
    """Return tiles of as many rows as a thread has at a time, or more while few blocks meet one."""
    positioned = range(view.fixed, len(view.size))
    side, grown = [1] * len(view.size), positioned[:-1] or positioned
    side[-1] = COLUMNS

    def met(side: list[int]) -> float:
        reach = view.size, view.block, side
        shares = [min(1.0, (of + block - 1) / (size + block - 1)) for size, block, of in zip(*reach, strict=True)]
        return view.count * prod(shares[view.fixed :])

    while prod(side) < OWNERS_TILE_ROWS * COLUMNS:
        growing = [axis for axis in grown if side[axis] < view.size[axis]]
        if not growing:
            break
        axis = max(growing, key=lambda axis: view.block[axis] / side[axis])
        wider = [of * (1 + (axis == other)) for other, of in enumerate(side)]
        if prod(side) >= least_rows * COLUMNS and met(wider) > OWNERS_FILL * NOTED:
            break
        side = wider
    along = _tiles(view.size, tuple(side))
    tiles = [min(along[axis], -(-(view.block[axis] - 1) // side[axis]) + 1) for axis in positioned]
    return Bins(tuple(side), along, view.count * prod(tiles), met(side))


def owners(problem: Problem) -> Plan:
    """Plan for kernels/add_blocks_owners.cu, after those of kernels/bins.cu."""
    view = view_of(problem)
    owned = _owned(problem)
    bins, planes = owned.bins, owned.planes
    tile_rows = prod(bins.side) // COLUMNS
    number, axes = prod(bins.along[view.fixed :]), len(view.size) - view.fixed
    resident = max(2, problem.device.multiprocessors * (problem.device.threads_per_multiprocessor // THREADS))

    def in_turns(most: int, per_block: int) -> tuple[int, int, int]:  # where mostly there is nothing to do
        return grid_of("add_blocks", min(most, resident // 2 * per_block), per_block)

    groups = view.channels // planes
    items = view.batch * groups * prod(bins.along)
    zeroed = (number // (NOTED // 2) + 1) * NOTED  # a Bin each, and one more
    crowds = bins.entries // (NOTED + 1)
    scratch = zeroed + 2 * (number * NOTED + bins.entries) + crowds  # at most: notes may be as wide as an Offset
    past = view.count + THREADS * max(MARKS_OF_THREAD, 2 * NOTED_AT_ONCE * resident)  # what a loop reaches at its end
    reach = [1 << (block + side - 2).bit_length() for block, side in zip(view.block, bins.side, strict=True)]
    bits = _bits(problem, items, bins.side, scratch, past, *reach)
    note_bits = max(bits, offset_bits("add_blocks", (view.count + 1) * prod(reach[view.fixed :]) // 2))
    windowed = problem.fusion.window != "none"
    of_warp = (NOTED + 1) * 2 * POINTER_BYTES + (NOTED + 1 if windowed else 1) * axes * bits // 8
    of_warp = -(-of_warp // POINTER_BYTES) * POINTER_BYTES
    warps = max(1, min(THREADS // WARP, MAX_SHARED_BYTES // of_warp))
    plan = _plan(
        problem,
        "owners",
        Work(items, warps, warps * WARP, bins.along, groups, bits, warps * of_warp),
        "each warp owns a tile of the image, and adds the blocks that a list of them has for it, in their order",
        {
            "bins": offset(number),
            "entries": offset(bins.entries),
            "by_side": divisor(bins.side),
            "by_reach": divisor(reach),
            "by_batch": divisor(view.batch),
        },
        PLANES=planes,
        ALONE=int(view.batch * groups == 1),
        ROWS=owned.rows,
        NOTE={32: "unsigned", 64: "unsigned long long"}[note_bits],
        TILE_ROWS=tile_rows,
        RESIDENT_BLOCKS=OWNERS_RESIDENT_BLOCKS - (problem.weight_out is not None) * problem.element.weight_bytes // 4,
    )
    scratch -= (2 - note_bits // bits) * number * NOTED
    plan = replace(plan, scratch_bytes=scratch * bits // 8, zeroed_bytes=zeroed * bits // 8)
    each = min(NOTED_AT_ONCE, -(-view.count // (resident * THREADS)))
    crowds = max(1, min(crowds, number))
    steps = (
        ("bins_note", grid_of("add_blocks", view.count, each * THREADS), 0),
        ("bins_reserve", in_turns(crowds, THREADS), (THREADS // WARP + 1) * bits // 8),
        ("bins_list", in_turns(view.count, THREADS), 0),
        ("bins_order", in_turns(crowds, 1), THREADS * (MARKS_OF_THREAD + bits // 8)),
    )
    defines = (
        *((name, str(THREADS) if name == "THREADS" else value) for name, value in plan.defines if name in LIST_DEFINES),
        ("CROWD", str(OWNERS_CROWD)),
        ("MARKS", str(MARKS_OF_THREAD)),
        ("AT_ONCE", str(NOTED_AT_ONCE)),
    )
    before = tuple(
        replace(
            plan,
            source="bins.cu",
            symbol=symbol,
            defines=defines,
            grid=grid,
            block=(THREADS, 1, 1),
            shared_bytes=shared_bytes,
            fills_scratch=True,
        )
        for symbol, grid, shared_bytes in steps
    )
    return replace(plan, before=before)


ADD_BLOCKS: dict[str, Variant] = {"gather": gather, "owners": owners, "atomic": atomic}

SEARCHES_PER_ELEMENT = 2
"""Prediction: tests of a region against a position that cost less than an atomic addition of an element."""
ATOMIC_ELEMENTS, ATOMIC_PIXELS, ATOMIC_BLOCK = 1 << 20, 8, 5
"""Prediction: elements that atomic operations add while lists are launched, the pixels to which their tiles cost one
more, and how many more each block of a list costs."""
OWNERS_MIN_SEARCHES = 1 << 19
OWNERS_MIN_WORK = 1 << 22
"""Prediction: tests, and tests and elements together, from which on lists are worth the launches that make them."""


def prefer_for_add_blocks(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield lists for tiles, unless there is little to do or most of them would be too long to be added at once."""
    view = view_of(problem)
    tiling = _tiling(problem)
    groups = view.batch * view.channels // tiling.planes
    searches = groups * prod(tiling.along) * view.count
    elements = prod(problem.input.shape)
    met = _owned(problem).bins.met
    walked = groups * view.count
    few = elements < ATOMIC_ELEMENTS + prod(problem.output.shape) // ATOMIC_PIXELS + ATOMIC_BLOCK * walked
    if problem.any_order and searches > SEARCHES_PER_ELEMENT * elements and (few or met > NOTED):
        yield "atomic", "regions would mostly search, and lists are too many for so little, or too long"
    least = max(elements if met > OWNERS_FILL * NOTED else 0, OWNERS_MIN_SEARCHES)
    if searches >= least and searches + elements > OWNERS_MIN_WORK:
        yield "owners", "there is so much to add that a list for each tile is worth its launches"
    yield "gather", ""


# ---------------------------------------------------------------------------------------------
# direct

DIRECT_BYTES, DIRECT_LOADS = 64, 16
"""What a thread has in flight at most, of a few elements in each of its planes."""
DIRECT_REGISTERS = 22
"""Prediction: what a thread has beside that."""
DIRECT_RESIDENT_BLOCKS = 4
"""Thread blocks on a multiprocessor that registers have to suffice for, where they do; asked for no more, the compiler
stores some pixels before it loads all."""
DIRECT_OF_THREAD, DIRECT_OF_ELEMENT = 2, 0.5
"""Prediction: what a thread costs besides its loads, and each of its elements besides those of its planes, in loads; a
thread twice as much where some lack planes."""


def _direct_share(problem: Problem, rows: int) -> tuple[int, int, int]:
    """Return a thread's planes, its elements in each, and its registers: the waves of all threads are done soonest.

    They are of few kinds, whatever the number of blocks: each is a kernel of its own.
    """
    view, device, fusion = view_of(problem), problem.device, problem.fusion
    itemsize, weight_bytes = view.element.itemsize, view.element.weight_bytes
    most = min(DIRECT_LOADS, DIRECT_BYTES // itemsize)
    loaded = view.count * view.batch * view.channels * prod(view.block)
    weights = {"none": 0, "separable": len(view.size) - view.fixed, "full": 1}[fusion.window]

    def of_thread(things: int, most: int) -> int:
        return -(-things // -(-things // most))

    def registers_of(planes: int, elements: int) -> int:
        return DIRECT_REGISTERS + elements * (planes * -(-itemsize // 4) + weights * weight_bytes // 4)

    def cost(share: tuple[int, int]) -> float:
        planes, elements = share
        threads = -(-view.channels // planes) * -(-rows // elements) * loaded // (view.channels * rows)
        registers = -(-registers_of(*share) // REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE
        at_once = device.multiprocessors * min(device.threads_per_multiprocessor, REGISTERS // registers)
        lacking = 1 + (view.channels % planes > 0)
        beside = threads * (lacking * DIRECT_OF_THREAD + elements * DIRECT_OF_ELEMENT)
        return -(-threads // at_once) * at_once / threads * (loaded + beside)

    shares = []
    for limit in (most, -(-most // 2), -(-most // 4)):
        planes = of_thread(view.channels, limit)
        planes = max((few for few in range(planes // 2 + 1, planes + 1) if view.channels % few == 0), default=planes)
        shares += [(planes, of_thread(rows, max(1, most // planes // part))) for part in (1, 2)]
    planes, elements = min(shares, key=cost)
    return planes, elements, registers_of(planes, elements)


def direct(problem: Problem) -> Plan:
    """Plan for kernels/take_blocks_direct.cu."""
    view, axis = view_of(problem), max(0, len(view_of(problem).size) - 2)
    planes, elements, registers = _direct_share(problem, view.block[axis])
    groups = -(-view.channels // planes)
    step = -(-view.block[axis] // elements)
    owned = (*view.block[:axis], step, *view.block[axis + 1 :])
    items = view.count * view.batch * groups * prod(owned)
    bits = _bits(problem, items, (elements * step,) * len(view.size))
    moved = dict(word_types(problem.element.itemsize)) if problem.fusion.window == "none" else {}
    return _plan(
        problem,
        "direct",
        Work(items, THREADS, THREADS, owned, groups, bits),
        "each thread takes a few elements of a block, which neighbouring threads store side by side",
        {"by_batch": divisor(view.batch)},
        **moved,
        MODE=problem.fusion.mode,
        PLANES=planes,
        ALL_PLANES=int(view.channels % planes == 0),
        ELEMENTS=elements,
        RESIDENT_BLOCKS=min(DIRECT_RESIDENT_BLOCKS, resident_blocks(THREADS, registers)),
    )


# ---------------------------------------------------------------------------------------------
# owners, of take_blocks

TAKEN_COLUMNS = 128
"""Pixels of a tile's row, where there are rows."""
TAKEN_BYTES = 160
"""Of the pixels that a thread keeps in registers, and of a block's weights for its rows."""
TAKEN_MAX_PLANES = 4
TAKEN_MAX_ROWS, TAKEN_MANY_ROWS = 8, 16
"""Of a thread, the latter where it has one plane."""
TAKEN_RESIDENT_BLOCKS = 4
"""Thread blocks on a multiprocessor that registers have to suffice for."""
TAKEN_MORE_CHUNKS = 8
"""Than there have to be, at most, so that waves end full."""
TAKEN_OF_CHUNK = 0.125
"""Prediction: what the tests and loads of as few chunks as there can be cost, of all that a kernel does."""


@dataclass(frozen=True, slots=True)
class TakenTiles:
    """What the thread blocks of kernels/take_blocks_owners.cu own."""

    planes: int
    tile: Size
    margin: Size
    """Tiles before the image along each axis."""
    along: Size
    """Tiles along each axis, of the image and of what is outside, as far as blocks reach that touch it."""
    owners: Size
    """Thread blocks along each axis: one for each tile, or for those of the image, which take the others in turns."""
    chunks: int
    """Of the blocks, each for a thread block."""


@lru_cache(maxsize=256)
def _taken_tiles(problem: Problem) -> TakenTiles:
    view, element = view_of(problem), problem.element
    rank, weight_bytes = len(view.size), 0 if problem.fusion.window == "none" else element.weight_bytes
    planes = max(planes for planes in range(1, TAKEN_MAX_PLANES + 1) if view.channels % planes == 0)
    most = TAKEN_BYTES // (planes * max(element.itemsize, 4) + weight_bytes)
    rows = 1 << (min(most, TAKEN_MAX_ROWS if planes > 1 else TAKEN_MANY_ROWS).bit_length() - 1)
    of_plane = (rows * THREADS,) if rank == 1 else (rows * THREADS // TAKEN_COLUMNS, TAKEN_COLUMNS)
    tile = (*(1,) * (rank - 2), *of_plane)
    outside = tuple(block if axis >= view.fixed else 0 for axis, block in enumerate(view.block))
    margin = _tiles(outside, tile)
    reach = tuple(map(sum, zip(view.size, outside, strict=True)))
    along = tuple(map(sum, zip(margin, _tiles(reach, tile), strict=True)))
    groups, least = view.batch * (view.channels // planes), -(-view.count // THREADS)
    at_once = TAKEN_RESIDENT_BLOCKS * problem.device.multiprocessors
    in_turns = tuple(
        max(tiles, -(-most // 2)) if axis >= rank - 2 else most
        for axis, (tiles, most) in enumerate(zip(_tiles(view.size, tile), along, strict=True))
    )
    has_registers = not weight_bytes or problem.fusion.mode != "edge"  # for what is known from turn to turn
    turns = has_registers and prod(in_turns) * groups * least >= at_once

    def cost(choice: tuple[Size, int]) -> float:
        """Return how long the waves of all thread blocks take, each of which loads the pixels of a chunk."""
        owners, chunks = choice
        waves = prod(owners) * groups * chunks / at_once
        return (ceil(waves) / waves if waves > 1 else 1) * (1 + TAKEN_OF_CHUNK * chunks / least)

    some = range(least, least + min(least, TAKEN_MORE_CHUNKS) + 1)
    choices = product([in_turns, along] if turns else [along], some)
    return TakenTiles(planes, tile, margin, along, *min(choices, key=cost))


def take_owners(problem: Problem) -> Plan:
    """Plan for kernels/take_blocks_owners.cu."""
    view, tiles = view_of(problem), _taken_tiles(problem)
    items = tiles.chunks * view.batch * (view.channels // tiles.planes) * prod(tiles.owners)
    beyond = tuple((2 * margin + 1) * side for margin, side in zip(tiles.margin, tiles.tile, strict=True))
    bits = _bits(problem, items, beyond)
    listed = POINTER_BYTES + (len(view.size) - view.fixed) * bits // 8
    listed = -(-listed // POINTER_BYTES) * POINTER_BYTES * THREADS + THREADS // WARP * COUNT_BYTES
    listed += (2 + len(view.size)) * bits // 8  # what a thread block keeps for its turns
    moved = dict(word_types(problem.element.itemsize)) if problem.fusion.window == "none" else {}
    return _plan(
        problem,
        "owners",
        Work(items, 1, THREADS, tiles.owners, view.channels // tiles.planes, bits, listed),
        "each thread keeps some pixels, and stores them into every block that covers them",
        {
            "tiles": offset(tiles.along),
            "margin": offset(tiles.margin),
            "chunk": offset(-(-view.count // tiles.chunks)),
            "by_chunks": divisor(tiles.chunks),
        },
        **moved,
        MODE=problem.fusion.mode,
        PLANES=tiles.planes,
        TILE_ROWS=prod(tiles.tile) // TAKEN_COLUMNS,
        TILE_COLUMNS=TAKEN_COLUMNS,
        TURNS=int(tiles.owners != tiles.along),
        RESIDENT_BLOCKS=TAKEN_RESIDENT_BLOCKS,
    )


TAKE_BLOCKS: dict[str, Variant] = {"direct": direct, "owners": take_owners}

TAKEN_MIN_ELEMENTS = 10
"""Prediction: elements of the blocks for each test, from which on the tests cost little beside the stores."""
TAKEN_MIN_OVERLAP = 1.5
"""Prediction: elements of the blocks for each of the image, from which on loading these once is worth a list."""


def prefer_for_take_blocks(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield what loads a pixel once for all blocks, if they overlap and threads that test one have enough to store."""
    view, tiles, elements = view_of(problem), _taken_tiles(problem), prod(problem.output.shape)
    tests = -(-view.count // THREADS) * THREADS * view.batch * (view.channels // tiles.planes) * prod(tiles.along)
    if elements >= max(TAKEN_MIN_ELEMENTS * tests, TAKEN_MIN_OVERLAP * prod(problem.input.shape)):
        yield "owners", ""
    yield "direct", ""
