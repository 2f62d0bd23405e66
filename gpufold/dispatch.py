"""Dispatch of public functions by array type: each submodule serves the arrays of one library."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, cleandoc, getdoc, signature
from typing import Any, TypeVar

import numpy as np

from gpufold import extras
from gpufold.arrays import library_of
from gpufold.names import WHOSE, misfit, rewritten, unknown_keyword

FRONTS = {"dask": "dask", "jax": "jax", "jaxlib": "jax", "torch": "torch"}
"""The submodule that serves the arrays of a package. NumPy and CuPy are served by gpufold itself."""

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def dispatched(function: FunctionT) -> FunctionT:
    """Return a function that passes arrays of other libraries to the submodule's function of the same name.

    The package of the array's type decides, so no library is imported. Arguments that a library does not support are
    accepted at their defaults, so the same code works for every library; other values are refused.
    """
    name, parameters = function.__name__, signature(function).parameters
    first, defaults = next(iter(parameters)), {each.name: each.default for each in parameters.values()}
    fronts: dict[type, Callable[..., Any]] = {np.ndarray: function}

    def found(kind: type) -> Callable[..., Any]:
        package = kind.__module__.partition(".")[0]
        front = front_of(kind) if package != "cupy" else ""
        theirs: Callable[..., Any] | None = getattr(sys.modules[front], name, None) if front else function
        if theirs is None:
            raise TypeError(
                f"{name}: {first} must be of a mutable type, got a {kind.__module__}.{kind.__qualname__}; "
                f"{name.rstrip('_')} returns a new array"
            )
        if package == "cupy" or package in FRONTS:
            fronts[kind] = theirs
        return theirs

    @wraps(function)
    def door(*given: Any, **named: Any) -> Any:
        array = given[0] if given else named.get(first)
        kind = type(array)
        front: Any = fronts.get(kind)
        if front is None:
            front = found(kind)
            if front is function and (given or first in named):
                library_of(name, first, array)
        if front is function and "chunks" in named and named["chunks"] is not defaults.get("chunks"):
            raise unknown_keyword(front, name, ["chunks"], kind)
        try:
            return front(*given, **named)
        except TypeError:
            known = signature(front).parameters
            unknown = [word for word in named if word not in known]
            if not unknown:
                answer = misfit(front, name, given, named)
                if answer is None:
                    raise
                raise answer from None
            needed = [word for word in unknown if named[word] is not defaults.get(word, Parameter.empty)]
            if needed:
                raise unknown_keyword(front, name, needed, kind, rewritten(name, given, named)) from None
        return front(*given, **{word: value for word, value in named.items() if word in known})

    taken: Any = door
    return taken  # type: ignore[no-any-return]


class Like:
    """The signature of a submodule's function: gpufold's, without the arguments that its arrays do not support."""

    def __init__(self, function: Callable[..., Any], kind: str) -> None:
        self._function, shown = function, signature(function)
        kept = [each for each in shown.parameters.values() if kind in WHOSE.get(each.name, kind)]
        self.shown = shown.replace(parameters=[kept[0].replace(annotation=kind), *kept[1:]], return_annotation=kind)
        self.first, self.known = kept[0].name, frozenset(self.shown.parameters)
        self.places = [each.name for each in kept if each.kind is Parameter.POSITIONAL_OR_KEYWORD]

    def refused(self) -> TypeError:
        """Return the error for arguments that do not fit."""
        return TypeError(f"{self._function.__name__}: the arguments are {', '.join(self.shown.parameters)}")

    def dress(self, front: FunctionT, said: str) -> FunctionT:
        """Return a submodule's function with its name, signature and docstring: summary, formula, `said` and a link."""
        summary, formula, *_ = (getdoc(self._function) or "").split("\n\n")
        name = front.__name__ = front.__qualname__ = self._function.__name__
        parts = [summary, formula, getdoc(front) or "", said.format(name=name, first=self.first)]
        front.__doc__ = "\n\n".join(filter(None, parts))
        front.__signature__ = self.shown  # type: ignore[attr-defined]
        return linked(front)


def linked(function: FunctionT) -> FunctionT:
    """Add a link to gpufold's function of the same name to the docstring of a submodule's function."""
    name, said = function.__name__, cleandoc(function.__doc__ or "")
    function.__doc__ = f"{said}\n\nSee Also\n--------\ngpufold.{name} : Parameters, return value and errors.\n"
    return function


def front_of(kind: type) -> str:
    """Load the submodule for an array type, by the package of the type or a base; return its name, "" if none."""
    if kind is np.ndarray:
        return ""
    for base in kind.__mro__:
        package = str(base.__module__).partition(".")[0]
        if package in FRONTS:
            return extras.load(FRONTS[package]).__name__
    return ""


front_of._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compile calls it, tracing no import
