"""Measures what a repeated GPU call costs on the host before the launch: no device is needed for that.

CuPy's arrays, allocator and launch are replaced by stand-ins that do nothing, and everything between them is
gpufold's own: checks, geometry, plan and packed arguments, from their caches.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from itertools import count
from math import prod
from statistics import median
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

import gpufold
from bench.problems import PROBLEMS, Problem, dtype_of
from bench.results import command_line, commit, processor
from bench.terminal import Console, Table
from gpufold.gpu.parameters import contiguous_strides
from gpufold.gpu.plan import H200

SAMPLES, CALLS = 50, 200

TARGET = 10e-6
"""What a repeated call may cost."""

ADDRESSES = count(1 << 40, 1 << 40)
"""Where stand-ins lie: apart, though none has memory."""


class StandInArray:
    """What gpufold sees of a cupy.ndarray."""

    class Device:
        """The first device, which is the current one."""

        id = 0

        def __enter__(self) -> None: ...
        def __exit__(self, *reasons: object) -> None: ...

    device = Device()
    flags = SimpleNamespace(c_contiguous=True)

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.size = prod(shape)
        self.itemsize = self.dtype.itemsize
        self.nbytes = self.size * self.itemsize
        self.strides = tuple(step * self.itemsize for step in contiguous_strides(shape))
        self.data = SimpleNamespace(ptr=next(ADDRESSES), memset_async=lambda value, size: None)


def stand_in() -> ModuleType:
    """Make a module with as much of CuPy as gpufold uses."""
    module = ModuleType("cupy")
    properties = {
        "name": H200.name.encode(),
        "major": H200.compute_capability[0],
        "minor": H200.compute_capability[1],
        "multiProcessorCount": H200.multiprocessors,
        "maxThreadsPerMultiProcessor": H200.threads_per_multiprocessor,
    }
    runtime = SimpleNamespace(
        getDevice=lambda: 0,
        getDeviceProperties=lambda number: properties,
        deviceGetAttribute=lambda attribute, number: 1,
    )
    vars(module).update(
        ndarray=StandInArray,
        empty=cache(StandInArray),  # so that it costs next to nothing
        cuda=SimpleNamespace(runtime=runtime, Device=lambda number: nullcontext()),
        RawModule=lambda **options: SimpleNamespace(get_function=lambda symbol: lambda *launch: None),
    )
    return module


def seconds_of(call: Callable[[], Any], counter: Callable[[], float] = time.perf_counter) -> tuple[float, float]:
    """Return the time of the first call, and the median time of one that has been made before."""
    start = counter()
    call()
    first = counter() - start
    samples = []
    for _ in range(SAMPLES):
        start = counter()
        for _ in range(CALLS):
            call()
        samples.append((counter() - start) / CALLS)
    return first, median(samples)


def host(names: list[str], console: Console) -> int:
    """Print the cost of first and repeated calls; needs a process in which CuPy was not imported."""
    if "cupy" in sys.modules:
        raise ValueError("host replaces CuPy, which this process has imported")
    sys.modules["cupy"] = stand_in()
    try:
        rows = [_measure(problem) for problem in PROBLEMS if any(name in problem.name for name in names or [""])]
    finally:
        del sys.modules["cupy"]
        sys.modules.pop("gpufold.gpu.launch", None)
    table = Table("problem", box=None)
    for heading in ("first call µs", "repeated µs", "with out= µs"):
        table.add_column(heading, justify="right")
    for name, *costs in rows:
        table.add_row(name, *(f"{cost * 1e6:.1f}" for cost in costs))
    console.print(table)
    worst = max(repeated for _, _, *costs in rows for repeated in costs)
    console.print(
        f"Repeated calls take at most {worst * 1e6:.1f} µs up to the launch ({TARGET * 1e6:.0f} are allowed), without "
        "what CuPy's allocator and launch cost. A first call plans; it compiles too, which is not counted.",
        highlight=False,
    )
    console.print(f"{processor()}, python {sys.version.split()[0]}, gpufold {gpufold.__version__}, commit {commit()}")
    console.print(command_line(["host", *(word for name in names for word in ("--problem", name))]), highlight=False)
    return 0


def _measure(problem: Problem) -> tuple[str, float, float, float]:
    problem, dtype = problem.for_gpu, dtype_of(problem.dtypes[0])
    data, result = StandInArray(problem.input_shape, dtype), StandInArray(problem.output_shape, dtype)
    fused: dict[str, Any] = {} if problem.reduction == "sum" else {"reduction": problem.reduction}
    if problem.window:
        fused["window"] = tuple(StandInArray(weights.shape, weights.dtype) for weights in problem.weights())
    if problem.kind == "placed":
        positions = StandInArray(problem.positions().shape, np.int64)
        first, repeated = seconds_of(lambda: gpufold.add_blocks(result, data, positions, **fused))
        return problem.name, first, repeated, repeated
    function, arguments = getattr(gpufold, problem.operation), problem.arguments | fused
    first, repeated = seconds_of(lambda: function(data, **arguments))
    _, with_result = seconds_of(lambda: function(data, out=result, **arguments))
    return problem.name, first, repeated, with_result
