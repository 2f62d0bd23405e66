"""The kernel variants of take_blocks: threads own elements of the blocks, or pixels of the image."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import ceil, prod

from gpufold.geometry import Size
from gpufold.gpu.parameters import divisor, offset
from gpufold.gpu.plan import POINTER_BYTES, REGISTERS, REGISTERS_AT_ONCE, Plan, Problem, Variant, Work, resident_blocks
from gpufold.gpu.variants.moves import WARP, word_types
from gpufold.gpu.variants.placed import COUNT_BYTES, THREADS, bits_of, placed_plan, placed_view, tiles_of

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
    view, device, fusion = placed_view(problem), problem.device, problem.fusion
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
    view, axis = placed_view(problem), max(0, len(placed_view(problem).size) - 2)
    planes, elements, registers = _direct_share(problem, view.block[axis])
    groups = -(-view.channels // planes)
    step = -(-view.block[axis] // elements)
    owned = (*view.block[:axis], step, *view.block[axis + 1 :])
    items = view.count * view.batch * groups * prod(owned)
    bits = bits_of(problem, items, (elements * step,) * len(view.size))
    moved = dict(word_types(problem.element.itemsize)) if problem.fusion.window == "none" else {}
    return placed_plan(
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
# owners

TAKEN_COLUMNS = 128
"""Pixels of a tile's row, where there are rows."""
TAKEN_BYTES = 160
"""Of the pixels that a thread keeps in registers, and of a block's weights for its rows."""
TAKEN_MAX_PLANES = 4
TAKEN_MAX_ROWS, TAKEN_MANY_ROWS = 8, 16
"""Of a thread, the latter where it has one plane."""
TAKEN_RESIDENT_BLOCKS = 4
"""Thread blocks on a multiprocessor that registers have to suffice for, one less for elements of 8 bytes and more and
the weights of more than two axes in mode edge."""
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
def taken_tiles(problem: Problem) -> TakenTiles:
    """Return what the thread blocks of owners own: those tiles whose waves are done soonest."""
    view, element = placed_view(problem), problem.element
    rank, weight_bytes = len(view.size), 0 if problem.fusion.window == "none" else element.weight_bytes
    planes = max(planes for planes in range(1, TAKEN_MAX_PLANES + 1) if view.channels % planes == 0)
    most = TAKEN_BYTES // (planes * max(element.itemsize, 4) + weight_bytes)
    rows = 1 << (min(most, TAKEN_MAX_ROWS if planes > 1 else TAKEN_MANY_ROWS).bit_length() - 1)
    of_plane = (rows * THREADS,) if rank == 1 else (rows * THREADS // TAKEN_COLUMNS, TAKEN_COLUMNS)
    tile = (*(1,) * (rank - 2), *of_plane)
    outside = tuple(block if axis >= view.fixed else 0 for axis, block in enumerate(view.block))
    margin = tiles_of(outside, tile)
    reach = tuple(map(sum, zip(view.size, outside, strict=True)))
    along = tuple(map(sum, zip(margin, tiles_of(reach, tile), strict=True)))
    groups, least = view.batch * (view.channels // planes), -(-view.count // THREADS)
    at_once = TAKEN_RESIDENT_BLOCKS * problem.device.multiprocessors
    in_turns = tuple(
        max(tiles, -(-most // 2)) if axis >= rank - 2 else most
        for axis, (tiles, most) in enumerate(zip(tiles_of(view.size, tile), along, strict=True))
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


def owners(problem: Problem) -> Plan:
    """Plan for kernels/take_blocks_owners.cu."""
    view, tiles = placed_view(problem), taken_tiles(problem)
    items = tiles.chunks * view.batch * (view.channels // tiles.planes) * prod(tiles.owners)
    beyond = tuple((2 * margin + 1) * side for margin, side in zip(tiles.margin, tiles.tile, strict=True))
    bits = bits_of(problem, items, beyond)
    listed = POINTER_BYTES + (len(view.size) - view.fixed) * bits // 8
    listed = -(-listed // POINTER_BYTES) * POINTER_BYTES * THREADS + THREADS // WARP * COUNT_BYTES
    listed += (2 + len(view.size)) * bits // 8  # what a thread block keeps for its turns
    moved = dict(word_types(problem.element.itemsize)) if problem.fusion.window == "none" else {}
    many = problem.fusion.window == "separable" and problem.fusion.mode == "edge" and len(view.size) - view.fixed > 2
    many = many and problem.element.itemsize >= 8
    return placed_plan(
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
        RESIDENT_BLOCKS=TAKEN_RESIDENT_BLOCKS - many,
    )


VARIANTS: dict[str, Variant] = {"direct": direct, "owners": owners}
