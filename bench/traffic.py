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
from bench.problems import Problem
from bench.results import ROOT, Run
from gpufold.geometry import Axis, SlidingGeometry
from gpufold.plan import H200, Operand, Plan, Unsupported, choose, grid_blocks, pack, parameter_type

SCALED = replace(H200, multiprocessors=1)
"""The device that plans are made for here: the fraction of an H200 that the problems are shrunk to."""

CACHE_BYTES = (50 << 20) // H200.multiprocessors
"""Its share of the second-level cache."""

ELEMENTS = 1 << 18
"""Input elements that a problem is shrunk to at most, some times what that share holds."""

SECTOR = 32

NAIVE = "naive gather"


@dataclass(frozen=True)
class Line:
    """The traffic of one variant on one problem, as multiples of the floor: each byte of an array once."""

    problem: Problem
    shrunk: Problem
    plan: Plan
    chosen: bool
    threads: int
    """Of the problem at its full size."""
    requested_loads: float
    requested_stores: float
    """Atomic additions among them."""
    memory: float


def import_hostcuda() -> None:
    """Make the host build importable; say why where it cannot run."""
    folder = str(ROOT / "tests")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    import hostcuda

    if reason := hostcuda.unavailable():
        raise ValueError(f"traffic runs the kernels on the CPU: {reason}")


def naive_gather(problem: Problem, dtype: str) -> Plan:
    """Plan the kernel that peers ship, for comparison."""
    geometry = problem.geometry
    if problem.operation != "col2im" or not isinstance(geometry, SlidingGeometry) or len(geometry.axes) > 3:
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
        grid=grid_blocks(NAIVE, prod(problem.output_shape), 256),
        block=(256, 1, 1),
        parameters=pack(
            parameter_type(32, planes="int", **{field: ("int", 3) for field in fields}),
            planes=geometry.planes,
            **{field: tuple(getattr(axis, name) for axis in axes) for field, name in names.items()},
        ),
        zero_output=False,
        bytes_moved=problem.compulsory_bytes("float32"),
        reason="one thread per pixel, as peers do",
    )


def plan_of(problem: Problem, variant: str, dtype: str, full: bool) -> Plan:
    """Plan a variant, for the scaled device or an H200."""
    if variant == NAIVE:
        return naive_gather(problem, dtype)
    operands = Operand.contiguous(problem.input_shape), Operand.contiguous(problem.output_shape)
    return choose(problem.operation, problem.geometry, dtype, *operands, H200 if full else SCALED, variant)


def count(problem: Problem) -> Iterator[Line]:
    """Run what `auto` takes for a problem at its full size, beside the naive kernel and the atomic one."""
    import hostcuda
    from hostcuda.build import KERNELS
    from hostcuda.execute import Caches

    caches = Caches(l1_bytes=24 << 10, l2_bytes=CACHE_BYTES, blocks_at_a_time=8)
    shrunk, full = problem.for_gpu.shrunk(ELEMENTS), problem.for_gpu
    dtype = problem.dtypes[0]
    data = shrunk.data(dtype)
    expected, result = shrunk.expected(data), np.empty(shrunk.output_shape, data.dtype)
    auto = plan_of(full, "auto", dtype, full=True).variant
    for variant in dict.fromkeys((auto, NAIVE, "atomic")):
        if variant not in (NAIVE, *gpufold.variants(problem.operation)):
            continue
        try:
            plan, whole = plan_of(shrunk, variant, dtype, full=False), plan_of(full, variant, dtype, full=True)
        except Unsupported:
            continue
        folder = Path(__file__).parent if variant == NAIVE else KERNELS
        counters = hostcuda.run(plan, data, result, mode="observed", kernels=folder, caches=caches)
        if not (result == expected).all():
            raise AssertionError(f"{plan} computes something else than the definition")
        stores = counters.stores.sectors + counters.atomics.sectors
        memory = sum(kind.memory_sectors for kind in (counters.loads, counters.stores, counters.atomics))
        yield Line(
            problem,
            shrunk,
            plan,
            variant == auto,
            prod(whole.grid) * prod(whole.block),
            counters.loads.sectors * SECTOR / data.nbytes,
            stores * SECTOR / result.nbytes,
            memory * SECTOR / (data.nbytes + result.nbytes),
        )


def traffic_table(lines: list[Line], runs: Mapping[Path, Run]) -> Table:
    """Give a row per problem and variant, with what was measured on a GPU where results are saved."""
    measured = {
        (row.problem, name): row.fraction_of_copy(name)
        for run in runs.values()
        if run.kind == "gpu"
        for row in run.rows
        for name in row.times
    }
    table = Table("problem", "shrunk to", "variant", box=None)
    for heading in ("threads", "load sectors", "store sectors", "memory"):
        table.add_column(heading, justify="right")
    if measured:
        table.add_column("measured", justify="right")
    previous = None
    for line in lines:
        name = line.problem.name
        texts = [name, " x ".join(map(str, line.shrunk.input_shape))] if name != previous else ["", ""]
        texts += [line.plan.variant + ("*" if line.chosen else ""), f"{line.threads:,}"]
        texts += [f"{value:.2f}x" for value in (line.requested_loads, line.requested_stores, line.memory)]
        if measured:
            fraction = measured.get((name, line.plan.variant))
            texts.append(f"{fraction:.0%}" if fraction else "")
        table.add_row(*texts)
        previous = name
    return table


ASSUMPTIONS = (
    "Predictions, not measurements: the kernels ran on this machine's CPU, on problems shrunk to "
    f"{ELEMENTS / 1e6:.2g} million elements or a few rows of blocks, planned for 1/{H200.multiprocessors} of an "
    f"{H200.name} with {CACHE_BYTES / 1e6:.2g} MB of its second-level cache and 24 KB of first-level cache per block.",
    "Load and store sectors are what warps request, memory what passes the caches, both over the floor of each byte "
    "of input and output once; threads are those of the full problem; * is what auto takes for it.",
)
