"""Runs the launches of a plan on NumPy arrays, on the CPU."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from gpufold.gpu.plan import Plan

from . import module
from .build import KERNELS, Build, build_kernel
from .memory import POISON, Fault, NDArray, Placed, poison

Argument = tuple[Placed, ...] | bytes
"""Arrays for a pointer or a struct of them; bytes for a value."""
Mode = Literal["plain", "observed", "shuffled", "sanitized"]


class Arrays(NamedTuple):
    """The arrays that a plan is executed on."""

    input: NDArray
    result: NDArray
    window: tuple[NDArray, ...] | None = None
    positions: NDArray | None = None
    weight_out: NDArray | None = None


def run(plan: Plan, arrays: Arrays, mode: Mode = "plain", seed: int = 0, kernels: Path = KERNELS) -> None:
    """Execute a plan, from the sources in the folder `kernels`; arrays are changed as a GPU would.

    Parameters
    ----------
    mode
        "plain": as fast as it gets. "observed": every access is checked. "shuffled": as observed, and the threads
        take their turns in an order drawn from `seed`. "sanitized": under AddressSanitizer and
        UndefinedBehaviorSanitizer, in a process of its own.
    """
    build: Build = "observed" if mode == "shuffled" else mode
    with launches_of(plan, arrays) as launches:
        for step, arguments in launches:
            kernel = build_kernel(kernels / step.file, step.symbol, step.defines, build)
            launch = partial(_launch, kernel, step, arguments, build, seed + 1 if mode == "shuffled" else 0)
            if message := _in_a_child(launch) if build == "sanitized" else launch():
                raise Fault(f"{step.symbol}: {_with_lines(kernel, message)}")


@contextmanager
def launches_of(plan: Plan, arrays: Arrays) -> Iterator[list[tuple[Plan, tuple[Argument, ...]]]]:
    """Give the launches of a plan with their arguments, and bring back what these have written.

    The result starts as poison, or as zero where the plan asks for it, or as it is where the plan adds to it.
    """
    data, result, window, positions, weight_out = arrays
    if not plan.reads_output:
        result[...] = np.zeros((), result.dtype) if plan.zero_output else poison(result.dtype)
    once = not plan.atomic_output
    arguments: list[Argument] = [(Placed(data),), (Placed(result, writable=True, once=once),)]
    if positions is not None:
        arguments.append((Placed(positions),))
    arguments.append(bytes(8) if window is None else tuple(map(Placed, window)))
    if weight_out is not None:
        arguments.append((Placed(weight_out, writable=True, once=once),))
    launches: list[tuple[Plan, tuple[Argument, ...]]] = []
    if plan.scratch_bytes:
        memory = np.full(plan.scratch_bytes, POISON, np.uint8)
        memory[: plan.zeroed_bytes] = 0
        scratch = (Placed(memory, writable=True, known=plan.zeroed_bytes),)
        launches = [(step, (arguments[2], scratch, step.parameters)) for step in plan.prologue]
        arguments.append(scratch)
    yield [*launches, (plan, (*arguments, plan.parameters))]
    for number, placed in arrays_of(arguments):
        placed.bring_back(f"argument {number} of {plan.symbol}")


def _launch(path: Path, step: Plan, arguments: tuple[Argument, ...], build: Build, seed: int) -> str:
    """Run one launch in this process; return what it did wrong."""
    kernel, arrays = module.load(path), []
    for number, placed in arrays_of(arguments):
        end = placed.start + placed.memory.size
        array = module.Array(placed.start, end, number, placed.writable, placed.pointer)
        if build == "observed":
            array.flags = placed.flags.ctypes.data
        if build == "sanitized":
            behind = placed.start + placed.front + placed.span
            for begin, size in ((placed.start, placed.front), (behind, end - behind)):
                kernel.library.__asan_poison_memory_region(ctypes.c_void_p(begin), ctypes.c_size_t(size))
        arrays.append(array)
    return kernel.launch(step.grid, step.block, list(map(bytes_of, arguments)), arrays, seed)


def _in_a_child(launch: Callable[[], str]) -> str:
    """Launch in a child of this process, which sanitizers end when they find an error; return what they report."""
    with tempfile.TemporaryFile() as report, warnings.catch_warnings(action="ignore"):
        child = os.fork()  # whose other threads, of which there may be warnings, are none of the kernel's
        if not child:
            os.dup2(report.fileno(), 2)
            try:
                os.write(2, launch().encode())
            except BaseException as error:
                os.write(2, repr(error).encode())
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        report.seek(0)
        message = report.read().decode(errors="replace").partition("Shadow bytes around")[0]
        return message or ("the process ended" if status else "")


def arrays_of(arguments: Sequence[Argument]) -> Iterator[tuple[int, Placed]]:
    """Yield the arrays of arguments, with the argument's number."""
    for number, argument in enumerate(arguments):
        if not isinstance(argument, bytes):
            yield from ((number, placed) for placed in argument)


def bytes_of(argument: Argument) -> bytes:
    """Return the value of an argument that a kernel gets; addresses of arrays."""
    return argument if isinstance(argument, bytes) else b"".join(bytes(placed.pointer) for placed in argument)


def _with_lines(path: Path, message: str) -> str:
    """Replace the code offsets {hex} of a message by places in the source."""

    def line(found: re.Match[str]) -> str:
        command = ["addr2line", "--inlines", "--exe", str(path), found[1]]
        places = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
        named = [re.sub(r" \(discriminator.*", "", Path(place).name) for place in places if ":" in place]
        return ", inlined in ".join(dict.fromkeys(place for place in named if not place.startswith("entry.cpp")))

    return re.sub(r"\{([0-9a-f]+)\}", line, message)
