"""The variant binned of add_blocks: first the device lists the blocks that intersect each tile of the image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from gpufold.geometry import Size
from gpufold.gpu.parameters import divisor, offset, offset_bits
from gpufold.gpu.plan import MAX_SHARED_BYTES, POINTER_BYTES, LaunchShape, Plan, Problem, grid_of, specialisation
from gpufold.gpu.variants.positions import THREADS, PositionsView, bits_of, positions_plan, positions_view, tiles_of
from gpufold.gpu.variants.views import WARP

COLUMNS = WARP
"""Pixels of a tile's row, one per lane."""
SLOTS = 32
"""Blocks that a tile has room for, and that a warp adds at a time: a bit of a word each. A tile that intersects more
overflows."""
TILE_ROWS = 32
"""Most rows of a tile: a bit of a word each."""
MAX_PLANES = 4
"""Most planes of a thread."""
SUM_BYTES = 64
"""Most bytes of the sums that a thread keeps in registers."""
MAX_ROWS, MANY_ROWS = 4, 8
"""Most rows of a thread at a time, each a load in flight; the latter if a row is one sum without a weight."""
RESIDENT_BLOCKS = 4
"""Thread blocks per multiprocessor in the launch bounds, less one for each register of a sum of weights, if any."""
MOST_COMPARED = 1024
"""Most blocks of an overflowing tile that are sorted by comparing each with all others."""
LIST_DEFINES = ("OFFSET", "SLOT", "RANK", "FIXED")
"""Macros that lists of blocks depend on; all dtypes and windows use the same lists."""
BLOCKS_AT_ONCE = 2
"""Blocks that a thread puts into slots at a time."""
MARKS_OF_THREAD = 64
"""Marks of a thread, for consecutive blocks: they sort a tile with more than `MOST_COMPARED` blocks."""


@dataclass(frozen=True, slots=True)
class Bins:
    """The tiles whose lists kernels/bins.cu makes."""

    side: Size
    """Pixels of a tile along each axis with a position; 1 along the others."""
    along: Size
    """Tiles along each axis with a position; places along the others."""
    entries: int
    """Most entries of all lists together."""


def _shares(problem: Problem) -> Iterator[tuple[int, int, Bins]]:
    """Yield the planes and rows of a thread that fit into registers, for small tiles and for the largest."""
    view, weighed = positions_view(problem), problem.fusion.window != "none" or problem.weight_out is not None
    sum_bytes = max(view.element.itemsize, 4)
    sums = max(1, SUM_BYTES // sum_bytes // (2 if weighed else 1))
    planes = max(few for few in range(1, min(MAX_PLANES, sums) + 1) if view.channels % few == 0)
    most_rows = MAX_ROWS if weighed or planes * sum_bytes > 4 else MANY_ROWS
    rows = 1 << (min(most_rows, sums // planes).bit_length() - 1)
    for bins in dict.fromkeys((_bins(view, 2 * rows), _bins(view, TILE_ROWS))):
        yield planes, min(rows, prod(bins.side) // COLUMNS), bins


@lru_cache(maxsize=256)
def _bins(view: PositionsView, rows: int) -> Bins:
    """Return tiles of `rows` rows, or of all if there are fewer, with sides in proportion to those of blocks."""
    positioned = range(view.fixed, len(view.size))
    side, grown = [1] * len(view.size), positioned[:-1] or positioned
    side[-1] = COLUMNS
    while prod(side) < rows * COLUMNS:
        growing = [axis for axis in grown if side[axis] < view.size[axis]]
        if not growing:
            break
        side[max(growing, key=lambda axis: view.block[axis] / side[axis])] *= 2
    along = tiles_of(view.size, tuple(side))
    tiles = [min(along[axis], -(-(view.block[axis] - 1) // side[axis]) + 1) for axis in positioned]
    return Bins(tuple(side), along, view.count * prod(tiles))


def binned(problem: Problem) -> tuple[Plan, ...]:
    """Plan for kernels/add_blocks_binned.cu, after those of kernels/bins.cu."""
    return tuple([_binned(problem, *share) for share in _shares(problem)])


def _binned(problem: Problem, planes: int, rows: int, bins: Bins) -> Plan:
    view = positions_view(problem)
    tile_rows = prod(bins.side) // COLUMNS
    number, axes = prod(bins.along[view.fixed :]), len(view.size) - view.fixed
    resident = max(2, problem.device.multiprocessors * (problem.device.threads_per_multiprocessor // THREADS))

    def in_turns(most: int, per_block: int) -> tuple[int, int, int]:  # for threads that mostly have nothing to do
        return grid_of(min(most, resident // 2 * per_block), per_block)

    groups = view.channels // planes
    items = view.batch * groups * prod(bins.along)
    zeroed = (number // (SLOTS // 2) + 1) * SLOTS  # a Bin each, and one more
    lists = bins.entries // (SLOTS + 1)
    # At most: slots may be as wide as an Offset. It is twice the number of blocks or more: what a loop counts beyond
    # the last of them, a few million, needs no wider Offset.
    scratch = zeroed + 2 * (number * SLOTS + bins.entries) + lists
    reach = [1 << (block + side - 2).bit_length() for block, side in zip(view.block, bins.side, strict=True)]
    bits = bits_of(problem, items, bins.side, scratch, *reach)
    slot_bits = max(bits, offset_bits((view.count + 1) * prod(reach[view.fixed :]) // 2))
    windowed = problem.fusion.window != "none"
    of_warp = (SLOTS + 1) * 2 * POINTER_BYTES + (SLOTS + 1 if windowed else 1) * axes * bits // 8
    of_warp = -(-of_warp // POINTER_BYTES) * POINTER_BYTES
    warps = max(1, min(THREADS // WARP, MAX_SHARED_BYTES // of_warp))
    plan = positions_plan(
        problem,
        "binned",
        LaunchShape(items, warps, warps * WARP, bins.along, groups, bits, warps * of_warp),
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
        ROWS=rows,
        SLOT={32: "unsigned", 64: "unsigned long long"}[slot_bits],
        TILE_ROWS=tile_rows,
        RESIDENT_BLOCKS=RESIDENT_BLOCKS - (problem.weight_out is not None) * problem.element.weight_bytes // 4,
    )
    scratch -= (2 - slot_bits // bits) * number * SLOTS
    plan = replace(plan, scratch_bytes=scratch * bits // 8, zeroed_bytes=zeroed * bits // 8)
    each = min(BLOCKS_AT_ONCE, -(-view.count // (resident * THREADS)))
    lists = max(1, min(lists, number))
    steps = (
        ("bins_fill", grid_of(view.count, each * THREADS), 0),
        ("bins_reserve", in_turns(lists, THREADS), (THREADS // WARP + 1) * bits // 8),
        ("bins_list", in_turns(view.count, THREADS), 0),
        ("bins_order", in_turns(lists, 1), THREADS * (MARKS_OF_THREAD + bits // 8)),
    )
    of_lists = {name: value for name, value in plan.defines if name in LIST_DEFINES}
    own = {
        "THREADS": THREADS,
        "WEIGHT_OUT": 0,
        "MOST_COMPARED": MOST_COMPARED,
        "MARKS": MARKS_OF_THREAD,
        "AT_ONCE": BLOCKS_AT_ONCE,
    }
    prologue = tuple(
        replace(
            plan,
            file="bins.cu",
            symbol=symbol,
            defines=specialisation(of_lists | own),
            grid=grid,
            block=(THREADS, 1, 1),
            shared_bytes=shared_bytes,
        )
        for symbol, grid, shared_bytes in steps
    )
    return replace(plan, prologue=prologue)
