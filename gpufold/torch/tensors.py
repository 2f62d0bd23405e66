"""Tensors: dtypes, devices and memory, and conversion for kernels.

gpufold.torch calls functions of two private modules of torch, for which there is no public one. Without each, of 1,525
tests in test_torch.py, test_torch_repeated.py and test_torch_trace.py (torch 2.13):

- torch._C: 58 fail without the stack of modes, 596 without the dispatch below autograd, 12 without the kind of a view,
  209 without the question whether a transform is active. Its guards save 26 to 40 % of a small call, see guards.py.
- torch._C._functorch: 18 fail without the unwrapping of what a transform left, 30 without its old kind of batch, 180
  without the permission for one transform, which also saves 65 of 120 us of a small call with a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import _C, Tensor
from torch._C import _functorch
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.jit import is_tracing
from torch.nn import Parameter

from gpufold import arrays, outside
from gpufold.arrays import overlapping, overlaps_itself, share_addresses
from gpufold.calls import Call
from gpufold.elements import ELEMENT_TYPES
from gpufold.geometry import Size
from gpufold.geometry.integers import MOST_AXES
from gpufold.given import check_kind, is_separable
from gpufold.outside import Margins
from gpufold.torch.guards import end_of
from gpufold.weights import least_weight, of_elements, product_of
from gpufold.windows import name_of_axis


class Dtype(NamedTuple):
    """A tensor's dtype, by NumPy's name, for descriptions of calls."""

    name: str

    @property
    def isnative(self) -> bool:
        """Whether its bytes are in the machine's order: a tensor's always are."""
        return True

    def __str__(self) -> str:
        return self.name


DTYPES = {getattr(torch, name): Dtype(name) for name in ELEMENT_TYPES}
"""The dtypes that can be summed."""

INTEGERS = frozenset(dtype for dtype, known in DTYPES.items() if "int" in known.name)
"""The dtypes that positions may have."""

WEIGHTS = {name: getattr(torch, element.weight) for name, element in ELEMENT_TYPES.items() if element.weight}
"""The dtype of a window's weights, by the name of the dtype of sums."""

_autograd: Any = vars(_C)["_autograd"]  # without stubs


def name_of(dtype: Any) -> str:
    """Return NumPy's name for a dtype."""
    return str(dtype).removeprefix("torch.")


class ArraySpec(NamedTuple):
    """The properties of a tensor that describing a call needs."""

    shape: Size
    dtype: Dtype


def described(operation: str, name: str, tensor: Any) -> ArraySpec:
    """Return the shape and dtype of a tensor, or raise if it is none; `check_dense` makes the other checks."""
    if type(tensor) is not Tensor or tensor.is_nested:
        check_tensor(operation, name, tensor)
    return _described(tensor.shape, tensor.dtype)


def check_tensor(operation: str, name: str, tensor: Any) -> None:
    """Raise unless an argument is a tensor, and not nested."""
    if not isinstance(tensor, Tensor):
        check_kind(operation, name, tensor, Tensor, "torch.Tensor", "torch.as_tensor")
    if tensor.is_nested:
        raise nested(operation, name)


def nested(operation: str, name: str) -> TypeError:
    """Return the error for a nested tensor."""
    return TypeError(
        f"{operation}: {name} must be a dense tensor, got a nested one; pass each of {name}.unbind() by itself"
    )


@lru_cache(maxsize=256)
def _described(shape: Size, dtype: torch.dtype) -> ArraySpec:
    return ArraySpec(tuple(shape), Dtype(name_of(dtype)))


def check_layout(operation: str, name: str, tensor: Tensor) -> None:
    """Raise unless the elements of a tensor lie strides apart."""
    if tensor.is_nested:
        raise nested(operation, name)
    if tensor.layout is not torch.strided:
        raise TypeError(f"{operation}: {name} must be a dense tensor, got layout {tensor.layout}")


def check_dense(operation: str, name: str, tensor: Tensor) -> None:
    """Raise unless the elements of a tensor lie in the memory of a CPU or a CUDA device."""
    check_layout(operation, name, tensor)
    if not (tensor.is_cpu or tensor.is_cuda):
        raise TypeError(f"{operation}: {name} must be on the CPU or a CUDA device, got device {tensor.device}")
    check_stored(operation, name, tensor)


def check_stored(operation: str, name: str, tensor: Tensor) -> None:
    """Raise if a tensor's storage has become too small: behind it is the memory of other tensors."""
    if not _C._has_storage(tensor) or tensor.untyped_storage().device.type == "meta":
        return
    end, size = end_of(tensor), tensor.untyped_storage().nbytes()
    if end > size:
        raise ValueError(
            f"{operation}: {name} must have its elements in memory, but its storage, which was resized or freed, has "
            f"{size} bytes of the {end} needed"
        )


def check_read(operation: str, **given: Tensor) -> None:
    """Raise if torch itself would not read a tensor as kernels do; recorded calls are checked when they run."""
    if not (is_compiling() or is_tracing()):
        for name, tensor in given.items():
            check_layout(operation, name, tensor)
            check_stored(operation, name, tensor)


def extended(array: Tensor, margins: Margins, mode: str) -> Tensor:
    """Return an array padded as far as blocks extend beyond its ends; margins may be symbols."""
    check_read("array_to_blocks", array=array)
    arange = partial(torch.arange, device=array.device)
    if not is_compiling():
        result: Tensor = outside.extended(torch, arange, array, margins, mode)
        return result
    for after, (begin, end) in enumerate(reversed(tuple(margins))):  # one gather, which asks nothing of symbols
        extent = array.shape[-1 - after]
        index = outside.index_of(torch, arange(-begin, extent + end), extent, mode)
        array = array[(..., index, *(slice(None),) * after)]
    return array


def alive(tensor: Any) -> Any:
    """Return a tensor, unwrapped from transforms of torch.func that have ended; None stays None."""
    if is_compiling():  # needs no unwrapping, which torch 2.6 cannot trace
        return tensor
    while tensor is not None and (inner := _functorch.unwrap_if_dead(tensor)) is not tensor:
        tensor = inner
    return tensor


def as_kernel_input(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a checked tensor as kernels can read it: contiguous, of a dtype, not lazily negated."""
    return alive(tensor).to(dtype).resolve_neg().contiguous()


def as_kernel_weights(weights: Tensor, dtype: torch.dtype, operation: str = "") -> Tensor:
    """Return checked weights as kernels can read them, `narrowed`."""
    return as_kernel_input(narrowed(weights, dtype, operation), dtype)


def narrowed(weights: Tensor, dtype: torch.dtype, operation: str = "") -> Tensor:
    """Return weights in a dtype; no nonzero weight becomes zero, except one that `average` divides by."""
    narrow = weights.to(dtype)
    if weights.dtype is torch.float64 and dtype is torch.float32 and operation != "average":
        least = narrow + weights.sign().to(dtype) * torch.finfo(dtype).tiny  # a sum, so that it has narrow's gradient
        return torch.where((narrow == 0) & (weights != 0), least, narrow)
    return narrow


def counted_sums(operation: str, axes: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Return the weights of a block as they count in sums of weights."""
    for each in axes:
        check_real(operation, "window", each)
        check_read(operation, window=each)
    axes = [as_kernel_weights(each, dtype) for each in axes]
    weights: Tensor = product_of(torch, axes, least_weight(axes[0].itemsize, "mean"))
    return weights


def weighed(
    blocks: Tensor, weights: Tensor, axes: Sequence[Tensor], sums: torch.dtype, least: float
) -> tuple[Tensor, Tensor]:
    """Return blocks, in the dtype of their sums, times the weights of their elements, and these weights.

    Each block has a real weight, and those of a window. Both parts of complex numbers are multiplied.
    """
    dtype, terms = WEIGHTS[name_of(sums)], blocks.to(sums)
    axes = [as_kernel_weights(each, dtype) for each in axes]
    factors: Tensor = of_elements(torch, as_kernel_weights(weights, dtype), axes, blocks.ndim, least)
    if not sums.is_complex:
        return terms * factors, factors
    return torch.view_as_complex(torch.view_as_real(terms.resolve_conj()) * factors.unsqueeze(-1)), factors


def check_beside(operation: str, name: str, tensor: Tensor, like: str, other: Tensor) -> None:
    """Raise where one of two tensors has elements and the other, of device meta, has none."""
    if tensor.is_meta != other.is_meta:
        raise ValueError(f"{operation}: {name} must be on the device of {like}, {other.device}, got {tensor.device}")


def check_like(operation: str, name: str, tensor: Tensor, other: Tensor, like: str) -> None:
    """Raise unless a tensor is dense, and on the device of another."""
    check_dense(operation, name, tensor)
    if tensor.get_device() != other.get_device():
        raise ValueError(f"{operation}: {name} must be on the device of {like}, {other.device}, got {tensor.device}")


def weights_of(window: Any) -> tuple[Any, ...]:
    """Return the tensors of a window as given: one per axis, or one for the block."""
    if type(window) is Tensor:
        return (window,)
    if window is None or type(window) is tuple:
        return window or ()
    return tuple(islice(window, MOST_AXES)) if is_separable(window) else (window,)


def check_real(operation: str, name: str, weights: Any) -> None:
    """Raise unless weights are a tensor of real numbers."""
    check_tensor(operation, name, weights)
    if weights.dtype not in DTYPES or weights.dtype is torch.bool or weights.is_complex():
        raise TypeError(f"{operation}: {name} must hold real numbers, got dtype {name_of(weights.dtype)}")


def checked_window(call: Call, data: Tensor, axes: Sequence[Any], window: Any) -> tuple[Tensor, ...]:
    """Return the tensors of a window of checked shapes, as kernels can read them."""
    for axis, weights in enumerate(axes):
        name = name_of_axis(call, window, axis)
        check_real(call.operation, name, weights)
        check_like(call.operation, name, weights, data, "the data")
    return tuple([as_kernel_weights(each, WEIGHTS[call.dtype], call.operation) for each in axes])


def as_positions(operation: str, positions: Any, array: Tensor) -> Tensor:
    """Return positions as a tensor; other positions are copied, so that later changes have no effect."""
    if _C._are_functorch_transforms_active() and has_tensors(positions):
        positions = stacked(positions)
    if isinstance(positions, Tensor):
        check_tensor(operation, "positions", positions)
        return positions[:, None] if positions.ndim == 1 else positions
    check_tensor(operation, "array", array)
    taken = arrays.as_positions(operation, np, positions, array)
    return torch.from_numpy(taken if type(positions) in (list, tuple) else taken.copy()).to(array.device)


def has_tensors(value: Any) -> bool:
    """Return whether a sequence holds tensors."""
    return isinstance(value, list | tuple) and any([isinstance(each, Tensor) or has_tensors(each) for each in value])


def stacked(rows: Any) -> Tensor:
    """Return a sequence that holds tensors as one tensor."""
    if isinstance(rows, list | tuple):
        return torch.stack([*map(stacked, rows)])
    return rows if isinstance(rows, Tensor) else torch.tensor(rows)


def checked_positions(operation: str, positions: Tensor, array: Tensor, like: str) -> Tensor:
    """Return positions as kernels can read them, contiguous and int64, without reading their values."""
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
    return as_kernel_input(positions, torch.int64)


def is_traced(*tensors: Any) -> bool:
    """Return whether something records operators instead of computing: a compiler, a mode, a subclass of tensors."""
    if is_compiling() or is_tracing() or _C._len_torch_dispatch_stack() > 0:
        return True
    for tensor in tensors:  # a generator takes a microsecond
        kind = type(tensor)
        if kind is Tensor or kind is Parameter:
            if tensor.is_meta:
                return True
        elif isinstance(tensor, Tensor):
            return True
    return False


def is_wrapped(*others: Any) -> bool:
    """Return whether one of the other arguments is of a subclass of tensors, which may have no memory of its own."""
    for each in others:
        kind = type(each)
        if each is not None and kind is not Tensor and kind is not Parameter and isinstance(each, Tensor):
            return True
    return False


def is_in_aten(columns: Tensor, rank: int, dilations: Sequence[Any], begins: Any, ends: Any) -> bool:
    """Return whether aten.col2im can compute sums of columns."""
    return rank == 2 and begins == ends and 0 not in dilations and columns.is_floating_point()


def is_transformed() -> bool:
    """Return whether a transform of functions or forward differentiation is under way."""
    return bool(_C._are_functorch_transforms_active()) or forward_ad._current_level >= 0


def has_gradient(*tensors: Tensor | None) -> bool:
    """Return whether a gradient is recorded for any of several tensors."""
    return torch.is_grad_enabled() and any([tensor is not None and tensor.requires_grad for tensor in tensors])


def resolved(tensor: Tensor) -> Tensor:
    """Return a tensor that is neither lazily conjugated nor lazily negated."""
    tensor = alive(tensor)
    return tensor.resolve_conj().resolve_neg() if tensor.is_conj() or tensor.is_neg() else tensor


def share_memory(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors share an element; if that is too expensive to decide, whether their bounds overlap.

    Under a transform of torch.func, tensors stand for others and have no memory.
    """
    if _C._are_functorch_transforms_active():
        return False
    first, second = alive(first), alive(second)
    return share_addresses((Tensor.data_ptr(first), *in_bytes(first)), (Tensor.data_ptr(second), *in_bytes(second)))


def check_written(array: Tensor, weight_out: Tensor | None, read: Sequence[tuple[str, Tensor]]) -> None:
    """Raise if an output overlaps itself, or shares memory with the other or with named tensors that are read."""
    for name, tensor in (("array", array), ("weight_out", weight_out)):
        if tensor is None:
            continue
        if not tensor.is_contiguous() and overlaps_itself(*(layout := in_bytes(tensor))):
            raise overlapping("add_blocks_", name, *layout[:2])
        for other, each in [*read, ("array", array)]:
            if each is not tensor or name != other:
                check_apart(name, tensor, other, each)


def check_recordable(name: str, tensor: Tensor | None, *values: Tensor) -> None:
    """Raise if torch forbids copying values into a tensor."""
    if tensor is None:
        return
    base = tensor._base if tensor._is_view() else None
    kind = ""
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        kind = "of inference mode"
    elif not has_gradient(tensor, *values):
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
    """Raise if an output shares memory with a tensor that is read."""
    if share_memory(tensor, read):
        raise ValueError(f"add_blocks_: {name} must share no memory with {other}, got tensors that overlap")


def in_bytes(tensor: Tensor) -> tuple[Size, Size, int]:
    """Return a tensor's shape, its strides in bytes and the bytes of an element."""
    itemsize = tensor.element_size()
    return tuple(tensor.shape), tuple([stride * itemsize for stride in tensor.stride()]), itemsize
