"""Runs plans on a GPU, on the current stream: the only module that imports CuPy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import cupy
import numpy as np

from gpufold.geometry import Geometry
from gpufold.plan import PLAIN, Device, Fusion, Operand, Plan, Unsupported
from gpufold.planners import choose
from gpufold.sources import options, source_text

MAX_ALIGNMENT = 256
"""CuPy's allocator aligns to this; more makes no difference to a kernel."""

NO_WINDOW = np.zeros(1, "V8")
"""The kernels' struct of pointers to weights where there are none: a null."""

MEMORY_CLOCK_RATE, GLOBAL_MEMORY_BUS_WIDTH = 36, 37
"""The runtime's numbers for these attributes of a device."""

COPY_SHARE = 0.875
"""Prediction: what a copy reaches of the memory's peak bandwidth."""


def execute(
    operation: str,
    geometry: Geometry,
    data: Any,
    result: Any,
    variant: str = "auto",
    deterministic: bool = True,
    fusion: Fusion = PLAIN,
    window: Any = None,
    positions: Any = None,
) -> None:
    """Compute an operation on arrays of one device that have elements, on its current stream."""
    device = data.device.id
    kernel = _prepare(
        operation,
        geometry,
        data.dtype,
        data.shape,
        data.strides,
        _alignment(data.data.ptr),
        result.shape,
        result.strides,
        _alignment(result.data.ptr),
        device,
        variant,
        deterministic,
        fusion,
    )
    if cupy.cuda.runtime.getDevice() == device:
        kernel(data, result, window, positions)
    else:
        with cupy.cuda.Device(device):
            kernel(data, result, window, positions)


def run(plan: Plan, data: Any, result: Any, window: Any = None, positions: Any = None) -> None:
    """Run a plan that was made for these arrays, on the current device and stream."""
    Kernel.of(plan)(data, result, window, positions)


def warmup(
    operation: str,
    geometry: Geometry,
    dtype: str,
    input: Operand,
    output: Operand,
    variant: str = "auto",
    deterministic: bool = True,
    fusion: Fusion = PLAIN,
) -> Plan:
    """Compile what a call would run, on the current device, so that the call itself only launches."""
    plan = choose(operation, geometry, dtype, input, output, device(_current()), variant, deterministic, fusion)
    _ = _function(plan.source, plan.defines, plan.symbol).kernel  # of this device
    return plan


@cache
def device(number: int) -> Device:
    """Ask the driver for the facts that plans depend on."""
    properties = cupy.cuda.runtime.getDeviceProperties(number)
    clock = cupy.cuda.runtime.deviceGetAttribute(MEMORY_CLOCK_RATE, number)
    bits = cupy.cuda.runtime.deviceGetAttribute(GLOBAL_MEMORY_BUS_WIDTH, number)
    return Device(
        properties["name"].decode(),
        (properties["major"], properties["minor"]),
        properties["multiProcessorCount"],
        properties["maxThreadsPerMultiProcessor"],
        COPY_SHARE * 2 * 1000 * clock * bits / 8,  # data moves on both edges of the clock, given in kHz
    )


@dataclass(frozen=True, slots=True)
class Kernel:
    """A plan with its compiled function: all that is left is the launch."""

    function: Any
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    parameters: np.ndarray[Any, Any]
    """The struct, as the array of one element that CuPy passes by value."""
    zero_output: bool
    takes_window: bool

    @classmethod
    def of(cls, plan: Plan) -> Kernel:
        """Compile a plan's kernel, or find it compiled."""
        parameters = np.frombuffer(plan.parameters, np.dtype((np.void, len(plan.parameters))))
        return cls(
            _function(plan.source, plan.defines, plan.symbol),
            plan.grid,
            plan.block,
            parameters,
            plan.zero_output,
            plan.takes_window,
        )

    def __call__(self, data: Any, result: Any, window: Any = None, positions: Any = None) -> None:
        if self.zero_output:
            result.data.memset_async(0, result.nbytes)
        pointers = (data, result) if positions is None else (data, result, positions)
        if self.takes_window:
            weights = NO_WINDOW if window is None else _pointers(tuple([array.data.ptr for array in window]))
            pointers = (*pointers, weights)
        self.function(self.grid, self.block, (*pointers, self.parameters))


@lru_cache(maxsize=4096)
def _prepare(
    operation: str,
    geometry: Geometry,
    dtype: np.dtype[Any],
    data_shape: tuple[int, ...],
    data_strides: tuple[int, ...],
    data_alignment: int,
    result_shape: tuple[int, ...],
    result_strides: tuple[int, ...],
    result_alignment: int,
    device_number: int,
    variant: str,
    deterministic: bool,
    fusion: Fusion,
) -> Kernel:
    input = _operand(operation, "the input", dtype.itemsize, data_shape, data_strides, data_alignment)
    output = _operand(operation, "out", dtype.itemsize, result_shape, result_strides, result_alignment)
    plan = choose(operation, geometry, dtype.name, input, output, device(device_number), variant, deterministic, fusion)
    with cupy.cuda.Device(device_number):
        return Kernel.of(plan)


def _operand(
    operation: str, name: str, itemsize: int, shape: tuple[int, ...], strides: tuple[int, ...], alignment: int
) -> Operand:
    if any(stride % itemsize for stride in strides) or alignment < itemsize:
        raise Unsupported(
            f"{operation}: {name} has elements of {itemsize} bytes that do not lie on multiples of their size "
            f"(strides {strides}, first byte on a multiple of {alignment}); pass a copy"
        )
    return Operand(shape, tuple(stride // itemsize for stride in strides), alignment)


@lru_cache(maxsize=256)
def _pointers(addresses: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Give a struct of pointers, as the array of one element that CuPy passes by value."""
    return np.array(addresses, np.uintp).view((np.void, 8 * len(addresses)))


def _alignment(address: int) -> int:
    """Give the largest power of two that divides an address, up to MAX_ALIGNMENT."""
    address |= MAX_ALIGNMENT
    return address & -address


def _current() -> int:
    return int(cupy.cuda.runtime.getDevice())


@cache
def _module(source: str, defines: tuple[tuple[str, str], ...]) -> Any:
    return cupy.RawModule(code=source_text(source), options=options(defines), backend="nvrtc")


@cache
def _function(source: str, defines: tuple[tuple[str, str], ...], symbol: str) -> Any:
    """Give a kernel, which compiles on its first use of each device, with all others of its module."""
    return _module(source, defines).get_function(symbol)
