"""Every plan and specialisation that the planner makes for the named cases."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from itertools import product
from math import prod

from cases import CASES, FUSIONS, KERNEL_MODES, POSITIONS_CASES, SPACE_CASES, WIDENINGS, Case
from executors import DEVICES

from gpufold.calls import PLAIN, Call, Fusion, Unsupported
from gpufold.elements import ELEMENT_TYPES
from gpufold.geometry import add_blocks_geometry, average_geometry, batch_to_space_geometry, col2im_geometry
from gpufold.given import WINDOWS
from gpufold.gpu.plan import Operand
from gpufold.gpu.registry import candidates, problem_of
from gpufold.gpu.sources import KERNELS
from gpufold.operations import variants

DTYPES = ("float32", "float16", "bfloat16", "complex64", "complex128", "float64", "bool", "uint8", "int16", "int64")
SOURCES = sorted(path.name for path in KERNELS.glob("*.cu"))


def whole_blocks(geometry):
    """Describe split columns with the taps of a block one after another in memory."""
    rank = len(geometry.axes)
    inside = Operand.contiguous(
        (*geometry.split_columns_shape[:2], *geometry.num_blocks, *geometry.block_shape)
    ).strides
    return Operand(geometry.split_columns_shape, (*inside[:2], *inside[2 + rank :], *inside[2 : 2 + rank]))


LARGER_CASES = (
    Case("many-cells-in-a-row", (20 * 300,), (24,), 20),
    Case("many-planes", (30, 31), (3, 3), channels=64),
    Case("many-planes-of-words", (32, 40), (3, 3), 1, 1, 1, 1, channels=64),
)
"""For kernels that only larger images are given."""


@cache
def plans():
    """Every plan that the planner makes for the named cases, one for each kernel function and specialisation."""
    found = {}

    def collect(operation, geometry, *shapes, fusions=(PLAIN,), wider=()):
        operands = [shape if isinstance(shape, Operand) else Operand.contiguous(shape) for shape in shapes]
        dtypes = [("", dtype) for dtype in DTYPES]
        for (source, dtype), fusion, device in product((*dtypes, *wider), fusions, DEVICES):
            if (fusion.window, fusion.reduction) != ("none", "sum") and not ELEMENT_TYPES[dtype].weight:
                continue
            for variant in variants(operation):
                call = Call(operation, geometry, dtype, fusion, variant, source=source)
                with suppress(Unsupported):
                    for plan in candidates(problem_of(call, *operands, device)):
                        for step in (*plan.prologue, plan):
                            found[step.symbol, step.defines] = step

    for number, case in enumerate((*CASES, *LARGER_CASES)):
        geometry = col2im_geometry(case.columns_shape, case.output_size, case.kernel_size, **case.arguments)
        fusions = PLAIN, Fusion(*FUSIONS[number % len(FUSIONS)])
        wider = [WIDENINGS[number % len(WIDENINGS)]]
        collect("col2im", geometry, geometry.columns_shape, geometry.image_shape, fusions=fusions, wider=wider)
        collect("col2im", geometry, whole_blocks(geometry), geometry.image_shape, fusions=fusions, wider=wider)
        windows = PLAIN, Fusion("sum", WINDOWS[number % len(WINDOWS)])
        collect("im2col", geometry, geometry.image_shape, geometry.columns_shape, fusions=windows)
        collect("im2col", geometry, geometry.image_shape, whole_blocks(geometry), fusions=windows)
    for case in SPACE_CASES:
        if prod(case.space_shape):
            geometry = batch_to_space_geometry(case.batch_shape, case.block_shape, case.crops_begin, case.crops_end)
            collect("batch_to_space", geometry, geometry.batch_shape, geometry.space_shape)
            collect("space_to_batch", geometry, geometry.space_shape, geometry.batch_shape)
    for number, case in enumerate(POSITIONS_CASES):
        geometry = add_blocks_geometry(case.shape, case.blocks_shape, case.positions.shape)
        windows = [Fusion("sum", window, accumulate=True) for window in WINDOWS]
        wider = [WIDENINGS[number % len(WIDENINGS)]]
        collect("add_blocks", geometry, geometry.blocks_shape, geometry.array_shape, fusions=windows, wider=wider)
        taken = [
            Fusion("sum", window, mode=KERNEL_MODES[number % len(KERNEL_MODES)])
            for number, window in enumerate(WINDOWS)
        ]
        collect("take_blocks", geometry, geometry.array_shape, geometry.blocks_shape, fusions=taken)
    for shape, weight in (((2, 3, 40), (40,)), ((5, 7), (5, 7))):
        for numerator in (shape, Operand(shape, Operand.contiguous(shape[::-1]).strides[::-1])):
            collect("average", average_geometry(shape, weight), numerator, shape, fusions=[Fusion(window="full")])
    return list(found.values())


@cache
def specialisations():
    """Everything that the planner has compiled for the named cases: source to the list of its defines."""
    found: dict[str, dict] = {source: {} for source in SOURCES}
    for plan in plans():
        found[plan.source][plan.defines] = None
    return {source: list(defines) for source, defines in found.items()}
