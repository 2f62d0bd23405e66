"""What every public function does with the arrays it is given: whose they are, what fits, where a result goes."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from math import prod
from types import ModuleType
from typing import Any, Protocol, TypeVar

import numpy as np

from gpufold.geometry import Size
from gpufold.plan import ELEMENT_TYPES, Unsupported
from gpufold.planners import variants


class Array(Protocol):
    """What numpy.ndarray and cupy.ndarray have in common here."""

    @property
    def shape(self) -> Size: ...
    @property
    def strides(self) -> Size: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def size(self) -> int: ...


ArrayT = TypeVar("ArrayT", bound=Array)
"""numpy.ndarray or cupy.ndarray: a result is of the kind of the input."""


def library_of(operation: str, name: str, array: object) -> ModuleType:
    """Give the array library an array belongs to: numpy, or cupy where the caller has imported it."""
    if isinstance(array, np.ndarray):
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError(
                f"{operation}: {name} must be a numpy.ndarray or cupy.ndarray without a mask, got a masked array; "
                f"convert it with {name}.filled(value)"
            )
        return np
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return cupy
    kind = f"{type(array).__module__}.{type(array).__qualname__}"
    raise TypeError(
        f"{operation}: {name} must be a numpy.ndarray or cupy.ndarray, got {kind}; "
        f"convert it with numpy.asarray({name}) or cupy.asarray({name})"
    )


def check_library(operation: str, name: str, array: object, library: ModuleType, like: str) -> None:
    """Raise unless an array belongs to the library of another."""
    if library_of(operation, name, array) is not library:
        raise TypeError(
            f"{operation}: {name} must be a {library.__name__}.ndarray like {like}, got {type(array).__module__}."
            f"{type(array).__qualname__}; convert it with {library.__name__}.asarray({name})"
        )


def device_of(library: ModuleType, array: Any) -> AbstractContextManager[Any]:
    """Give what makes an array's device, if it is on one, the current device of a `with` block."""
    device: AbstractContextManager[Any] = nullcontext() if library is np else array.device
    return device


def check_no_capture(operation: str, library: ModuleType, name: str, wanted: str) -> None:
    """Raise where an argument is to be converted while the current stream is captured into a CUDA graph.

    The graph would convert it again at each launch, into memory that has long been another array's.
    """
    if library is not np and library.cuda.get_current_stream().is_capturing():
        raise ValueError(
            f"{operation}: {name} must be {wanted} while a CUDA graph is captured, for what it would be converted to "
            f"does not outlive the call; convert it before"
        )


def is_kernel_ready(library: ModuleType, array: Any, dtype: Any) -> bool:
    """Return whether kernels can read an array where it lies: contiguous, aligned and of a dtype.

    A GPU ends the context of a process that reads an element from an address that is no multiple of its size.
    """
    return bool(array.dtype == dtype and array.flags.c_contiguous and _is_aligned(library, array))


def kernel_ready(library: ModuleType, array: Any, dtype: Any) -> Any:
    """Return an array of a dtype as kernels can read it: itself, or a copy on the current device."""
    return library.ascontiguousarray(aligned(library, array), dtype)


def aligned(library: ModuleType, array: Any) -> Any:
    """Return an array whose elements lie on multiples of their size: itself, or a copy on the current device.

    CuPy's own functions read by elements and need this too; a copy of the bytes is safe from any address.
    """
    if _is_aligned(library, array):
        return array
    if library is np:
        return array.copy()
    octets = library.ndarray((*array.shape, array.itemsize), np.uint8, array.data, (*array.strides, 1))
    return octets.copy().view(array.dtype).reshape(array.shape)


def _is_aligned(library: ModuleType, array: Any) -> bool:
    if library is np:
        return bool(array.flags.aligned)
    if array.size == 0:
        return True
    itemsize = array.itemsize
    return array.data.ptr % itemsize == 0 and (
        array.flags.c_contiguous
        or all(stride % itemsize == 0 for extent, stride in zip(array.shape, array.strides, strict=True) if extent > 1)
    )


@lru_cache(maxsize=256)
def result_dtype(operation: str, name: str, dtype: np.dtype[Any], strings: bool) -> np.dtype[Any]:
    """Give the dtype of a result: the input's in native byte order."""
    if dtype.name not in ELEMENT_TYPES and not (strings and dtype.kind in "SUT"):
        raise TypeError(
            f"{operation}: {name} has dtype {dtype}, but the supported ones are {', '.join(ELEMENT_TYPES)}"
            f"{' and strings' if strings else ''}"
        )
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def result_array(
    operation: str, library: ModuleType, name: str, array: Any, shape: Size, out: Any, variant: str, window: Any = None
) -> Any:
    """Check everything that is left to check, then give `out` or a new array of the result's shape."""
    dtype = result_dtype(operation, name, array.dtype, library is np)
    if variant != "auto":
        check_variant(operation, library, name, variant)
    if out is None:
        size = prod(shape) * dtype.itemsize
        if size > sys.maxsize:
            raise ValueError(
                f"{operation}: the result of shape {shape} and dtype {dtype} has {size} bytes, "
                f"more than the {sys.maxsize} that an array can have"
            )
        with device_of(library, array):
            return library.empty(shape, dtype)
    check_library(operation, "out", out, library, name)
    if out.shape != shape:
        raise ValueError(f"{operation}: out must have the result's shape {shape}, got {out.shape}")
    if out.dtype != dtype:
        raise TypeError(f"{operation}: out must have the result's dtype {dtype}, got {out.dtype}")
    if library is np:
        if not out.flags.writeable:
            raise ValueError(f"{operation}: out must be writeable, got a read-only array")
    else:
        if out.device != array.device:
            raise ValueError(f"{operation}: out must be on the device of {name}, {array.device}, got {out.device}")
    if share_memory(library, out, array):
        raise ValueError(
            f"{operation}: out must share no memory with {name}, got arrays that overlap: shapes {out.shape} "
            f"and {array.shape}; pass a copy of one"
        )
    for weights in window or ():
        if share_memory(library, out, weights):
            raise ValueError(
                f"{operation}: out must share no memory with window, got arrays that overlap; pass a copy of one"
            )
    return out


class _Addresses:
    """Where an array's elements lie, for NumPy's arithmetic on addresses; the memory, a GPU's, is never read."""

    def __init__(self, array: Any) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (array.data.ptr, True),
            "shape": array.shape,
            "strides": array.strides,
            "typestr": f"|V{array.itemsize}",
        }


def share_memory(library: ModuleType, first: Any, second: Any) -> bool:
    """Return whether two arrays share an element; where that is too hard to know, whether their bounds overlap.

    Addresses alone decide, on the CPU: CuPy's `shares_memory` computes on the device and waits for it, and its
    `may_share_memory` compares bounds inside one allocation only, as which each import counts. A process has one
    address space for all of its devices, in which memory of different devices never overlaps.
    """
    if library is not np:
        begin, end = _bounds(first.shape, first.strides, first.itemsize)
        other_begin, other_end = _bounds(second.shape, second.strides, second.itemsize)
        apart = second.data.ptr - first.data.ptr
        if end <= apart + other_begin or apart + other_end <= begin:
            return False
        first, second = np.asarray(_Addresses(first)), np.asarray(_Addresses(second))
    try:
        return np.shares_memory(first, second, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


@lru_cache(maxsize=4096)
def _bounds(shape: Size, strides: Size, itemsize: int) -> tuple[int, int]:
    """Return where an array's memory begins and ends, in bytes from its first element."""
    if 0 in shape:
        return 0, 0
    steps = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0) + itemsize


def check_variant(operation: str, library: ModuleType, name: str, variant: str) -> None:
    """Raise unless a variant is "auto" or a kernel of the operation and the arrays are a GPU's."""
    names = variants(operation)
    if variant not in names:
        raise ValueError(f"{operation}: variant must be auto or one of {', '.join(names)}, got {variant!r}")
    if library is np:
        raise Unsupported(
            f"{operation}: variant {variant!r} is a GPU kernel, but {name} is a numpy.ndarray; "
            f"pass cupy.asarray({name}), or variant='auto'"
        )
