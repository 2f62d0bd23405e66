"""One door for arrays of every kind: a function hands a call to the front that the package of its first array has."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, cleandoc, getdoc, signature
from typing import Any, TypeVar

import numpy as np

from gpufold import extras
from gpufold.names import WHOSE, misfit, rewritten, unknown_keyword

FRONTS = {"dask": "dask", "jax": "jax", "jaxlib": "jax", "torch": "torch"}
"""The submodule that has the functions for a package's arrays. NumPy's and CuPy's are those of gpufold itself."""

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def dispatched(function: FunctionT) -> FunctionT:
    """Return a function that takes arrays of every kind by its own name; NumPy's and CuPy's it computes itself.

    A type's package decides, so that nothing is imported that is not loaded. Arguments that a kind of array has no use
    for may be given by their defaults, as code for every kind does, and are refused otherwise.
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
        kind = type(given[0] if given else named.get(first))
        front: Any = fronts.get(kind) or found(kind)
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
    """What a front's function takes: as a function of gpufold, but what arrays of its kind have no use for."""

    def __init__(self, function: Callable[..., Any], kind: str) -> None:
        self._function, shown = function, signature(function)
        kept = [each for each in shown.parameters.values() if kind in WHOSE.get(each.name, kind)]
        self.shown = shown.replace(parameters=[kept[0].replace(annotation=kind), *kept[1:]], return_annotation=kind)
        self.first, self.known = kept[0].name, frozenset(self.shown.parameters)
        self.places = [each.name for each in kept if each.kind is Parameter.POSITIONAL_OR_KEYWORD]

    def refused(self) -> TypeError:
        """Return what to raise where something else was given."""
        return TypeError(f"{self._function.__name__} takes {', '.join(self.shown.parameters)}")

    def dress(self, front: Callable[..., Any], said: str) -> None:
        """Set the name, signature and formula of a front's function, around its docstring and what is `said`."""
        summary, formula, *_ = (getdoc(self._function) or "").split("\n\n")
        name = front.__name__ = front.__qualname__ = self._function.__name__
        parts = [summary, formula, getdoc(front) or "", said.format(name=name, first=self.first)]
        front.__doc__ = "\n\n".join(filter(None, parts))
        front.__signature__ = self.shown  # type: ignore[attr-defined]


def linked(function: FunctionT) -> FunctionT:
    """Return a front's function, its docstring with a link to the one of gpufold that has the same name."""
    name, said = function.__name__, cleandoc(function.__doc__ or "")
    function.__doc__ = f"{said}\n\nSee Also\n--------\ngpufold.{name} : Parameters, return value and errors.\n"
    return function


def front_of(kind: type) -> str:
    """Load the submodule for an array's type, by its package or that of a base, and return its name if there is one."""
    for base in kind.__mro__:
        package = str(base.__module__).partition(".")[0]
        if package in FRONTS:
            return extras.load(FRONTS[package]).__name__
    return ""


front_of._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch's compiler calls it, tracing no import
