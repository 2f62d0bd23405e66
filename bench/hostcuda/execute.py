"""Runs one launch of a kernel on NumPy arrays, on the CPU."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from gpufold.gpu.plan import Plan

from . import module
from .build import KERNELS, Build, Defines, build_kernel, build_runtime
from .memory import POISON, Fault, NDArray, Placed, poison

Argument = NDArray | tuple[NDArray, ...] | bytes | int | None
"""An array or None, a null, for a pointer; several for a struct of pointers to const; bytes or an int for a value."""
Prepared = Placed | tuple[Placed, ...] | bytes | int | None
Size3 = tuple[int, int, int]
Mode = Literal["plain", "observed", "shuffled", "sanitized"]

_one_at_a_time = threading.Lock()
"""The scheduler of a build keeps one launch in its global variables."""


def launch(
    source: Path,
    symbol: str,
    defines: Defines,
    grid: Size3,
    block: Size3,
    arguments: Sequence[Argument],
    *,
    mode: Mode = "plain",
    seed: int = 0,
    writes_once: bool = False,
    skips: bool = False,
    known: NDArray | None = None,
) -> None:
    """Launch a kernel as cuLaunchKernel would: see Argument for what it takes.

    Parameters
    ----------
    mode
        "plain": as fast as it gets. "observed": every access is checked. "shuffled": as observed, and the threads
        take their turns in an order drawn from `seed`. "sanitized": under AddressSanitizer and
        UndefinedBehaviorSanitizer, in a process of its own.
    writes_once
        Whether each byte of each array that the kernel may write has to be written exactly once; looked at where
        accesses are observed.
    skips
        Whether not writing a byte is no fault, writing it twice still is.
    known
        For each byte of the last array whether anything wrote it, which is kept up to date; None where all are known.
        To read another is a fault where accesses are observed.
    """
    build: Build = "observed" if mode == "shuffled" else mode
    path = build_kernel(source, symbol, defines, build)
    placed = [_prepared(argument) for argument in arguments]
    try:
        if build == "sanitized":
            _run_apart(path, grid, block, placed)
        else:
            kernel = module.load(path, build_runtime(build))
            what = module.Launch(kernel.module, grid=grid, block=block, seed=seed + 1 if mode == "shuffled" else 0)
            _run_here(kernel, what, placed, build == "observed", writes_once, skips, known)
    except Fault as fault:
        raise Fault(f"{symbol}: {_with_lines(path, str(fault))}") from None


def run(
    plan: Plan,
    input_array: NDArray,
    output_array: NDArray,
    window: tuple[NDArray, ...] | None = None,
    positions: NDArray | None = None,
    *,
    weight_out: NDArray | None = None,
    mode: Mode = "plain",
    seed: int = 0,
    kernels: Path = KERNELS,
) -> None:
    """Execute a plan, from the sources in the folder `kernels`, and check what every plan promises.

    The output starts as poison, or as zero where the plan asks for it, or as it is where the plan adds to it.
    """
    if not plan.reads_output:
        output_array[...] = np.zeros((), output_array.dtype) if plan.zero_output else poison(output_array.dtype)
    pointers: tuple[Argument, ...] = (input_array, output_array)
    if positions is not None:
        pointers = (*pointers, positions)
    if plan.takes_window:
        pointers = (*pointers, bytes(8) if window is None else window)
    if weight_out is not None:
        pointers = (*pointers, weight_out)
    known = None
    if plan.scratch_bytes:
        scratch = scratch_of(plan)
        known = np.arange(scratch.size) < plan.zeroed_bytes
        for step in plan.prologue:
            what = kernels / step.source, step.symbol, step.defines, step.grid, step.block
            launch(*what, (positions, scratch, step.parameters), mode=mode, seed=seed, known=known)
        pointers = (*pointers, scratch)
    launch(
        kernels / plan.source,
        plan.symbol,
        plan.defines,
        plan.grid,
        plan.block,
        (*pointers, plan.parameters),
        mode=mode,
        seed=seed,
        writes_once=not plan.atomic_output,
        skips=plan.partial_output,
        known=known,
    )


def scratch_of(plan: Plan) -> NDArray:
    """Return scratch memory as a plan's first launch finds it."""
    scratch = np.full(plan.scratch_bytes, POISON, np.uint8)
    scratch[: plan.zeroed_bytes] = 0
    return scratch


def launch_in_place(path: Path, grid: Size3, block: Size3, values: Sequence[bytes]) -> None:
    """Launch a plain build on memory where it lies: every argument is the bytes that the kernel takes for it."""
    kernel = module.load(path, build_runtime("plain"))
    kept = [ctypes.create_string_buffer(value, len(value)) for value in values]
    what = module.Launch(kernel.module, grid=grid, block=block)
    message = ctypes.create_string_buffer(4096)
    what.arguments = (ctypes.c_void_p * len(kept))(*map(ctypes.addressof, kept))
    what.message, what.message_size = ctypes.addressof(message), len(message)
    with _one_at_a_time:
        kernel.runtime.hostcuda_launch(ctypes.byref(what))
    if message.value:
        raise Fault(message.value.decode())


def _run_here(
    kernel: module.Kernel,
    what: module.Launch,
    arguments: list[Prepared],
    observed: bool,
    writes_once: bool,
    skips: bool,
    known: NDArray | None,
) -> None:
    """Run in this process, and bring the arrays back."""
    if len(arguments) != len(kernel.parameters):
        raise TypeError(f"the kernel takes {len(kernel.parameters)} arguments, given are {len(arguments)}")
    values, arrays, writes = [], [], {}
    of_last = None  # whether its bytes are known
    kept = []  # what the structs point at
    for i, (argument, parameter) in enumerate(zip(arguments, kernel.parameters, strict=True)):
        if (argument is None or isinstance(argument, Placed)) != bool(parameter.pointer):
            raise TypeError(f"argument {i} must be {'an array' if parameter.pointer else 'a value'}")
        if isinstance(argument, Placed):
            values.append(argument.pointer)
        else:
            data = _bytes_of(argument, parameter.size)
            if len(data) != parameter.size:
                raise TypeError(f"argument {i} must have {parameter.size} bytes, given are {len(data)}")
            values.append(ctypes.create_string_buffer(data, len(data)))
        for placed in _arrays_of(argument):
            writable = parameter.pointer == module.POINTER
            array = module.Array(placed.start, placed.start + placed.memory.size, i, writable, placed.pointer)
            if observed:
                elements, belonging = placed.per_byte()
                belonging[...] = 1
                kept.append(elements)
                array.elements = elements.ctypes.data
                if writes_once and writable:
                    counts, writes[i] = placed.per_byte()
                    kept.append(counts)
                    array.writes = counts.ctypes.data
            arrays.append(array)
    if observed and known is not None:
        flags, of_last = placed.per_byte()
        of_last[...] = known.reshape(of_last.shape)
        arrays[-1].known = flags.ctypes.data
    message = ctypes.create_string_buffer(4096)
    what.arguments = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    what.arrays, what.array_count = (module.Array * len(arrays))(*arrays), len(arrays)
    what.message, what.message_size = ctypes.addressof(message), len(message)
    with _one_at_a_time:
        kernel.runtime.hostcuda_launch(ctypes.byref(what))
    if message.value:
        raise Fault(message.value.decode())
    if known is not None and of_last is not None:
        known[...] = of_last.reshape(known.shape)
    for i, (argument, parameter) in enumerate(zip(arguments, kernel.parameters, strict=True)):
        for placed in _arrays_of(argument):
            _bring_back(placed, i, parameter.pointer == module.POINTER)
    for i, counts in writes.items():
        missing = np.argwhere((counts == 0).any(axis=-1))
        if len(missing) and not skips:
            first = tuple(map(int, missing[0]))
            raise Fault(f"{len(missing)} elements of argument {i} were never written, the first is {first}")


def _run_apart(path: Path, grid: Size3, block: Size3, arguments: list[Prepared]) -> None:
    """Run in a process of its own, which a sanitizer ends where it finds something, and bring the arrays back."""
    job = [bytes(module.Job(grid, block, 0, sum(len(_arrays_of(argument)) or 1 for argument in arguments)))]
    for argument in arguments:
        arrays = _arrays_of(argument)
        if not arrays:
            data = _bytes_of(argument, 8)
            job.append(bytes(module.JobArgument(module.VALUE, len(data), 0, 0)) + data)
        for place, array in enumerate(arrays):
            of_struct = module.NEXT_OF_STRUCT if place else module.FIRST_OF_STRUCT
            kind = of_struct if isinstance(argument, tuple) else module.ARRAY
            job.append(bytes(module.JobArgument(kind, array.span, array.misalignment, array.offset - array.front)))
            job.append(array.between_guards.tobytes())
    # Leaks are of no interest, and neither is where the process keeps its stacks.
    options = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run(
        [str(build_runtime("sanitized")), str(path)],
        input=b"".join(job),
        capture_output=True,
        env=os.environ | options,
    )
    if done.returncode:
        report = done.stderr.decode(errors="replace")
        raise Fault(report.partition("Shadow bytes around")[0])
    answer = memoryview(done.stdout)
    for i, argument in enumerate(arguments):
        for array in _arrays_of(argument):
            writable, answer = answer[0] == module.POINTER, answer[1:]
            array.between_guards[...] = np.frombuffer(answer[: array.span], np.uint8)
            answer = answer[array.span :]
            _bring_back(array, i, writable)


def _bring_back(array: Placed, index: int, writable: bool) -> None:
    name = f"argument {index}"
    if writable:
        array.copy_back(name)
    else:
        array.check_unchanged(name)


def _prepared(argument: Argument) -> Prepared:
    if isinstance(argument, tuple):
        return tuple(map(Placed, argument))
    return Placed(argument) if isinstance(argument, np.ndarray) else argument


def _arrays_of(argument: Prepared) -> tuple[Placed, ...]:
    if isinstance(argument, tuple):
        return argument
    return (argument,) if isinstance(argument, Placed) else ()


def _bytes_of(value: tuple[Placed, ...] | bytes | int | None, size: int) -> bytes:
    if isinstance(value, tuple):
        return b"".join(bytes(placed.pointer) for placed in value)
    number = value or 0
    return number if isinstance(number, bytes) else number.to_bytes(size, "little", signed=number < 0)


def _with_lines(path: Path, message: str) -> str:
    """Replace the code offsets {hex} of a message by where they are in the source."""

    def line(found: re.Match[str]) -> str:
        command = ["addr2line", "--inlines", "--exe", str(path), found[1]]
        places = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
        named = [re.sub(r" \(discriminator.*", "", Path(place).name) for place in places if ":" in place]
        return ", inlined in ".join(dict.fromkeys(place for place in named if not place.startswith("entry.cpp")))

    return re.sub(r"\{([0-9a-f]+)\}", line, message)
