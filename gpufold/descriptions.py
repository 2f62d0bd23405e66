"""A cache of the descriptions of calls, by the bytes of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from marshal import dumps
from typing import Any, Literal, TypeVar, cast

from gpufold.geometry.integers import MARSHAL, MOST_KEPT
from gpufold.given import kind_of

DescribeT = TypeVar("DescribeT", bound=Callable[..., Any])

PLAIN_TYPES = (int, bool, float, str, type(None))
"""Types that marshal writes apart; it writes arrays of any integers like bytes."""


def remembered(arrays: Literal[1, 2] = 1) -> Callable[[DescribeT], DescribeT]:
    """Return a decorator for a description of a call, which caches what it returns.

    It may depend on the shapes of the first arguments, which are arrays, on the dtype of the first one, the kind of the
    window, and the values of all other arguments.
    """

    def decorate(describe: DescribeT) -> DescribeT:
        known: dict[tuple[Any, bytes], Any] = {}

        @wraps(describe)
        def call(*given: Any, **named: Any) -> Any:
            if len(given) < arrays:
                return describe(*given, **named)
            window, first, others = named.get("window"), given[0], given[arrays:]
            shapes = first.shape if arrays == 1 else (first.shape, tuple(given[1].shape))
            if window is not None:
                named["window"] = kind_of(window)
            try:
                return known[first.dtype, dumps((shapes, others, named), MARSHAL)]
            except (KeyError, ValueError):  # new, or with arguments that are no plain numbers
                pass  # what is raised below does not come of it
            described = describe(*given, **(named if window is None else named | {"window": window}))
            if _is_plain((shapes, others, *named.values())):
                if len(known) >= MOST_KEPT:
                    known.clear()
                known[first.dtype, dumps((shapes, others, named), MARSHAL)] = described
            return described

        return cast("DescribeT", call)

    return decorate


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number, a word, or a tuple or list of them."""
    return type(value) in PLAIN_TYPES or (type(value) in (tuple, list) and all(map(_is_plain, value)))
