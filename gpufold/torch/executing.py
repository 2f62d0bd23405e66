"""Execution of calls on tensors: checks, then the NumPy path on the CPU or kernels on a GPU.

Checks are not repeated for tensors like those of the last call.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_char
from functools import cache, partial
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.autograd import _profiler_enabled as is_profiling
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling
from torch.nn.functional import fold, unfold
from torch.profiler import record_function

from gpufold import extras, threads
from gpufold.arrays import bounds_of
from gpufold.calls import PLAIN, Call
from gpufold.compute import check_variant, launcher, run
from gpufold.geometry import SlidingGeometry
from gpufold.gpu import tuning
from gpufold.operations import OPERATIONS
from gpufold.torch.guards import Guards, guard_cache_of
from gpufold.torch.tensors import (
    alive,
    check_dense,
    check_like,
    check_recordable,
    check_written,
    checked_positions,
    checked_window,
    has_gradient,
    in_bytes,
    is_in_aten,
    is_transformed,
    is_wrapped,
    name_of,
    resolved,
    weights_of,
)
from gpufold.windows import axes_of_window

Arrays: TypeAlias = tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor | None, Tensor | None]
"""The data of a call, its result, the weights of its window, positions, and the tensor to add weights to."""


def add_in_place(
    call: Call, out: Tensor, blocks: Tensor, window: Any, positions: Tensor, weight_out: Tensor | None
) -> bool:
    """Add blocks to a tensor, and their weights to another, in place; return False if this needs new tensors.

    It does with gradients, under transforms, for lazily conjugated or negated tensors, and for subclasses.
    """
    axes, written = weights_of(window), (out,) if weight_out is None else (out, weight_out)
    given = (*written, blocks, positions, *axes)
    cache = guard_cache_of(call, True)
    if not ((guards := cache.guards).match(given) and guards.disjoint(given, len(written))):
        if is_wrapped(positions, weight_out, *axes):
            return False
        out, blocks, positions, weight_out = map(alive, (out, blocks, positions, weight_out))
        written = (out,) if weight_out is None else (out, weight_out)
        positions, axes = checked(call, blocks, window, positions, out)
        if weight_out is not None:
            check_like("add_blocks_", "weight_out", weight_out, out, "array")
        read = [("blocks", blocks), ("positions", positions), *[("window", each) for each in axes]]
        check_written(out, weight_out, read)
        lazy = any([resolved(tensor) is not tensor for tensor in written])
        if lazy or is_transformed() or has_gradient(blocks, *written, *axes):
            return False
        blocks = resolved(blocks)
        guards = cache.store(given, (*written, blocks, positions, *axes))
    execute_into(call, (blocks, out, axes, positions, weight_out), guards)
    count_write(out)
    if weight_out is not None:
        count_write(weight_out)
    return True


def checked(
    call: Call, data: Tensor, window: Any, positions: Tensor | None, out: Tensor | None
) -> tuple[Any, tuple[Tensor, ...]]:
    """Check the caller's tensors, and return positions and the weights of a window as kernels can read them."""
    weights = () if window is None else axes_of_window(call, window, "torch.as_tensor")
    if out is None:
        check_dense(call.operation, OPERATIONS[call.operation].data, data)
    else:
        check_dense(call.operation, "array", out)
        check_like(call.operation, "blocks", data, out, "array")
    if positions is not None:
        positions = checked_positions(call.operation, positions, data, "array")
    return positions, checked_window(call, data, weights, window)


def count_write(tensor: Tensor) -> None:
    """Tell autograd that a tensor was changed; inference tensors do not count changes."""
    if not tensor.is_inference():
        increment_version(tensor)


def written_over(out: Tensor, sums: Tensor, weight_out: Tensor | None, weights: Tensor | None) -> Tensor:
    """Copy sums into a tensor and weights into another: both, or neither if one must not be changed."""
    if not is_compiling():
        check_recordable("array", out, sums)
    if weight_out is None or weights is None:
        return out.copy_(sums)
    if not is_compiling():
        check_recordable("weight_out", weight_out, weights)
    if is_transformed():  # transforms may refuse a change: ask them first, by a copy that changes nothing
        weight_out.copy_(weights.where(weights.new_zeros((), dtype=torch.bool), weight_out))
    out.copy_(sums)
    weight_out.copy_(weights)
    return out


# ---------------------------------------------------------------------------------------------
# On the CPU by the NumPy path, on a GPU by kernels


def execute(
    call: Call,
    data: Tensor,
    weights: tuple[Tensor, ...] = (),
    positions: Tensor | None = None,
    out: Tensor | None = None,
    guards: Guards | None = None,
) -> Tensor:
    """Compute a call on checked tensors that kernels can read, into a new contiguous tensor.

    `out` is the tensor that add_blocks adds to. `guards` hold for the tensors.
    """
    if out is not None:
        result = resolved(out).clone(memory_format=torch.contiguous_format)
    elif call.data_dtype:
        result = data.new_empty(call.result_shape, dtype=getattr(torch, call.dtype))
    else:
        result = data.new_empty(call.result_shape)
    execute_into(call, (data, result, weights, positions, None), guards)
    return result


def profiled(call: Call, function: Callable[..., Any], *given: Any) -> Any:
    """Call a function under the name of an operation, if `is_profiling`."""
    with record_function(f"gpufold::{call.operation}"):
        return function(*given)


SMALL = 1 << 16
"""Most elements of columns for which torch's own functions are faster if a gradient is recorded."""


def of_torch(call: Call, data: Tensor) -> Callable[[Tensor], Tensor] | None:
    """Return torch's function for a call if it is faster and bitwise identical, else None.

    That is the case for 2-D folds and unfolds with symmetric padding, of so few elements that an autograd.Function in
    Python would cost more.
    """
    geometry, floats = call.geometry, call.dtype in ("float32", "float64")
    plain = call.fusion == PLAIN and call.variant == "auto" and not call.data_dtype
    if not (isinstance(geometry, SlidingGeometry) and floats and plain) or is_on_gpu(data):
        return None
    size, kernel, strides, dilations, begins, ends = zip(*geometry.axes, strict=True)
    if not 0 < prod(geometry.blocks_shape) <= SMALL or not is_in_aten(data, len(size), dilations, begins, ends):
        return None
    steps = {"dilation": dilations, "padding": begins, "stride": strides}
    if call.operation == "im2col":
        return partial(unfold, kernel_size=kernel, **steps)
    return partial(fold, output_size=size, kernel_size=kernel, **steps)


def execute_into(call: Call, arrays: Arrays, guards: Guards | None = None) -> None:
    """Compute a call into checked tensors, as `execute` does."""
    on = _execute_on_gpu if is_on_gpu(arrays[0]) else _execute_on_cpu
    if is_profiling():
        profiled(call, on, call, arrays, guards)
    else:
        on(call, arrays, guards)


def _execute_on_cpu(call: Call, arrays: Arrays, guards: Guards | None) -> None:
    """Compute by the NumPy path, with as many threads as torch has."""
    data, result, weights, positions, weight_out = arrays
    if call.variant != "auto":
        check_variant(call, True, "tensor on the CPU", "{}.cuda()")
    window = tuple(map(as_numpy, weights)) or None
    places = None if positions is None else as_numpy(positions)
    sums = None if weight_out is None else as_numpy(weight_out)
    before = threads.allowed.get()
    try:
        threads.allowed.set(torch.get_num_threads())
        run(call, np, as_numpy(data), as_numpy(result), window, places, sums)
    finally:
        threads.allowed.set(before)  # no token: an interrupt could lose it


def as_numpy(tensor: Tensor) -> Any:
    """Return a NumPy array on a CPU tensor's memory, which keeps the tensor alive.

    It is made by address, because after `Tensor.numpy` or DLPack torch would never again resize the tensor's storage.
    """
    dtype, strides, size = _dtype_of_array(tensor.dtype), None, tensor.nbytes
    if not tensor.is_contiguous():
        shape, strides, itemsize = in_bytes(tensor)
        size = bounds_of(shape, strides, itemsize)[1]
    buffer: Any = (c_char * size).from_address(tensor.data_ptr())
    buffer.tensor = tensor
    return np.ndarray(tensor.shape, dtype, buffer, 0, strides)


@cache
def _dtype_of_array(dtype: torch.dtype) -> np.dtype[Any]:
    """Return NumPy's dtype; bfloat16 is from the package ml_dtypes."""
    if dtype is not torch.bfloat16:
        return np.dtype(name_of(dtype))
    try:
        import ml_dtypes
    except ImportError as error:
        raise extras.missing("gpufold.torch with bfloat16 on the CPU", "ml_dtypes", "torch") from error
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def _execute_on_gpu(call: Call, arrays: Arrays, guards: Guards | None = None) -> None:
    """Launch on torch's current stream of the data's device; scratch memory is torch's."""
    data, result, weights, positions, weight_out = arrays
    try:
        launch = launcher()
    except ImportError as error:
        raise extras.missing("gpufold.torch with CUDA tensors", "cupy", "cuda13") from error
    stream = launch.stream_of(*_stream_of(data))
    if launch.current() != stream.device:
        with on_device(stream.device):
            _execute_on_gpu(call, arrays, guards)
        return
    of_data, of_result = address_of(data), address_of(result)
    of_weights = None if weight_out is None else address_of(weight_out)
    window = tuple([address_of(each) for each in weights]) if weights else ()
    addresses = of_data, of_result, of_weights, None if positions is None else address_of(positions), window
    allocate = partial(_scratch_beside, data)
    aligned = (of_data | of_result | (of_weights or 0)) % launch.MAX_ALIGNMENT == 0
    kernel = guards.kernel if guards is not None and aligned else None
    if kernel is not None and kernel.generation == tuning.generation and (kernel.open is None or not tuning.wanted()):
        kernel.launch(addresses, stream, allocate)
    elif result.numel() and (data.numel() or not call.fusion.accumulate):
        layouts = [None if each is None else _layout(each) for each in (data, result, weight_out)]
        kernel = launch.execute_at((call, *layouts, stream.device), addresses, stream, allocate)
        if guards is not None and aligned:
            guards.kernel = kernel


def _scratch_beside(tensor: Tensor, size: int) -> tuple[int, Tensor]:
    """Allocate torch memory on the device of a tensor, which later work on the stream may reuse."""
    try:
        memory = tensor.new_empty((size,), dtype=torch.uint8)
    except torch.OutOfMemoryError as error:
        raise MemoryError(str(error)) from error
    return address_of(memory), memory


def _layout(tensor: Tensor) -> Any:
    shape, strides, itemsize = in_bytes(tensor)
    return launcher().layout_of(shape, strides, address_of(tensor), itemsize)


on_device = torch.cuda.device
"""Makes a device current; CuPy's own context manager would create a context on the device that it returns to."""


def _stream_of(tensor: Tensor) -> tuple[int, int]:
    """Return the number of a tensor's device, and the handle of torch's current stream on it."""
    device = tensor.get_device()
    return device, torch._C._cuda_getCurrentRawStream(device)


def is_on_gpu(tensor: Tensor) -> bool:
    """Return whether kernels compute on a tensor."""
    return bool(tensor.is_cuda)


address_of = Tensor.data_ptr
"""Returns the address of a tensor's first element."""
