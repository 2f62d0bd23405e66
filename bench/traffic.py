"""Counts what kernels ask of a GPU's memory, by running their plans on this machine's CPU.

The figures come from the host build of the kernels in tests/hostcuda, on problems scaled down together with the
device: fewer planes, fewer multiprocessors, smaller caches. Nothing here is a measurement of a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np
from rich.table import Table

import gpufold
from bench.measure import difference
from bench.problems import Problem
from bench.results import ROOT, Run
from gpufold.calls import Call, Unsupported
from gpufold.geometry import Axis, SlidingGeometry
from gpufold.gpu.parameters import int32, pack
from gpufold.gpu.plan import H200, Operand, Plan, grid_of
from gpufold.operations import choose

SCALED = replace(H200, multiprocessors=1)
"""The device that plans are made for here: the fraction of an H200 that the problems are shrunk to."""

ELEMENTS = 1 << 18
"""Input elements that a problem is shrunk to at most, some times what that fraction of the L2 cache holds."""

ARCHITECTURE = 90
"""Of an H200, whose machine code registers are read from."""

NAIVE = "naive gather"


@dataclass(frozen=True)
class Line:
    """What one variant asks for on one problem; ratios are multiples of the floor, each byte of an array once."""

    problem: str
    shrunk_to: tuple[int, ...]
    """Shape of the input that was run."""
    variant: str
    chosen: bool
    threads: int
    """Of the problem at its full size."""
    registers: int
    requested_loads: float
    requested_stores: float
    """Atomic additions among them."""
    memory: float
    predicted: float
    """Fraction of a copy's bandwidth."""
    limited_by: str


def import_hostcuda() -> None:
    """Make the host build importable; say why where it cannot run."""
    folder = str(ROOT / "tests")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    import hostcuda

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


def plan_of(problem: Problem, variant: str, dtype: str, whole: bool) -> Plan:
    """Plan a variant, for the scaled device or an H200."""
    if variant == NAIVE:
        return naive_gather(problem, dtype)
    operands = Operand.contiguous(problem.input_shape), Operand.contiguous(problem.output_shape)
    device, fusion = H200 if whole else SCALED, problem.fusion
    return choose(
        Call(problem.operation, problem.planned_geometry, dtype, fusion=fusion, variant=variant), *operands, device
    )


def count(problem: Problem) -> Iterator[Line]:
    """Run what `auto` takes for a problem at its full size, beside the naive kernel and the atomic one."""
    import hostcuda
    from hostcuda.build import KERNELS

    full = problem.for_gpu
    shrunk, dtype = full.shrunk(ELEMENTS), problem.dtypes[0]
    data = shrunk.data(dtype)
    expected, result = shrunk.expected(data), np.empty(shrunk.output_shape, data.dtype)
    weights = problem.weights() if problem.window else None
    positions = shrunk.positions() if problem.kind == "placed" else None
    auto = plan_of(full, "auto", dtype, whole=True).variant
    for variant in dict.fromkeys((auto, NAIVE, "atomic")):
        if variant not in (NAIVE, *gpufold.variants(problem.operation)):
            continue
        try:
            plan, whole = plan_of(shrunk, variant, dtype, whole=False), plan_of(full, variant, dtype, whole=True)
        except Unsupported:
            continue
        kernels = Path(__file__).parent if variant == NAIVE else KERNELS
        result[...] = 0  # what add_blocks adds to
        traffic = hostcuda.traffic(plan, data, result, weights, positions, scale=H200.multiprocessors, kernels=kernels)
        if wrong := difference(result, expected, problem.tolerance):
            raise AssertionError(f"{plan}: {wrong}")
        figures = hostcuda.figures(whole, ARCHITECTURE, kernels)
        prediction = hostcuda.predict(whole, traffic, figures)
        yield Line(
            problem.name,
            shrunk.input_shape,
            variant,
            variant == auto,
            prod(whole.grid) * prod(whole.block),
            figures.registers,
            traffic.requested_loads,
            traffic.requested_stores,
            traffic.memory,
            prediction.fraction_of_copy,
            prediction.limited_by,
        )


def traffic_table(lines: list[Line], runs: Mapping[Path, Run]) -> Table:
    """Return a row per problem and variant, with what was measured on a GPU where results are saved."""
    measured = {
        (row.problem, name): row.fraction_of_copy(name)
        for run in runs.values()
        if run.kind == "gpu"
        for row in run.rows
        for name in row.times
    }
    table = Table("problem", "shrunk to", "variant", box=None)
    for heading in ("threads", "registers", "load sectors", "store sectors", "memory", "predicted"):
        table.add_column(heading, justify="right")
    if measured:
        table.add_column("measured", justify="right")
    table.add_column("limited by")
    previous = None
    for line in lines:
        texts = [line.problem, " x ".join(map(str, line.shrunk_to))] if line.problem != previous else ["", ""]
        texts += [line.variant + ("*" if line.chosen else ""), f"{line.threads:,}", str(line.registers)]
        texts += [f"{value:.2f}x" for value in (line.requested_loads, line.requested_stores, line.memory)]
        texts.append(f"{line.predicted:.0%}")
        if measured:
            fraction = measured.get((line.problem, line.variant))
            texts.append(f"{fraction:.0%}" if fraction else "")
        table.add_row(*texts, line.limited_by)
        previous = line.problem
    return table


def assumptions() -> list[str]:
    """Say what the figures stand on."""
    from hostcuda import prediction as model

    return [
        "Predictions, not measurements. The kernels ran on this machine's CPU, on problems shrunk to "
        f"{ELEMENTS / 1e6:.2g} million elements or a few rows of blocks, with 1/{H200.multiprocessors} of the "
        f"multiprocessors and of the L2 cache of an {H200.name}.",
        "Load and store sectors are what warps request and memory is what passes the caches, over the floor of each "
        "byte of input and output once, or less where columns in the padding are not read. "
        "Threads are those of the full problem; * is what auto takes for it.",
        f"Predicted is the per cent of a copy at {model.COPY_BANDWIDTH / 1e12} TB/s, assuming "
        f"{model.L2_BANDWIDTH / 1e12} TB/s to the L2 cache, {model.INSTRUCTIONS_PER_CLOCK} instructions and "
        f"{model.LINES_PER_CLOCK} line per clock of {model.CLOCK / 1e9} GHz and multiprocessor, and a latency of "
        f"{model.LATENCY * 1e9:.0f} ns; without launch overhead, which is most of the time of small problems.",
    ]
