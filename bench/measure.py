"""Measures problems: every candidate is checked first, and wrong ones are not timed."""

from __future__ import annotations

import gc
import importlib
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from math import prod
from typing import Any, TypeAlias

import numpy as np

import gpufold
from bench.memory import PeakOf, pool_peak, resident_peak_or_why
from bench.peers import Call, Peer, absent, installed
from bench.problems import Problem, itemsize_of, plan_of
from bench.regret import VARIANTS
from bench.results import COPY, OURS, Row, Run, commit, now, processor
from bench.terminal import progress
from bench.timing import Clock, CpuClock, GpuClock, Times, interleave, keep_freed_memory, significant
from gpufold.gpu.plan import Device, Operand
from gpufold.threads import for_each

THREADED_COPY_BYTES = 1 << 20
"""Least bytes for which a memory copy is faster with threads."""

PEER_PART = 1 / 4
"""A peer whose call takes more than this fraction of a problem's time is timed once and takes no turns."""

PREPARATION, FREEING = "preparation", "freeing"
"""Key of a row's failures that are no candidate's: its data, expected result or plan could not be made, or its
memory was not freed."""

LEAST_MEMORY = 0.9
"""Least fraction of its result's size for a call that keeps no memory for the next: the system counts whole pages."""

LOST = 75
"""Exit status of a command whose device has failed and that another process may go on with: EX_TEMPFAIL."""

LONGEST_ERROR = 1000
"""Characters of an exception that are kept, because a compiler's list of errors may be long."""


class DeviceLostError(RuntimeError):
    """The device fails every call of this process."""


@dataclass
class Bench:
    """A device and what is measured on it."""

    kind: str
    device: str
    clock: Clock
    threads: int
    seconds: float
    """Seconds for all samples of a problem."""
    peers: list[Peer]
    variants: Sequence[str] = ()
    """Kernel variants to measure besides `auto`; none on a CPU."""
    memory: PeakOf | None = None
    """Measures the memory of a call, if that is possible."""
    notes: list[str] = field(default_factory=list)

    @property
    def library(self) -> Any:
        """The library of the arrays on the device."""
        return importlib.import_module("numpy" if self.kind == "cpu" else "cupy")

    def measure(self, problem: Problem, dtype: str, row: Row) -> None:
        """Fill a row, except for candidates that have failed in it before, and free the memory.

        What a candidate raises is one of the row's failures; DeviceLostError is raised where none can follow it.
        """
        self._measure(problem, dtype, row)
        try:
            free_memory(self.kind == "gpu")
        except Exception as error:  # of an earlier call, if the device failed silently
            self._note(row, FREEING, error)

    def _measure(self, problem: Problem, dtype: str, row: Row) -> None:
        row.failures.pop(PREPARATION, None)
        try:
            data = problem.data(dtype, library=self.library)
            expected = problem.expected(data)
            copy = self._copy(row.bytes)
            self.clock.first(copy)
            if self.kind == "gpu":
                given = Operand(data.shape, tuple(step // data.itemsize for step in data.strides))
                row.chosen = plan_of(problem, "auto", dtype, device_facts(), given).variant
        except Exception as error:  # out of memory, no such dtype
            row.finished = False
            self._note(row, PREPARATION, error)
            return
        calls: dict[str, Callable[[], Any]] = {}
        for name, prepare in self._candidates(problem, data):
            if name in row.failures:
                continue
            try:
                call = prepare()
                if call is None:
                    continue
                answer, seconds = self.clock.first(call.run)
                wrong = difference(call.as_array(answer), expected, problem.tolerance)
                del answer
                ours = name == OURS or name in self.variants
                limit = self.seconds if ours else self.seconds * PEER_PART
                if seconds > limit:  # the first call may have compiled
                    _, seconds = self.clock.first(call.run)
            except Exception as error:  # whatever a library raises for what it cannot do
                if not (name in self.variants and isinstance(error, gpufold.Unsupported)):
                    self._note(row, name, error)
                continue
            if wrong:
                row.failures[name] = wrong
                continue
            calls[name] = call.run
            if seconds > limit:
                row.times[name] = Times([significant(seconds)])
        del expected
        timed = {name: call for name, call in calls.items() if name not in row.times}
        interleave({**timed, COPY: copy}, self.clock, self.seconds, row.times, partial(self._note, row))
        if self.memory is not None:
            result = prod(problem.output_shape) * itemsize_of(dtype)
            self._measure_memory(calls, self.memory, result, row)

    def _measure_memory(self, calls: dict[str, Callable[[], Any]], memory: PeakOf, result: int, row: Row) -> None:
        """Measure the memory of calls, except calls that keep memory between them and so use less than their result."""
        gc.collect()
        for name, call in calls.items():
            if name in row.failures:
                continue
            try:
                count = memory(call)
            except Exception as error:  # whatever a library raises
                self._note(row, name, error)
                continue
            if count >= LEAST_MEMORY * result:
                row.memory[name] = round(significant(count))

    def _candidates(self, problem: Problem, data: Any) -> Iterator[tuple[str, Callable[[], Call | None]]]:
        """Yield each candidate's name and a function that makes its call, or None if it does not serve the problem."""
        yield OURS, lambda: Call(problem.prepared(data))
        for variant in self.variants:
            if variant in gpufold.variants(problem.operation):
                yield variant, lambda variant=variant: Call(problem.prepared(data, variant=variant))  # type: ignore[misc]
        for peer in self.peers:
            yield peer.name, lambda peer=peer: peer.call(problem, data, self.threads)  # type: ignore[misc]

    def _note(self, row: Row, name: str, error: Exception) -> None:
        """Record a failure; raise DeviceLostError if the device fails afterwards."""
        text = f"{type(error).__name__}: {error}"
        row.failures[name] = text if len(text) <= LONGEST_ERROR else f"{text[:LONGEST_ERROR]} ..."
        if self.kind == "cpu":
            return
        import cupy

        try:
            cupy.cuda.runtime.deviceSynchronize()
        except Exception as lost:  # such as an illegal access, which every later call reports
            reason = f"the device is lost after {name} on {row.name}: {row.failures[name]}"
            raise DeviceLostError(" ".join(reason.split())) from lost

    def _copy(self, count: int) -> Callable[[], Any]:
        """Return a call that copies, reading and writing `count` bytes in all: the memory's limit."""
        library = self.library
        source = library.ones(max(1, count // 2), np.uint8)
        target = library.empty_like(source)
        if self.kind == "gpu" or self.threads == 1 or count < THREADED_COPY_BYTES:
            return lambda: library.copyto(target, source)
        pieces = list(zip(np.array_split(target, self.threads), np.array_split(source, self.threads), strict=True))
        return lambda: for_each(np.copyto, pieces)


def free_memory(on_gpu: bool) -> None:
    """Free the memory of a problem, with what CuPy and torch have cached on a GPU."""
    gc.collect()
    if on_gpu:
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()
        if "torch" in sys.modules:
            sys.modules["torch"].cuda.empty_cache()


Task: TypeAlias = tuple[Problem, str]
"""A row to be measured: its problem and dtype."""


def row_of(problem: Problem, dtype: str) -> Row:
    """Describe a row before anything is measured."""
    count = problem.compulsory_bytes(dtype)
    return Row(problem.name, problem.operation, dtype, count, count // itemsize_of(dtype))


def missing(run: Run, tasks: list[Task]) -> list[Task]:
    """Return the tasks whose rows a run lacks."""
    finished = {row.key for row in run.rows if row.finished}
    return [(problem, dtype) for problem, dtype in tasks if (problem.name, dtype) not in finished]


def fill(bench: Bench, run: Run, tasks: list[Task], save: Callable[[], None]) -> None:
    """Measure the rows that a run lacks, and save it after each.

    Whatever is raised on the way, `run` has the finished rows and no other; where the device was lost, also the row
    under way, unfinished, with what has failed in it.
    """
    for problem, dtype in progress(missing(run, tasks), lambda task: row_of(*task).name):
        row = row_of(problem, dtype)
        others = [each for each in run.rows if each.key != row.key]
        for unfinished in run.rows:
            if unfinished.key == row.key:
                row.failures = dict(unfinished.failures)
        try:
            bench.measure(problem, dtype, row)
        except DeviceLostError:
            row.finished = False
            row.times.clear()
            row.memory.clear()
            run.rows = [*others, row]
            save()
            raise
        run.rows = [*others, row]
        save()


def difference(got: Any, expected: Any, tolerance: float = 0.0) -> str | None:
    """Return how a result differs from the definition's by more than `tolerance` of its largest element, or None."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"FAIL: {got.dtype} {got.shape} where {expected.dtype} {expected.shape} is right"
    if expected.dtype.name == "bfloat16":  # CuPy does not compare them; there is no -0.0 and no NaN in the data
        got, expected = got.view(np.int16), expected.view(np.int16)
    if tolerance and expected.dtype.kind != "b":
        wrong = int((abs(got - expected) > tolerance * abs(expected).max()).sum())
    else:
        wrong = int((got != expected).sum())
    return f"FAIL: {wrong} of {prod(expected.shape)} elements are wrong" if wrong else None


def device_kind(wanted: str) -> str:
    """Return cpu or gpu for the user's choice; auto is the GPU, if there is one."""
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


def cpu_bench(threads: int | None, seconds: float) -> Bench:
    """Prepare for this machine's CPU."""
    gpufold.set_num_threads(threads)
    threads = gpufold.get_num_threads()
    memory, why = resident_peak_or_why()
    notes = ["Freed memory is kept for the next result, for every candidate alike."] if keep_freed_memory() else []
    notes += [f"Memory is not measured here: {why}."] if why else []
    peers, device = installed("cpu"), f"{processor()}, {threads} threads"
    return Bench("cpu", device, CpuClock(), threads, seconds, peers, (), memory, notes)


def gpu_bench(seconds: float) -> Bench:
    """Prepare for the current CUDA device."""
    import cupy

    name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())["name"].decode()
    device = f"{name}, driver {cupy.cuda.runtime.driverGetVersion()}"
    peers, threads = installed("gpu"), gpufold.get_num_threads()
    notes = ["The L2 cache is flushed each time."]
    return Bench("gpu", device, GpuClock(cupy), threads, seconds, peers, VARIANTS, pool_peak(cupy), notes)


def new_run(bench: Bench, command: str, commit_given: str | None, options: dict[str, Any]) -> Run:
    """Describe a run before anything is measured."""
    versions = {"python": platform.python_version(), "gpufold": gpufold.__version__, "numpy": np.__version__}
    others = {peer.module for peer in bench.peers} - {"gpufold", "cupy", "cupyx"}
    versions |= {name: version(name) for name in sorted(others)}
    versions |= {"cupy": bench.library.__version__} if bench.kind == "gpu" else {}
    names = absent(bench.kind)
    return Run(
        device=bench.device,
        kind=bench.kind,
        threads=bench.threads,
        versions=versions,
        commit=commit(commit_given),
        command=command,
        date=now(),
        peers=[peer.name for peer in bench.peers],
        variants=list(bench.variants),
        notes=bench.notes + ([f"Not installed here, and so not measured: {'; '.join(names)}."] if names else []),
        options=options,
    )


def device_facts() -> Device:
    """Return the properties of the current CUDA device that plans depend on."""
    import cupy

    from gpufold.gpu import launch

    return launch.device(cupy.cuda.runtime.getDevice())
