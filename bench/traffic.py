"""Predicts how fast kernels are on a GPU, by running their machine code on this machine's CPU.

The figures come from bench/hostcuda, on problems scaled down together with the device: fewer planes, fewer
multiprocessors, smaller caches. Nothing here is a measurement of a GPU; hostcuda/prediction.py says what is assumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from multiprocessing import get_context
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

import gpufold
from bench import hostcuda
from bench.hostcuda import Work, work
from bench.hostcuda import prediction as model
from bench.hostcuda.build import KERNELS
from bench.measure import difference
from bench.problems import AT_POSITIONS, TOLERANCE, Problem
from bench.results import Run, geometric_mean
from gpufold.calls import Call, Unsupported
from gpufold.geometry import Axis, SlidingGeometry
from gpufold.gpu.parameters import int32, pack
from gpufold.gpu.plan import H200, Device, Operand, Plan, grid_of
from gpufold.gpu.registry import choose

ELEMENTS = 1 << 18
"""At the input of a problem that is run, for each multiprocessor: some times what its share of the L2 cache holds."""

SCALED = replace(H200, multiprocessors=1)
"""The fraction of an H200 that problems are shrunk to where their kernel stays the same."""

LARGER = (1, 8)
"""How many times as much each multiprocessor is given, where tiles are larger the more there is to do."""

MOST_ELEMENTS = 1 << 27
"""At the input of a problem that is run; a larger one is left as it is, and the row says that its kernel is another."""

MOST_INSTRUCTIONS = 32_000_000
"""Of warps, after which no more of a problem's thread blocks are run."""

MOST_UNLIKE = 1.5
"""How much more or less a thread may have to do in the smaller problem."""

CHECKED_ELEMENTS = 1 << 22
"""At the input of a problem whose result is compared with the NumPy path's."""

PROCESSES = 2

NAIVE = "naive gather"


@dataclass(frozen=True)
class Line:
    """What one variant asks for on one problem; ratios are multiples of the floor, each byte of an array once."""

    problem: str
    shrunk_to: tuple[int, ...]
    """Shape of the input that was run."""
    variant: str
    chosen: bool
    same_kernel: bool
    """Whether what was run is what the problem at its full size would be."""
    registers: int
    occupancy: float
    requested_loads: float
    requested_stores: float
    """Atomic additions among them."""
    memory: float
    instructions: float
    """Of a thread."""
    waits: float
    """Latencies that a thread waits for."""
    bytes_in_flight: float
    bytes_for_a_copy: int | None
    worst: float
    """Fraction of a copy's bandwidth."""
    best: float
    limited_by: str


def check_available() -> None:
    """Say why kernels cannot be run on this machine's CPU, or compiled for a GPU."""
    if reason := hostcuda.unavailable() or hostcuda.cubin.unavailable():
        raise ValueError(f"traffic runs the kernels on the CPU, and compiles them for a GPU: {reason}")


def naive_gather(problem: Problem, dtype: str) -> Plan:
    """Plan the kernel that peers ship, for comparison."""
    geometry = problem.geometry
    if (
        problem.operation != "col2im"
        or problem.kind != "plain"
        or not isinstance(geometry, SlidingGeometry)
        or len(geometry.axes) > 3
    ):
        raise Unsupported(f"{NAIVE}: it is a col2im of up to three axes")
    if dtype != "float32":
        raise Unsupported(f"{NAIVE}: it adds float32, got {dtype}")
    unit = Axis(size=1, kernel=1, stride=1, dilation=1, pad_begin=0, pad_end=0)
    axes = (*(unit,) * (3 - len(geometry.axes)), *geometry.axes)
    fields = ("size", "kernel", "stride", "dilation", "pad", "blocks")
    names = {**{field: field for field in fields}, "pad": "pad_begin"}
    return Plan(
        operation="col2im",
        variant=NAIVE,
        source="naive_gather.cu",
        symbol="naive_gather",
        defines=(),
        grid=grid_of(NAIVE, prod(problem.output_shape), 256),
        block=(256, 1, 1),
        parameters=pack(
            32,
            planes=int32(geometry.planes),
            **{field: int32([getattr(axis, name) for axis in axes]) for field, name in names.items()},
        ),
        bytes_moved=problem.compulsory_bytes("float32"),
        reason="one thread per pixel, as peers do",
    )


def plan_of(problem: Problem, variant: str, dtype: str, device: Device = H200) -> Plan:
    """Plan a variant for a device."""
    if variant == NAIVE:
        return naive_gather(problem, dtype)
    operands = Operand.contiguous(problem.input_shape), Operand.contiguous(problem.output_shape)
    call = Call(problem.operation, problem.planned_geometry, dtype, problem.fusion, variant)
    return choose(call, *operands, device)


def smaller(full: Problem, plan: Plan, dtype: str, device: Device) -> tuple[Problem, Plan, Device, bool]:
    """Shrink a problem together with the device; return both, its plan, and whether its kernel is that of `plan`.

    More planes and a larger part of the device are tried until the kernel is the same, compiled the same way, and its
    threads have about as much to do. An array that blocks are taken out of, again and again where they overlap, stays
    as large as it is beside the L2 cache: the whole device serves it.
    """

    def kernel(of: Plan) -> tuple[Any, ...]:
        return of.source, of.symbol, of.defines

    def per_thread(of: Plan) -> float:
        return of.bytes_moved / (prod(of.grid) * prod(of.block))

    first = None
    parts = [1 << power for power in range(8) if 1 << power < device.multiprocessors] + [device.multiprocessors]
    if full.kind == "taken":
        parts = parts[-1:]
    for times, part, planes in product(LARGER, parts, (1, 2, 4, 8)):
        shrunk, scaled = full.shrunk(times * part * ELEMENTS, planes), replace(device, multiprocessors=part)
        if prod(shrunk.input_shape) > MOST_ELEMENTS:
            continue
        try:
            planned = plan_of(shrunk, plan.variant, dtype, scaled)
        except Unsupported:
            continue
        alike = MOST_UNLIKE > per_thread(planned) / per_thread(plan) > 1 / MOST_UNLIKE
        if kernel(planned) == kernel(plan) and alike:
            return shrunk, planned, scaled, True
        first = first or (shrunk, planned, scaled, False)
    if first is None:
        raise Unsupported(f"{full.name}: no smaller problem is served by {plan.variant}")
    return first


def work_of(full: Problem, variant: str, dtype: str, device: Device = H200) -> tuple[Plan, Work, Problem, bool]:
    """Return the plan at full size, the work of a smaller problem, that problem, and whether its kernel is the same."""
    whole = plan_of(full, variant, dtype, device)
    shrunk, plan, scaled, same = smaller(full, whole, dtype, device)
    return whole, _work(shrunk, plan, dtype, device, device.multiprocessors / scaled.multiprocessors), shrunk, same


def work_on(problem: Problem, variant: str, dtype: str, device: Device) -> tuple[Plan, Work]:
    """Count the work of a variant on a problem and a device as they are."""
    plan = plan_of(problem, variant, dtype, device)
    return plan, _work(problem, plan, dtype, device, 1)


def _work(problem: Problem, plan: Plan, dtype: str, device: Device, scale: float) -> Work:
    """Execute a plan on a device `scale` times smaller; its result must be the NumPy path's."""
    data = problem.data(dtype)
    result = np.zeros(problem.output_shape, data.dtype)  # what add_blocks adds to
    done = work(
        plan,
        data,
        result,
        problem.weights() if problem.window else None,
        problem.positions() if problem.operation in AT_POSITIONS else None,
        device=device,
        scale=scale,
        kernels=Path(__file__).parent if plan.variant == NAIVE else KERNELS,
        most_instructions=MOST_INSTRUCTIONS,
    )
    if done.share == 1 and data.size <= CHECKED_ELEMENTS and (wrong := difference(result, problem(data), TOLERANCE)):
        raise AssertionError(f"{plan}: {wrong}")
    return done


def count(problem: Problem, device: Device = H200) -> list[Line]:
    """Run what `auto` takes for a problem at its full size, beside the naive kernel and the atomic one."""
    dtype = problem.dtypes[0]
    auto = plan_of(problem, "auto", dtype, device).variant
    lines = []
    for variant in dict.fromkeys((auto, NAIVE, "atomic")):
        if variant not in (NAIVE, *gpufold.variants(problem.operation)):
            continue
        try:
            whole, done, shrunk, same = work_of(problem, variant, dtype, device)
        except Unsupported:
            continue
        prediction = hostcuda.predict(whole, done, device)
        lines.append(
            Line(
                problem.name,
                shrunk.input_shape,
                variant,
                variant == auto,
                same,
                done.figures.registers,
                prediction.occupancy,
                done.traffic.requested_loads / done.share,
                done.traffic.requested_stores / done.share,
                done.traffic.memory / done.share,
                prediction.instructions_per_thread,
                prediction.waits,
                prediction.bytes_in_flight,
                prediction.bytes_for_a_copy,
                prediction.worst,
                prediction.best,
                prediction.limited_by,
            )
        )
    return lines


def count_all(problems: list[Problem], device: Device = H200) -> Iterator[list[Line]]:
    """Count each problem, some at a time, in their order."""
    if len(problems) == 1:
        yield count(problems[0], device)
        return
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        yield from pool.map(count, problems, [device] * len(problems))


def traffic_table(lines: list[Line], runs: Mapping[Path, Run]) -> Table:
    """Return a row per problem and variant, with what was measured on a GPU where results are saved."""
    measured = {
        (row.problem, name): row.fraction_of_copy(name)
        for run in runs.values()
        if run.kind == "gpu"
        for row in run.rows
        for name in row.times
    }
    table = Table("problem", "variant", box=None)
    for heading in ("registers", "occupancy", "loads", "stores", "memory", "instructions", "waits", "KiB in flight"):
        table.add_column(heading, justify="right")
    table.add_column("predicted", justify="right")
    if measured:
        table.add_column("measured", justify="right")
    table.add_column("limited by")
    previous = None
    for line in lines:
        texts = [line.problem if line.problem != previous else ""]
        texts.append(line.variant + ("*" if line.chosen else "") + ("" if line.same_kernel else " (another kernel)"))
        texts += [str(line.registers), f"{line.occupancy:.0%}"]
        texts += [f"{value:.2f}x" for value in (line.requested_loads, line.requested_stores, line.memory)]
        needed = f" of {line.bytes_for_a_copy / 1024:.0f}" if line.bytes_for_a_copy else ""
        texts += [f"{line.instructions:,.0f}", f"{line.waits:.1f}", f"{line.bytes_in_flight / 1024:.0f}{needed}"]
        texts.append(_range(line))
        if measured:
            fraction = measured.get((line.problem, line.variant))
            texts.append(f"{fraction:.0%}" if fraction else "")
        table.add_row(*texts, line.limited_by)
        previous = line.problem
    return table


def predictions(counted: Mapping[str, list[Line]]) -> list[list[str]]:
    """Return a table: for each problem what `auto` takes, with the range predicted for each GPU by name.

    The first GPU says what binds and what is in flight. The last row holds the geometric means, of problems that are
    more than a wait.
    """
    chosen, naive = (
        [{line.problem: line for line in lines if keep(line)} for lines in counted.values()]
        for keep in (attrgetter("chosen"), lambda line: line.variant == NAIVE)
    )
    header = ["problem", "variant", "limit that binds", "KiB in flight"]
    header += [heading for name in counted for heading in (name, "naive gather")]
    rows = []
    for problem, line in chosen[0].items():
        rows.append([problem, line.variant, line.limited_by, f"{line.bytes_in_flight / 1024:.0f}"])
        for ours, theirs in zip(chosen, naive, strict=True):
            rows[-1] += [_range(ours.get(problem)), _range(theirs.get(problem))]
    rows.append(["geometric mean", "", "", ""])
    for ours in chosen:
        large = [line for line in ours.values() if line.limited_by != "latency"]
        worst, best = (geometric_mean(map(attrgetter(end), large)) for end in ("worst", "best"))
        rows[-1] += [f"{worst:.0%} to {best:.0%}" if worst and best else "", ""]
    return [header, *rows]


def _range(line: Line | None) -> str:
    return f"{line.worst:.0%} to {line.best:.0%}" if line else ""


def assumptions(device: Device = H200) -> list[str]:
    """Say what the figures stand on."""
    return [
        "Predictions, not measurements. The kernels' machine code ran on this machine's CPU, on problems and a "
        f"part of an {device.name} shrunk together: {ELEMENTS / 1e6:.2g} million elements at the input for each of its "
        f"{device.multiprocessors} multiprocessors, more where the kernel would be another, and at most "
        f"{MOST_INSTRUCTIONS / 1e6:.0f} million instructions of warps.",
        "Loads and stores are the sectors that warps request, and memory is what passes the caches, over the floor: "
        "each byte of input and output once, less where columns in the padding are not read, and whole sectors of what "
        "lies under blocks at positions. Instructions are those issued to a warp, waits the latencies beyond the L1 "
        "cache that it waits for one after another, and KiB in flight what a multiprocessor's warps have asked for, of "
        "what a copy needs; * is what auto takes.",
        f"Predicted is the per cent of a copy at {device.copy_bandwidth / 1e12:.3g} TB/s, from all limits adding up "
        f"at {model.INSTRUCTIONS_PER_CLOCK_AT_WORST} instructions a clock to the largest alone at "
        f"{model.INSTRUCTIONS_PER_CLOCK}: it assumes {model.L2_BYTES_PER_CLOCK} bytes from the L2 cache and "
        f"{model.LINES_PER_CLOCK} line per clock of {device.clock / 1e9:.4g} GHz and multiprocessor, and a latency of "
        f"{model.LATENCY * 1e9:.0f} ns; without launch overhead, which is most of the time of small problems.",
    ]
