"""Peak memory of a call, including its result, measured in a separate call that is not timed."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

PeakOf: TypeAlias = Callable[[Callable[[], Any]], int]
"""Runs a call and returns its peak memory in bytes, beyond what was in use before."""

PROCESS = Path("/proc/self")


def resident_peak(call: Callable[[], Any]) -> int:
    """Return by how much a call raises the memory of this process, with every library, on the CPU.

    Linux notes the most memory that a process had, and forgets it when told so. What the C library keeps of memory that
    was freed is given back first, and what a library keeps in a pool of its own, as onnxruntime does, is not counted.
    """
    ctypes.CDLL(None).malloc_trim(0)
    (PROCESS / "clear_refs").write_text("5")
    before = _kilobytes("VmRSS")
    answer = call()
    peak = _kilobytes("VmHWM")
    del answer
    return max(0, peak - before) * 1024


def _kilobytes(name: str) -> int:
    lines = (PROCESS / "status").read_text().splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return int(value)


def resident_peak_or_why() -> tuple[PeakOf | None, str]:
    """Return `resident_peak`, or None and why memory cannot be measured here."""
    try:
        resident_peak(int)
    except (AttributeError, OSError, TypeError, ValueError) as error:  # no /proc, no glibc
        return None, f"{type(error).__name__}: {error}"
    return resident_peak, ""


def pool_peak(cupy: Any) -> PeakOf:
    """Return a function that measures memory of the current CUDA device, by CuPy's pool and torch's allocator.

    A candidate that takes memory from both is given the sum of the two peaks, which is not less than the peak of both.
    """

    class Hook(cupy.cuda.MemoryHook):  # type: ignore[misc, name-defined]
        """Counts allocations from the pool and frees."""

        name = "peak"

        def __init__(self) -> None:
            self.used = self.peak = 0

        def malloc_postprocess(self, *, mem_size: int, mem_ptr: int, **others: Any) -> None:
            if mem_ptr:  # else there was none left
                self.used += mem_size
                self.peak = max(self.peak, self.used)

        def free_postprocess(self, *, mem_size: int, **others: Any) -> None:
            self.used -= mem_size

    def peak(call: Callable[[], Any]) -> int:
        torch = sys.modules.get("torch")
        tensors = torch.cuda if torch is not None and torch.cuda.is_initialized() else None
        before = 0
        if tensors is not None:
            tensors.reset_peak_memory_stats()
            before = tensors.memory_allocated()
        hook = Hook()
        with hook:
            answer = call()
            cupy.cuda.runtime.deviceSynchronize()
        del answer
        return hook.peak + (tensors.max_memory_allocated() - before if tensors is not None else 0)

    return peak
