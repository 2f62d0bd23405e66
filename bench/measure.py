"""Measures problems: every candidate is checked first, and a wrong one gets no time."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

import gpufold
from bench.peers import Call, Peer, installed
from bench.problems import Problem, dtype_of
from bench.results import COPY, OURS, Row, Run, command_line, commit, now, processor, version
from bench.timing import Clock, CpuClock, GpuClock, Times, interleave, keep_freed_memory
from gpufold.plan import Device, Operand
from gpufold.planners import choose
from gpufold.threads import for_each

THREADED_COPY_BYTES = 1 << 20
"""From here a memory copy is faster with threads."""


@dataclass
class Bench:
    """A device and what is measured on it."""

    kind: str
    clock: Clock
    threads: int
    seconds: float
    """For all the samples of a problem."""
    peers: list[Peer]
    variants: list[str]
    """Kernel variants that are measured beside `auto`; none on a CPU."""

    def array(self, data: Any) -> Any:
        """Bring a NumPy array to the device."""
        if self.kind == "cpu":
            return data
        import cupy

        return cupy.asarray(data)

    def measure(self, problem: Problem, dtype: str, row: Row) -> None:
        """Fill a row."""
        host = problem.data(dtype)
        data, expected = problem.arrange(self.array(host)), self.array(problem.expected(host))
        if self.kind == "gpu":
            row.chosen = _chosen(problem, data, expected)
        calls: dict[str, Callable[[], Any]] = {}
        for name, call in self._candidates(problem, data, row):
            try:
                answer, seconds = self.clock.first(call.run)
                wrong = difference(call.as_array(answer), expected, problem.tolerance)
                del answer
                if seconds > self.seconds:  # the first call may have compiled
                    _, seconds = self.clock.first(call.run)
            except Exception as error:  # whatever a library raises for what it cannot do
                row.failures[name] = f"{type(error).__name__}: {error}"
                continue
            if wrong:
                row.failures[name] = wrong
            elif seconds > self.seconds:  # one call takes what is meant for all
                row.times[name] = Times([seconds])
            else:
                calls[name] = call.run
        calls[COPY] = self._copy(row.bytes)
        self.clock.first(calls[COPY])
        interleave(calls, self.clock, self.seconds, row.times)

    def _candidates(self, problem: Problem, data: Any, row: Row) -> Iterator[tuple[str, Call]]:
        yield OURS, Call(lambda: problem(data))
        for variant in self.variants:
            if variant not in gpufold.variants(problem.operation):
                continue
            try:
                problem(data, variant=variant)
            except gpufold.Unsupported:
                continue
            yield variant, Call(lambda variant=variant: problem(data, variant=variant))  # type: ignore[misc]
        for peer in self.peers:
            if problem.kind not in peer.kinds:
                continue
            try:
                call = peer.prepare(problem, data, self.threads)
            except Exception as error:
                row.failures[peer.name] = f"{type(error).__name__}: {error}"
                continue
            if call is not None:
                yield peer.name, call

    def _copy(self, count: int) -> Callable[[], Any]:
        """Make a copy that reads and writes `count` bytes together: what the memory can do."""
        source = self.array(np.ones(max(1, count // 2), np.uint8))
        if self.kind == "gpu":
            import cupy

            target = cupy.empty_like(source)
            return lambda: cupy.copyto(target, source)
        target = np.empty_like(source)
        if self.threads == 1 or count < THREADED_COPY_BYTES:
            return lambda: np.copyto(target, source)
        pieces = list(zip(np.array_split(target, self.threads), np.array_split(source, self.threads), strict=True))
        return lambda: for_each(np.copyto, pieces)


def difference(got: Any, expected: Any, tolerance: float = 0.0) -> str | None:
    """Say how a result differs from the definition's by more than `tolerance` of its largest element, or None."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"FAIL: {got.dtype} {got.shape} where {expected.dtype} {expected.shape} is right"
    if expected.dtype.name == "bfloat16":  # CuPy does not compare them; there is no -0.0 and no NaN in the data
        got, expected = got.view(np.int16), expected.view(np.int16)
    if tolerance:
        wrong = int((abs(got - expected) > tolerance * abs(expected).max()).sum())
    else:
        wrong = int((got != expected).sum())
    return f"FAIL: {wrong} of {prod(expected.shape)} elements are wrong" if wrong else None


def device_kind(wanted: str) -> str:
    """Give cpu or gpu for what the user wants; auto is the GPU, where there is one."""
    if wanted == "cpu":
        return "cpu"
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # no CuPy, no driver, no device
        count, reason = 0, f"{type(error).__name__}: {error}"
    else:
        reason = "no CUDA device"
    if wanted == "gpu" and not count:
        raise ValueError(f"no GPU to measure on: {reason}")
    return "gpu" if count else "cpu"


def cpu_bench(threads: int | None, seconds: float) -> tuple[Bench, Run]:
    """Prepare for this machine's CPU."""
    gpufold.set_num_threads(threads)
    threads = gpufold.get_num_threads()
    kept = keep_freed_memory()
    peers = installed("cpu")
    bench = Bench("cpu", CpuClock(), threads, seconds, peers, [])
    notes = ["Freed memory is kept for the next result, for every candidate alike."] if kept else []
    return bench, _run(bench, f"{processor()}, {threads} threads", notes)


def gpu_bench(variants: list[str], seconds: float) -> tuple[Bench, Run]:
    """Prepare for the current CUDA device."""
    import cupy

    number = cupy.cuda.runtime.getDevice()
    name = cupy.cuda.runtime.getDeviceProperties(number)["name"].decode()
    bench = Bench("gpu", GpuClock(cupy), gpufold.get_num_threads(), seconds, installed("gpu"), variants)
    run = _run(bench, f"{name}, driver {cupy.cuda.runtime.driverGetVersion()}", ["The L2 cache is flushed each time."])
    run.versions["cupy"] = cupy.__version__
    return bench, run


def _run(bench: Bench, device: str, notes: list[str]) -> Run:
    versions = {"python": platform.python_version(), "gpufold": gpufold.__version__, "numpy": np.__version__}
    versions |= {peer.distribution: version(peer.distribution) for peer in bench.peers if peer.distribution}
    return Run(
        device=device,
        kind=bench.kind,
        threads=bench.threads,
        versions=versions,
        commit=commit(),
        command=command_line([]),
        date=now(),
        peers=[peer.name for peer in bench.peers],
        variants=bench.variants,
        notes=notes,
    )


def new_row(problem: Problem, dtype: str) -> Row:
    """Describe a problem before anything is measured."""
    count = problem.compulsory_bytes(dtype)
    return Row(problem.name, problem.operation, dtype, count, count // dtype_of(dtype).itemsize)


def device_facts() -> Device:
    """Give what plans depend on for the current CUDA device."""
    import cupy

    from gpufold import launch

    return launch.device(cupy.cuda.runtime.getDevice())


def _chosen(problem: Problem, data: Any, result: Any) -> str:
    """Name the variant that `auto` takes for arrays like these on the current device."""

    def operand(array: Any) -> Operand:
        return Operand(array.shape, tuple(step // array.itemsize for step in array.strides))

    operands = operand(data), operand(result)
    return choose(
        problem.operation,
        problem.planned_geometry,
        data.dtype.name,
        *operands,
        device_facts(),
        fusion=problem.fusion,
    ).variant
