"""Tensors as calls take them: what is checked, whose path computes, and where a result goes; no gradients here."""

from __future__ import annotations

from ctypes import c_char
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpufold import arrays, extras
from gpufold.arrays import (
    axes_of_window,
    bounds_of,
    check_bytes,
    misshapen_weights,
    name_of_axis,
    overlapping,
    overlaps_itself,
    share_addresses,
)
from gpufold.calls import Call, Unsupported, is_separable
from gpufold.compute import launcher, run
from gpufold.elements import ELEMENT_TYPES, check_dtype
from gpufold.geometry import Size
from gpufold.operations import OPERATIONS, check_name, choose
from gpufold.torch.guards import Guards


class Dtype(NamedTuple):
    """A tensor's dtype as a description of a call sees it: by NumPy's name."""

    name: str

    @property
    def isnative(self) -> bool:
        """Whether its bytes are in the machine's order: a tensor's always are."""
        return True

    def __str__(self) -> str:
        return self.name


DTYPES = {getattr(torch, name): Dtype(name) for name in ELEMENT_TYPES}
"""The dtypes that there are sums of."""

INTEGERS = frozenset(dtype for dtype, known in DTYPES.items() if "int" in known.name)
"""The dtypes that positions may have."""

WEIGHTS = {name: getattr(torch, element.weight) for name, element in ELEMENT_TYPES.items() if element.weight}
"""The dtype of a window's weights, by the name of the dtype that sums have."""

PLAIN_TYPES = (Tensor, torch.nn.Parameter)
"""What is computed on; other subclasses of tensors take part in what records operators."""


def name_of(dtype: Any) -> str:
    """Return NumPy's name for a dtype."""
    return str(dtype).removeprefix("torch.")


class Described(NamedTuple):
    """What a call asks of a tensor before it computes."""

    shape: Size
    dtype: Dtype


def described(operation: str, name: str, tensor: Any) -> Described:
    """Return a tensor's shape and dtype, or raise where it is none that calls take; `check_dense` is the rest of it."""
    if not isinstance(tensor, Tensor):
        kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
        raise TypeError(
            f"{operation}: {name} must be a torch.Tensor, got {kind}; convert it with torch.as_tensor({name}), or call "
            f"the function of the same name in gpufold"
        )
    dtype = tensor.dtype
    if dtype not in DTYPES:
        check_dtype(operation, name, name_of(dtype))
    if tensor.is_nested:
        raise TypeError(f"{operation}: {name} must be a dense tensor, got a nested one")
    return _described(tensor.shape, dtype)


@lru_cache(maxsize=1024)
def _described(shape: Size, dtype: torch.dtype) -> Described:
    return Described(tuple(shape), DTYPES[dtype])


def check_dense(operation: str, name: str, tensor: Tensor) -> None:
    """Raise unless the elements of a tensor lie in the memory of a CPU or a CUDA device."""
    if tensor.layout is not torch.strided:
        raise TypeError(f"{operation}: {name} must be a dense tensor, got layout {tensor.layout}")
    if not (tensor.is_cpu or tensor.is_cuda):
        raise TypeError(f"{operation}: {name} must be on the CPU or a CUDA device, got device {tensor.device}")


def ready(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor that was checked as kernels can read it: contiguous, of a dtype, its values in memory."""
    return tensor.to(dtype).resolve_neg().contiguous()


def check_like(operation: str, name: str, tensor: Tensor, other: Tensor, like: str) -> None:
    """Raise unless a tensor is dense, and on the device of another."""
    check_dense(operation, name, tensor)
    if tensor.get_device() != other.get_device():
        raise ValueError(f"{operation}: {name} must be on the device of {like}, {other.device}, got {tensor.device}")


def weights_of(window: Any) -> tuple[Any, ...]:
    """Return what a window is made of as it was given: the weights of each axis, or of the whole block."""
    return () if window is None else tuple(window) if is_separable(window) else (window,)


def checked_window(call: Call, data: Tensor, window: Any) -> tuple[Tensor, ...]:
    """Return the tensors of a window as kernels can read them: one of the block's shape, or one for each axis."""
    if window is None:
        return ()
    axes, shapes = axes_of_window(call, window)
    for axis, weights in enumerate(axes):
        name = name_of_axis(call, window, axis)
        if described(call.operation, name, weights).dtype.name == "bool" or weights.is_complex():
            raise TypeError(f"{call.operation}: {name} must hold real numbers, got dtype {DTYPES[weights.dtype]}")
        if weights.shape != shapes[axis]:
            raise misshapen_weights(call, name, tuple(weights.shape), shapes[axis])
        check_like(call.operation, name, weights, data, "the data")
    return tuple([ready(each, WEIGHTS[call.dtype]) for each in axes])


def as_positions(operation: str, positions: Any, array: Tensor, like: str) -> Tensor:
    """Return positions as a tensor that has a shape, beside an array where they were none."""
    if not isinstance(positions, Tensor):
        given = np.asarray(positions) if hasattr(positions, "dtype") else positions
        return torch.from_numpy(arrays.as_positions(operation, np, given, array, like)).to(array.device)
    if positions.is_nested:
        described(operation, "positions", positions)
    return positions


def checked_positions(operation: str, positions: Tensor, array: Tensor, like: str) -> Tensor:
    """Return positions as kernels can read them, contiguous and int64; no value is looked at."""
    described(operation, "positions", positions)
    check_like(operation, "positions", positions, array, like)
    return as_int64(operation, positions)


def as_int64(operation: str, positions: Tensor) -> Tensor:
    """Return positions as a contiguous tensor of int64."""
    if positions.dtype not in INTEGERS:
        raise TypeError(f"{operation}: positions must be integers, got dtype {DTYPES.get(positions.dtype)}")
    if positions.dtype is torch.uint64:  # beyond int64 is far outside of any array
        wrapped = positions.view(torch.int64)
        positions = torch.where(wrapped < 0, torch.iinfo(torch.int64).max, wrapped)
    return ready(positions, torch.int64)


# ---------------------------------------------------------------------------------------------
# Computing


def resolved(tensor: Tensor) -> Tensor:
    """Return a tensor whose values are in memory as they are, neither conjugates nor negatives of what is there."""
    return tensor.resolve_conj().resolve_neg() if tensor.is_conj() or tensor.is_neg() else tensor


def execute(
    call: Call,
    data: Tensor,
    weights: tuple[Tensor, ...] = (),
    positions: Tensor | None = None,
    out: Tensor | None = None,
    guards: Guards | None = None,
) -> Tensor:
    """Compute a call on tensors that were checked, all of them ready, into a new contiguous tensor.

    `out` is what add_blocks adds to. Guards are those that hold for the tensors.
    """
    if out is not None:
        result = resolved(out.detach()).clone(memory_format=torch.contiguous_format)
        execute_into(call, data, result, weights, positions, guards=guards)
        return result
    shape = call.result_shape
    dtype = getattr(torch, call.dtype) if call.source else data.dtype
    try:
        result = data.new_empty(shape, dtype=dtype) if call.source else data.new_empty(shape)
    except RuntimeError:
        check_bytes(call, shape, dtype.itemsize)
        raise
    execute_into(call, data, result, weights, positions, guards=guards)
    return result


def execute_into(
    call: Call,
    data: Tensor,
    result: Tensor,
    weights: tuple[Tensor, ...] = (),
    positions: Tensor | None = None,
    weight_out: Tensor | None = None,
    guards: Guards | None = None,
) -> None:
    """Compute a call into tensors that were checked, as `execute` does."""
    if is_on_gpu(data):
        _execute_on_gpu(call, data, result, weights, positions, weight_out, guards)
    else:
        _execute_on_cpu(call, data, result, weights, positions, weight_out)


def _execute_on_cpu(
    call: Call,
    data: Tensor,
    result: Tensor,
    weights: tuple[Tensor, ...],
    positions: Tensor | None,
    weight_out: Tensor | None = None,
) -> None:
    if call.variant != "auto":
        check_name(call)
        name = OPERATIONS[call.operation].data
        raise Unsupported(
            f"{call.operation}: variant {call.variant!r} is a GPU kernel, but {name} is a tensor on the CPU; "
            f"pass {name}.cuda(), or variant='auto'"
        )
    window = tuple([as_numpy(each) for each in weights]) or None
    places, sums = (None if each is None else as_numpy(each) for each in (positions, weight_out))
    run(call, np, as_numpy(data), as_numpy(result), window, places, sums)


def as_numpy(tensor: Tensor) -> Any:
    """Return a NumPy array that has a CPU tensor's memory, and keeps the tensor.

    It is made by address: `Tensor.numpy` and DLPack would forbid torch to resize the tensor's storage ever after.
    """
    dtype, strides, size = _dtype_of_array(tensor.dtype), None, tensor.nbytes
    if not tensor.is_contiguous():
        shape, strides, itemsize = _in_bytes(tensor)
        size = bounds_of(shape, strides, itemsize)[1]
    buffer: Any = (c_char * size).from_address(tensor.data_ptr())
    buffer.tensor = tensor
    return np.ndarray(tensor.shape, dtype, buffer, 0, strides)


@cache
def _dtype_of_array(dtype: torch.dtype) -> np.dtype[Any]:
    """Return NumPy's dtype; its bfloat16 is a package's."""
    if dtype is not torch.bfloat16:
        return np.dtype(name_of(dtype))
    try:
        import ml_dtypes
    except ImportError as error:
        raise extras.missing("gpufold.torch with bfloat16 on the CPU", "ml_dtypes", "torch") from error
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def _execute_on_gpu(
    call: Call,
    data: Tensor,
    result: Tensor,
    weights: tuple[Tensor, ...],
    positions: Tensor | None,
    weight_out: Tensor | None = None,
    guards: Guards | None = None,
) -> None:
    """Launch on torch's current stream of the data's device; what is converted for it lives in torch's allocator."""
    try:
        launch = launcher()
    except ImportError as error:
        raise extras.missing("gpufold.torch with CUDA tensors", "cupy", "cuda13") from error
    stream = launch.stream_of(*_stream_of(data))
    arrays = data, result, weight_out
    addresses = address_of(data), address_of(result), None if weight_out is None else address_of(weight_out)
    aligned = (addresses[0] | addresses[1] | (addresses[2] or 0)) % launch.MAX_ALIGNMENT == 0
    kernel = guards.kernel if guards is not None and aligned else None
    if kernel is None:
        strides = tuple([None if each is None or each.is_contiguous() else each.stride() for each in arrays])
        kernel = launch.prepare_at(choose, call, addresses, strides, stream.device)
        if kernel is None:
            return
        if guards is not None and aligned:
            guards.kernel = kernel
    pointers = tuple(map(address_of, weights))
    places = None if positions is None else address_of(positions)
    if kernel.scratch_bytes:
        scratch = data.new_empty((kernel.scratch_bytes,), dtype=torch.uint8)  # for later work on the stream to reuse
        kernel.launch_at(addresses, (pointers, places, address_of(scratch)), stream)
    else:
        kernel.launch_at(addresses, (pointers, places, None), stream)


def _stream_of(tensor: Tensor) -> tuple[int, int]:
    """Return the number of a tensor's device, and the handle of torch's current stream on it."""
    device = tensor.get_device()
    return device, torch._C._cuda_getCurrentRawStream(device)


def is_on_gpu(tensor: Tensor) -> bool:
    """Return whether kernels compute on a tensor."""
    return bool(tensor.is_cuda)


address_of = Tensor.data_ptr
"""Returns where a tensor's first element is."""


def share_memory(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors share an element; where that is too hard to know, whether their bounds overlap."""
    return share_addresses((address_of(first), *_in_bytes(first)), (address_of(second), *_in_bytes(second)))


def check_no_overlap(name: str, tensor: Tensor) -> None:
    """Raise where elements of a tensor that is written into share memory."""
    if not tensor.is_contiguous() and overlaps_itself(*(layout := _in_bytes(tensor))):
        raise overlapping("add_blocks_", name, *layout[:2])


def _in_bytes(tensor: Tensor) -> tuple[Size, Size, int]:
    """Return a tensor's shape, its strides in bytes and the bytes of an element."""
    itemsize = tensor.element_size()
    return tuple(tensor.shape), tuple([stride * itemsize for stride in tensor.stride()]), itemsize
