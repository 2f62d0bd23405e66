"""Predicts how long a plan takes on a GPU that is not there, as a range.

What is counted. The plan's machine code for the GPU's architecture is executed on the CPU (machine.py), on a problem
made smaller together with the GPU (counting.py): instructions issued to warps, lines of 128 bytes and passes over the
shared banks, sectors of 32 bytes that leave the L1 cache and that reach memory, and latencies that a warp waits for one
after another. All grow with the problem, by the ratio of the bytes that the plans say they move. The smaller problem
must have the same kernel, compiled the same way; whoever predicts sees to that.

Five limits, each the time if nothing else were scarce:

    memory                 sectors that reach memory, at the bandwidth of a copy
    L2 cache               sectors that leave the L1 caches, at L2_BYTES_PER_CLOCK of a multiprocessor, or at
                           L2_OVER_COPY times the bandwidth of a copy where that is more
    load and store units   lines and passes over shared banks, at LINES_PER_CLOCK of a multiprocessor
    instructions           at INSTRUCTIONS_PER_CLOCK of a multiprocessor
    latency                as many times as threads have to take turns on the multiprocessors, what a thread block
                           waits for on the average: the latencies of loads, WAITS_WITHOUT_LOADS more, and the cycles
                           of instructions that need each other's results

The best case is the largest of them: all else is hidden behind it. In the worst case nothing is hidden and the limits
add up, with instructions at INSTRUCTIONS_PER_CLOCK_AT_WORST; but a copy's limits add up too, and the bandwidth of a
copy is what it reaches with all of that. So the worst case is the time of a copy, times the sum of the limits over the
sum of a copy's own, which this module gets from the machine code of samples/copy.cu; and its last wave of thread blocks
takes as long as a full one, and the slowest thread block starts last. Both ends are 100 % for a large copy.

Assumptions. Nothing here is measured on a GPU; the constants marked as guesses are the first to test on one. All
multiprocessors run at the clock of the data sheet. Launch overhead is left out, so problems of less than some megabytes
take longer. Bytes in flight are given beside the range and are no part of it:
where they are below what a copy needs, the worst case may be too good.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil, prod
from pathlib import Path

import numpy as np

from gpufold.gpu.plan import H200, Device, Plan

from .counting import SECTOR, Work, work
from .execute import NDArray

L2_BYTES_PER_CLOCK = 21
"""Between the L2 cache and a multiprocessor; 5.5 TB/s for an H200: a guess."""

L2_OVER_COPY = 1.28
"""The least bandwidth of the L2 cache over that of a copy, which it never limits: an H200's, and a guess."""

INSTRUCTIONS_PER_CLOCK = 2.5
"""That a multiprocessor issues, of warps, out of 4 schedulers: a guess."""

INSTRUCTIONS_PER_CLOCK_AT_WORST = 2.0

LINES_PER_CLOCK = 1
"""Of 128 bytes, or passes over the shared banks, of a multiprocessor."""

LATENCY = 700e-9
"""Of a load under load: a guess."""

CACHED_LATENCY = 20e-9
"""Of a load that the L1 cache serves: about 35 clocks."""

WAITS_WITHOUT_LOADS = 0.6
"""Latencies that a thread takes besides those of its loads: its start, its arithmetic, its stores."""

BYTES_FOR_A_COPY = {(8, 0): 16 << 10, (9, 0): 32 << 10, (10, 0): 64 << 10}
"""In flight on a multiprocessor, for a copy to be as fast as it gets; from the tuning of CCCL's DeviceTransform."""
BYTES_FOR_A_COPY_ON_H200 = 48 << 10

SAMPLES = Path(__file__).parent / "samples"


@dataclass(frozen=True)
class Prediction:
    """The seconds that a launch is predicted to take, and for want of what."""

    seconds: float
    """In the best case."""
    seconds_at_worst: float
    best: float
    """The bytes that the plan has to move at the bandwidth of a copy, over the best case's seconds."""
    worst: float
    """The same over the worst case's."""
    limited_by: str
    limits: dict[str, float]
    """Seconds if nothing else were scarce."""
    instructions_per_thread: float
    waits: float
    """Latencies beyond the L1 cache that a thread waits for."""
    bytes_in_flight: float
    """That the resident warps of a multiprocessor have asked of the L2 cache and memory, while they wait."""
    bytes_for_a_copy: int | None
    """In flight; None where it is not known."""
    resident_threads: int
    """Of a multiprocessor."""
    occupancy: float
    """Over the most that a multiprocessor can have."""


def bytes_for_a_copy(device: Device) -> int | None:
    """Return the bytes in flight on a multiprocessor that a copy needs, where they are known."""
    if device.name == H200.name:
        return BYTES_FOR_A_COPY_ON_H200
    return BYTES_FOR_A_COPY.get(device.compute_capability)


def limits(plan: Plan, done: Work, device: Device, instructions_per_clock: float) -> dict[str, float]:
    """Return the seconds of a plan if nothing else were scarce, from the work of a smaller one of the same kind."""
    scale = plan.bytes_moved / done.plan.bytes_moved / done.share
    kinds = done.traffic.kinds
    cycles = device.multiprocessors * device.clock
    l2_bandwidth = max(L2_BYTES_PER_CLOCK * cycles, L2_OVER_COPY * device.copy_bandwidth)
    waiting = float(waits_of_blocks(done, device).mean())
    # Zeros are written by a pass of their own, before.
    zeros = done.traffic.output_bytes * plan.bytes_moved / done.plan.bytes_moved if plan.zero_output else 0.0
    return {
        "memory": (scale * sum(kind.memory_sectors for kind in kinds) * SECTOR + zeros) / device.copy_bandwidth,
        "L2 cache": scale * sum(kind.l2_sectors for kind in kinds) * SECTOR / l2_bandwidth,
        "load and store units": scale
        * (sum(kind.lines for kind in kinds) + done.traffic.shared_wavefronts)
        / (LINES_PER_CLOCK * cycles),
        "instructions": scale * done.instructions / (instructions_per_clock * cycles),
        "latency": max(1.0, waves(plan, done, device)) * waiting,
    }


def waits_of_blocks(done: Work, device: Device) -> NDArray:
    """Return the seconds that each thread block takes if nothing is scarce: its latencies, one after another."""
    waits, cached_waits, cycles = done.times.T
    return (waits + WAITS_WITHOUT_LOADS) * LATENCY + cached_waits * CACHED_LATENCY + cycles / device.clock


def waves(plan: Plan, done: Work, device: Device) -> float:
    """Return how many times the threads of a plan fill the device."""
    return prod(plan.grid) * prod(plan.block) / (done.resident_threads * device.multiprocessors)


def predict(plan: Plan, done: Work, device: Device = H200) -> Prediction:
    """Predict the time of a plan from the work of a smaller one of the same kind.

    The launches that fill scratch memory before are predicted alike and come on top; the limits and what is said of
    threads are the last launch's.
    """
    steps = [predict(*step, device) for step in zip(plan.before, done.before, strict=True)]
    zeros = plan.zeroed_bytes / device.copy_bandwidth
    found = limits(plan, done, device, INSTRUCTIONS_PER_CLOCK)
    limited_by = max(found, key=found.__getitem__)
    copy_seconds = plan.bytes_moved / device.copy_bandwidth
    at_worst = sum(limits(plan, done, device, INSTRUCTIONS_PER_CLOCK_AT_WORST).values())
    turns = waves(plan, done, device)
    tail = ceil(turns) / turns if turns > 1 else 1.0
    of_blocks = waits_of_blocks(done, device)
    longer = float(of_blocks.max() - of_blocks.mean())  # of the slowest thread block, if it is started last
    seconds_at_worst = max(found[limited_by], tail * at_worst / _copy_limits(device) + longer)
    waits = done.waits / done.warps
    loaded = done.traffic.loads.l2_sectors * SECTOR / done.warps
    in_flight = done.resident_threads / 32 * loaded / waits if waits else 0.0
    seconds = found[limited_by] + zeros + sum(step.seconds for step in steps)
    seconds_at_worst += zeros + sum(step.seconds_at_worst for step in steps)
    return Prediction(
        seconds,
        seconds_at_worst,
        copy_seconds / seconds,
        copy_seconds / seconds_at_worst,
        limited_by,
        found,
        done.instructions / done.warps,
        waits,
        in_flight,
        bytes_for_a_copy(device),
        done.resident_threads,
        done.resident_threads / device.threads_per_multiprocessor,
    )


COPIED_BYTES = 1 << 20


def copy_plan(words: int) -> Plan:
    """Plan samples/copy.cu for words of 16 bytes."""
    threads = 256
    return Plan(
        operation="sample",
        variant="copy",
        source="copy.cu",
        symbol="copy",
        defines=(),
        grid=(-(-words // (2 * threads)), 1, 1),
        block=(threads, 1, 1),
        parameters=words.to_bytes(8, "little"),
        bytes_moved=32 * words,
        reason="a copy",
    )


@cache
def copy_work(device: Device) -> Work:
    """Count the work of a copy on a device."""
    data = np.arange(COPIED_BYTES // 4, dtype=np.float32)
    result = np.empty_like(data)
    done = work(copy_plan(COPIED_BYTES // 16), data, result, device=device, kernels=SAMPLES)
    if not np.array_equal(data, result):
        raise AssertionError("the copy is no copy")
    return done


@cache
def _copy_limits(device: Device) -> float:
    """Add up the limits of a large copy, in units of its time at the bandwidth of a copy."""
    plan = copy_plan(1 << 30)
    found = limits(plan, copy_work(device), device, INSTRUCTIONS_PER_CLOCK_AT_WORST)
    return sum(found.values()) / (plan.bytes_moved / device.copy_bandwidth)
