"""Plans of add_blocks in which tiles search for their blocks (output_driven) or elements scatter (atomic)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from gpufold.geometry import Size
from gpufold.gpu.parameters import divisor
from gpufold.gpu.plan import POINTER_BYTES, LaunchShape, Plan, Problem, check_atomics
from gpufold.gpu.variants.placed import CANDIDATES, COUNT_BYTES, THREADS, bits_of, placed_plan, placed_view, tiles_of
from gpufold.gpu.variants.views import WARP

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
    view = placed_view(problem)
    rank, sum_bytes = len(view.size), max(view.element.itemsize, 4)
    weights = {"none": 0, "separable": rank - view.fixed, "full": 1}[problem.fusion.window]
    shared_by = 1 if problem.weight_out is None else 2  # sums of weights take as many registers
    sums = SUM_BYTES // sum_bytes // shared_by
    planes = max(few for few in range(1, min(MAX_PLANES, sums) + 1) if view.channels % few == 0)
    rows = 1 << (min(MAX_ROWS, sums // planes).bit_length() - 1)
    loaded = rows * (planes * sum_bytes + weights * view.element.weight_bytes)
    at_once = max(1, min(MAX_AT_ONCE, LOADED_BYTES // loaded) // shared_by)
    warps = THREADS // WARP
    tile = (rows * THREADS,) if rank == 1 else (*(1,) * (rank - 2), rows * warps // 2, 2 * WARP)
    return Tiling(planes, rows, at_once, tiles_of(view.size, tile))


def output_driven(problem: Problem) -> Plan:
    """Plan for kernels/add_blocks_output_driven.cu."""
    view, tiling = placed_view(problem), tiling_of(problem)
    groups = view.channels // tiling.planes
    items = view.batch * groups * prod(tiling.along)
    bits = bits_of(problem, items, (tiling.rows * THREADS,) * len(view.size))
    entry = POINTER_BYTES + (len(view.size) - view.fixed) * bits // 8  # of a list: where a block is, and its position
    entry = -(-entry // POINTER_BYTES) * POINTER_BYTES
    candidates = CANDIDATES if CANDIDATES * THREADS * entry <= LIST_BYTES else 1
    candidates = min(candidates, max(1, -(-view.count // THREADS)))
    list_bytes = (candidates * THREADS + 1) * entry + THREADS // WARP * COUNT_BYTES
    return placed_plan(
        problem,
        "output_driven",
        LaunchShape(items, 1, THREADS, tiling.along, groups, bits, list_bytes),
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
    view = placed_view(problem)
    check_atomics(problem.call.dtype)
    items = view.count * view.batch * view.channels * prod(view.block)
    bits = bits_of(problem, items, (0,) * len(view.size))
    return placed_plan(
        problem,
        "atomic",
        LaunchShape(items, THREADS, THREADS, view.block, view.channels, bits),
        "each thread adds one element of the blocks to its pixel with an atomic operation",
        {"by_batch": divisor(view.batch)},
    )
