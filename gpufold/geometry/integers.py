"""Conversion and checks of sizes: exact Python integers, one per axis and in range."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from inspect import signature
from itertools import islice
from marshal import dumps
from typing import Any, SupportsIndex, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from gpufold.given import has_own_arithmetic, shown

Size: TypeAlias = tuple[int, ...]
"""One integer per axis, height before width."""

Sizes: TypeAlias = "SupportsIndex | Iterable[SupportsIndex]"
"""Sizes as callers give them: one integer for all axes, or a sequence or an array with one per axis."""

Extents: TypeAlias = "Sequence[SupportsIndex] | npt.NDArray[Any]"
"""Sizes whose number of values determines the number of axes."""

PerAxis: TypeAlias = "int | Size"
"""One integer for all axes, or one integer per axis."""

MOST_AXES = 64
"""Most axes of a NumPy array."""

MOST_KEPT = 256
"""Most cached results of a check."""

MARSHAL = 2
"""A version of marshal that writes equal sizes alike and distinguishes 1, True and 1.0: the fastest cache key."""

GeometryT = TypeVar("GeometryT")


def as_integers(operation: str, name: str, value: object) -> PerAxis:
    """Convert an argument to an int or a tuple of ints, exactly, or raise TypeError."""
    if type(value) is int:
        return value
    if type(value) is tuple or type(value) is list:
        for item in value:  # a loop, which starts faster than a generator or a list
            if type(item) is not int:
                break
        else:
            if len(value) <= MOST_AXES:
                return value if type(value) is tuple else tuple(value)
    shape: object = ()
    try:
        shape = getattr(value, "shape", ())
        if isinstance(shape, tuple) and len(shape) > 1:
            raise TypeError("an image in place of its size")  # before it is listed
        if has_own_arithmetic(value) or getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M"):
            raise TypeError("units would be lost")  # times list as integers
        if hasattr(value, "tolist"):  # NumPy and CuPy arrays and scalars
            value = value.tolist()
        if hasattr(value, "__index__"):
            return _integer(value)
        if isinstance(value, str | bytes | bytearray | dict | set | frozenset):
            raise TypeError(f"a {type(value).__qualname__} is no sequence of integers")
        integers = tuple(map(_integer, islice(value, MOST_AXES + 1)))  # type: ignore[call-overload]
    except Exception as error:  # whatever the methods of a caller's own class raise
        got = f"an array of shape {tuple(shape)}" if isinstance(shape, tuple) and len(shape) > 1 else shown(value)
        raise TypeError(f"{operation}: {name} must be an integer or a sequence of integers, got {got}") from error
    if len(integers) > MOST_AXES:
        raise ValueError(f"{operation}: {name} must have {MOST_AXES} values at most, got more: {shown(value)}")
    return integers


def check_of_sizes(**others: Callable[..., Any]) -> Callable[[Callable[..., GeometryT]], Callable[..., GeometryT]]:
    """Return a decorator for a check of an array's shape and of sizes: it converts the sizes and caches results.

    Other arguments are converted by functions of (operation, name, value, shape). A compiler's symbolic sizes need the
    undecorated check, `__wrapped__`.
    """

    def decorate(check: Callable[..., GeometryT]) -> Callable[..., GeometryT]:
        operation, taken = check.__name__.removesuffix("_geometry"), signature(check)
        _, *names = taken.parameters
        known: dict[bytes, GeometryT] = {}

        def converted(shape: Size, name: str, value: object) -> Any:
            other = others.get(name)
            return other(operation, name, value, shape) if other else as_integers(operation, name, value)

        @wraps(check)
        def geometry(shape: Size, *given: Any, **named: Any) -> GeometryT:
            if named:
                bound = taken.bind(shape, *given, **named)
                bound.apply_defaults()
                given = bound.args[1:]
            try:
                return known[dumps((shape, given), MARSHAL)]
            except (KeyError, ValueError):  # they are new, or no plain integers
                pass  # what is raised below does not come of it
            sizes = tuple([converted(shape, *each) for each in zip(names, given, strict=False)])
            key = dumps((tuple(shape), sizes), MARSHAL)
            result = known.get(key)
            if result is None:
                result = check(shape, *sizes)
                if len(known) >= MOST_KEPT:
                    known.clear()
                known[key] = result
            return result

        return geometry

    return decorate


def as_count(operation: str, name: str, value: object) -> int:
    """Return an argument that must be an integer of at least 1, or raise."""
    try:
        count = as_integers(operation, name, value)
    except (TypeError, ValueError):
        count = ()
    if not isinstance(count, int) or count < 1:
        raise (ValueError if isinstance(count, int) else TypeError)(
            f"{operation}: {name} must be an integer of at least 1, got {shown(value)}"
        )
    return count


def _integer(value: Any) -> int:
    """Return a number as an int; True and False are refused."""
    if isinstance(value, bool | np.bool):  # the latter was an integer until NumPy 2.2
        raise TypeError("truth is no number")
    return operator.index(value)


def expand(operation: str, name: str, value: PerAxis, rank: int, source: str) -> Size:
    """Return one integer per axis; `source` says where the rank comes from."""
    if isinstance(value, int):
        return (value,) * rank
    if len(value) != rank:
        raise ValueError(
            f"{operation}: {name} must have {rank} values, one per axis of {source}, got {len(value)}: "
            f"{name}={shown(value)}"
        )
    return value


def sequence(operation: str, name: str, value: PerAxis) -> Size:
    """Return a value whose length is the number of spatial axes; raise if it is an integer or empty."""
    if isinstance(value, int) or not value:
        write = f"; write ({shown(value)}, {shown(value)}) for two spatial axes" if isinstance(value, int) else ""
        raise (TypeError if isinstance(value, int) else ValueError)(
            f"{operation}: {name} must be a sequence with one integer per spatial axis, at least one, "
            f"got {shown(value)}{write}"
        )
    return value


def whole_shape(operation: str, name: str, value: PerAxis) -> Size:
    """Return the shape of a result; raise if it is an integer, which leaves the number of axes open."""
    if isinstance(value, int):
        raise TypeError(
            f"{operation}: {name} must be a sequence, the whole shape of the array, got {shown(value)}; "
            f"write ({shown(value)},) for one axis"
        )
    return value


def check_at_least(operation: str, name: str, values: Size, least: int, axes: str = "axis") -> None:
    """Raise unless every value is at least `least`; `axes` is the word for an axis in messages."""
    for axis, value in enumerate(values):
        if value < least:
            raise ValueError(
                f"{operation}: {name} must be at least {least} on every axis, "
                f"got {shown(value)} on {axes} {axis}: {name}={shown(values)}"
            )


def check_axes(operation: str, name: str, value: object, axes: int, what: str) -> None:
    """Raise if an array that a call needs would have too many axes."""
    if axes > MOST_AXES:
        raise ValueError(
            f"{operation}: an array has at most {MOST_AXES} axes, but {what} would have {axes}: {name}={value}"
        )
