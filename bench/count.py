"""Counts, from machine code, what kernels need and do: registers, instructions, memory sectors.

Needs are read out of the machine code of a problem's own plan. Instructions and sectors are counted while the same
kernel runs on this machine's CPU, on a problem shrunk together with the device. None of it is a time.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

import gpufold
from bench import hostcuda
from bench.hostcuda import Arrays, work
from bench.hostcuda.cubin import architecture_of, resources
from bench.hostcuda.machine import Counters
from bench.measure import difference
from bench.problems import AT_POSITIONS, TOLERANCE, Problem, plan_of
from gpufold.calls import Unsupported
from gpufold.elements import ELEMENT_TYPES
from gpufold.gpu.plan import H200, Device, Plan

ELEMENTS = 1 << 15
"""Elements of the input of a shrunk problem per multiprocessor of the shrunk device."""

TIMES = (1, 8, 64)
"""Factors by which the input per multiprocessor grows, if the kernel differs for fewer elements."""

MOST_ELEMENTS = 1 << 27
"""Most elements of the input of a problem that is run."""

MOST_UNLIKE = 1.5
"""Allowed factor between the work of a thread in the smaller and in the whole problem."""

SCALED = replace(H200, multiprocessors=1)
"""The fraction of an H200 that problems are shrunk to, if their kernel stays the same."""


def check_available() -> None:
    """Return why kernels cannot run on this machine's CPU, or be compiled for a GPU."""
    if reason := hostcuda.unavailable() or hostcuda.cubin.unavailable():
        raise ValueError(f"count compiles the kernels for a GPU, and runs their machine code on the CPU: {reason}")


def smaller(full: Problem, plan: Plan, dtype: str, device: Device) -> tuple[Problem, Plan, Device] | None:
    """Shrink a problem and the device as far as its kernel is that of `plan`, with the same specialisation.

    None where no smaller one has that kernel, with threads that have about as much to do.
    """

    def kernel(of: Plan) -> tuple[Any, ...]:
        return of.symbol, of.defines, *((step.symbol, step.defines) for step in of.prologue)

    def per_thread(of: Plan) -> float:
        return of.bytes_moved / (prod(of.grid) * prod(of.block))

    parts = [1 << power for power in range(8) if 1 << power < device.multiprocessors] + [device.multiprocessors]
    for times, part, planes in product(TIMES, parts, (1, 2, 4, 8)):
        shrunk, scaled = full.shrunk(times * part * ELEMENTS, planes), replace(device, multiprocessors=part)
        if prod(shrunk.input_shape) > MOST_ELEMENTS:
            continue
        try:
            planned = plan_of(shrunk, plan.variant, dtype, scaled)
        except Unsupported:
            continue
        if kernel(planned) == kernel(plan) and MOST_UNLIKE > per_thread(planned) / per_thread(plan) > 1 / MOST_UNLIKE:
            return shrunk, planned, scaled
    return None


def work_on(problem: Problem, plan: Plan, dtype: str, device: Device) -> list[Counters]:
    """Execute the machine code of a problem's plan; its result must be the NumPy path's."""
    data = problem.data(dtype)
    result = np.zeros(problem.output_shape, data.dtype)  # add_blocks adds to it
    kind = ELEMENT_TYPES[dtype].weight
    weights = tuple(each.astype(kind) for each in problem.weights()) if problem.window else None
    positions = problem.positions() if problem.operation in AT_POSITIONS else None
    done = work(plan, Arrays(data, result, weights, positions), device)
    if wrong := difference(result, problem(data), TOLERANCE):
        raise AssertionError(f"{plan}: {wrong}")
    return done


HEADER = ["problem", "variant", "registers", "spilled", "instructions", "sectors loaded", "stored"]


def count(problem: Problem, variant: str, dtype: str, device: Device = H200) -> list[str]:
    """Return a row below HEADER; without counts of execution if no smaller problem has the same kernel.

    Raise Unsupported where a variant does not serve the problem.
    """
    plan = plan_of(problem, variant, dtype, device)
    needed = resources(plan, architecture_of(device))
    name = problem.name if dtype == "float32" else f"{problem.name} {dtype}"
    row = [name, plan.variant, str(needed.registers), str(needed.stack_bytes)]
    found = smaller(problem, plan, dtype, device)
    if found is None:
        return [*row, "", "", ""]
    shrunk, planned, scaled = found
    counted = work_on(shrunk, planned, dtype, scaled)
    elements = max(prod(shrunk.input_shape), prod(shrunk.output_shape))
    instructions = 32 * sum(each.instructions for each in counted)
    loaded = sum(each.loads.sectors for each in counted)
    stored = sum(each.stores.sectors + each.atomics.sectors for each in counted)
    return [*row, *(f"{number / elements:.3g}" for number in (instructions, loaded, stored))]


def candidates(
    problems: list[Problem], variants: list[str], dtype: str | None, device: Device = H200
) -> list[tuple[Problem, str, str]]:
    """Return each problem with the variant of `auto` or those named that serve it, and a dtype (default: its first)."""
    found = []
    for problem, variant in product(problems, variants or ["auto"]):
        of = dtype or problem.dtypes[0]
        weighed = problem.reduction != "sum" or problem.window
        if variant in ("auto", *gpufold.variants(problem.operation)) and (ELEMENT_TYPES[of].weight or not weighed):
            with suppress(Unsupported):
                found.append((problem, plan_of(problem, variant, of, device).variant, of))
    return found


def meaning(device: Device) -> list[str]:
    """Explain the columns."""
    return [
        f"Counted from the machine code for {device.name}, none of it a time. Of a thread: registers, and bytes that "
        "are spilled.",
        "For each element of the larger array: the instructions of its threads, and the sectors of 32 bytes that "
        "warps ask for, whatever caches make of it. They are those of a smaller problem with the same kernel, and "
        "empty where there is none. An element of 4 bytes that is moved once is an eighth of a sector.",
    ]
