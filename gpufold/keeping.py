"""A cache for results that depend on sizes, or on small windows, limited in bytes over all functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np

_Made = TypeVar("_Made")

KEPT_BYTES = 5 << 20
"""Limit of all cached results together; a result of more than a quarter of it is not cached."""

_OBJECT_BYTES = 64
"""Estimated size of a tuple or a slice, and of each element of a tuple."""

_PLAIN = (int, slice, type(None))

_results: list[dict[tuple[Any, ...], Any]] = []
_bytes = 0


def kept(function: Callable[..., _Made], by: Callable[..., tuple[Any, ...]] | None = None) -> Callable[..., _Made]:
    """Cache a function's results, which are never None, by its arguments, or by what `by` returns for them.

    At the limit, all results are dropped.
    """
    results: dict[tuple[Any, ...], _Made] = {}
    _results.append(results)

    @wraps(function)
    def known(*arguments: Any) -> _Made:
        key = arguments if by is None else by(*arguments)
        result = results.get(key)
        if result is None:
            result = function(*arguments)
            _keep(results, key, result)
        return result

    return known


def _keep(results: dict[tuple[Any, ...], Any], arguments: tuple[Any, ...], result: Any) -> None:
    """Cache a result. If two threads do so at once, one size may not be counted until all results are dropped."""
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
    """Return about how many bytes a value takes."""
    if isinstance(result, tuple):
        return _OBJECT_BYTES + sum([_OBJECT_BYTES if type(each) in _PLAIN else _bytes_of(each) for each in result])
    if isinstance(result, np.dtype):  # torch's compiler finds no attribute of one
        return _OBJECT_BYTES
    return len(result) if isinstance(result, bytes) else int(getattr(result, "nbytes", _OBJECT_BYTES))
