"""What follows from sizes alone, kept for the next call that has them: so many bytes in all, whatever the sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

_Made = TypeVar("_Made")

KEPT_BYTES = 5 << 20
"""Of all results that are kept; one that takes a quarter of them is made anew each time."""

_OBJECT_BYTES = 64
"""Of a tuple, or of a slice: most of them have others in them, and are in others."""

_PLAIN = (int, slice, type(None))

_results: list[dict[tuple[Any, ...], Any]] = []
_bytes = 0


def kept(function: Callable[..., _Made]) -> Callable[..., _Made]:
    """Keep the results of a function, which are no None, by its arguments; once all take too much, none is left."""
    results: dict[tuple[Any, ...], _Made] = {}
    _results.append(results)

    @wraps(function)
    def known(*arguments: Any) -> _Made:
        result = results.get(arguments)
        if result is None:
            result = function(*arguments)
            _keep(results, arguments, result)
        return result

    return known


def _keep(results: dict[tuple[Any, ...], Any], arguments: tuple[Any, ...], result: Any) -> None:
    """Keep a result. Of two threads that do at once, one may not be counted, until all are dropped."""
    global _bytes
    size = _bytes_of(arguments) + _bytes_of(result)
    if 4 * size > KEPT_BYTES:
        return
    if _bytes + size > KEPT_BYTES:
        for each in _results:
            each.clear()
        _bytes = 0
    _bytes += size
    results[arguments] = result


def _bytes_of(result: Any) -> int:
    """Return about how many bytes a result takes."""
    if isinstance(result, tuple):
        return _OBJECT_BYTES + sum([_OBJECT_BYTES if type(each) in _PLAIN else _bytes_of(each) for each in result])
    return int(getattr(result, "nbytes", _OBJECT_BYTES))
