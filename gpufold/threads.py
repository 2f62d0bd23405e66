"""Spreading independent pieces of NumPy work over threads: NumPy's loops release the interpreter lock."""

from __future__ import annotations

import contextvars
import operator
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_count: int | None = None


def get_num_threads() -> int:
    """Return the number of threads that one call on NumPy arrays uses at most, the calling one included.

    >>> import gpufold
    >>> gpufold.set_num_threads(2)
    >>> gpufold.get_num_threads()
    2
    >>> gpufold.set_num_threads(None)
    """
    if _count is not None:
        return _count
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def set_num_threads(count: int | None) -> None:
    """Set the number of threads that one call on NumPy arrays uses at most, the calling one included.

    The result never depends on it, to the last bit. All calls of a process share `count - 1` helper
    threads: a program that calls gpufold from a thread pool of its own gets no more than those on top.

    Parameters
    ----------
    count : int or None
        At least 1; None, the default, takes the cores this process may run on.

    Raises
    ------
    TypeError
        `count` is not an integer.
    ValueError
        `count` is below 1.
    """
    global _count, _pool
    if count is not None:
        try:
            count = operator.index(count)
        except TypeError:
            raise TypeError(f"set_num_threads: count must be an integer or None, got {count!r}") from None
        if count < 1:
            raise ValueError(f"set_num_threads: count must be at least 1, got {count}")
    with _lock:
        pool, _pool, _count = _pool, None, count
    if pool is not None:
        pool.shutdown(wait=False)  # what it was given already, it finishes


def _forget_pool() -> None:
    """Start afresh in a forked child, which inherits the pool's object but none of its threads."""
    global _lock, _pool
    _lock, _pool = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def _submit(work: Callable[[], None], helpers: int) -> list[Future[None]]:
    """Ask helper threads to join in, each in a copy of this context (NumPy's errstate lives there)."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(max(1, get_num_threads() - 1), thread_name_prefix="gpufold")
        try:
            return [_pool.submit(contextvars.copy_context().run, work) for _ in range(helpers)]
        except RuntimeError:  # the interpreter is shutting down: no new threads
            return []


def for_each(function: Callable[..., None], items: Iterable[tuple[Any, ...]]) -> None:
    """Call function(*item) for every item, on the calling thread and on helpers that are free.

    Items must be independent: their order is not defined. The caller works too, and never waits for a
    helper that has not started, so calls from many threads, or from inside another pool, cannot block
    one another. When one item raises, no further item starts, and nothing runs on after the return.
    """
    waiting = deque(items)
    helpers = min(get_num_threads(), len(waiting)) - 1
    if helpers < 1:
        for item in waiting:
            function(*item)
        return

    def work() -> None:
        try:
            while True:
                try:
                    item = waiting.popleft()
                except IndexError:
                    return
                function(*item)
        finally:
            waiting.clear()  # empty already, unless an item raised

    futures = _submit(work, helpers)
    try:
        work()
    finally:
        started = [future for future in futures if not future.cancel()]
        failures = [error for future in started if (error := future.exception()) is not None]
    if failures:
        raise failures[0]
