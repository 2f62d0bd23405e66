"""Spreading independent pieces of NumPy work over threads: NumPy's loops release the interpreter lock."""

from __future__ import annotations

import contextvars
import operator
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_count: int | None = None
allowed: contextvars.ContextVar[int | None] = contextvars.ContextVar("allowed", default=None)
"""How many threads the library allows whose arrays a call is on; None where that is NumPy."""


def get_num_threads() -> int:
    """Return the number of threads that one call on NumPy arrays uses at most, the calling one included.

    >>> import gpufold
    >>> gpufold.set_num_threads(2)
    >>> gpufold.get_num_threads()
    2
    >>> gpufold.set_num_threads(None)

    Where none was set, it is one in a worker of torch's DataLoader, else what OMP_NUM_THREADS says, else the cores that
    the process may run on: those of its affinity mask, and no more than its control groups grant it time for. Calls on
    tensors use at most `torch.get_num_threads()`.
    """
    count, most = _count, allowed.get()  # each read once: another thread may set it meanwhile
    if count is not None:
        return count if most is None else min(count, most)
    return _default() if most is None else most


def _default() -> int:
    data = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        return 1
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # a list says it level by level
    if wanted.isdecimal() and int(wanted):
        return int(wanted)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, cores_granted()))


@cache
def cores_granted(groups: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> int:
    """Return for how many cores Linux's control groups grant this process time: none of them may grant less."""
    granted = sys.maxsize
    with suppress(OSError):
        for line in Path(own).read_text().splitlines():
            _, controllers, path = line.split(":", 2)  # no controllers are named in version 2
            root = Path(groups, controllers) if controllers else Path(groups)
            group = root / path.lstrip("/")
            for each in (group, *group.parents) if not controllers or "cpu" in controllers.split(",") else ():
                quota, period = _quota(each)
                if quota > 0 and period > 0:
                    granted = min(granted, -(-quota // period))
                if each == root:
                    break
    return granted


def _quota(group: Path) -> tuple[int, int]:
    """Return how long, in each period, the processes of a control group may run; zeros where nothing limits them."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with suppress(OSError, ValueError):
            quota, period = " ".join([(group / name).read_text() for name in names]).split()
            return int(quota), int(period)
    return 0, 0


def set_num_threads(count: int | None) -> None:
    """Set the number of threads that one call on NumPy arrays uses at most, the calling one included.

    The result never depends on it, to the last bit. All calls of a process share `count - 1` helper
    threads: a program that calls gpufold from a thread pool of its own gets no more than those on top.

    Parameters
    ----------
    count : int or None
        At least 1; None, the default, takes what `get_num_threads` says where none was set.

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
    """Ask helper threads to join in, each in a copy of this context (NumPy's errstate lives there).

    Each future is made before the pool knows of it: a pool that can start no thread, at a limit of the system or while
    the interpreter shuts down, raises, and may run what it was given all the same.
    """
    global _pool
    futures: list[Future[None]] = []
    with _lock:
        if _pool is None or _pool._max_workers < helpers:
            if _pool is not None:
                _pool.shutdown(wait=False)
            _pool = ThreadPoolExecutor(max(helpers, get_num_threads() - 1), thread_name_prefix="gpufold")
        with suppress(RuntimeError):
            for _ in range(helpers):
                futures.append(Future())
                _pool.submit(contextvars.copy_context().run, _join, futures[-1], work)
    return futures


def _join(future: Future[None], work: Callable[[], None]) -> None:
    """Work, unless the future was cancelled, and let the future know the end."""
    if future.set_running_or_notify_cancel():
        try:
            work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)


def for_each(function: Callable[..., None], items: Iterable[tuple[Any, ...]]) -> None:
    """Call function(*item) for every item, on the calling thread and on helpers that are free.

    Items must be independent: their order is not defined. The caller works too, and never waits for a
    helper that has not started, so calls from many threads, or from inside another pool, cannot block
    one another. When one item raises, no further item starts, and nothing runs on after the return.
    """
    waiting = deque(items)
    helpers = min(get_num_threads(), len(waiting)) - 1 if len(waiting) > 1 else 0
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
