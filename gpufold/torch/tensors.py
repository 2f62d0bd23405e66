"""Calls on tensors: what is asked of the tensors, once for all like them, and what computes; no gradients here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from ctypes import c_char
from dataclasses import replace
from functools import cache, lru_cache, partial
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import _C, Tensor
from torch._C import _functorch
from torch.autograd import _profiler_enabled, forward_ad
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling
from torch.nn.functional import fold, unfold
from torch.profiler import record_function

from gpufold import arrays, extras, threads
from gpufold.arrays import bounds_of, check_bytes, overlapping, overlaps_itself, share_addresses
from gpufold.calls import PLAIN, Call, is_separable
from gpufold.compute import launcher, run
from gpufold.elements import ELEMENT_TYPES
from gpufold.geometry import PositionsGeometry, Size, SlidingGeometry
from gpufold.gpu import tuning
from gpufold.operations import OPERATIONS, check_variant
from gpufold.torch.guards import Guards, end_of, seen_of
from gpufold.weights import least_weight, product_of
from gpufold.windows import axes_of_window, name_of_axis


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


def dtype_given(dtype: Any) -> Any:
    """Return what a caller gave as a dtype as NumPy's path understands it."""
    return DTYPES.get(dtype, dtype) if isinstance(dtype, torch.dtype) else dtype


INTEGERS = frozenset(dtype for dtype, known in DTYPES.items() if "int" in known.name)
"""The dtypes that positions may have."""

WEIGHTS = {name: getattr(torch, element.weight) for name, element in ELEMENT_TYPES.items() if element.weight}
"""The dtype of a window's weights, by the name of the dtype that sums have."""

_autograd: Any = vars(_C)["_autograd"]  # which has no stubs

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
    check_tensor(operation, name, tensor)
    return _described(tensor.shape, tensor.dtype)


def check_tensor(operation: str, name: str, tensor: Any) -> None:
    """Raise unless something is one tensor."""
    if not isinstance(tensor, Tensor):
        kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
        raise TypeError(
            f"{operation}: {name} must be a torch.Tensor, got {kind}; convert it with torch.as_tensor({name})"
        )
    if tensor.is_nested:
        raise TypeError(
            f"{operation}: {name} must be a dense tensor, got a nested one; pass each of {name}.unbind() by itself"
        )


@lru_cache(maxsize=256)
def _described(shape: Size, dtype: torch.dtype) -> Described:
    return Described(tuple(shape), Dtype(name_of(dtype)))


def check_dense(operation: str, name: str, tensor: Tensor) -> None:
    """Raise unless the elements of a tensor lie in the memory of a CPU or a CUDA device."""
    if tensor.layout is not torch.strided:
        raise TypeError(f"{operation}: {name} must be a dense tensor, got layout {tensor.layout}")
    if not (tensor.is_cpu or tensor.is_cuda):
        raise TypeError(f"{operation}: {name} must be on the CPU or a CUDA device, got device {tensor.device}")
    check_stored(operation, name, tensor)


def check_stored(operation: str, name: str, tensor: Tensor) -> None:
    """Raise where a tensor's storage has become too small for it: what lies behind is other tensors' memory."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    if not _C._has_storage(tensor) or tensor.untyped_storage().device.type == "meta":
        return
    end, size = end_of(tensor), tensor.untyped_storage().nbytes()
    if end > size:
        raise ValueError(
            f"{operation}: {name} must have its elements in memory, but its storage, which was resized or freed, has "
            f"{size} bytes of the {end} needed"
        )


def alive(tensor: Any) -> Any:
    """Return a tensor, or what it stood for in transforms of torch.func that have ended since; or None."""
    while tensor is not None and (inner := _functorch.unwrap_if_dead(tensor)) is not tensor:
        tensor = inner
    return tensor


def ready(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor that was checked as kernels can read it: contiguous, of a dtype, its values in memory."""
    return alive(tensor).to(dtype).resolve_neg().contiguous()


def ready_weights(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Return weights that were checked as kernels can read them; the least of double precision do not become zero."""
    return ready(narrowed(weights, dtype), dtype)


def narrowed(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Return weights in a dtype, of which none is zero that was not before."""
    narrow = weights.to(dtype)
    if weights.dtype is torch.float64 and dtype is torch.float32:
        return torch.where((narrow == 0) & (weights != 0), weights.sign().to(dtype) * torch.finfo(dtype).tiny, narrow)
    return narrow


def counted_sums(operation: str, axes: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Return the weights of a block as they count where they are summed beside what they weigh."""
    for each in axes:
        check_real(operation, "window", each)
        if not (is_compiling() or _C._is_tracing()):
            check_stored(operation, "window", each)
    axes = [ready_weights(each, dtype) for each in axes]
    weights: Tensor = product_of(torch, axes, least_weight(axes[0].itemsize, "mean"))
    return weights


def weighed(terms: Tensor, weights: Tensor) -> Tensor:
    """Return elements times real weights, of complex numbers both parts."""
    if not terms.is_complex():
        return terms * weights
    return torch.view_as_complex(torch.view_as_real(terms.resolve_conj()) * weights.unsqueeze(-1))


def check_like(operation: str, name: str, tensor: Tensor, other: Tensor, like: str) -> None:
    """Raise unless a tensor is dense, and on the device of another."""
    check_dense(operation, name, tensor)
    if tensor.get_device() != other.get_device():
        raise ValueError(f"{operation}: {name} must be on the device of {like}, {other.device}, got {tensor.device}")


def weights_of(window: Any) -> tuple[Any, ...]:
    """Return what a window is made of as it was given: the weights of each axis, or of the whole block."""
    return () if window is None else tuple(window) if is_separable(window) else (window,)


def check_real(operation: str, name: str, weights: Any) -> None:
    """Raise unless weights are a tensor of real numbers."""
    check_tensor(operation, name, weights)
    if weights.dtype not in DTYPES or weights.dtype is torch.bool or weights.is_complex():
        raise TypeError(f"{operation}: {name} must hold real numbers, got dtype {name_of(weights.dtype)}")


def checked_window(call: Call, data: Tensor, axes: Sequence[Any], window: Any) -> tuple[Tensor, ...]:
    """Return the tensors of a window, whose shapes were checked, as kernels can read them."""
    for axis, weights in enumerate(axes):
        name = name_of_axis(call, window, axis)
        check_real(call.operation, name, weights)
        check_like(call.operation, name, weights, data, "the data")
    return tuple([ready_weights(each, WEIGHTS[call.dtype]) for each in axes])


def as_positions(operation: str, positions: Any, array: Tensor, like: str) -> Tensor:
    """Return positions as a tensor that has a shape: where they were none, of memory that nobody else writes into."""
    if _C._are_functorch_transforms_active() and has_tensors(positions):
        positions = stacked(positions)
    if not isinstance(positions, Tensor):
        taken = arrays.as_positions(operation, np, positions, array, like)
        return torch.from_numpy(taken if type(positions) in (list, tuple) else taken.copy()).to(array.device)
    check_tensor(operation, "positions", positions)
    return positions[:, None] if positions.ndim == 1 else positions


def has_tensors(value: Any) -> bool:
    """Return whether a sequence holds tensors."""
    return isinstance(value, list | tuple) and any([isinstance(each, Tensor) or has_tensors(each) for each in value])


def stacked(rows: Any) -> Tensor:
    """Return a sequence that holds tensors as one."""
    if isinstance(rows, list | tuple):
        return torch.stack([*map(stacked, rows)])
    return rows if isinstance(rows, Tensor) else torch.tensor(rows)


def checked_positions(operation: str, positions: Tensor, array: Tensor, like: str) -> Tensor:
    """Return positions as kernels can read them, contiguous and int64; no value is looked at."""
    described(operation, "positions", positions)
    check_like(operation, "positions", positions, array, like)
    return as_int64(operation, positions[:, None] if positions.ndim == 1 else positions)


def as_int64(operation: str, positions: Tensor) -> Tensor:
    """Return positions as a contiguous tensor of int64."""
    if positions.dtype not in INTEGERS:
        raise TypeError(f"{operation}: positions must be integers, got dtype {name_of(positions.dtype)}")
    if positions.dtype is torch.uint64:  # beyond int64 is far outside of any array
        wrapped = positions.view(torch.int64)
        positions = torch.where(wrapped < 0, torch.iinfo(torch.int64).max, wrapped)
    return ready(positions, torch.int64)


def is_traced(*tensors: Any) -> bool:
    """Return whether something records operators instead of computing: a compiler, a mode, a subclass of tensors."""
    if is_compiling() or _C._is_tracing() or _C._len_torch_dispatch_stack() > 0:
        return True
    for tensor in tensors:  # a generator takes a microsecond
        if type(tensor) in PLAIN_TYPES:
            if tensor.is_meta:
                return True
        elif isinstance(tensor, Tensor):
            return True
    return False


def is_in_aten(columns: Tensor, rank: int, dilations: Sequence[Any], begins: Any, ends: Any) -> bool:
    """Return whether aten.col2im computes sums of columns."""
    return rank == 2 and begins == ends and 0 not in dilations and columns.is_floating_point()


def is_transformed() -> bool:
    """Return whether a transform of functions or forward differentiation is under way."""
    return bool(_C._are_functorch_transforms_active()) or forward_ad._current_level >= 0


def has_gradient(*tensors: Tensor | None) -> bool:
    """Return whether a gradient is recorded of one of several tensors."""
    return torch.is_grad_enabled() and any([tensor is not None and tensor.requires_grad for tensor in tensors])


def resolved(tensor: Tensor) -> Tensor:
    """Return a tensor whose values are in memory as they are, neither conjugates nor negatives of what is there."""
    tensor = alive(tensor)
    return tensor.resolve_conj().resolve_neg() if tensor.is_conj() or tensor.is_neg() else tensor


def share_memory(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors share an element; where that is too hard to know, whether their bounds overlap.

    Under a transform of torch.func, tensors stand for others and have no memory of their own.
    """
    if _C._are_functorch_transforms_active():
        return False
    first, second = alive(first), alive(second)
    return share_addresses((Tensor.data_ptr(first), *in_bytes(first)), (Tensor.data_ptr(second), *in_bytes(second)))


def check_written(name: str, tensor: Tensor, read: Sequence[Tensor]) -> None:
    """Raise where a tensor overlaps itself, or shares memory with what is read."""
    if not tensor.is_contiguous() and overlaps_itself(*(layout := in_bytes(tensor))):
        raise overlapping("add_blocks_", name, *layout[:2])
    for index, each in enumerate(read):
        check_apart(name, tensor, ("blocks", "positions", "window")[min(index, 2)], each)


def check_recordable(name: str, tensor: Tensor, values: Tensor) -> None:
    """Raise where torch forbids that values are copied into a tensor."""
    base = tensor._base if tensor._is_view() else None
    kind = ""
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        kind = "of inference mode"
    elif not has_gradient(tensor, values):
        return
    elif tensor.requires_grad and (tensor.is_leaf if base is None else base.is_leaf):
        kind = f"{'a leaf' if base is None else 'a view of a leaf'} that requires a gradient"
    elif base is not None and _autograd._get_creation_meta(tensor) != _autograd.CreationMeta.DEFAULT:
        kind = "a view that was made under torch.no_grad(), or one of several, as of unbind"
    if kind:
        raise ValueError(
            f"add_blocks_: {name} is {kind}, and must not be changed while gradients are recorded; call add_blocks, "
            "which returns a new tensor, or add under torch.no_grad()"
        )


def check_apart(name: str, tensor: Tensor, other: str, read: Tensor) -> None:
    """Raise where a tensor that is written into shares memory with one that is read."""
    if share_memory(tensor, read):
        raise ValueError(f"add_blocks_: {name} must share no memory with {other}, got tensors that overlap")


def in_bytes(tensor: Tensor) -> tuple[Size, Size, int]:
    """Return a tensor's shape, its strides in bytes and the bytes of an element."""
    itemsize = tensor.element_size()
    return tuple(tensor.shape), tuple([stride * itemsize for stride in tensor.stride()]), itemsize


# ---------------------------------------------------------------------------------------------
# The way of a call

Differentiate: TypeAlias = Callable[[Call, Tensor, Sequence[Tensor], Tensor | None, Tensor | None], Tensor]
"""Computes a call on its data, the weights of its window, positions and `out`, where gradients are asked for."""


def compute(
    differentiate: Differentiate,
    call: Call,
    data: Tensor,
    window: Any = None,
    positions: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Compute a call on what its caller gave.

    Shapes and dtypes agree. Whether its tensors are on one device is still to be checked, and whether positions and the
    window, a tensor or a sequence of them, are what kernels can read.
    """
    axes = weights_of(window)
    given = (data, *axes) if positions is None else (data, positions, *axes)
    given = given if out is None else (out, *given)
    seen = seen_of(call)
    if not (guards := seen.guards).hold(given):
        check_bytes(call, call.result_shape, call.element.itemsize)
        weights = () if window is None else axes_of_window(call, window, "torch.as_tensor")
        check_dense(call.operation, OPERATIONS[call.operation].data, data)
        if out is not None:
            check_dense(call.operation, "array", out)
            check_like(call.operation, "blocks", data, out, "array")
        if positions is not None:
            positions = checked_positions(call.operation, positions, data, "array")
        axes = checked_window(call, data, weights, window)
        transformed = is_transformed()
        recorded = transformed or has_gradient(data, out, *axes)
        data = data if recorded else resolved(data)
        own = of_torch(call, data) if recorded and not transformed else None
        guards = seen.see(given, (data, positions, out, *axes), recorded, own)
    if guards.of_torch is not None:
        with watched(call):
            return guards.of_torch(data)
    if guards.recorded:
        return differentiate(call, data, axes, positions, out)
    return execute(call, data, axes, positions, out, guards)


def compute_in_place(
    differentiate: Differentiate,
    call: Call,
    out: Tensor,
    blocks: Tensor,
    window: Any,
    positions: Tensor,
    weight_out: Tensor | None,
) -> Tensor:
    """Add blocks into a tensor, and their weights into another; gradients take the way over new tensors."""
    axes, written = weights_of(window), (out,) if weight_out is None else (out, weight_out)
    given = (*written, blocks, positions, *axes)
    seen = seen_of(call, True)
    if not ((guards := seen.guards).hold(given) and guards.apart(given, len(written))):
        weights = () if window is None else axes_of_window(call, window, "torch.as_tensor")
        out, blocks, positions, weight_out = map(alive, (out, blocks, positions, weight_out))
        written = (out,) if weight_out is None else (out, weight_out)
        check_dense("add_blocks_", "array", out)
        check_like("add_blocks_", "blocks", blocks, out, "array")
        positions = checked_positions("add_blocks_", positions, out, "array")
        axes = checked_window(call, blocks, weights, window)
        check_written("array", out, (blocks, positions, *axes))
        if weight_out is not None:
            check_like("add_blocks_", "weight_out", weight_out, out, "array")
            check_written("weight_out", weight_out, (blocks, positions, *axes))
            check_apart("weight_out", weight_out, "array", out)
        lazy = any([resolved(tensor) is not tensor for tensor in written])
        if lazy or is_transformed() or has_gradient(blocks, *written, *axes):
            plain = call._replace(fusion=call.fusion._replace(weight_out=False))
            if weight_out is not None and window is not None:
                plain = plain._replace(fusion=plain.fusion._replace(window="full"))
                window = counted_sums("add_blocks_", axes, axes[0].dtype)
            sums, new_weights = compute(differentiate, plain, blocks, window, positions, out), None
            if weight_out is not None and out.numel() and blocks.numel():
                new_weights = with_weights(differentiate, plain, weight_out, window, positions)
            return written_over(out, sums, weight_out, new_weights)
        blocks = resolved(blocks)
        guards = seen.see(given, (*written, blocks, positions, *axes))
    execute_into(call, blocks, out, axes, positions, weight_out, guards)
    count_write(out)
    if weight_out is not None:
        count_write(weight_out)
    return out


def count_write(tensor: Tensor) -> None:
    """Tell autograd that a tensor was written into; tensors of inference mode count no writes."""
    if not tensor.is_inference():
        increment_version(tensor)


def with_weights(
    differentiate: Differentiate, call: Call, weight_out: Tensor, window: Any, positions: Tensor
) -> Tensor:
    """Return weights with a window, or one, added at the positions of blocks."""
    geometry = call.geometry
    assert isinstance(geometry, PositionsGeometry)
    ones = weight_out.new_ones(()).expand(geometry.count, *geometry.block_shape)
    call = call._replace(geometry=replace(geometry, lead=()), dtype=call.element.weight, source="")
    return compute(differentiate, call, ones, window, positions, weight_out)


def written_over(out: Tensor, sums: Tensor, weight_out: Tensor | None, weights: Tensor | None) -> Tensor:
    """Copy new sums into a tensor, and new weights into another: both, or none where one may not be written into."""
    if not is_compiling():
        check_recordable("array", out, sums)
    if weight_out is None or weights is None:
        return out.copy_(sums)
    if not is_compiling():
        check_recordable("weight_out", weight_out, weights)
    if is_transformed():  # which have rules of their own for what is written into, and are asked before
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
    """Compute a call on tensors that were checked, all of them ready, into a new contiguous tensor.

    `out` is what add_blocks adds to. Guards are those that hold for the tensors.
    """
    if out is not None:
        result = resolved(out.detach()).clone(memory_format=torch.contiguous_format)
    elif call.source:
        result = data.new_empty(call.result_shape, dtype=getattr(torch, call.dtype))
    else:
        result = data.new_empty(call.result_shape)
    execute_into(call, data, result, weights, positions, guards=guards)
    return result


UNWATCHED = nullcontext()
"""What is entered where no profiler looks on."""


def watched(call: Call) -> AbstractContextManager[Any]:
    """Return what to enter for a profiler to name a call."""
    return record_function(f"gpufold::{call.operation}") if _profiler_enabled() else UNWATCHED


SMALL = 1 << 16
"""The most elements of columns for which torch's own functions are faster where a gradient is recorded."""


def of_torch(call: Call, data: Tensor) -> Callable[[Tensor], Tensor] | None:
    """Return the function of torch that computes a call with the same bits, and sooner, or None where there is none.

    It is one for symmetric sums of two axes and for what takes their blocks, of so few elements that an
    autograd.Function in Python costs more than they do.
    """
    geometry, floats = call.geometry, call.dtype in ("float32", "float64")
    plain = call.fusion == PLAIN and call.variant == "auto" and not call.source
    if not (isinstance(geometry, SlidingGeometry) and floats and plain) or is_on_gpu(data):
        return None
    size, kernel, strides, dilations, begins, ends = zip(*geometry.axes, strict=True)
    if not 0 < prod(geometry.columns_shape) <= SMALL or not is_in_aten(data, len(size), dilations, begins, ends):
        return None
    steps = {"dilation": dilations, "padding": begins, "stride": strides}
    if call.operation == "im2col":
        return partial(unfold, kernel_size=kernel, **steps)
    return partial(fold, output_size=size, kernel_size=kernel, **steps)


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
    with watched(call):
        if is_on_gpu(data):
            _execute_on_gpu(call, data, result, weights, positions, weight_out, guards)
            return
        check_variant(call, True, "tensor on the CPU", "{}.cuda()")
        window = tuple(map(as_numpy, weights)) or None
        places, sums = [None if each is None else as_numpy(each) for each in (positions, weight_out)]
        before = threads.allowed.get()
        try:
            threads.allowed.set(torch.get_num_threads())
            run(call, np, as_numpy(data), as_numpy(result), window, places, sums)
        finally:
            threads.allowed.set(before)  # no token, which an interrupt before its assignment would lose


def as_numpy(tensor: Tensor) -> Any:
    """Return a NumPy array that has a CPU tensor's memory, and keeps the tensor.

    It is made by address: `Tensor.numpy` and DLPack would forbid torch to resize the tensor's storage ever after.
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
    if launch.current() != stream.device:
        with on_device(stream.device):
            _execute_on_gpu(call, data, result, weights, positions, weight_out, guards)
        return
    of_data, of_result = address_of(data), address_of(result)
    of_weights = None if weight_out is None else address_of(weight_out)
    window = tuple([address_of(each) for each in weights]) if weights else ()
    arrays = of_data, of_result, of_weights, None if positions is None else address_of(positions), window
    allocate = partial(_scratch_beside, data)
    aligned = (of_data | of_result | (of_weights or 0)) % launch.MAX_ALIGNMENT == 0
    kernel = guards.kernel if guards is not None and aligned else None
    if kernel is not None and kernel.generation == tuning.generation and (kernel.open is None or not tuning.wanted()):
        kernel.launch(arrays, stream, allocate)
    elif result.numel() and (data.numel() or not call.fusion.accumulate):
        layouts = [None if each is None else _layout(each) for each in (data, result, weight_out)]
        kernel = launch.execute_at((call, *layouts, stream.device), arrays, stream, allocate)
        if guards is not None and aligned:
            guards.kernel = kernel


def _scratch_beside(tensor: Tensor, size: int) -> tuple[int, Tensor]:
    """Return memory of torch's that later work on the stream may reuse, on the device of a tensor."""
    try:
        memory = tensor.new_empty((size,), dtype=torch.uint8)
    except torch.OutOfMemoryError as error:
        raise MemoryError(str(error)) from error
    return address_of(memory), memory


def _layout(tensor: Tensor) -> Any:
    shape, strides, itemsize = in_bytes(tensor)
    return launcher().layout_of(shape, strides, address_of(tensor), itemsize)


on_device = torch.cuda.device
"""Makes a device the current one; CuPy's own would make a context on the one that it comes back to."""


def _stream_of(tensor: Tensor) -> tuple[int, int]:
    """Return the number of a tensor's device, and the handle of torch's current stream on it."""
    device = tensor.get_device()
    return device, torch._C._cuda_getCurrentRawStream(device)


def is_on_gpu(tensor: Tensor) -> bool:
    """Return whether kernels compute on a tensor."""
    return bool(tensor.is_cuda)


address_of = Tensor.data_ptr
"""Returns where a tensor's first element is."""
