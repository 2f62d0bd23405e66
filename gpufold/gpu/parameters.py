"""Numbers for kernels: offsets and their width, division by an invariant, and parameter structs laid out as in C++."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpufold.calls import Unsupported
from gpufold.geometry import Size

INT32_MAX = 2**31 - 1
"""Offsets up to here are 32 bits wide; a test lowers it to reach the 64-bit kernels with small arrays."""

INT64_MAX = 2**63 - 1


def contiguous_strides(shape: Size) -> Size:
    """Return the strides, in elements, of a C-contiguous array."""
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def are_contiguous(shape: Size, strides: Size) -> bool:
    """Return whether an array is C-contiguous; the strides of axes of length 1 are ignored."""
    steps = zip(shape, strides, contiguous_strides(shape), strict=True)
    return all(extent == 1 or stride == step for extent, stride, step in steps)


def offset_bits(*largest: int) -> int:
    """Return the width of a kernel's Offset, from the largest values that it must hold."""
    if max(largest) <= INT32_MAX:
        return 32
    if max(largest) <= INT64_MAX // 2:
        return 64
    raise Unsupported(f"offsets up to {max(largest)} do not fit into 64 bits on a GPU")


# ---------------------------------------------------------------------------------------------
# Parameter structs


class Field(NamedTuple):
    """A member of a kernel's parameter struct, or an array of them: its kind of type and its value."""

    kind: str
    value: Any


offset = partial(Field, "offset")
"""Describes an Offset, as wide as the kernel's offsets are."""

divisor = partial(Field, "divisor")
"""Describes the Divisor of common.cuh, by the number to divide by."""

wide = partial(Field, "wide")
"""Describes a long long, such as the distance of two planes."""


def struct(**members: Field) -> Field:
    """Describe a struct, such as the base that several kernels' parameters have in common."""
    return Field("struct", members)


def pack(bits: int, **members: Field) -> bytes:
    """Return the bytes of a parameter struct in its C++ layout, from its members in order.

    Padding bytes are zero, so equal structs have equal bytes.
    """
    dtype, value = _laid_out(bits, members)
    packed = np.zeros((), dtype)
    packed[()] = value
    return packed.tobytes()


def _laid_out(bits: int, members: Mapping[str, Field]) -> tuple[np.dtype[Any], tuple[Any, ...]]:
    signed, unsigned = f"i{bits // 8}", f"u{bits // 8}"
    divisor_type = np.dtype([("divisor", signed), ("multiplier", unsigned), ("shift", "i4")], align=True)
    types: dict[str, Any] = {"offset": signed, "divisor": divisor_type, "wide": "i8"}
    layout: list[Any] = []
    values: list[Any] = []
    for name, (kind, value) in members.items():
        if kind == "struct":
            inner, value = _laid_out(bits, value)
            layout.append((name, inner))
        else:
            count = (len(value),) if isinstance(value, Sequence) else ()
            layout.append((name, types[kind], count))
            if kind == "divisor":
                value = [reciprocal(number, bits) for number in value] if count else reciprocal(value, bits)
            elif count:
                value = list(value)
        values.append(value)
    return np.dtype(layout, align=True), tuple(values)


def reciprocal(number: int, bits: int) -> tuple[int, int, int]:
    """Return the members of a Divisor: n // number is (high(n * multiplier) + n) >> shift for every n >= 0.

    >>> _, multiplier, shift = reciprocal(7, 32)
    >>> all(((n * multiplier >> 32) + n) >> shift == n // 7 for n in (0, 6, 7, 2**31 - 1))
    True
    """
    shift = (number - 1).bit_length()
    return number, (1 << bits) * ((1 << shift) - number) // number + 1, shift
