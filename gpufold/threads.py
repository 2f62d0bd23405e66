"""Spreading independent pieces of NumPy work over threads: NumPy's loops release the interpreter lock.

An exception such as Ctrl-C may end a call between any two steps. So helpers are daemon threads that take calls from a
queue. They share a call's lock while they work for it, and the call ends once it holds that lock exclusively.
"""

from __future__ import annotations

import contextvars
import ctypes
import os
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from math import inf
from queue import SimpleQueue
from threading import RLock, get_ident, get_native_id
from time import perf_counter
from typing import Any

from gpufold import rounding
from gpufold.cores import default
from gpufold.geometry import as_count

MOST_THREADS = max(64, os.cpu_count() or 1)
"""Upper limit of every setting: OMP_NUM_THREADS may be meant for another machine."""

THREAD_BYTES, MOST_TRIED = 1 << 19, 1 << 28
"""Least bytes of a call per thread, and most bytes of a call whose choices are measured."""

AGAIN, WORTH = 32, 2
"""One of so many calls tries another choice again, if that took less than so many times the least time."""

PREPARED = 2e-3
"""Seconds that may be due to the preparations of a choice's first call."""

_c: Any = None
"""The C library's locks."""
_wait: Any = None
"""Wait for a lock without the interpreter lock, not interrupted by signals; callable as an `__exit__`."""
_cpu: Any = lambda: -1  # noqa: E731
"""Return the number of the CPU that a thread runs on, or -1."""
with suppress(OSError, AttributeError, TypeError):  # the C library may lack these functions
    _wait = ctypes.CDLL(None).pthread_rwlock_wrlock
    _wait.argtypes, _wait.restype = (ctypes.c_void_p, *3 * (ctypes.py_object,)), None
    _c = ctypes.PyDLL(None)
    if hasattr(os, "sched_setaffinity"):
        _cpu = _c.sched_getcpu

_helpers: _Helpers
_setting: Any
_count: int | None = None
allowed: contextvars.ContextVar[int | None] = contextvars.ContextVar("allowed", default=None)
"""Most threads that the library of a call's arrays allows; None for NumPy."""


def get_num_threads() -> int:
    """Return the maximum number of threads per call on NumPy arrays, including the calling thread.

    >>> import gpufold
    >>> gpufold.set_num_threads(2)
    >>> gpufold.get_num_threads()
    2
    >>> gpufold.set_num_threads(None)

    Returns
    -------
    int
        Number of threads, at least 1.

    See Also
    --------
    set_num_threads : Set it.

    Notes
    -----
    The default is one in a worker of torch's DataLoader, else OMP_NUM_THREADS, else the number of cores in the affinity
    mask of the process, limited by the quota of its control groups. Calls on tensors use at most
    `torch.get_num_threads()`. The number never exceeds 64, or the machine's number of cores if that is larger.
    """
    limits = [each for each in (_count, allowed.get()) if each is not None]
    return min(*(limits or [default()]), MOST_THREADS)


def set_num_threads(count: int | None) -> None:
    """Set the maximum number of threads per call on NumPy arrays, including the calling thread.

    >>> import gpufold
    >>> gpufold.set_num_threads(1)
    >>> gpufold.set_num_threads(None)

    Results are bitwise identical for every number. All calls of a process share `count - 1` helper threads.

    Parameters
    ----------
    count : int or None
        Number of threads, at least 1. None restores the default of `get_num_threads`.

    Raises
    ------
    TypeError, ValueError
        `count` is neither None nor an integer, or it is less than 1.

    See Also
    --------
    get_num_threads : The number in effect, and its default.
    """
    global _count, _helpers
    if count is not None:
        count = as_count("set_num_threads", "count", count)
    with _setting:
        helpers, _helpers, _count = _helpers, _Helpers(), count
        helpers.asked.put(None)


class _Helpers:
    """Numbered threads that help with calls on request."""

    def __init__(self) -> None:
        self.asked: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        """Requests for help; None, which stays in the queue, ends all threads."""
        self._serving: dict[int, int] = {}

    def start(self, count: int) -> int:
        """Start threads until there are `count`, and return how many there are: fewer if the system refuses."""
        for number in range(count):
            if number not in self._serving:
                try:
                    start_new_thread(self._serve, (number,))
                except (RuntimeError, MemoryError):
                    return number
        return count

    def _serve(self, number: int) -> None:
        if self._serving.setdefault(number, get_ident()) == get_ident():  # no other call started it too
            while (join := self.asked.get()) is not None:
                join()
                del join  # else it is kept until the next request
            self.asked.put(None)


def _start_afresh() -> None:
    """Replace the helpers: a forked child inherits no threads."""
    global _helpers, _setting
    _helpers, _setting = _Helpers(), RLock()


_start_afresh()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)


class _Together:
    """A context of a call that ends once no helper works for it, even after an exception.

    Python raises the exceptions of signal handlers between any two of its steps. There is no step between the end of
    the body and an `__exit__` that is a C function, and this C function handles no signals while it waits.
    """

    __slots__ = ("__exit__", "caller", "cpu", "lock")

    def __init__(self) -> None:
        self.caller, self.cpu = get_native_id(), _cpu()
        self.lock = ctypes.create_string_buffer(256)  # C's pthread_rwlock_t has 32 to 200 bytes
        _c.pthread_rwlock_init(self.lock, None)
        self.__exit__ = partial(_wait, self.lock)

    def __enter__(self) -> None: ...

    def join(self, mode: Any, work: Callable[[], None], failures: list[BaseException]) -> None:
        """Work in a floating-point mode, unless the call has ended."""
        if _cpu() == self.cpu >= 0:
            self._leave()
        if not _c.pthread_rwlock_tryrdlock(self.lock):
            try:
                rounding.adopt(mode)
                work()
            except BaseException as error:
                failures.append(error)
            finally:
                _c.pthread_rwlock_unlock(self.lock)

    def _leave(self) -> None:
        """Move a helper off the caller's CPU, where it would wait for it.

        Linux wakes a helper there if the other CPUs of a virtual machine are halted, and leaves it there, because calls
        are short.
        """
        with suppress(OSError):
            if others := os.sched_getaffinity(self.caller) - {self.cpu}:
                os.sched_setaffinity(0, others)


class _Trial:
    """The seconds that calls of one kind take with each choice."""

    __slots__ = ("best", "calls", "rounds", "seconds", "turns")

    def __init__(self, choices: int) -> None:
        self.best, self.calls, self.seconds = 0, 0, [inf] * choices
        self.turns: list[int] = [0, *range(choices)]
        """The choices of the first calls, in order; that of the very first call, which gets its memory from the system,
        is tried again."""
        self.rounds = iter([(choices, PREPARED), (max(2, choices // 2), inf), (max(2, choices // 4), inf)])
        """How many choices are tried again after these, and how many seconds slower than the best they may be."""

    def choose(self) -> int:
        """Return a choice for the next call: all in turn, twice if short, the better half and quarter, then the best.

        Others are tried again from time to time.
        """
        number, self.calls, count = self.calls, self.calls + 1, len(self.seconds)
        if number == len(self.turns) and (again := next(self.rounds, None)):
            most = self.seconds[self.best] + again[1]
            ranked = sorted(range(count), key=self.seconds.__getitem__)[: again[0]]
            self.turns += [each for each in ranked if self.seconds[each] <= most]
        if number < len(self.turns):
            return self.turns[number]
        other = number // AGAIN % count if number % AGAIN == AGAIN - 1 else self.best
        if self.seconds[other] < WORTH * self.seconds[self.best]:
            return other
        self.seconds[other] *= 0.75  # it is tried again later, the later the slower it was
        return self.best

    def took(self, choice: int, new: float) -> None:
        """Record the seconds of a call; a single disturbance of the best choice makes no other choice the best."""
        known = self.seconds[choice]
        more = min(new, 2 * known) if choice == self.best else new
        self.seconds[choice] = new if new < known else known + (more - known) / 4
        self.best = self.seconds.index(min(self.seconds))


def is_short(size: int) -> bool:
    """Return whether a call of `size` bytes uses one thread."""
    return size < 2 * THREAD_BYTES


class Ways:
    """Ways to compute the calls of one kind, the likely fastest first."""

    __slots__ = ("_trials", "all")

    def __init__(self, *ways: tuple[Any, ...]) -> None:
        self.all = ways or ((),)
        self._trials: dict[int, _Trial] = {}
        """A trial for each number of threads."""

    def run(self, size: int, work: Callable[..., None]) -> None:
        """Call work(threads, *way) on arrays of `size` bytes, with the fastest of the ways and of one thread or all.

        The fastest is measured, because it depends on the machine: on the wake-up of threads, the interpreter lock and
        caches. Short calls and calls too large for a trial take the first way.
        """
        ways, most = self.all, 1 if is_short(size) else min(get_num_threads(), size // THREAD_BYTES)
        choices = len(ways) * (2 if most > 1 else 1)
        if choices == 1 or is_short(size) or size > MOST_TRIED:
            return work(most, *ways[0])
        trial = self._trials.get(most) or self._trials.setdefault(most, _Trial(choices))
        choice = trial.choose()
        start = perf_counter()
        work(most if choice < len(ways) else 1, *ways[choice % len(ways)])
        trial.took(choice, perf_counter() - start)


def for_each(function: Callable[..., None], items: Iterable[tuple[Any, ...]], most: int = MOST_THREADS) -> None:
    """Call function(*item) for every item, on the calling thread and free helpers, on at most `most` threads.

    Items must be independent. The caller never waits for a helper that has not started, so that calls from many threads
    or from a signal handler cannot block one another. When one item raises, no further item starts.
    """
    waiting = deque(items)
    helpers = min(get_num_threads(), len(waiting), most) - 1 if min(len(waiting), most) > 1 else 0
    if helpers < 1 or _c is None:
        for item in waiting:
            function(*item)
        return
    ends: list[tuple[Any, ...]] = [()] * (helpers + 1)  # each ends one thread
    waiting.extend(ends)

    def work() -> None:
        try:
            while item := waiting.popleft():
                function(*item)
        except BaseException:  # raised on below: an interrupt ends the other threads too
            waiting.extendleft(ends)
            raise

    pool, failures, together = _helpers, list[BaseException](), _Together()
    with together:
        mode = rounding.mode()
        for _ in range(pool.start(helpers) - pool.asked.qsize()):  # less those nobody took; contexts have an errstate
            pool.asked.put(partial(contextvars.copy_context().run, together.join, mode, work, failures))
        work()
    if failures:
        raise failures.pop(0)
