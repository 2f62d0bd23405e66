"""Clocks, and the measurement of candidates: interleaved, with equal shares of the time."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from statistics import median, quantiles
from typing import Any, TypeAlias

import numpy as np

LEAST_SAMPLES = 3
MOST_SAMPLES = 200

SAMPLE_SECONDS = 2e-3
"""Least seconds of a sample, which repeats a call so that the clock's own time does not matter."""

WARM_CALLS, WARM_SECONDS = 16, 0.6
"""Calls before the first sample, and their most seconds: candidates that tune themselves by calls have done so then."""

SETTLING_SECONDS = 0.003
"""Pause before a CPU sample, in which threads of the previous candidate stop spinning."""


@dataclass
class Times:
    """Seconds of one call, a value per sample."""

    seconds: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    """Seconds until an asynchronous call returned, on a GPU."""
    hidden: list[float] = field(default_factory=list)
    """Seconds that the device was kept busy before a call, so that the whole call was enqueued when it started."""

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles, as a fraction of the median."""
        low, _, high = quantiles(self.seconds, n=4) if len(self.seconds) > 1 else [self.median] * 3
        return (high - low) / 2 / self.median

    @property
    def exposed(self) -> bool:
        """Whether the host took longer for most calls than the device was kept busy, so that times have gaps."""
        gaps = [host > hidden for host, hidden in zip(self.host, self.hidden, strict=False)]
        return 2 * sum(gaps) > len(gaps)


def significant(value: float) -> float:
    """Round what is measured to four digits.

    >>> significant(0.00123456)
    0.001235
    """
    return float(f"{value:.4g}")


class CpuClock:
    """Wall time, by `counter`, which a test may replace.

    A clock measures calls one sample at a time. It says how often something is repeated for a sample: the call itself,
    or what comes before it.
    """

    def __init__(self, counter: Callable[[], float] = time.perf_counter, pause: Callable[[float], None] = time.sleep):
        self.counter, self.pause = counter, pause

    def first(self, call: Callable[[], Any]) -> tuple[Any, float]:
        """Run a call for the first time; return its result and the seconds until it was available."""
        start = self.counter()
        answer = call()
        return answer, self.counter() - start

    def repeats(self, call: Callable[[], Any]) -> int:
        """Time the last of some calls."""
        seconds: list[float] = []
        while len(seconds) < WARM_CALLS and sum(seconds) < WARM_SECONDS:
            seconds.append(self.first(call)[1])
        return max(1, round(SAMPLE_SECONDS / max(seconds[-1], 1e-9)))

    def sample(self, call: Callable[[], Any], repeats: int, times: Times) -> float:
        """Add the mean of some calls, after one that wakes the candidate's threads and refills the caches.

        Return the seconds that this took.
        """
        self.pause(SETTLING_SECONDS)
        began = self.counter()
        call()
        start = self.counter()
        for _ in range(repeats):
            call()
        end = self.counter()
        times.seconds.append(significant((end - start) / repeats))
        return end - began


class GpuClock:
    """CUDA events around single calls on the current stream, the second-level cache flushed before each.

    The flush writes several times the cache's size, which takes the device longer than the host needs to
    enqueue most calls: the events see the call's own work and no gap before it. Where the host takes longer, as for
    several launches, the cache is flushed as often as that takes.
    """

    FLUSHED_CACHES = 4

    MARGIN = 3
    """Factor by which the device is kept busy longer than the host needs for a call."""

    MOST_FLUSHES = 100

    def __init__(self, cupy: Any, counter: Callable[[], float] = time.perf_counter):
        self.cupy, self.counter = cupy, counter
        cache = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())["l2CacheSize"]
        self.scratch = cupy.empty(self.FLUSHED_CACHES * max(cache, 1 << 26), np.uint8)

    def first(self, call: Callable[[], Any]) -> tuple[Any, float]:
        """Run a call, which compiles it, and wait for it."""
        start = self.counter()
        answer = call()
        self.cupy.cuda.runtime.deviceSynchronize()
        return answer, self.counter() - start

    def repeats(self, call: Callable[[], Any]) -> int:
        """Return how many flushes of the cache before a call, warm by now, hide the host's time."""
        tried = Times()
        for _ in range(LEAST_SAMPLES):
            self.sample(call, 1, tried)
        return max(1, min(self.MOST_FLUSHES, ceil(self.MARGIN * median(tried.host) / min(tried.hidden))))

    def sample(self, call: Callable[[], Any], repeats: int, times: Times) -> float:
        """Add the time on the device, the time until the call returned, and the time of the flushes before."""
        began = self.counter()
        first, before, after = (self.cupy.cuda.Event() for _ in range(3))
        first.record()
        for _ in range(repeats):
            self.scratch.fill(0)
        before.record()
        start = self.counter()
        call()
        host = self.counter() - start
        after.record()
        after.synchronize()
        times.host.append(significant(host))
        times.hidden.append(significant(self.cupy.cuda.get_elapsed_time(first, before) / 1e3))
        times.seconds.append(significant(self.cupy.cuda.get_elapsed_time(before, after) / 1e3))
        return self.counter() - began


Clock: TypeAlias = CpuClock | GpuClock


def interleave(
    calls: Mapping[str, Callable[[], Any]],
    clock: Clock,
    seconds: float,
    results: dict[str, Times],
    failed: Callable[[str, Exception], None],
) -> None:
    """Measure calls that have run before, round robin, until each has had its share of `seconds`.

    What is measured is in `results` at any moment, so an interrupt loses nothing. A call that raises is handed to
    `failed` with its exception and loses its results; the others go on.
    """
    repeats: dict[str, int] = {}
    left = dict.fromkeys(calls, seconds / max(1, len(calls)))
    waiting = list(calls)
    collecting = gc.isenabled()
    gc.disable()
    try:
        while waiting:
            for name in tuple(waiting):
                try:
                    if name not in repeats:
                        repeats[name] = clock.repeats(calls[name])
                        continue
                    times = results.setdefault(name, Times())
                    left[name] -= clock.sample(calls[name], repeats[name], times)
                except Exception as error:  # whatever a library raises
                    results.pop(name, None)
                    waiting.remove(name)
                    failed(name, error)
                    continue
                done = len(times.seconds)
                if done >= MOST_SAMPLES or (done >= LEAST_SAMPLES and left[name] <= 0):
                    waiting.remove(name)
    finally:
        if collecting:
            gc.enable()


def keep_freed_memory() -> bool:
    """Make the C library keep freed memory for the next allocation; return False if it cannot.

    Otherwise each large result is fresh memory, whose pages the operating system makes on first touch: several
    times the cost of the operation itself, and not the same from one sample to the next. A library with an arena
    of its own, as onnxruntime is, never pays for that.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    trim_threshold, mmap_max = -1, -4  # <malloc.h>
    return bool(mallopt(mmap_max, 0)) and bool(mallopt(trim_threshold, 2**31 - 1))
