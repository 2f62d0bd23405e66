"""The kernel variants of add_blocks, which alone know positions, and the choice between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import Any

from gpufold.geometry import PositionsGeometry, Size, merged_axes
from gpufold.plan import (
    ELEMENT_TYPES,
    WEIGHT_TYPES,
    ElementType,
    Plan,
    Problem,
    Variant,
    check_atomics,
    divisor,
    grid_blocks,
    offset_bits,
    offset_type,
    pack,
    parameter_type,
)

OPERATION = "add_blocks"
THREADS = 256
WARP = 32
COUNT_BYTES = 4
"""Of the number of blocks that a warp has found."""


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


@lru_cache(maxsize=256)
def view(problem: Problem) -> View:
    """Name every stride, and make leading axes one where both arrays walk them as one."""
    geometry = problem.geometry
    assert isinstance(geometry, PositionsGeometry)
    count = len(geometry.lead)
    block_step, *blocks_strides = problem.input.strides
    lead = merged_axes(geometry.lead, tuple(blocks_strides[:count]), problem.output.strides[:count])
    if len(lead) < 2:
        lead = [(1, 0, 0)] * (2 - len(lead)) + lead
    (batch, blocks_batch, image_batch), (channels, blocks_channel, image_channel), *rest = lead
    extents, rest_taps, rest_pixels = (tuple(axis[i] for axis in rest) for i in range(3))
    return View(
        ELEMENT_TYPES[problem.dtype],
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
        (*rest_pixels, *problem.output.strides[count:]),
    )


def _plan(
    problem: Problem,
    variant: str,
    symbol: str,
    *,
    items: int,
    per_block: int,
    extents: Size,
    tile: Size,
    channel_groups: int,
    reason: str,
    defines: dict[str, Any],
    divisors: Mapping[str, int | Size] = MappingProxyType({}),
    candidates: int = 0,
    scatters: bool = False,
) -> Plan:
    """Fill in what both variants have in common; an item is (batch, channel group, *extents).

    A gathering thread tests so many candidates at a time, which are listed in shared memory.
    """
    seen = view(problem)
    rank, element = len(seen.size), seen.element
    reach = [size + block + side for size, block, side in zip(seen.size, seen.block, tile, strict=True)]
    bits = offset_bits(
        OPERATION,
        items + THREADS,
        seen.count + 2 * GATHER_CANDIDATES * THREADS,  # tests run past the last
        seen.channels,
        max(reach),
        sum(abs(stride) * extent for stride, extent in zip(seen.tap_strides, reach, strict=True)),
        sum(abs(stride) * extent for stride, extent in zip(seen.pixel_strides, reach, strict=True)),
        prod(seen.block),
    )
    layout = parameter_type(
        bits,
        block_step="long",
        blocks_batch="long",
        blocks_channel="long",
        image_batch="long",
        image_channel="long",
        count="offset",
        channels="offset",
        items="offset",
        size=("offset", rank),
        block=("offset", rank),
        tap_stride=("offset", rank),
        pixel_stride=("offset", rank),
        by_extent=("divisor", rank),
        by_channels="divisor",
    )
    shared: dict[str, Any] = {
        "block_step": seen.block_step,
        "blocks_batch": seen.blocks_batch,
        "blocks_channel": seen.blocks_channel,
        "image_batch": seen.image_batch,
        "image_channel": seen.image_channel,
        "count": seen.count,
        "channels": seen.channels,
        "items": items,
        "size": seen.size,
        "block": seen.block,
        "tap_stride": seen.tap_strides,
        "pixel_stride": seen.pixel_strides,
        "by_extent": [divisor(extent, bits) for extent in extents],
        "by_channels": divisor(channel_groups, bits),
    }
    further: dict[str, tuple[Any, Any]] = {
        name: ("divisor", divisor(of, bits))
        if isinstance(of, int)
        else (("divisor", len(of)), [divisor(extent, bits) for extent in of])
        for name, of in divisors.items()
    }
    parameters = parameter_type(bits, shared=layout, **{name: kind for name, (kind, _) in further.items()})
    return Plan(
        OPERATION,
        variant,
        f"add_blocks_{variant}.cu",
        symbol,
        tuple(
            (name, str(value))
            for name, value in {
                "SCALAR": element.scalar,
                "ACCUMULATOR": element.accumulator,
                "WEIGHT": WEIGHT_TYPES[element.weight],
                "OFFSET": offset_type(bits),
                "RANK": rank,
                "FIXED": seen.fixed,
                "WINDOW": problem.fusion.window,
                "WINDOW_AXES": rank - seen.fixed,
                "THREADS": THREADS,
                **defines,
            }.items()
        ),
        grid_blocks(OPERATION, items, per_block),
        (THREADS, 1, 1),
        pack(
            parameters,
            shared=tuple(shared[name] for name in layout.names or ()),
            **{name: value for name, (_, value) in further.items()},
        ),
        _bytes_moved(problem),
        reason,
        takes_window=True,
        scatters=scatters,
        skips=True,
        reads_output=True,
        shared_bytes=candidates * (THREADS * (1 + rank - seen.fixed) * bits // 8 + THREADS // WARP * COUNT_BYTES),
    )


def _bytes_moved(problem: Problem) -> int:
    """Count the floor: blocks once, and what they land on, if they lie beside each other, twice."""
    blocks, image = prod(problem.input.shape), prod(problem.output.shape)
    return (blocks + 2 * min(blocks, image)) * ELEMENT_TYPES[problem.dtype].itemsize


# ---------------------------------------------------------------------------------------------
# gather

TILE_COLUMNS = 64
"""Pixels along the last axis that a block of threads owns at once; along one axis alone, as many as threads."""
GATHER_SUM_BYTES = 64
"""Of the sums that a thread keeps in registers."""
GATHER_MAX_PLANES = 4
GATHER_CANDIDATES = 4
"""Blocks that a thread tests at a time, where their list fits into shared memory."""
GATHER_LIST_BYTES = 40 << 10
GATHER_MIN_ROWS, GATHER_MAX_ROWS = 4, 8
"""Of a thread; a row is one load in flight for each plane."""
GATHER_RESIDENT_BLOCKS = 2
"""Of threads, on a multiprocessor, that registers have to suffice for."""
GATHER_WAVES = 2
"""Prediction: tiles share a search while this many times the resident blocks of threads are left."""
GATHER_TESTS_PER_ELEMENT = 0.1
"""Prediction: tests of a region against a position that cost little beside the addition of an element."""
GATHER_LIST_FILL = 0.5
"""Of a region's list, with blocks spread evenly: where they are not, it has room for more."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """What a block of threads of kernels/add_blocks_gather.cu owns."""

    planes: int
    groups: int
    """Of planes."""
    rows: int
    columns: int
    candidates: int
    tile: Size
    region: Size
    """Tiles along each axis that share a search."""
    regions: Size

    @property
    def reach(self) -> Size:
        """Pixels of a region."""
        return tuple(side * tiles for side, tiles in zip(self.tile, self.region, strict=True))


@lru_cache(maxsize=256)
def _tiling(problem: Problem) -> Tiling:
    seen = view(problem)
    rank, sums = len(seen.size), GATHER_SUM_BYTES // max(seen.element.itemsize, 4)
    planes = min(GATHER_MAX_PLANES, seen.channels, max(1, sums // GATHER_MIN_ROWS))
    thread_rows = min(GATHER_MAX_ROWS, sums // planes)
    columns = THREADS if rank == 1 else TILE_COLUMNS
    rows = thread_rows * (THREADS // columns)
    tile = (columns * rows,) if rank == 1 else (*(1,) * (rank - 2), rows, columns)
    groups = -(-seen.channels // planes)
    entry = 8 * (1 + rank - seen.fixed)  # of the list, in the widest Offsets
    candidates = GATHER_CANDIDATES if GATHER_CANDIDATES * THREADS * entry <= GATHER_LIST_BYTES else 1
    most = GATHER_WAVES * GATHER_RESIDENT_BLOCKS * problem.device.multiprocessors
    region = _region(seen, tile, -(-most // (seen.batch * groups)), int(GATHER_LIST_FILL * candidates * THREADS))
    reach = tuple(side * tiles for side, tiles in zip(tile, region, strict=True))
    return Tiling(planes, groups, rows, columns, candidates, tile, region, _tiles(seen.size, reach))


def gather(problem: Problem) -> Plan:
    """Plan for kernels/add_blocks_gather.cu."""
    seen, tiling = view(problem), _tiling(problem)
    shared_by = prod(tiling.region)
    owned = f"{shared_by} tiles of the image, which share a search," if shared_by > 1 else "a tile of the image"
    return _plan(
        problem,
        "gather",
        "add_blocks_gather",
        items=seen.batch * tiling.groups * prod(tiling.regions),
        per_block=1,
        extents=tiling.regions,
        tile=tiling.reach,
        channel_groups=tiling.groups,
        reason=f"each block of threads owns {owned} and adds the blocks that meet it, in their order",
        defines={
            "TILE_COLUMNS": tiling.columns,
            "TILE_ROWS": tiling.rows,
            "PLANES": tiling.planes,
            "CANDIDATES": tiling.candidates,
            "RESIDENT_BLOCKS": GATHER_RESIDENT_BLOCKS,
        },
        divisors={"by_region": tiling.region},
        candidates=tiling.candidates,
    )


def _tiles(size: Size, tile: Size) -> Size:
    return tuple(-(-extent // side) for extent, side in zip(size, tile, strict=True))


def _region(seen: View, tile: Size, least_regions: int, most_listed: int) -> Size:
    """Give the tiles along each axis that share a search: as few as keep it cheap, if so many regions are left."""
    tiles = _tiles(seen.size, tile)
    region = [1] * len(tile)

    def blocks_met(region: list[int]) -> float:
        """Count the blocks that meet a region, where they are spread evenly over all places that reach the image."""
        met = float(seen.count)
        for axis in range(seen.fixed, len(tile)):
            met *= min(1.0, (region[axis] * tile[axis] + seen.block[axis]) / (seen.size[axis] + seen.block[axis]))
        return met

    elements = seen.count * prod(seen.block)  # of a plane
    while prod(_tiles(tiles, tuple(region))) * seen.count > GATHER_TESTS_PER_ELEMENT * elements:
        growing = [axis for axis in range(seen.fixed, len(tile)) if region[axis] < tiles[axis]]
        if not growing:
            break
        axis = min(growing, key=lambda axis: region[axis] * tile[axis])
        wider = [side * (1 + (axis == other)) for other, side in enumerate(region)]
        if prod(_tiles(tiles, tuple(wider))) < least_regions or blocks_met(wider) > most_listed:
            break
        region = wider
    return tuple(region)


# ---------------------------------------------------------------------------------------------
# atomic


def atomic(problem: Problem) -> Plan:
    """Plan for kernels/add_blocks_atomic.cu."""
    seen = view(problem)
    check_atomics(OPERATION, problem.dtype)
    return _plan(
        problem,
        "atomic",
        "add_blocks_atomic",
        items=seen.count * seen.batch * seen.channels * prod(seen.block),
        per_block=THREADS,
        extents=seen.block,
        tile=(0,) * len(seen.size),
        channel_groups=seen.channels,
        reason="each thread adds one element of the blocks to its pixel with an atomic operation",
        defines={},
        divisors={"by_batch": seen.batch},
        scatters=True,
    )


VARIANTS: dict[str, Variant] = {"gather": gather, "atomic": atomic}

SEARCHES_PER_ELEMENT = 2
"""Prediction: tests of a region against a position that cost less than an atomic addition of an element."""


def prefer(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield atomic additions where the blocks are so many and so small that regions would mostly search."""
    seen = view(problem)
    any_order = ELEMENT_TYPES[problem.dtype].exact or not problem.deterministic
    tiling = _tiling(problem)
    searches = seen.batch * tiling.groups * prod(tiling.regions) * seen.count
    if any_order and searches > SEARCHES_PER_ELEMENT * prod(problem.input.shape):
        yield "atomic", "the blocks are so many and so small that regions would mostly search"
    yield "gather", ""
