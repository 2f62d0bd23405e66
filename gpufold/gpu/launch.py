"""Runs plans on a GPU, on the current stream: the only module that imports CuPy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from math import gcd, prod
from typing import Any, NamedTuple, TypeAlias

import cupy
import numpy as np

from gpufold.arrays import bounds_of
from gpufold.calls import Call, Unsupported
from gpufold.geometry import Size
from gpufold.gpu import registry, tuning
from gpufold.gpu.parameters import contiguous_strides
from gpufold.gpu.plan import MAX_ALIGNMENT, Device, Plan, Problem, operand_of
from gpufold.gpu.sources import options, program, symbols

NO_WINDOW = np.zeros(1, "V8")
"""The kernels' struct of pointers to weights if there are none: a null pointer."""

CAPTURE_ERRORS = range(900, 909)
"""CUDA's error codes for operations that are not allowed while a stream captures."""


Addresses: TypeAlias = tuple[int, int, int | None, int | None, tuple[int, ...]]
"""Addresses of a call's arrays, None if absent: data, result, weight_out, positions, and the weights of a window."""

Allocate: TypeAlias = Callable[[int], tuple[int, Any]]
"""Allocates bytes that later work on the stream may reuse; returns their address and their owner."""

Layout: TypeAlias = tuple[Size, Size, int, int]
"""Shape, strides in bytes, alignment of the first byte, and bytes of an element."""

Given: TypeAlias = tuple[Call, Layout, Layout, Layout | None, int]
"""What a kernel is prepared for: a call, the layouts of data, result and weight_out, and the number of the device."""


class Stream(NamedTuple):
    """A stream of another library, as CuPy's launch needs it.

    The handle 0 is the legacy default stream for torch and for the driver functions that CuPy calls, whatever CuPy's
    own default stream is.
    """

    device: int
    ptr: int

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of CUDA's protocol for streams, and the handle."""
        return 0, self.ptr


stream_of = lru_cache(maxsize=256)(Stream)  # to look one up takes a third of the time


def execute(
    call: Call,
    data: Any,
    result: Any,
    window: tuple[Any, ...] | None = None,
    positions: Any = None,
    weight_out: Any = None,
) -> None:
    """Compute a call on nonempty CuPy arrays of one device, on its current stream."""
    device, given = data.device.id, _given(call, data, result, weight_out)
    arrays = (
        data.data.ptr,
        result.data.ptr,
        None if weight_out is None else weight_out.data.ptr,
        None if positions is None else positions.data.ptr,
        () if window is None else tuple([each.data.ptr for each in window]),
    )
    if cupy.cuda.runtime.getDevice() == device:
        execute_at(given, arrays, None, _scratch)
    else:
        with cupy.cuda.Device(device):
            execute_at(given, arrays, None, _scratch)


def check(call: Call, data: Any, result: Any, weight_out: Any = None) -> None:
    """Raise what `execute` would raise before it writes, unless kernels serve a call on these arrays."""
    with cupy.cuda.Device(data.device.id):
        _prepare(*_given(call, data, result, weight_out), tuning.generation)


def _given(call: Call, data: Any, result: Any, weight_out: Any) -> Given:
    return call, _layout(data), _layout(result), None if weight_out is None else _layout(weight_out), data.device.id


def execute_dense(call: Call, arrays: Addresses, stream: Stream) -> None:
    """Compute a call on contiguous memory of a stream's device, on the stream; scratch memory is CuPy's."""
    itemsize = call.element.itemsize

    def layout(shape: Size, address: int) -> Layout:
        return layout_of(shape, tuple([step * itemsize for step in contiguous_strides(shape)]), address, itemsize)

    layouts = layout(call.data_shape, arrays[0]), layout(call.result_shape, arrays[1])
    with cupy.cuda.Device(stream.device), cupy.cuda.Stream.from_external(stream):
        execute_at((call, *layouts, None, stream.device), arrays, None, _scratch)


def execute_at(given: Given, arrays: Addresses, stream: Stream | None, allocate: Allocate) -> Kernel:
    """Compute a call on memory of the current device, on a stream or CuPy's current one; return its kernel."""
    kernel = _prepare(*given, tuning.generation)
    if kernel.open is not None and tuning.wanted():
        _race(kernel, given, arrays, stream, allocate)
        kernel = _prepare(*given, tuning.generation)
    kernel.launch(arrays, stream, allocate)
    return kernel


def _race(kernel: Kernel, given: Given, arrays: Addresses, stream: Stream | None, allocate: Allocate) -> None:
    """Measure the plans that can serve a call, on its own arrays; arrays that plans add to are copied.

    Nothing is measured while the stream captures, while another thread measures, or if memory is short.
    """
    problem, on = kernel.open, cupy.cuda.get_current_stream() if stream is None else stream
    assert problem is not None
    if not tuning.racing.acquire(blocking=False):
        return
    try:
        if cupy.cuda.runtime.streamIsCapturing(on.ptr):
            return
        plans = tuple(registry.candidates(problem))
        key = tuning.key_of(problem, plans)
        if len(plans) == 1 or key in tuning.known(problem.device):
            kernel.open = None
            return
        _, _, result, weights, _ = given
        data, written, weight_out, positions, window = arrays
        held = []
        if any(plan.reads_output for plan in plans):
            written, copy = _copied(written, result, on.ptr, allocate)
            held.append(copy)
            if weight_out is not None and weights is not None:
                weight_out, copy = _copied(weight_out, weights, on.ptr, allocate)
                held.append(copy)
        flushed, flushed_memory = allocate(problem.device.l2_bytes)
        runs = {}
        for label, plan in zip(tuning.labels(plans), plans, strict=True):
            with suppress(RuntimeError, cupy.cuda.compiler.CompileException):  # left out, as runs that fail
                loaded = Kernel.of(plan, prod(result[0]) * result[3])
                runs[label] = partial(loaded.launch, (data, written, weight_out, positions, window), stream, allocate)
        seconds = tuning.race(runs, partial(clock, on, flushed, problem.device.l2_bytes))
        del held, flushed_memory, runs
        if seconds:
            tuning.remember(problem, key, seconds)
    except MemoryError:  # CuPy's too
        return
    finally:
        tuning.racing.release()


def _copied(address: int, layout: Layout, stream: int, allocate: Allocate) -> tuple[int, Any]:
    """Copy an array's memory; return the address of its first element in the copy, and the copy's owner."""
    shape, strides, _, itemsize = layout
    begin, end = bounds_of(shape, strides, itemsize)
    free, held = allocate(end - begin + MAX_ALIGNMENT)
    first = address + begin
    free += (first - free) % MAX_ALIGNMENT
    runtime = cupy.cuda.runtime
    runtime.memcpyAsync(free, first, end - begin, runtime.memcpyDeviceToDevice, stream)
    return free - begin, held


def clock(stream: Any, flushed: int, size: int, run: Callable[[], Any]) -> float:
    """Return the seconds of a launch on a stream, with a flushed L2 cache."""
    before, after = cupy.cuda.Event(), cupy.cuda.Event()
    cupy.cuda.runtime.memsetAsync(flushed, 0, size, stream.ptr)
    before.record(stream)
    run()
    after.record(stream)
    after.synchronize()
    return float(cupy.cuda.get_elapsed_time(before, after)) / 1e3


def compile_plan(plan: Plan) -> None:
    """Compile the kernels of a plan for the current device, so that a call only launches.

    The other kernels of its file are compiled too, because they serve smaller and larger arrays.
    """
    for step in (*plan.prologue, plan):
        for symbol in {step.symbol, *symbols(step.file)}:
            load(step.file, step.defines, symbol)


def current() -> int:
    """Return the number of the current device."""
    return int(cupy.cuda.runtime.getDevice())


@cache
def device(number: int) -> Device:
    """Ask the driver for the facts that plans depend on."""
    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(number)
    return Device(
        properties["name"].decode(),
        (properties["major"], properties["minor"]),
        properties["multiProcessorCount"],
        properties["maxThreadsPerMultiProcessor"],
        runtime.deviceGetAttribute(runtime.cudaDevAttrL2CacheSize, number),
    )


@dataclass(slots=True)
class Kernel:
    """A plan with its function, loaded on one device and ready to launch."""

    plan: Plan
    function: Any
    parameters: np.ndarray[Any, Any]
    """The struct, as the array of one element that CuPy passes by value."""
    cleared_bytes: int
    """Bytes of the output, which is then contiguous, to zero before the launch."""
    prologue: tuple[Kernel, ...]
    """The kernels that fill the scratch memory."""
    generation: int = 0
    """The generation of `tuning` in which it was prepared."""
    open: Problem | None = None
    """The problem, if a race could still change its plan."""

    @classmethod
    def of(cls, plan: Plan, output_bytes: int = 0) -> Kernel:
        """Load a plan's kernel on the current device, or find it loaded."""
        parameters = np.frombuffer(plan.parameters, np.dtype((np.void, len(plan.parameters))))
        function = load(plan.file, plan.defines, plan.symbol)
        cleared_bytes = output_bytes if plan.zero_output else 0
        return cls(plan, function, parameters, cleared_bytes, tuple(map(cls.of, plan.prologue)))

    def launch(self, arrays: Addresses, stream: Stream | None, allocate: Allocate) -> None:
        """Launch on memory of the current device, on a stream or CuPy's current one, asynchronously."""
        plan, (data, result, weight_out, positions, window) = self.plan, arrays
        if self.cleared_bytes or plan.scratch_bytes:
            handle = cupy.cuda.get_current_stream().ptr if stream is None else stream.ptr
        if self.cleared_bytes:
            cupy.cuda.runtime.memsetAsync(result, 0, self.cleared_bytes, handle)
        pointers: tuple[Any, ...] = (data, result) if positions is None else (data, result, positions)
        pointers = (*pointers, _pointers(window) if window else NO_WINDOW)
        if weight_out is not None:
            pointers = (*pointers, weight_out)
        if plan.scratch_bytes:
            scratch, _held = allocate(plan.scratch_bytes)
            cupy.cuda.runtime.memsetAsync(scratch, 0, plan.zeroed_bytes, handle)
            for step in self.prologue:
                step.function(step.plan.grid, step.plan.block, (positions, scratch, step.parameters), 0, stream)
            pointers = (*pointers, scratch)
        self.function(plan.grid, plan.block, (*pointers, self.parameters), 0, stream)


def _scratch(size: int) -> tuple[int, Any]:
    """Return memory that later work on the current stream may reuse; a graph that is captured allocates its own."""
    if not cupy.cuda.get_current_stream().is_capturing():
        memory = cupy.cuda.alloc(size)
        return memory.ptr, memory
    runtime, number = cupy.cuda.runtime, cupy.cuda.runtime.getDevice()
    if not runtime.deviceGetAttribute(runtime.cudaDevAttrMemoryPoolsSupported, number):
        raise Unsupported(
            f"a CUDA graph has to allocate {size:,} bytes of scratch memory for this kernel, and device {number} has "
            f"no memory pools for that; the capture goes on: pass a variant without scratch memory, such as 'gather'"
        )
    memory = cupy.cuda.malloc_async(size)
    return memory.ptr, memory


def layout_of(shape: Size, strides: Size, address: int, itemsize: int) -> Layout:
    """Describe an array by its strides in bytes and its address."""
    return shape, strides, gcd(address, MAX_ALIGNMENT), itemsize


def _layout(array: Any) -> Layout:
    return array.shape, array.strides, gcd(array.data.ptr, MAX_ALIGNMENT), array.dtype.itemsize


@lru_cache(maxsize=1024)
def _prepare(
    call: Call, data: Layout, result: Layout, weight_out: Layout | None, device_number: int, generation: int
) -> Kernel:
    operands = operand_of(call.operation, "the input", *data), operand_of(call.operation, "out", *result)
    of_weights = None if weight_out is None else operand_of(call.operation, "weight_out", *weight_out)
    problem = Problem(call, *operands, device(device_number), of_weights)
    plan, _, is_open = tuning.decide(problem)
    kernel = Kernel.of(plan, prod(problem.output.shape) * result[-1])
    kernel.generation, kernel.open = generation, problem if is_open else None
    return kernel


@lru_cache(maxsize=256)
def _pointers(addresses: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return a struct of pointers, as the array of one element that CuPy passes by value."""
    return np.array(addresses, np.uintp).view((np.void, 8 * len(addresses)))


@lru_cache(maxsize=1024)
def _function(source: str, defines: tuple[tuple[str, str], ...], symbol: str) -> Any:
    """Return a CuPy kernel, which compiles and loads its function once per device."""
    return cupy.RawKernel(program(source, symbol, defines), symbol, options())


def load(source: str, defines: tuple[tuple[str, str], ...], symbol: str) -> Any:
    """Return a kernel's function on the current device, loading it if needed; raise if a capture forbids loading."""
    try:
        return _function(source, defines, symbol).kernel
    except (cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError) as error:
        if error.status not in CAPTURE_ERRORS:
            raise
        raise RuntimeError(
            f"the kernel {symbol} was not called or warmed up before with this dtype and geometry, and CUDA loads none "
            f"while a stream captures: the capture is lost. End it, call gpufold.warmup with the arguments of the "
            f"call, and capture again"
        ) from error
