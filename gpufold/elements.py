"""The supported dtypes: their types in the kernels, and the types of their sums and weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpufold.given import shown


@dataclass(frozen=True)
class ElementType:
    """How the kernels see a dtype: its C++ type, the type it is summed in, and whether sums are exact."""

    scalar: str
    accumulator: str
    itemsize: int
    exact: bool
    """Whether additions give the same bits in any order."""
    weight: str = ""
    """The dtype of weights and divisors; empty for integers and bool, which have none."""

    @property
    def weight_type(self) -> str:
        """The C++ type of weights; without weights a placeholder type, unused."""
        return {"float32": "float", "float64": "double"}.get(self.weight, "float")

    @cached_property
    def weight_dtype(self) -> np.dtype[Any] | None:
        return np.dtype(self.weight) if self.weight else None

    @property
    def weight_bytes(self) -> int:
        """Bytes of a weight; 0 where there are none."""
        return int(self.weight[-2:]) // 8 if self.weight else 0

    @property
    def is_half(self) -> bool:
        """Whether sums are made in float32 and rounded once."""
        return not self.exact and self.scalar != self.accumulator


ELEMENT_TYPES = {
    "bool": ElementType("Boolean", "bool", 1, exact=True),
    "int8": ElementType("unsigned char", "unsigned int", 1, exact=True),
    "uint8": ElementType("unsigned char", "unsigned int", 1, exact=True),
    "int16": ElementType("unsigned short", "unsigned int", 2, exact=True),
    "uint16": ElementType("unsigned short", "unsigned int", 2, exact=True),
    "int32": ElementType("unsigned int", "unsigned int", 4, exact=True),
    "uint32": ElementType("unsigned int", "unsigned int", 4, exact=True),
    "int64": ElementType("unsigned long long", "unsigned long long", 8, exact=True),
    "uint64": ElementType("unsigned long long", "unsigned long long", 8, exact=True),
    "float16": ElementType("Float16", "float", 2, exact=False, weight="float32"),
    "bfloat16": ElementType("BFloat16", "float", 2, exact=False, weight="float32"),
    "float32": ElementType("float", "float", 4, exact=False, weight="float32"),
    "float64": ElementType("double", "double", 8, exact=False, weight="float64"),
    "complex64": ElementType("Complex<float>", "Complex<float>", 8, exact=False, weight="float32"),
    "complex128": ElementType("Complex<double>", "Complex<double>", 16, exact=False, weight="float64"),
}
"""Every dtype that the kernels serve, by NumPy's name for it; the types are those of kernels/common.cuh."""


def _holds(wide: str, narrow: str) -> bool:
    """Return whether elements of a narrow dtype may be summed in a wide one: a safe cast in NumPy."""
    if wide == narrow or wide == "bool" or ELEMENT_TYPES[wide].is_half:
        return False
    if ELEMENT_TYPES[narrow].is_half:
        return wide in ("float32", "float64")
    return (wide[:7] == "complex") == (narrow[:7] == "complex") and np.can_cast(narrow, wide, "safe")


WIDER = {narrow: tuple([wide for wide in ELEMENT_TYPES if _holds(wide, narrow)]) for narrow in ELEMENT_TYPES}
"""The dtypes in which elements of each dtype may be summed, besides their own."""


def average_dtype(name: str) -> str:
    """Return the default dtype of averages and weighted sums.

    float32 represents bool and integers of up to 16 bits exactly; wider integers use float64.

    >>> average_dtype("uint16"), average_dtype("int32"), average_dtype("float16")
    ('float32', 'float64', 'float16')
    """
    element = ELEMENT_TYPES[name]
    return name if element.weight else "float32" if element.itemsize <= 2 else "float64"


def stitched_dtype(name: str, averaged: bool) -> str:
    """Return the dtype in which a `Stitcher` sums tiles."""
    return "float32" if ELEMENT_TYPES[name].is_half else average_dtype(name) if averaged else name


name_of = lru_cache(maxsize=256)(lambda dtype: str(dtype.name))
"""Return a dtype's name, cached: NumPy builds it in Python at each access."""


def dtype_name(given: Any) -> str:
    """Return the name of a given dtype, or what messages show if it is invalid or has foreign byte order.

    >>> dtype_name(float), dtype_name(">f4"), dtype_name("wide")
    ('float64', '>f4', "'wide'")
    """
    try:
        dtype = given if hasattr(given, "isnative") else np.dtype(given)
    except Exception:  # whatever an object raises that is asked for its dtype
        return shown(given)
    return name_of(dtype) if dtype.isnative else str(dtype)


def is_string(dtype: np.dtype[Any]) -> bool:
    """Return whether elements are strings, which are moved and never added."""
    return dtype.kind in "SUT"


@lru_cache(maxsize=256)
def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that sums are made in: float32 for the half precisions, else the array's own."""
    element = ELEMENT_TYPES.get(dtype.name)
    return np.dtype(element.weight) if element is not None and element.is_half else dtype


def check_weight_sums(dtype: str, blocks: str, given: str) -> None:
    """Raise unless weights of blocks that are summed in `dtype` can be added to an array of dtype `given`."""
    wanted = ELEMENT_TYPES[dtype].weight
    if not wanted:
        raise TypeError(
            f"add_blocks: weight_out needs an array of floats or complex numbers, got {dtype} for blocks of dtype "
            f"{blocks}; convert it with array.astype"
        )
    if given != wanted:
        raise TypeError(f"add_blocks: weight_out must have the dtype {wanted} of weights, got {given}")


MANY_HALVES = 1 << 12
"""Number of float16 elements from which `widened` is used."""

TINY = np.array([2.0**-149], np.float32)
"""The smallest subnormal number, which a thread's mode may flush to zero."""

INFINITE = 0x7C00
"""The bits of infinity in float16; NaNs have larger ones."""

LEAST_NORMAL = (127 - 14) << 23
"""The bits of 2**-14, the smallest normal float16, in float32."""


def is_narrow(elements: npt.NDArray[Any], sums: npt.NDArray[Any]) -> bool:
    """Return whether elements are many float16 values that are summed in float32."""
    return elements.dtype == np.float16 and sums.dtype == np.float32 and elements.size >= MANY_HALVES


def can_shift(halves: npt.NDArray[Any]) -> bool:
    """Return whether float16 values may be `shifted`: all are finite, and the thread does not flush denormals."""
    finite = halves.view(np.int16).max() < INFINITE and halves.view(np.uint16).max() < INFINITE | 1 << 15
    return bool(finite and TINY * 1 > 0)


def shifted(halves: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert float16 to float32 times 2**-112, whose bits are those of the float16."""
    bits = halves.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= ~(7 << 28)
    return bits.view(np.float32)


def shifted_back(floats: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert float32 times 2**-112, none of which is NaN, to float16, rounding half to even."""
    clipped = floats.clip(-(2.0**-96), 2.0**-96)  # infinite as float16
    bits = clipped.view(np.int32)
    halves = bits >> 13
    halves &= 1
    halves += (1 << 12) - 1
    halves += bits  # rounded up if more than half, or half and odd
    signs = np.right_shift(halves, 16, out=bits)
    halves >>= 13
    signs &= 1 << 15
    halves |= signs
    return halves.astype(np.uint16).view(np.float16)


def widened(halves: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert float16 to float32; in a third of NumPy's time if they `can_shift`."""
    if not can_shift(halves):
        return halves.astype(np.float32)
    floats = shifted(halves)
    floats *= np.float32(2.0**112)
    return floats


def narrowed(floats: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert float32 to float16, rounding half to even.

    This takes about half of NumPy's time if arrays stay in a core's cache and all numbers are below 2**16. A sum with
    1.5 * 2**13 times a number's power of two rounds it to 11 bits, or to the multiples of the smallest subnormal
    float16. Scaled by 2**-112, its bits are those of a float16 with 13 zeros behind.
    """
    bits = floats.view(np.int32)
    powers = bits & 0x7F800000
    powers.clip(LEAST_NORMAL, 0x7F800000, powers)  # in a third of the time of maximum, which has no upper limit
    if not (powers.max() < (127 + 16) << 23 and TINY * 1 > 0):
        return floats.astype(np.float16)
    powers += (13 << 23) + (1 << 22)
    rounded: npt.NDArray[Any] = floats + powers.view(np.float32)
    rounded -= powers.view(np.float32)
    rounded *= np.float32(2.0**-112)
    halves, signs = rounded.view(np.int32), powers
    halves >>= 13
    np.right_shift(bits, 16, out=signs)  # of the numbers: the sign of a sum that is zero is lost
    signs &= 0x8000
    halves |= signs
    return halves.astype(np.uint16).view(np.float16)


def check_sums(operation: str, dtype: str, name: str, must: str) -> None:
    """Raise, saying what it `must` be, unless data of a dtype can be summed in the named one."""
    wider = WIDER.get(dtype, ())
    if name != dtype and name not in wider:
        raise TypeError(f"{operation}: {must} {' or '.join((dtype, *wider))}, got {name}")


def check_floats(operation: str, reduction: str, name: str) -> None:
    """Raise unless averages or weighted sums may have the named dtype."""
    if not ELEMENT_TYPES[name].weight:
        what = "window" if reduction == "sum" else f"reduction {reduction!r}"
        raise TypeError(
            f"{operation}: {what} needs a dtype of floats or complex numbers, got {name}; "
            f"the default is {average_dtype(name)}, which numpy.rint rounds to integers"
        )
