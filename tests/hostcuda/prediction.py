"""Predicts how long a plan takes on a GPU that is not there.

The time is that of the scarcest of five things, each as if it were the only one: bytes from memory, bytes from the L2
cache, lines through the load and store units, instructions issued, and latencies waited for. Nothing here is measured
on a GPU. The constants are assumptions about an H200; the three marked as guesses are the first to test on the chip.
Launch overhead and the tail of the last blocks are left out, so problems of less than some megabytes take longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from gpufold.gpu.plan import H200, Device, Plan

from .counting import SECTOR, Traffic
from .cubin import RESERVED_SHARED_BYTES, Figures

COPY_BANDWIDTH = 4.3e12
"""Bytes per second of a device copy, read and written together, of an H200."""

L2_BANDWIDTH = 5.5e12
"""Bytes per second between the L2 cache and the multiprocessors: a guess."""

CLOCK = 1.755e9

INSTRUCTIONS_PER_CLOCK = 2.5
"""That a multiprocessor issues, of warps, out of 4 schedulers: a guess."""

LINES_PER_CLOCK = 1
"""Of 128 bytes, or passes over the shared banks, of a multiprocessor."""

LATENCY = 700e-9
"""Of a load under load: a guess."""

PHASES_WITHOUT_LOADS = 0.6
"""Latencies that a thread takes besides those of its loads: its start, its arithmetic, its stores."""

REGISTERS = 65536
SHARED_BYTES = 228 << 10
BLOCKS = 32
"""Of a multiprocessor."""


@dataclass(frozen=True)
class Prediction:
    """The seconds that a launch is predicted to take, and for want of what."""

    seconds: float
    fraction_of_copy: float
    """The floor, each byte of an array once at the bandwidth of a copy, over the time."""
    limited_by: str
    limits: dict[str, float]
    """Seconds if nothing else were scarce."""
    instructions_per_thread: float
    resident_threads: int
    """Of a multiprocessor."""


def resident_threads(plan: Plan, figures: Figures, device: Device = H200) -> int:
    """How many threads fit on a multiprocessor at a time."""
    threads = prod(plan.block)
    warps = -(-threads // 32)
    registers_of_block = -(-figures.registers * 32 // 256) * 256 * warps
    blocks = min(
        BLOCKS,
        device.threads_per_multiprocessor // threads,
        REGISTERS // registers_of_block,
        SHARED_BYTES // (figures.shared_bytes + RESERVED_SHARED_BYTES),
    )
    return blocks * threads


def predict(plan: Plan, traffic: Traffic, figures: Figures, device: Device = H200) -> Prediction:
    """Predict the time of a plan from the traffic of a smaller one of the same kind and the figures of its cubin.

    Loops are taken to make up for the loads that a thread is seen to make beyond those of the main path, all in the
    innermost loop that has the most.
    """
    scale = plan.bytes_moved / (traffic.input_bytes + traffic.output_bytes)
    threads = prod(plan.grid) * prod(plan.block)
    instructions, phases = float(figures.instructions), float(figures.load_phases)
    loop = max((loop for loop in figures.loops if loop.innermost), key=lambda loop: loop.loads, default=None)
    if loop and loop.loads:
        passes = max(0.0, traffic.loads.lanes / traffic.threads - figures.loads) / loop.loads
        instructions += passes * loop.instructions
        phases += passes * loop.phases
    resident = resident_threads(plan, figures, device)
    kinds = (traffic.loads, traffic.stores, traffic.atomics)
    cycles = device.multiprocessors * CLOCK
    limits = {
        "memory": scale * sum(kind.memory_sectors for kind in kinds) * SECTOR / COPY_BANDWIDTH,
        "L2 cache": scale * sum(kind.l2_sectors for kind in kinds) * SECTOR / L2_BANDWIDTH,
        "load and store units": scale
        * (sum(kind.lines for kind in kinds) + traffic.shared_wavefronts)
        / (LINES_PER_CLOCK * cycles),
        "instructions": instructions * threads / 32 / (INSTRUCTIONS_PER_CLOCK * cycles),
        "latency": max(1.0, threads / (resident * device.multiprocessors)) * (phases + PHASES_WITHOUT_LOADS) * LATENCY,
    }
    limited_by = max(limits, key=limits.__getitem__)
    # Zeros are written by a pass of their own.
    zero_fill = scale * traffic.output_bytes / COPY_BANDWIDTH if plan.zero_output else 0.0
    seconds = limits[limited_by] + zero_fill
    fraction = plan.bytes_moved / COPY_BANDWIDTH / seconds
    return Prediction(seconds, fraction, limited_by, limits, instructions, resident)
