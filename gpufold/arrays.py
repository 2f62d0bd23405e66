"""Arrays of a call: their library and device, positions, memory layout and overlap, and allocation of results."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from math import prod
from operator import attrgetter, index
from types import EllipsisType, ModuleType, SimpleNamespace
from typing import Any, Protocol, SupportsIndex, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from gpufold.calls import Call
from gpufold.geometry import Size
from gpufold.given import has_own_arithmetic, shown, type_name

ArrayT = TypeVar("ArrayT", covariant=True)
"""An array type, for any shape: a result has the type of the input, and may have more axes."""


class Array(Protocol[ArrayT]):
    """An array of any library; for type checkers, `array[...]` has any shape."""

    @property
    def shape(self) -> tuple[Any, ...]: ...
    @property
    def dtype(self) -> Any: ...
    def __getitem__(self, key: EllipsisType, /) -> ArrayT: ...


Integers: TypeAlias = "npt.NDArray[np.integer[Any] | np.bool]"
Floats: TypeAlias = "npt.NDArray[np.floating[Any]]"


class Shaped(Protocol):
    """An array, for type checkers: neither a list nor a str."""

    @property
    def shape(self) -> Any: ...


Window: TypeAlias = Shaped | Sequence[Shaped]
"""Weights of a block's elements, or one array of weights per axis."""

Positions: TypeAlias = Shaped | Sequence[Sequence[SupportsIndex] | Shaped] | Sequence[SupportsIndex]

INT64 = np.dtype(np.int64)
"""The dtype of positions, as the object that compares fastest with an array's dtype."""

Named: TypeAlias = Sequence[tuple[str, Any]]
"""Pairs of an argument's name and its array."""


def library_of(operation: str, name: str, array: object) -> ModuleType:
    """Return the array library an array belongs to: numpy, or cupy if it is imported."""
    if type(array) is np.ndarray:
        return np
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return cupy
    must, convert = f"{operation}: {name} must be a numpy.ndarray or cupy.ndarray", f"numpy.asarray({name})"
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{must}, got {type_name(array)}; convert it with {convert} or cupy.asarray({name})")
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{must} without a mask, got a masked array; convert it with {name}.filled(value)")
    if isinstance(array, np.matrix):
        raise TypeError(f"{must}, got numpy.matrix, which always has two axes; convert it with {convert}")
    if has_own_arithmetic(array):
        raise TypeError(
            f"{must}, got {type_name(array)}, which computes in its own way, such as with units; convert it with "
            f"{convert}"
        )
    return np


def check_library(operation: str, name: str, array: object, library: ModuleType, like: str) -> None:
    """Raise unless an array belongs to the library of another."""
    if type(array) is not library.ndarray and library_of(operation, name, array) is not library:
        raise TypeError(
            f"{operation}: {name} must be a {library.__name__}.ndarray like {like}, got {type_name(array)}; "
            f"convert it with {library.__name__}.asarray({name})"
        )


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype in native byte order, as results have it."""
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def result_dtype(call: Call, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a call's result, from that of its data."""
    return np.dtype(call.dtype) if call.data_dtype else native(dtype)


def device_of(library: ModuleType, array: Any) -> AbstractContextManager[Any]:
    """Return a context manager that makes the array's device current; on the CPU it does nothing."""
    device: AbstractContextManager[Any] = nullcontext() if library is np else array.device
    return device


def check_device(operation: str, library: ModuleType, name: str, array: Any, like: str, data: Any) -> None:
    """Raise if a GPU array is on another device than the data."""
    if library is not np and array.device != data.device:
        raise ValueError(f"{operation}: {name} must be on the device of {like}, {data.device}, got {array.device}")


def check_real(operation: str, name: str, dtype: np.dtype[Any]) -> None:
    """Raise unless a window's weights have a dtype of real numbers."""
    if getattr(dtype, "kind", "V") not in "fiu" and dtype.name != "bfloat16":
        raise TypeError(
            f"{operation}: {name} must hold real numbers, got dtype {dtype}"
            f"{'; multiply the blocks by complex weights instead' if getattr(dtype, 'kind', '') == 'c' else ''}"
        )


# ---------------------------------------------------------------------------------------------
# Arrays that kernels read without a copy

DENORMAL, DENORMALS = 2.0**-149, 1 << 23
"""The smallest float32 denormal, and the smallest normal number as a multiple of it."""


def is_kernel_ready(library: ModuleType, array: Any, dtype: Any) -> bool:
    """Return whether kernels can read an array without a copy: contiguous, aligned and of the given dtype.

    Reading an element at a misaligned address would destroy the CUDA context of the process.
    """
    return bool(array.dtype == dtype and array.flags.c_contiguous and _is_aligned(library, array))


def kernel_ready(library: ModuleType, array: Any, dtype: Any) -> Any:
    """Return an array that kernels can read, of the given dtype: itself, or a copy on the current device."""
    ready = library.ascontiguousarray(_converted(library, aligned(library, array), np.dtype(dtype)))
    return ready if array.shape else ready.reshape(())  # ascontiguousarray adds an axis to a 0-D array


def _converted(library: ModuleType, array: Any, dtype: np.dtype[Any]) -> Any:
    """Convert an array to a dtype, rounding as NumPy does. CuPy's casts would flush float32 denormals.

    Denormals are cast as integers instead: a denormal is an integer multiple of the smallest one.
    """
    if library is not np and dtype == np.float64 and array.dtype.name == "bfloat16":
        array = array.astype(np.float32)  # a shift of bits
    cast = array if array.dtype == dtype else array.astype(dtype)
    if library is np or {array.dtype, dtype} != {np.dtype(np.float32), np.dtype(np.float64)}:
        return cast
    if dtype == np.float64:
        count = array.view(np.int32) & np.iinfo(np.int32).max
        return library.where(count < DENORMALS, library.copysign(count * DENORMAL, cast), cast)
    size, bits = abs(array), cast.view(np.int32)
    count = library.rint(size / DENORMAL).astype(np.int32)  # half to even, as casts round
    return library.where(size < DENORMALS * DENORMAL, count + (bits & np.iinfo(np.int32).min), bits).view(np.float32)


def aligned(library: ModuleType, array: Any) -> Any:
    """Return an array whose elements are aligned to their size: itself, or a copy on the current device.

    CuPy's functions need aligned elements too. Bytes can be copied from any address.
    """
    if _is_aligned(library, array):
        return array
    if library is np:
        return array.copy()
    return _octets(library, array).copy().view(array.dtype).reshape(array.shape)


def _octets(library: ModuleType, array: Any) -> Any:
    """Return a view of an array as bytes; the last axis has the bytes of one element."""
    return library.ndarray((*array.shape, array.itemsize), np.uint8, array.data, (*array.strides, 1))


def _is_aligned(library: ModuleType, array: Any) -> bool:
    if library is np:
        return bool(array.flags.aligned)
    itemsize = array.itemsize
    if array.data.ptr % itemsize == 0 and array.flags.c_contiguous:
        return True
    steps = [stride for extent, stride in zip(array.shape, array.strides, strict=True) if extent > 1]
    return array.size == 0 or not any(step % itemsize for step in (array.data.ptr, *steps))


def check_no_capture(operation: str, library: ModuleType, name: str, wanted: str) -> None:
    """Raise if an argument needs conversion while the current stream is captured into a CUDA graph.

    Each launch of the graph would convert it again, into memory that belongs to another array by then.
    """
    if library is not np and library.cuda.get_current_stream().is_capturing():
        raise ValueError(
            f"{operation}: {name} must be {wanted} while a CUDA graph is captured: a converted copy would not "
            "outlive the call; convert it before the capture"
        )


def check_no_temporaries(operation: str, library: ModuleType, argument: str) -> None:
    """Raise if an argument needs temporary arrays while the current stream is captured into a CUDA graph.

    Each launch of the graph would write to them, in memory that belongs to other arrays by then.
    """
    if library is not np and library.cuda.get_current_stream().is_capturing():
        raise ValueError(
            f"{operation}: {argument} needs temporary arrays, which would not outlive the call, and cannot be used "
            "while a CUDA graph is captured"
        )


def as_positions(
    operation: str, library: ModuleType, positions: Any, array: Any, name: str = "array", converted: bool = True
) -> Any:
    """Return positions as int64 that kernels can read, on the device of `array`; GPU positions are not read by the CPU.

    Positions along one axis may be 1-D. Arrays of NumPy stay as they are unless `converted`.

    >>> as_positions("add_blocks", np, [(0, -3), (5, 2)], np.zeros((8, 8)))
    array([[ 0, -3],
           [ 5,  2]])
    """
    on_host = not hasattr(positions, "dtype")
    if on_host:
        given = _listed_positions(operation, positions)
    else:
        given = positions
        check_library(operation, "positions", given, library, name)
        if given.dtype.kind not in "iu":
            raise TypeError(f"{operation}: positions must be integers, got dtype {given.dtype}")
        check_device(operation, library, "positions", given, name, array)
    given = given[:, None] if len(given.shape) == 1 else given
    if not on_host and ((library is np and not converted) or is_kernel_ready(library, given, INT64)):
        return given
    with device_of(library, array):
        check_no_capture(operation, library, "positions", f"a contiguous, aligned array of int64 beside {name}")
        if on_host:
            return library.asarray(as_int64(np, given))
        return as_int64(library, given)


def _listed_positions(operation: str, positions: Any) -> Any:
    """Convert positions given as a sequence to an array of integers, or raise."""
    if type(positions) is list or type(positions) is tuple:
        for row in positions:
            if type(row) is not tuple and isinstance(row, np.ndarray):
                library_of(operation, "a row of positions", row)
    try:
        given = np.asarray(positions)
        if given.ndim and (not given.size or given.dtype.kind in "iu"):
            return given
        rows = positions if given.ndim != 1 else [[each] for each in positions]
        fits = given.ndim not in (1, 2) or not all([isinstance(index(each), int) for row in rows for each in row])
    except TypeError:
        fits = True
    except Exception:  # whatever the methods of a caller's own class raise
        fits = False
    if fits:
        must = "a sequence of integers, one position per block" if hasattr(positions, "__index__") else "integers"
        raise TypeError(f"{operation}: positions must be {must}, got {shown(positions)}")
    raise ValueError(
        f"{operation}: positions must be of shape (number of blocks, number of spatial axes) and fit into 64 bits, got "
        f"{shown(positions)}"
    )


def as_int64(library: ModuleType, positions: Any) -> Any:
    """Return positions as int64 that kernels can read."""
    if positions.dtype.kind == "u" and positions.dtype.itemsize == 8:  # beyond int64 is far outside of any array
        positions = library.minimum(aligned(library, positions), np.uint64(np.iinfo(np.int64).max))
    return kernel_ready(library, positions, np.int64)


# ---------------------------------------------------------------------------------------------
# Results


def new_result(call: Call, library: ModuleType, data: Any, shape: Size) -> Any:
    """Allocate the result on the device of the data."""
    if call.fusion.accumulate:
        raise ValueError(f"{call.operation}: accumulate=True adds to out, but out is None; pass the array to add to")
    dtype = result_dtype(call, data.dtype)
    check_bytes(call, shape, dtype.itemsize)
    if library is np:
        try:
            return np.empty(shape, dtype)
        except MemoryError as error:
            raise MemoryError(f"{call.operation}: {error}") from None
    with data.device:
        return library.empty(shape, dtype)


def check_bytes(call: Call, shape: Size, itemsize: int) -> None:
    """Raise if a result has more bytes than an array can have; axes of length 0 are ignored."""
    size = _bytes_of(shape, itemsize)
    if size > sys.maxsize:
        raise ValueError(
            f"{call.operation}: the result of shape {shape} and dtype {call.dtype} has {size} bytes, "
            f"more than the {sys.maxsize} that an array can have"
        )


def extended_call(call: Call, itemsize: int) -> tuple[Call, list[tuple[int, int]]]:
    """Return a call on an array that is extended as far as its blocks reach, and the margins, or raise if it cannot."""
    call, margins = call.extended
    check_bytes(call, call.geometry.array_shape, itemsize)
    return call, margins


@lru_cache(maxsize=1024)
def _bytes_of(shape: Size, itemsize: int) -> int:
    return prod(filter(None, shape)) * itemsize


def check_out(call: Call, library: ModuleType, out: Any, shape: Size, read: Named) -> None:
    """Raise unless `out` can take the result of a call that reads the arrays in `read`, the data first."""
    operation, (name, data) = call.operation, read[0]
    if type(out) is not type(data):
        check_library(operation, "out", out, library, name)
    if out.shape != shape:
        raise ValueError(f"{operation}: out must have the result's shape {shape}, got {out.shape}")
    dtype = result_dtype(call, data.dtype)
    if out.dtype != dtype:
        raise TypeError(f"{operation}: out must have the result's dtype {dtype}, got {out.dtype}")
    check_writable(operation, library, "out", out, name, data)
    if operation == "average" and is_same(library, out, data):
        read = read[1:]  # each element is read before it is written
    check_apart(operation, library, "out", out, read)


def copy_of(library: ModuleType, array: Any) -> Any:
    """Return a contiguous copy of an array, in native byte order, on the same device."""
    with device_of(library, array):
        if library is np:
            return np.array(array, native(array.dtype), order="C")
        return aligned(library, array).copy(order="C")


def copy_into(library: ModuleType, out: Any, array: Any) -> None:
    """Copy an array into `out` on its device, byte by byte if `out` is not aligned: CuPy's functions need that."""
    with device_of(library, array):
        if library is np or _is_aligned(library, out):
            out[...] = aligned(library, array)
        else:
            _octets(library, out)[...] = _octets(library, kernel_ready(library, array, out.dtype))


def is_same(library: ModuleType, first: Any, second: Any) -> bool:
    """Return whether two arrays of equal shape have the same elements in memory."""
    if first is second:
        return True
    address = attrgetter("ctypes.data" if library is np else "data.ptr")
    return bool(address(first) == address(second) and first.strides == second.strides)


def check_writable(operation: str, library: ModuleType, name: str, array: Any, like: str, data: Any) -> None:
    """Raise unless an array is writeable, on the device of the data, and does not overlap itself."""
    if library is np and not array.flags.writeable:
        raise ValueError(f"{operation}: {name} must be writeable, got a read-only array")
    check_device(operation, library, name, array, like, data)
    if not array.flags.c_contiguous and overlaps_itself(array.shape, array.strides, array.itemsize):
        raise overlapping(operation, name, array.shape, array.strides)


def overlapping(operation: str, name: str, shape: Size, strides: Size) -> ValueError:
    """Return the error for an output whose elements share memory; its strides are in bytes."""
    return ValueError(
        f"{operation}: {name} must not overlap itself, got shape {shape} and strides of {strides} bytes, by which "
        "elements share memory; pass a copy"
    )


def check_apart(operation: str, library: ModuleType, name: str, written: Any, others: Named) -> None:
    """Raise if an output shares memory with other arrays."""
    for other, array in sharing(library, written, others):
        raise ValueError(
            f"{operation}: {name} must share no memory with {other}, got arrays that overlap: shapes "
            f"{written.shape} and {array.shape}; pass a copy of one"
        )


def _span(array: Any) -> tuple[int, int]:
    """Return the begin and end of a GPU array's memory."""
    address = array.data.ptr
    if array.flags.c_contiguous:
        return address, address + array.nbytes
    begin, end = bounds_of(array.shape, array.strides, array.itemsize)
    return address + begin, address + end


def _at(address: int, shape: Size, strides: Size, itemsize: int) -> npt.NDArray[Any]:
    """Return an array at a GPU's address, for NumPy's arithmetic on addresses; its memory is never read."""
    layout = {"shape": shape, "strides": strides, "typestr": f"|V{itemsize}"}
    return np.asarray(SimpleNamespace(__array_interface__={"version": 3, "data": (address, True), **layout}))


def sharing(library: ModuleType, array: Any, others: Named) -> Iterator[tuple[str, Any]]:
    """Yield the others that share an element with an array; if that is too expensive to decide, by their bounds.

    The CPU decides from addresses. CuPy's `shares_memory` would synchronise with the device, and its
    `may_share_memory` compares only within one allocation, and every imported array counts as its own. All devices of
    a process share one address space, so memory of different devices never overlaps.
    """
    if library is np:
        yield from (each for each in others if _share(array, each[1]))
        return
    begin, end = _span(array)
    for each in others:
        other_begin, other_end = _span(each[1])
        if begin < other_end and other_begin < end and share_addresses(_memory_of(array), _memory_of(each[1])):
            yield each


def _memory_of(array: Any) -> tuple[int, Size, Size, int]:
    return array.data.ptr, array.shape, array.strides, array.itemsize


def share_addresses(first: tuple[int, Size, Size, int], second: tuple[int, Size, Size, int]) -> bool:
    """Compare arrays given by address, shape, strides in bytes and itemsize, as `sharing` does."""
    address, shape, strides, itemsize = first
    begin, end = bounds_of(shape, strides, itemsize)
    other, shape, strides, itemsize = second
    other_begin, other_end = bounds_of(shape, strides, itemsize)
    apart = other - address
    if end <= apart + other_begin or apart + other_end <= begin:
        return False
    return _share(_at(*first), _at(*second))


@lru_cache(maxsize=1024)
def overlaps_itself(shape: Size, strides: Size, itemsize: int) -> bool:
    """Return whether elements of an array share memory; True if that is too expensive to decide. Strides are in bytes.

    For each axis, the first slice is compared with all later ones: any other pair of elements is such a pair, shifted.

    >>> overlaps_itself((3, 2), (4, 4), 4), overlaps_itself((3, 2), (4, 12), 4)
    (True, False)
    """
    steps = tuple(map(abs, strides))
    return 0 not in shape and any(
        share_addresses(
            (itemsize, shape[axis + 1 :], steps[axis + 1 :], itemsize),
            (itemsize + steps[axis], (extent - 1, *shape[axis + 1 :]), steps[axis:], itemsize),
        )
        for axis, extent in enumerate(shape)
        if extent > 1
    )


def _share(first: Any, second: Any) -> bool:
    try:
        return np.shares_memory(first, second, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


@lru_cache(maxsize=1024)
def bounds_of(shape: Size, strides: Size, itemsize: int) -> tuple[int, int]:
    """Return the begin and end of an array's memory, in bytes from its first element."""
    if 0 in shape:
        return 0, 0
    steps = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0) + itemsize
