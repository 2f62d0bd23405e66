"""The kernel variants of add_blocks: tiles search for their blocks or have lists of them, or elements scatter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from gpufold.geometry import Size
from gpufold.gpu.parameters import divisor
from gpufold.gpu.plan import POINTER_BYTES, Plan, Problem, Variant, Work, check_atomics
from gpufold.gpu.variants import tile_lists
from gpufold.gpu.variants.moves import WARP
from gpufold.gpu.variants.placed import CANDIDATES, COUNT_BYTES, THREADS, bits_of, plan_of, tiles_of, view_of

SUM_BYTES, LOADED_BYTES = 32, 64
"""Of the sums that a thread keeps in registers, and of what it has asked for of blocks, as far as their number goes."""
MAX_PLANES, MAX_ROWS, MAX_AT_ONCE = 4, 8, 4
"""Of a thread, the last of the blocks whose elements it loads before it adds the first."""
LIST_BYTES = 40 << 10
"""Of shared memory, up to which a thread tests several blocks at a time."""
RESIDENT_BLOCKS = 4
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
    sums = max(1, SUM_BYTES // sum_bytes)
    planes = max(few for few in range(1, min(MAX_PLANES, sums) + 1) if view.channels % few == 0)
    rows = 1 << (min(MAX_ROWS, sums // planes).bit_length() - 1)
    loaded = rows * (planes * sum_bytes + weights * view.element.weight_bytes)
    at_once = max(1, min(MAX_AT_ONCE, LOADED_BYTES // loaded))
    warps = THREADS // WARP
    tile = (rows * THREADS,) if rank == 1 else (*(1,) * (rank - 2), rows * warps // 2, 2 * WARP)
    return Tiling(planes, rows, at_once, tiles_of(view.size, tile))


def gather(problem: Problem) -> Plan:
    """Plan for kernels/add_blocks_gather.cu."""
    view, tiling = view_of(problem), _tiling(problem)
    groups = view.channels // tiling.planes
    items = view.batch * groups * prod(tiling.along)
    bits = bits_of(problem, items, (tiling.rows * THREADS,) * len(view.size))
    entry = POINTER_BYTES + (len(view.size) - view.fixed) * bits // 8  # of a list: where a block is, and its position
    entry = -(-entry // POINTER_BYTES) * POINTER_BYTES
    candidates = CANDIDATES if CANDIDATES * THREADS * entry <= LIST_BYTES else 1
    candidates = min(candidates, max(1, -(-view.count // THREADS)))
    return plan_of(
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
        RESIDENT_BLOCKS=RESIDENT_BLOCKS,
    )


def atomic(problem: Problem) -> Plan:
    """Plan for kernels/add_blocks_atomic.cu."""
    view = view_of(problem)
    check_atomics("add_blocks", problem.call.dtype)
    items = view.count * view.batch * view.channels * prod(view.block)
    bits = bits_of(problem, items, (0,) * len(view.size))
    return plan_of(
        problem,
        "atomic",
        Work(items, THREADS, THREADS, view.block, view.channels, bits),
        "each thread adds one element of the blocks to its pixel with an atomic operation",
        {"by_batch": divisor(view.batch)},
    )


VARIANTS: dict[str, Variant] = {"gather": gather, "lists": tile_lists.lists, "atomic": atomic}

SEARCHES_PER_ELEMENT = 2
"""Prediction: tests of a region against a position that cost less than an atomic addition of an element."""
ATOMIC_ELEMENTS, ATOMIC_PIXELS, ATOMIC_BLOCK = 1 << 20, 8, 5
"""Prediction: elements that atomic operations add while lists are launched, the pixels to which their tiles cost one
more, and how many more each block of a list costs."""
LISTS_MIN_SEARCHES = 1 << 19
LISTS_MIN_WORK = 1 << 22
"""Prediction: tests, and tests and elements together, from which on lists are worth the launches that make them."""


def prefer(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield lists for tiles, unless there is little to do or most of them would be too long to be added at once."""
    view = view_of(problem)
    tiling = _tiling(problem)
    groups = view.batch * view.channels // tiling.planes
    searches = groups * prod(tiling.along) * view.count
    elements = prod(problem.input.shape)
    met = tile_lists.share_of(problem).bins.met
    walked = groups * view.count
    few = elements < ATOMIC_ELEMENTS + prod(problem.output.shape) // ATOMIC_PIXELS + ATOMIC_BLOCK * walked
    if problem.any_order and searches > SEARCHES_PER_ELEMENT * elements and (few or met > tile_lists.NOTED):
        yield "atomic", "regions would mostly search, and lists are too many for so little, or too long"
    least = max(elements if met > tile_lists.FILL * tile_lists.NOTED else 0, LISTS_MIN_SEARCHES)
    if searches >= least and searches + elements > LISTS_MIN_WORK:
        yield "lists", "there is so much to add that a list for each tile is worth its launches"
    yield "gather", ""
