"""Counts what a plan asks of the memory system, by running it with every access recorded.

Accesses of the lanes of a warp are one *request* when they come from the same place in the kernel, in the same
iteration (as the kernel numbers it with trace_iteration) and the same occurrence of both: what a GPU executes as one
instruction. A loop in which some lanes skip an access needs trace_iteration, else its requests look split; the number
holds until the thread gives the next.

`work` counts the same of the plan's machine code, where a request is what one instruction asks for, and what its warps
issue and wait for besides: predictions are made from that.

A request asks for distinct sectors of 32 bytes, in distinct lines of 128 bytes. Loads look into an L1 cache that a
block has to itself, its share among the blocks that fit on a multiprocessor; what it lacks, and every store, goes to
the L2 cache, for which the blocks that run at a time take turns request by request; what that lacks goes to memory. A
sector that leaves the L2 cache with only some of its bytes written is read first.

Problems are run smaller than they are meant, and so are the L2 cache and the number of blocks that run at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from gpufold.gpu.plan import H200, Device, Plan

from . import cubin, machine, module
from .build import KERNELS
from .cubin import RESERVED_SHARED_BYTES, Figures, Resources
from .execute import Caches, NDArray, run, scratch_of

SCALE = 33
"""How much smaller than the device the modelled one is."""

SECTOR = 32
REGISTERS = 65536
"""Of a multiprocessor."""

UNIFIED_BYTES = {(7, 5): 96 << 10, (8, 0): 192 << 10, (9, 0): 256 << 10, (10, 0): 256 << 10}
"""L1 cache and shared memory of a multiprocessor together, by compute capability; else UNIFIED_BYTES_ELSE."""
UNIFIED_BYTES_ELSE = 128 << 10

BLOCKS = {(7, 5): 16, (8, 6): 16, (8, 9): 24}
"""That fit on a multiprocessor, by compute capability; else BLOCKS_ELSE."""
BLOCKS_ELSE = 32

SHARED_STEP = 32 << 10
"""Shared memory is taken from the L1 cache in pieces of about this, whatever the blocks need."""


@dataclass(frozen=True)
class Requests:
    """Accesses of one kind to global memory; the counts grow from level to level only where accesses are scattered."""

    requests: int
    lanes: int
    bytes: int
    sectors: int
    lines: int
    l2_sectors: int
    memory_sectors: int

    @classmethod
    def of(cls, accesses: module.Accesses) -> Requests:
        return cls(*(getattr(accesses, name) for name, _ in module.Accesses._fields_))


@dataclass(frozen=True)
class Traffic:
    """What a launch moved; the ratios are multiples of the floor, which is each byte of an array once."""

    loads: Requests
    stores: Requests
    atomics: Requests
    shared_requests: int
    shared_wavefronts: int
    """Passes over the banks of shared memory; as many as requests where no two lanes meet in a bank."""
    shared_bytes: int
    threads: int
    input_bytes: int
    output_bytes: int
    floor_bytes: int
    """What the plan says it has to move: of an output that it adds to, what it reads too."""

    @property
    def requested_loads(self) -> float:
        return self.loads.sectors * SECTOR / self.input_bytes

    @property
    def requested_stores(self) -> float:
        """Atomic additions among them."""
        return (self.stores.sectors + self.atomics.sectors) * SECTOR / self.output_bytes

    @property
    def l2_loads(self) -> float:
        return self.loads.l2_sectors * SECTOR / self.input_bytes

    @property
    def memory(self) -> float:
        """Loads and stores together, over the floor."""
        return sum(kind.memory_sectors for kind in self.kinds) * SECTOR / self.floor_bytes

    @property
    def kinds(self) -> tuple[Requests, Requests, Requests]:
        return self.loads, self.stores, self.atomics

    @property
    def lines_per_load(self) -> float:
        return self.loads.lines / max(self.loads.requests, 1)

    @property
    def lines_per_store(self) -> float:
        return self.stores.lines / max(self.stores.requests, 1)


@dataclass(frozen=True)
class Work:
    """What the machine code of a plan did, of all its thread blocks or of as many as were run."""

    traffic: Traffic
    plan: Plan
    share: float
    """Of its thread blocks, that were run."""
    figures: Figures
    warps: int
    instructions: int
    """Issued to warps."""
    waits: int
    """Latencies that warps waited for, of loads that left the L1 cache."""
    cached_waits: int
    """And of loads that the L1 cache served."""
    times: NDArray
    """What each thread block would wait for if it were alone: waits, cached waits, and cycles of instructions that
    depend on each other."""
    resident_threads: int
    """Of a multiprocessor."""
    before: tuple[Work, ...] = ()
    """That of the launches that fill scratch memory."""


def resident_threads(plan: Plan, figures: Figures | Resources, device: Device = H200) -> int:
    """Count the threads that fit on a multiprocessor at a time."""
    threads = prod(plan.block)
    warps = -(-threads // 32)
    # Registers are given to warps 256 at a time, by each of the four schedulers from a quarter of its own.
    warps_of_scheduler = REGISTERS // 4 // (-(-figures.registers * 32 // 256) * 256)
    reserved = RESERVED_SHARED_BYTES if device.compute_capability >= (8, 0) else 0
    shared_bytes = figures.shared_bytes + reserved
    blocks = min(
        BLOCKS.get(device.compute_capability, BLOCKS_ELSE),
        device.threads_per_multiprocessor // threads,
        4 * warps_of_scheduler // warps,
        device.shared_bytes // shared_bytes if shared_bytes else BLOCKS_ELSE,
    )
    return blocks * threads


def caches(plan: Plan, figures: Figures, device: Device, scale: float) -> Caches:
    """Size the caches of a device `scale` times smaller, and the share of the L1 cache that a thread block has."""
    blocks = resident_threads(plan, figures, device) // prod(plan.block)
    unified = UNIFIED_BYTES.get(device.compute_capability, UNIFIED_BYTES_ELSE)
    taken = -(-blocks * figures.shared_bytes // SHARED_STEP) * SHARED_STEP
    return Caches(
        l1_bytes=max(unified - taken, unified - device.shared_bytes) // blocks,
        l2_bytes=int(device.l2_bytes / scale),
        blocks_at_a_time=max(1, int(device.multiprocessors * blocks / scale)),
    )


def _traffic(counters: module.Counters, plan: Plan, input_array: NDArray, output_array: NDArray) -> Traffic:
    return Traffic(
        Requests.of(counters.loads),
        Requests.of(counters.stores),
        Requests.of(counters.atomics),
        counters.shared_requests,
        counters.shared_wavefronts,
        counters.shared_bytes,
        prod(plan.grid) * prod(plan.block),
        input_array.nbytes,
        output_array.nbytes,
        plan.bytes_moved,
    )


def traffic(
    plan: Plan,
    input_array: NDArray,
    output_array: NDArray,
    window: tuple[NDArray, ...] | None = None,
    positions: NDArray | None = None,
    *,
    device: Device = H200,
    scale: float = SCALE,
    kernels: Path = KERNELS,
) -> Traffic:
    """Execute a plan as run(mode="observed") does, and count; registers are taken to be no limit."""
    threads = prod(plan.block)
    unlimited = Figures(registers=16, stack_bytes=0, shared_bytes=0, loops=(), compile_seconds=0.0)
    sizes = caches(plan, unlimited, replace(device, threads_per_multiprocessor=max(threads, 2048)), scale)
    counters = run(plan, input_array, output_array, window, positions, mode="observed", kernels=kernels, caches=sizes)
    return _traffic(counters, plan, input_array, output_array)


def work(
    plan: Plan,
    input_array: NDArray,
    output_array: NDArray,
    window: tuple[NDArray, ...] | None = None,
    positions: NDArray | None = None,
    *,
    device: Device = H200,
    scale: float = SCALE,
    kernels: Path = KERNELS,
    most_instructions: int = 2**63,
) -> Work:
    """Execute a plan's machine code for a device, and count.

    After `most_instructions` no more thread blocks are started; those that were lie in the middle of the grid.
    """
    architecture = 10 * device.compute_capability[0] + device.compute_capability[1]
    scratch = scratch_of(plan) if plan.scratch_bytes else None

    def work_of(step: Plan, most: int) -> Work:
        figures = cubin.figures(step, architecture, kernels)
        done = machine.run(
            step,
            input_array,
            output_array,
            window,
            positions,
            scratch=scratch,
            caches=caches(step, figures, device, scale),
            architecture=architecture,
            kernels=kernels,
            most_instructions=most,
        )
        return Work(
            _traffic(done.counters, step, input_array, output_array),
            step,
            done.blocks / prod(step.grid),
            figures,
            done.warps,
            done.instructions,
            done.waits,
            done.cached_waits,
            done.times,
            resident_threads(step, figures, device),
        )

    before = tuple([work_of(step, 2**63) for step in plan.before])
    return replace(work_of(plan, most_instructions), before=before)
