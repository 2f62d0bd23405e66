"""Runs one launch of a kernel on NumPy arrays, on the CPU."""

from __future__ import annotations

import copyreg
import ctypes
import os
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gpufold.gpu.plan import Plan

from . import module
from .build import KERNELS, Build, Defines, build_kernel, build_runtime
from .memory import POISON, Fault, NDArray, Placed, poison

Argument = NDArray | tuple[NDArray, ...] | bytes | int | None
"""An array, or None for null, for a pointer; several for a struct of pointers to const; bytes or an int for a value."""
Prepared = Placed | tuple[Placed, ...] | bytes | int | None
Size3 = tuple[int, int, int]
Mode = Literal["plain", "observed", "shuffled", "sanitized"]

_one_at_a_time = threading.Lock()
"""Lock of the launch, which the scheduler of a build keeps in global variables."""


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
    """Launch a kernel as cuLaunchKernel would, with arguments as in `Argument`.

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
    kernel = path, build_runtime(build)
    try:
        if build == "sanitized":
            _run_apart(kernel, grid, block, arguments)
        else:
            shuffled = seed + 1 if mode == "shuffled" else 0
            _run_here(kernel, grid, block, arguments, shuffled, build == "observed", writes_once, skips, known)
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
    """Execute a plan, from the sources in the folder `kernels`, and check the promises of plans."""
    known = np.arange(plan.scratch_bytes) < plan.zeroed_bytes if plan.scratch_bytes else None
    for step, arguments in launches_of(plan, input_array, output_array, window, positions, weight_out):
        launch(
            kernels / step.source,
            step.symbol,
            step.defines,
            step.grid,
            step.block,
            arguments,
            mode=mode,
            seed=seed,
            writes_once=not (step.is_prologue or step.atomic_output),
            skips=step.partial_output,
            known=known,
        )


def launches_of(
    plan: Plan,
    input_array: NDArray,
    output_array: NDArray,
    window: tuple[NDArray, ...] | None,
    positions: NDArray | None,
    weight_out: NDArray | None = None,
) -> Iterator[tuple[Plan, tuple[Argument, ...]]]:
    """Yield the launches of a plan with their arguments.

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
    if plan.scratch_bytes:
        scratch = scratch_of(plan)
        for step in plan.prologue:
            yield step, (positions, scratch, step.parameters)
        pointers = (*pointers, scratch)
    yield plan, (*pointers, plan.parameters)


def scratch_of(plan: Plan) -> NDArray:
    """Return scratch memory as a plan's first launch finds it."""
    scratch = np.full(plan.scratch_bytes, POISON, np.uint8)
    scratch[: plan.zeroed_bytes] = 0
    return scratch


def launch_in_place(path: Path, grid: Size3, block: Size3, values: Sequence[bytes]) -> None:
    """Launch a plain build on memory in place; arguments are the bytes that the kernel takes."""
    kernel = module.load(path, build_runtime("plain"))
    _call(kernel, module.Launch(kernel.module, grid=grid, block=block), values)


def _call(kernel: module.Kernel, what: module.Launch, values: Sequence[bytes]) -> None:
    message = ctypes.create_string_buffer(4096)
    kept = [ctypes.create_string_buffer(value, len(value)) for value in values]
    what.arguments = (ctypes.c_void_p * len(kept))(*map(ctypes.addressof, kept))
    what.message, what.message_size = ctypes.addressof(message), len(message)
    with _one_at_a_time:
        kernel.runtime.hostcuda_launch(ctypes.byref(what))
    if message.value:
        raise Fault(message.value.decode())


def _run_here(
    files: tuple[Path, Path],
    grid: Size3,
    block: Size3,
    given: Sequence[Argument],
    seed: int = 0,
    observed: bool = False,
    writes_once: bool = False,
    skips: bool = False,
    known: NDArray | None = None,
    guard: Callable[[int, int], Any] | None = None,
) -> list[int]:
    """Run in this process and copy the arrays back; return which arguments could be written.

    A guard is told of the memory around each array, by its address and size.
    """
    kernel, arguments = module.load(*files), [prepared(argument) for argument in given]
    if len(arguments) != len(kernel.parameters):
        raise TypeError(f"the kernel takes {len(kernel.parameters)} arguments, given are {len(arguments)}")
    values, arrays, flags = [], [], []
    for i, (argument, parameter) in enumerate(zip(arguments, kernel.parameters, strict=True)):
        if (argument is None or isinstance(argument, Placed)) != bool(parameter.pointer):
            raise TypeError(f"argument {i} must be {'an array' if parameter.pointer else 'a value'}")
        values.append(bytes_of(argument, parameter.size))
        if len(values[i]) != parameter.size:
            raise TypeError(f"argument {i} must have {parameter.size} bytes, given are {len(values[i])}")
        for placed in arrays_of(argument):
            writable = parameter.pointer == module.POINTER
            array = module.Array(placed.start, placed.start + placed.memory.size, i, writable, placed.pointer)
            if observed:
                of_memory, of_elements = placed.per_byte()
                once = writes_once and writable
                of_elements[...] = module.ELEMENT | module.KNOWN | module.ONCE * once
                array.flags = of_memory.ctypes.data
                flags.append((i, of_elements, once))
            if guard:
                behind = placed.front + placed.span
                guard(placed.start, placed.front)
                guard(placed.start + behind, placed.memory.size - behind)
            arrays.append(array)
    if observed and known is not None:
        of_elements[~known.reshape(of_elements.shape)] ^= module.KNOWN
    what = module.Launch(kernel.module, grid=grid, block=block, seed=seed)
    what.arrays, what.array_count = (module.Array * len(arrays))(*arrays), len(arrays)
    _call(kernel, what, values)
    if observed and known is not None:
        known[...] = (of_elements & module.KNOWN != 0).reshape(known.shape)
    for i, (argument, parameter) in enumerate(zip(arguments, kernel.parameters, strict=True)):
        bring_back(argument, i, parameter.pointer == module.POINTER)
    for i, of_elements, once in flags:
        if once and not skips and len(missing := np.argwhere((of_elements & module.WRITTEN == 0).any(axis=-1))):
            first = tuple(map(int, missing[0]))
            raise Fault(f"{len(missing)} elements of argument {i} were never written, the first is {first}")
    return [i for i, parameter in enumerate(kernel.parameters) if parameter.pointer == module.POINTER]


# ---------------------------------------------------------------------------------------------
# Sanitizers: a separate process, which they end when they find an error

_servers: list[subprocess.Popen[bytes]] = []
"""The process that runs sanitized builds one after another, if there is one."""


def _run_apart(files: tuple[Path, Path], grid: Size3, block: Size3, arguments: Sequence[Argument]) -> None:
    """Run in the process of the sanitizers, and copy the arrays back."""
    with _one_at_a_time:
        server = _servers.pop() if _servers else _server()
        assert server.stdin
        assert server.stdout
        pickler = pickle.Pickler(server.stdin)
        pickler.dispatch_table = copyreg.dispatch_table | {np.ndarray: _as_it_lies}
        pickler.dump((files, grid, block, arguments))
        server.stdin.flush()
        try:
            answer = pickle.load(server.stdout)
        except EOFError:
            report = server.communicate()[1].decode(errors="replace")
            raise Fault(report.partition("Shadow bytes around")[0]) from None
        _servers.append(server)
    if isinstance(answer, Exception):
        raise answer
    for i, content in answer.items():
        array = arguments[i]
        assert isinstance(array, np.ndarray)
        array[...] = np.frombuffer(content, array.dtype).reshape(array.shape)


def _server() -> subprocess.Popen[bytes]:
    found = ["g++", "-print-file-name=libasan.so"]
    library = subprocess.run(found, capture_output=True, text=True, check=True).stdout.strip()
    # Neither leaks nor the places of stacks matter.
    options = {"ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=16", "UBSAN_OPTIONS": "print_stacktrace=1"}
    return subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import serve; serve()"],
        env=os.environ | options | {"LD_PRELOAD": library, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def serve() -> None:
    """Run the other process's requests until it ends."""
    guard = ctypes.CDLL(None).__asan_poison_memory_region
    guard.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    with suppress(EOFError):
        while True:
            *what, arguments = pickle.load(sys.stdin.buffer)
            try:
                answer: Any = {i: arguments[i].tobytes() for i in _run_here(*what, arguments, guard=guard)}
            except (Fault, TypeError) as error:
                answer = error
            pickle.dump(answer, sys.stdout.buffer)
            sys.stdout.flush()


def _as_it_lies(array: NDArray) -> tuple[Any, ...]:
    """Return how another process makes the same array: with its strides, and its place in its owner's memory."""
    placed = Placed(array)
    content = bytes(placed.misalignment) + placed.between_guards.tobytes()
    offset = placed.misalignment + placed.offset - placed.front
    return _laid, (content, array.shape, f"V{array.itemsize}", offset, array.strides)


def _laid(content: bytes, shape: tuple[int, ...], dtype: str, offset: int, strides: tuple[int, ...]) -> NDArray:
    return np.ndarray(shape, dtype, np.frombuffer(bytearray(content), np.uint8), offset, strides)


def prepared(argument: Argument) -> Prepared:
    """Copy the arrays of an argument to memory like a GPU's."""
    if isinstance(argument, tuple):
        return tuple(map(Placed, argument))
    return Placed(argument) if isinstance(argument, np.ndarray) else argument


def bring_back(argument: Prepared, number: int, writable: bool) -> None:
    """Copy the arrays of an argument back, or check that they were not written."""
    for placed in arrays_of(argument):
        if writable:
            placed.copy_back(f"argument {number}")
        else:
            placed.check_unchanged(f"argument {number}")


def arrays_of(argument: Prepared) -> tuple[Placed, ...]:
    """Return the arrays of an argument."""
    if isinstance(argument, tuple):
        return argument
    return (argument,) if isinstance(argument, Placed) else ()


def bytes_of(value: Prepared, size: int = 8) -> bytes:
    """Return the value of an argument that a kernel gets; addresses of arrays."""
    if isinstance(value, tuple | Placed):
        return b"".join(bytes(placed.pointer) for placed in arrays_of(value))
    number = value or 0
    return number if isinstance(number, bytes) else number.to_bytes(size, "little", signed=number < 0)


def _with_lines(path: Path, message: str) -> str:
    """Replace the code offsets {hex} of a message by places in the source."""

    def line(found: re.Match[str]) -> str:
        command = ["addr2line", "--inlines", "--exe", str(path), found[1]]
        places = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
        named = [re.sub(r" \(discriminator.*", "", Path(place).name) for place in places if ":" in place]
        return ", inlined in ".join(dict.fromkeys(place for place in named if not place.startswith("entry.cpp")))

    return re.sub(r"\{([0-9a-f]+)\}", line, message)
