"""Counts what a plan asks of memory, by running it, and how much of a GPU its threads fill.

Accesses of the lanes of a warp are one *request* when they come from the same place in the kernel, in the same
iteration (as the kernel numbers it with trace_iteration) and the same occurrence of both: what a GPU executes as one
instruction. A loop in which some lanes skip an access needs trace_iteration, else its requests look split; the number
holds until the thread gives the next. A request asks for distinct sectors of 32 bytes, in distinct lines of 128 bytes;
what caches make of it is not asked.

`traffic` counts the requests of the host build, `work` those of the machine code, where a request is what one
instruction asks for, and the instructions that its warps issue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from gpufold.gpu.plan import H200, Device, Plan

from . import cubin, machine
from .build import KERNELS
from .cubin import RESERVED_SHARED_BYTES, Figures, Resources
from .execute import NDArray, run, scratch_of
from .module import Counters

REGISTERS = 65536
"""Of a multiprocessor."""

BLOCKS = {(7, 5): 16, (8, 6): 16, (8, 9): 24}
"""That fit on a multiprocessor, by compute capability; else BLOCKS_ELSE."""
BLOCKS_ELSE = 32


@dataclass(frozen=True)
class Work:
    """What the machine code of a plan did."""

    traffic: Counters
    figures: Figures
    warps: int
    instructions: int
    """Issued to warps."""
    before: tuple[Work, ...] = ()
    """That of the launches that fill scratch memory."""


def resident_threads(plan: Plan, needed: Figures | Resources, device: Device = H200) -> int:
    """Count the threads that fit on a multiprocessor at a time."""
    threads = prod(plan.block)
    warps = -(-threads // 32)
    # Registers are given to warps 256 at a time, by each of the four schedulers from a quarter of its own.
    warps_of_scheduler = REGISTERS // 4 // (-(-needed.registers * 32 // 256) * 256)
    reserved = RESERVED_SHARED_BYTES if device.compute_capability >= (8, 0) else 0
    shared_bytes = needed.shared_bytes + reserved
    blocks = min(
        BLOCKS.get(device.compute_capability, BLOCKS_ELSE),
        device.threads_per_multiprocessor // threads,
        4 * warps_of_scheduler // warps,
        device.shared_bytes // shared_bytes if shared_bytes else BLOCKS_ELSE,
    )
    return blocks * threads


def architecture_of(device: Device) -> int:
    """Return the architecture that machine code is made for, 90 for compute capability 9.0."""
    major, minor = device.compute_capability
    return 10 * major + minor


def traffic(
    plan: Plan,
    input_array: NDArray,
    output_array: NDArray,
    window: tuple[NDArray, ...] | None = None,
    positions: NDArray | None = None,
    *,
    kernels: Path = KERNELS,
) -> Counters:
    """Execute a plan as run(mode="observed") does, and count."""
    arrays = input_array, output_array, window, positions
    return run(plan, *arrays, mode="observed", kernels=kernels, counted=True)


def work(
    plan: Plan,
    input_array: NDArray,
    output_array: NDArray,
    window: tuple[NDArray, ...] | None = None,
    positions: NDArray | None = None,
    *,
    device: Device = H200,
    kernels: Path = KERNELS,
) -> Work:
    """Execute a plan's machine code for a device, and count."""
    architecture = architecture_of(device)
    scratch = scratch_of(plan) if plan.scratch_bytes else None

    def work_of(step: Plan) -> Work:
        arrays = input_array, output_array, window, positions
        done = machine.run(step, *arrays, scratch=scratch, architecture=architecture, kernels=kernels)
        figures = cubin.figures(step, architecture, kernels)
        return Work(done.counters, figures, done.warps, done.instructions)

    before = tuple([work_of(step) for step in plan.before])
    return replace(work_of(plan), before=before)
