"""Recognise tensors like those of an earlier call, to skip its checks.

torch's compiler has guards that tell whether compiled code still fits. One question to a guard replaces a dozen about a
tensor: its type, dtype, device, shape and strides, lazy conjugation and negation, whether it requires a gradient, and
whether a mode or a transform of torch.func is active. Small calls take 60 to 74 % of the time without `TensorGuards`:
38 us instead of 51 for a plain fold, 62 instead of 100 with a window, 68 instead of 110 for blocks added in place
(minimum of 60 rounds on one thread of an Intel Xeon, torch 2.13, commit efa6dd3).
"""

from __future__ import annotations

from functools import lru_cache
from operator import call as ask
from typing import Any

from torch import _C, Tensor, is_grad_enabled
from torch.autograd import forward_ad

from gpufold.arrays import bounds_of
from gpufold.calls import Call

try:
    TensorGuards: Any = _C._dynamo.guards.TensorGuards
except AttributeError:  # another version of torch: every call then checks everything
    TensorGuards = None


class Guards:
    """Guards of the tensors of a call, and what is known of tensors like them."""

    __slots__ = ("_extents", "_itemsizes", "_learns", "_like", "kernel", "of_torch", "recorded")

    def __init__(self, tensors: tuple[Tensor, ...] = (), recorded: bool = False, of_torch: Any = None) -> None:
        self._like: Any = _guard(tensors) if tensors else None
        self._extents = tuple([_extent(tensor) for tensor in tensors])
        self._itemsizes = tuple([tensor.element_size() for tensor in tensors])
        self._learns = any([tensor.requires_grad for tensor in tensors])
        self.recorded = recorded
        """Whether a gradient was recorded; under torch.no_grad() none is, even for tensors that require one."""
        self.of_torch = of_torch
        """torch's function for the call, if there is one and a gradient is recorded."""
        self.kernel: Any = None
        """The kernel for memory that is aligned as allocators align it; None before the first such call."""

    def match(self, tensors: tuple[Any, ...]) -> bool:
        """Return whether tensors are like these, and a gradient is recorded for both or neither.

        Guards see neither tangents nor a storage that was resized or freed; both are checked besides.
        """
        if not (
            len(self._extents) == len(tensors)
            and forward_ad._current_level < 0
            and not (self._learns and self.recorded != is_grad_enabled())
            and self._like(*tensors)
        ):
            return False
        for number, tensor in enumerate(tensors):  # a zip of them takes twice as long
            end = tensor.storage_offset() * self._itemsizes[number] + self._extents[number]
            if end > tensor.untyped_storage().nbytes():
                return False
        return True

    def disjoint(self, tensors: tuple[Tensor, ...], written: int) -> bool:
        """Return whether the first `written` tensors, for which the guards hold, are apart from all that follow."""
        begins, extents = [*map(Tensor.data_ptr, tensors)], self._extents
        for number in range(written):
            begin, end = begins[number], begins[number] + extents[number]
            for other in range(number + 1, len(begins)):
                if begins[other] < end and begin < begins[other] + extents[other]:
                    return False
        return True


class GuardCache:
    """Guards of the last tensors that were checked for a call; none at first."""

    __slots__ = ("guards",)

    def __init__(self) -> None:
        self.guards = Guards()
        """Replaced as a whole: another thread may use the previous ones."""

    def store(self, given: tuple[Tensor, ...], checked: tuple[Tensor | None, ...], *options: Any) -> Guards:
        """Return guards of tensors; remember them if no given tensor was converted or transformed."""
        transformed = forward_ad._current_level >= 0 or _C._are_functorch_transforms_active()
        same = {*map(id, given)} == {id(each) for each in checked if each is not None}
        if TensorGuards is None or transformed or not same:
            return Guards((), *options)
        self.guards = Guards(given, *options)
        return self.guards


def _guard(tensors: tuple[Tensor, ...]) -> Any:
    """Return a function that tells whether tensors are like these; one guard of several tensors rejects repetitions."""
    if len({*map(id, tensors)}) < len(tensors):
        guards = [_guard((tensor,)) for tensor in tensors]
        return lambda *given: all(map(ask, guards, given))
    sizes, strides = [[*tensor.shape] for tensor in tensors], [[*tensor.stride()] for tensor in tensors]
    return TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check


def _extent(tensor: Tensor) -> int:
    """Return the bytes from a tensor's first element to the end of its last: no stride is negative."""
    return bounds_of(tuple(tensor.shape), tensor.stride(), 1)[1] * int(tensor.element_size())


def end_of(tensor: Tensor) -> int:
    """Return how many bytes of its storage a tensor needs."""
    extent = _extent(tensor)
    return extent and tensor.storage_offset() * tensor.element_size() + extent


@lru_cache(maxsize=1024)
def guard_cache_of(call: Call, in_place: bool = False) -> GuardCache:
    """Return the `GuardCache` of a call, the same object each time."""
    return GuardCache()
