"""What callers give for sizes, as exact Python integers: one for each axis, and in range."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

Size: TypeAlias = tuple[int, ...]
"""One integer per axis, height before width."""

Sizes: TypeAlias = "SupportsIndex | Iterable[SupportsIndex]"
"""What callers give: an integer for every axis alike, or a sequence or an array of one per axis."""

Extents: TypeAlias = "Sequence[SupportsIndex] | npt.NDArray[Any]"
"""The same where the number of values says how many axes there are."""

PerAxis: TypeAlias = "int | Size"
"""An integer for every axis alike, or one integer per axis."""


def as_integers(operation: str, name: str, value: object) -> PerAxis:
    """Turn what a caller gave into an int or a tuple of ints, exactly, or raise TypeError.

    >>> as_integers("col2im", "strides", [2, 3])
    (2, 3)
    """
    if type(value) is int:
        return value
    if type(value) is tuple:
        for item in value:  # a loop, which starts faster than a generator or a list
            if type(item) is not int:
                break
        else:
            return value
    try:
        if hasattr(value, "tolist"):  # arrays, tensors and scalars
            value = _values(value)
        if hasattr(value, "__index__"):
            return _integer(value)
        if not isinstance(value, str | bytes | bytearray | dict | set | frozenset):
            return tuple(map(_integer, value))  # type: ignore[call-overload]
    except TypeError:
        pass
    raise TypeError(f"{operation}: {name} must be an integer or a sequence of integers, got {value!r}")


def _values(array: Any) -> Any:
    """Return the values of an array, or raise TypeError where it has none, as a tensor without memory."""
    try:
        return array.tolist()
    except RuntimeError as error:
        raise TypeError from error


def _integer(value: Any) -> int:
    """Return a number as an int; True and False are none."""
    if isinstance(value, bool | np.bool):  # the latter was an integer until NumPy 2.2
        raise TypeError
    return operator.index(value)


def expand(operation: str, name: str, value: PerAxis, rank: int, source: str) -> Size:
    """Return one integer per axis; `source` says where the rank comes from."""
    if isinstance(value, int):
        return (value,) * rank
    if len(value) != rank:
        raise ValueError(
            f"{operation}: {name} must have {rank} values, one per axis of {source}, got {len(value)}: {name}={value}"
        )
    return value


def sequence(operation: str, name: str, value: PerAxis, counted: str, why: str) -> Size:
    """Return a value whose length says how many axes there are, and raise where it has none."""
    if isinstance(value, int) or not value:
        raise (TypeError if isinstance(value, int) else ValueError)(
            f"{operation}: {name} must be a sequence with one integer per {counted}, at least one, "
            f"because its length says how many {why}; got {value!r}"
        )
    return value


def check_at_least(operation: str, name: str, values: Size, least: int) -> None:
    """Raise unless there is at least so much on every axis."""
    for axis, value in enumerate(values):
        if value < least:
            raise ValueError(
                f"{operation}: {name} must be at least {least} on every axis, "
                f"got {value} on axis {axis}: {name}={values}"
            )
