"""The kernel variant of take_blocks: threads own elements of the blocks."""

from __future__ import annotations

from math import prod

from gpufold.calls import Unsupported
from gpufold.gpu.parameters import divisor
from gpufold.gpu.plan import LaunchShape, Plan, Problem, resident_blocks
from gpufold.gpu.variants.placed import THREADS, bits_of, placed_plan, placed_view
from gpufold.gpu.variants.views import WARP, word_types
from gpufold.outside import BY_INDEX

DIRECT_BYTES, DIRECT_LOADS = 32, 8
"""Most bytes and loads that a thread has in flight, over its planes."""
DIRECT_REGISTERS = 22
"""Registers of a thread besides its elements and weights."""
DIRECT_RESIDENT_BLOCKS = 4
"""Most thread blocks per multiprocessor in the launch bounds; without a bound, the compiler stores some pixels before
it loads all."""


def _shares(problem: Problem, rows: int) -> list[tuple[int, int]]:
    """Return candidates for a thread's planes and elements per plane, powers of two: as many as allowed, or half.

    For blocks with short rows, whose sectors few neighbours share, half was faster on an H100.
    """
    view = placed_view(problem)
    most = min(DIRECT_LOADS, DIRECT_BYTES // view.element.itemsize)
    shares = []
    for limit in (most, most // 2):
        planes = min(limit, 1 << view.channels.bit_length() - 1)
        elements = min(max(1, limit // max(1, planes)), 1 << rows.bit_length() - 1)
        if planes and (planes, elements) not in shares:
            shares.append((planes, elements))
    return shares[::-1] if view.block[-1] < WARP and all(elements == 1 for _, elements in shares) else shares


def _registers(problem: Problem, planes: int, elements: int) -> int:
    view, weight_bytes = placed_view(problem), problem.element.weight_bytes
    weights = {"none": 0, "separable": len(view.size) - view.fixed, "full": 1}[problem.fusion.window]
    return DIRECT_REGISTERS + elements * (planes * -(-view.element.itemsize // 4) + weights * weight_bytes // 4)


def per_element(problem: Problem) -> tuple[Plan, ...]:
    """Plan for kernels/take_blocks_per_element.cu."""
    if problem.fusion.mode in BY_INDEX:
        raise Unsupported(f"mode {problem.fusion.mode!r} is taken by index, by no kernel")
    axis = max(0, len(placed_view(problem).size) - 2)
    shares = _shares(problem, placed_view(problem).block[axis])
    return tuple([_per_element(problem, axis, planes, elements) for planes, elements in shares])


def _per_element(problem: Problem, axis: int, planes: int, elements: int) -> Plan:
    view = placed_view(problem)
    groups = -(-view.channels // planes)
    step = -(-view.block[axis] // elements)
    owned = (*view.block[:axis], step, *view.block[axis + 1 :])
    items = view.count * view.batch * groups * prod(owned)
    bits = bits_of(problem, items, (elements * step,) * len(view.size))
    moved = dict(word_types(problem.element.itemsize)) if problem.fusion.window == "none" else {}
    resident = resident_blocks(THREADS, _registers(problem, planes, elements))
    return placed_plan(
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
        RESIDENT_BLOCKS=min(DIRECT_RESIDENT_BLOCKS, resident),
    )
