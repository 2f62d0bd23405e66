"""Counts what a plan asks of the memory system, by running it with every access recorded.

Accesses of the lanes of a warp are one *request* when they come from the same place in the kernel, in the same
iteration (as the kernel numbers it with trace_iteration) and the same occurrence of both: what a GPU executes as one
instruction. A loop in which some lanes skip an access needs trace_iteration, else its requests look split; the number
holds until the thread gives the next.

A request asks for distinct sectors of 32 bytes, in distinct lines of 128 bytes. Loads look into an L1 cache that a
block has to itself; what it lacks, and every store, goes to the L2 cache, for which the blocks that run at a time take
turns request by request; what that lacks goes to memory. A sector that leaves the L2 cache with only some of its bytes
written is read first.

Problems are run smaller than they are meant, by about SCALE, and so are the L2 cache and the number of blocks that run
at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

from gpufold.gpu.plan import H200, Device, Plan

from . import module
from .build import KERNELS
from .execute import Caches, NDArray, run

SCALE = 33
"""How much smaller than the device the modelled one is."""

SECTOR = 32
L1_BYTES = 192 << 10
"""Of a multiprocessor, shared by the blocks on it."""
L2_BYTES = 50 << 20
"""Of an H200."""


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
        """Loads and stores together."""
        sectors = sum(kind.memory_sectors for kind in (self.loads, self.stores, self.atomics))
        return sectors * SECTOR / (self.input_bytes + self.output_bytes)

    @property
    def lines_per_load(self) -> float:
        return self.loads.lines / max(self.loads.requests, 1)

    @property
    def lines_per_store(self) -> float:
        return self.stores.lines / max(self.stores.requests, 1)


def traffic(
    plan: Plan,
    input_array: NDArray,
    output_array: NDArray,
    window: tuple[NDArray, ...] | None = None,
    positions: NDArray | None = None,
    *,
    device: Device = H200,
    scale: int = SCALE,
    kernels: Path = KERNELS,
) -> Traffic:
    """Execute a plan as run(mode="observed") does, and count."""
    threads = prod(plan.block)
    share = threads / device.threads_per_multiprocessor
    caches = Caches(
        l1_bytes=int(L1_BYTES * share),
        l2_bytes=L2_BYTES // scale,
        blocks_at_a_time=max(1, int(device.multiprocessors / share) // scale),
    )
    counters = run(plan, input_array, output_array, window, positions, mode="observed", kernels=kernels, caches=caches)
    return Traffic(
        Requests.of(counters.loads),
        Requests.of(counters.stores),
        Requests.of(counters.atomics),
        counters.shared_requests,
        counters.shared_wavefronts,
        counters.shared_bytes,
        prod(plan.grid) * threads,
        input_array.nbytes,
        output_array.nbytes,
    )
