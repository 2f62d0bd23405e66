"""Runs plans on a GPU, on the current stream: the only module that imports CuPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple, TypeAlias

import cupy
import numpy as np

from gpufold.calls import Call, Unsupported
from gpufold.geometry import PositionsGeometry, Size
from gpufold.gpu.parameters import contiguous_strides
from gpufold.gpu.plan import COPY_SHARE, Device, Operand, Plan
from gpufold.gpu.sources import options, program, symbols

MAX_ALIGNMENT = 256
"""CuPy's allocator aligns to this; more makes no difference to a kernel."""

NO_WINDOW = np.zeros(1, "V8")
"""The kernels' struct of pointers to weights where there are none: a null."""

CLOCK_RATE, MEMORY_CLOCK_RATE, GLOBAL_MEMORY_BUS_WIDTH, L2_CACHE_SIZE, SHARED_MEMORY = 13, 36, 37, 38, 81
"""The runtime's numbers for these attributes of a device; shared memory is that of a multiprocessor."""

MEMORY_POOLS = 115
"""The runtime's number for whether memory can be allocated in the order of a stream, as a graph does."""

CAPTURE_ERRORS = range(900, 909)
"""The statuses of CUDA for what cannot be done while a stream captures."""


Addresses: TypeAlias = tuple[int, int, int | None]
"""Those of what a call reads, of what it writes, and of weight_out where it has one."""

Strides: TypeAlias = tuple[Size | None, Size | None, Size | None]
"""Strides in elements of the same arrays, of each that is not contiguous."""

Others: TypeAlias = tuple[tuple[int, ...], int | None, int | None]
"""Addresses that a call has besides, where it does: the weights of a window, positions, and scratch memory."""


class Stream(NamedTuple):
    """A stream of another library, by its handle: all that CuPy's launch asks of one.

    The handle 0 is the legacy default stream, to torch and to the driver's functions that CuPy calls, whichever stream
    is CuPy's own default.
    """

    device: int
    ptr: int


stream_of = lru_cache(maxsize=256)(Stream)  # to look one up takes a third of the time

Planner: TypeAlias = Callable[[Call, Operand, Operand, Device, Operand | None], Plan]
"""Plans a call: `gpufold.operations.choose`."""


def execute(
    planner: Planner,
    call: Call,
    data: Any,
    result: Any,
    window: tuple[Any, ...] | None = None,
    positions: Any = None,
    weight_out: Any = None,
) -> None:
    """Compute a call on arrays of one device that have elements, on its current stream."""
    device = data.device.id
    of_weights = None if weight_out is None else _layout(weight_out)
    kernel = _prepare(planner, call, _layout(data), _layout(result), device, of_weights)
    if cupy.cuda.runtime.getDevice() == device:
        kernel(data, result, window, positions, weight_out)
    else:
        with cupy.cuda.Device(device):
            kernel(data, result, window, positions, weight_out)


def prepare_at(planner: Planner, call: Call, addresses: Addresses, strides: Strides, device: int) -> Kernel | None:
    """Return what computes a call on memory of a device that another library owns; None where nothing is written."""
    data, result, weight_out = addresses
    within = data % MAX_ALIGNMENT, result % MAX_ALIGNMENT, weight_out and weight_out % MAX_ALIGNMENT
    return _prepare_at(planner, call, within, strides, device)  # all that a plan asks of addresses


def run(plan: Plan, data: Any, result: Any, window: tuple[Any, ...] | None = None, positions: Any = None) -> None:
    """Run a plan that was made for these arrays, on the current device and stream."""
    Kernel.of(plan, result.nbytes)(data, result, window, positions)


def compile_plan(plan: Plan) -> None:
    """Compile what a call would run, for the current device, so that the call itself only launches.

    The other kernels of its file, which serve smaller and larger arrays, are compiled too.
    """
    for step in (*plan.before, plan):
        for symbol in {step.symbol, *symbols(step.source)}:
            load(step.source, step.defines, symbol)


def current_device() -> Device:
    """Return the facts about the current device."""
    return device(int(cupy.cuda.runtime.getDevice()))


@cache
def device(number: int) -> Device:
    """Ask the driver for the facts that plans depend on."""
    properties = cupy.cuda.runtime.getDeviceProperties(number)
    wanted = (CLOCK_RATE, MEMORY_CLOCK_RATE, GLOBAL_MEMORY_BUS_WIDTH, L2_CACHE_SIZE, SHARED_MEMORY)
    clock, memory_clock, bits, l2_bytes, shared_bytes = (
        cupy.cuda.runtime.deviceGetAttribute(attribute, number) for attribute in wanted
    )
    bandwidth = 2 * 1000 * memory_clock * bits / 8  # data moves on both edges of the clock; clocks are given in kHz
    return Device(
        properties["name"].decode(),
        (properties["major"], properties["minor"]),
        properties["multiProcessorCount"],
        properties["maxThreadsPerMultiProcessor"],
        COPY_SHARE * bandwidth,
        1000 * clock,
        bandwidth,
        l2_bytes,
        shared_bytes,
    )


@dataclass(frozen=True, slots=True)
class Kernel:
    """A plan with its function, loaded on one device: all that is left is the launch there."""

    function: Any
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    parameters: np.ndarray[Any, Any]
    """The struct, as the array of one element that CuPy passes by value."""
    cleared_bytes: int
    """Of the output, which is contiguous then."""
    takes_window: bool
    scratch_bytes: int = 0
    zeroed_bytes: int = 0
    before: tuple[Kernel, ...] = ()
    """What fills the scratch memory."""

    @classmethod
    def of(cls, plan: Plan, output_bytes: int = 0) -> Kernel:
        """Load a plan's kernel on the current device, or find it loaded."""
        parameters = np.frombuffer(plan.parameters, np.dtype((np.void, len(plan.parameters))))
        return cls(
            load(plan.source, plan.defines, plan.symbol),
            plan.grid,
            plan.block,
            parameters,
            output_bytes if plan.zero_output else 0,
            plan.takes_window,
            plan.scratch_bytes,
            plan.zeroed_bytes,
            tuple(map(cls.of, plan.before)),
        )

    def __call__(
        self, data: Any, result: Any, window: Any = None, positions: Any = None, weight_out: Any = None
    ) -> None:
        if self.cleared_bytes:
            result.data.memset_async(0, self.cleared_bytes)
        pointers = (data, result) if positions is None else (data, result, positions)
        if self.takes_window:
            weights = NO_WINDOW if window is None else _pointers(tuple([array.data.ptr for array in window]))
            pointers = (*pointers, weights)
        if weight_out is not None:
            pointers = (*pointers, weight_out)
        if self.scratch_bytes:
            scratch = _scratch(self.scratch_bytes)
            scratch.memset_async(0, self.zeroed_bytes)
            for step in self.before:
                step.function(step.grid, step.block, (positions, scratch, step.parameters))
            pointers = (*pointers, scratch)
        self.function(self.grid, self.block, (*pointers, self.parameters))

    def launch_at(self, addresses: Addresses, others: Others, stream: Stream) -> None:
        """Launch on addresses, on a stream of theirs; nothing is waited for."""
        if cupy.cuda.runtime.getDevice() != stream.device:
            with cupy.cuda.Device(stream.device):
                self.launch_at(addresses, others, stream)
            return
        data, result, weight_out = addresses
        weights, positions, scratch = others
        if self.cleared_bytes:
            cupy.cuda.runtime.memsetAsync(result, 0, self.cleared_bytes, stream.ptr)
        pointers: tuple[Any, ...] = (data, result) if positions is None else (data, result, positions)
        if self.takes_window:
            pointers = (*pointers, _pointers(weights) if weights else NO_WINDOW)
        if weight_out is not None:
            pointers = (*pointers, weight_out)
        if scratch is not None:
            cupy.cuda.runtime.memsetAsync(scratch, 0, self.zeroed_bytes, stream.ptr)
            for step in self.before:
                step.function(step.grid, step.block, (positions, scratch, step.parameters), 0, stream)
            pointers = (*pointers, scratch)
        self.function(self.grid, self.block, (*pointers, self.parameters), 0, stream)


def _scratch(size: int) -> Any:
    """Return memory that later work on the current stream may reuse; a graph that is captured allocates its own."""
    if not cupy.cuda.get_current_stream().is_capturing():
        return cupy.cuda.alloc(size)
    number = cupy.cuda.runtime.getDevice()
    if not cupy.cuda.runtime.deviceGetAttribute(MEMORY_POOLS, number):
        raise Unsupported(
            f"a CUDA graph has to allocate {size:,} bytes of scratch memory for this kernel, and device {number} has "
            f"no memory pools for that; the capture goes on: pass a variant without scratch memory, such as 'gather'"
        )
    return cupy.cuda.malloc_async(size)


Layout: TypeAlias = tuple[Size, Size, int, int]
"""Shape, strides in bytes, alignment of the first byte, and bytes of an element."""


def _layout(array: Any) -> Layout:
    address = array.data.ptr | MAX_ALIGNMENT
    return array.shape, array.strides, address & -address, array.dtype.itemsize


@lru_cache(maxsize=4096)
def _prepare(
    planner: Planner, call: Call, data: Layout, result: Layout, device_number: int, weight_out: Layout | None = None
) -> Kernel:
    input, output = _operand(call.operation, "the input", data), _operand(call.operation, "out", result)
    of_weights = None if weight_out is None else _operand(call.operation, "weight_out", weight_out)
    plan = planner(call, input, output, device(device_number), of_weights)
    with cupy.cuda.Device(device_number):
        return Kernel.of(plan, prod(output.shape) * result[-1])


@lru_cache(maxsize=4096)
def _prepare_at(
    planner: Planner, call: Call, addresses: Addresses, strides: Strides, device_number: int
) -> Kernel | None:
    """Prepare a call on memory of another library, of whose addresses only the alignment is known."""
    if 0 in call.result_shape or (call.fusion.accumulate and 0 in call.data_shape):
        return None

    def layout(number: int, shape: Size, itemsize: int) -> Layout | None:
        address, steps = addresses[number], strides[number] or contiguous_strides(shape)
        if address is None:
            return None
        address |= MAX_ALIGNMENT
        return shape, tuple([step * itemsize for step in steps]), address & -address, itemsize

    data = layout(0, call.data_shape, call.source_element.itemsize)
    result = layout(1, call.result_shape, call.element.itemsize)
    weights_shape = call.geometry.size if isinstance(call.geometry, PositionsGeometry) else ()
    assert data is not None
    assert result is not None
    return _prepare(planner, call, data, result, device_number, layout(2, weights_shape, call.element.weight_bytes))


def _operand(operation: str, name: str, layout: Layout) -> Operand:
    shape, strides, alignment, itemsize = layout
    if any(stride % itemsize for stride in strides) or alignment < itemsize:
        raise Unsupported(
            f"{operation}: {name} has elements of {itemsize} bytes that do not lie on multiples of their size "
            f"(strides {strides}, first byte on a multiple of {alignment}); pass a copy"
        )
    return Operand(shape, tuple(stride // itemsize for stride in strides), alignment)


@lru_cache(maxsize=256)
def _pointers(addresses: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return a struct of pointers, as the array of one element that CuPy passes by value."""
    return np.array(addresses, np.uintp).view((np.void, 8 * len(addresses)))


@cache
def _function(source: str, defines: tuple[tuple[str, str], ...], symbol: str) -> Any:
    """Return a kernel of CuPy, which compiles and loads its function for each device that asks for it."""
    return cupy.RawKernel(program(source, symbol, defines), symbol, options())


def load(source: str, defines: tuple[tuple[str, str], ...], symbol: str) -> Any:
    """Return a kernel's function on the current device, loaded now or earlier; raise where a capture forbids it."""
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
