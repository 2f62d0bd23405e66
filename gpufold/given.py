"""Checks of options that are neither arrays nor sizes, and how messages show what was given."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches
from functools import cache
from numbers import Integral, Number
from reprlib import Repr
from typing import Any

import numpy as np

NUMBERS, COMPLEX = (int, float, Number, np.number, np.bool_), (complex, np.complexfloating)
"""Types of numbers, the fastest to check first; types of complex numbers."""

BEYOND_DOUBLES = 1 << 1023
"""Integers of this magnitude or more are refused as floats."""

OWN = "__array_ufunc__", "__array_function__"
"""Methods by which subclasses of NumPy's arrays compute in their own way, such as with units."""

WINDOWS = ("none", "separable", "full")
"""Kinds of windows: none, an array of weights per axis, or a weight per element of a block."""

_repr = Repr()
_repr.maxlevel = 3
_repr.maxtuple = _repr.maxlist = _repr.maxarray = _repr.maxset = _repr.maxfrozenset = _repr.maxdict = 20
_repr.maxstring = _repr.maxlong = _repr.maxother = 120


def shown(value: object) -> str:
    """Return a value as messages show it, shortened, even if its `repr` raises.

    >>> shown((2, "3")), shown([0] * 10**6).count("0")
    ("(2, '3')", 20)
    """
    return _repr.repr(value)


def type_name(value: object) -> str:
    """Return the name of a value's type with its module, for messages.

    >>> type_name(np.ones(2))
    'numpy.ndarray'
    """
    return f"{type(value).__module__}.{type(value).__qualname__}"


def has_own_arithmetic(array: object) -> bool:
    """Return whether an array is of a subclass of NumPy's that computes in its own way, such as with units."""
    kind = type(array)
    return issubclass(kind, np.ndarray) and any(getattr(kind, each) is not getattr(np.ndarray, each) for each in OWN)


def device_of_cupy(array: Any) -> AbstractContextManager[Any]:
    """Return a context manager that makes the device of a CuPy array current; for other arrays it does nothing."""
    cupy = sys.modules.get("cupy")
    device: AbstractContextManager[Any] = nullcontext()
    return array.device if cupy is not None and isinstance(array, cupy.ndarray) else device


def check_kind(operation: str, name: str, array: object, kind: type, named: str, convert: str) -> None:
    """Raise unless an array is of a type; messages show its name and the function that converts to it."""
    if not isinstance(array, kind):
        raise TypeError(
            f"{operation}: {name} must be a {named}, got {type_name(array)}; convert it with {convert}({name})"
        )


def word(operation: str, name: str, given: Any, known: Sequence[str]) -> str:
    """Return an option that is one of several words, as a plain str, or raise.

    Members of an enumeration of strings are accepted. An object that equals a word without being a str, such as an
    array, raises TypeError.

    >>> word("col2im", "reduction", np.str_("mean"), ("sum", "mean"))
    'mean'
    """
    if type(given) is str and given in known:
        return given
    if not isinstance(given, str):
        raise TypeError(f"{operation}: {name} must be a str, one of {', '.join(known)}, got {shown(given)}")
    plain = str.__str__(given)
    if plain not in known:
        close = get_close_matches(plain, known, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{operation}: {name} must be one of {', '.join(known)}, got {shown(given)}{hint}")
    return plain


def flag(operation: str, name: str, given: Any) -> bool:
    """Return an option that is True or False, of Python or NumPy, or raise; other truth values are refused.

    >>> flag("col2im", "accumulate", np.True_)
    True
    """
    if given is True or given is False:
        return given
    if not isinstance(given, np.bool):
        raise TypeError(f"{operation}: {name} must be True or False, got {shown(given)}")
    return bool(given)


def check_number(operation: str, name: str, given: Any, dtype: str = "complex128") -> None:
    """Raise unless an argument is a number, of Python or NumPy, that a dtype can hold.

    >>> check_number("col2im", "fill_value", 300, "uint8")
    Traceback (most recent call last):
    ValueError: col2im: fill_value must fit the dtype uint8, got 300
    """
    if not isinstance(given, NUMBERS) or isinstance(given, np.timedelta64):
        raise TypeError(f"{operation}: {name} must be a number, got {shown(given)}")
    kind = _kind(dtype)
    if kind in "iu":
        limits = np.iinfo(dtype)
        fits = isinstance(given, Integral | np.bool_) and limits.min <= int(given) <= limits.max
    else:
        fits = kind in "bc" or (kind != "U" and not isinstance(given, COMPLEX))
        fits = fits and not (isinstance(given, int) and abs(given) >= BEYOND_DOUBLES)
        convert: Any = {"b": bool, "c": complex}.get(kind, float)
        try:
            fits = fits and (convert(given), given == 0) is not None
        except Exception:  # whatever a number of a class of its own raises, such as a Decimal
            fits = False
    if not fits:
        raise ValueError(f"{operation}: {name} must fit the dtype {dtype}, got {shown(given)}")


@cache
def _kind(dtype: str) -> str:
    """Return NumPy's letter for the kind of a dtype, given by its name."""
    text = dtype.lower().startswith(("str", "bytes"))
    return "f" if dtype == "bfloat16" else "U" if text else np.dtype(dtype).kind


def kind_of(window: Any) -> str:
    """Return the kind of a window, one of `WINDOWS`."""
    if window is None:
        return "none"
    shape = getattr(window, "shape", None)
    return "full" if isinstance(shape, tuple) and len(shape) != 1 else "separable"


def is_separable(window: Any) -> bool:
    """Return whether a window is given as a sequence: an array for each axis."""
    kind = type(window)
    return kind is tuple or kind is list or (not hasattr(window, "shape") and isinstance(window, Sequence))
