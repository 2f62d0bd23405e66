"""Autotuning: measure once which plan of a call is fastest, and remember it.

All plans give bitwise identical results, so a race changes no result, and a lost, old or damaged file costs only speed.
This module touches no GPU: `gpufold.gpu.launch` runs races, with its own clock.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from math import inf, isfinite
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeAlias

from gpufold.given import check_number
from gpufold.gpu import registry
from gpufold.gpu.plan import Device, Plan, Problem
from gpufold.gpu.sources import KERNELS, digest

ROUNDS = 5
"""Samples of each plan, of which the median counts."""
MARGIN = 0.05
"""Fraction by which a plan must be faster than the heuristics' plan."""

Seconds: TypeAlias = Mapping[str, float]
"""Seconds of a launch, by the label of its plan."""

_SETTING = os.environ.get("GPUFOLD_AUTOTUNE", "")
_ends: ContextVar[float | None] = ContextVar("autotune", default=inf if _SETTING == "1" else None)
"""Time on the monotonic clock until which races may begin; None if none may."""

racing = threading.Lock()
"""Held by the one thread that measures; other threads use known measurements meanwhile."""

generation = 0
"""Number of changes of the measurements; kernels prepared in an earlier generation may be outdated."""

_learned: dict[Device, dict[str, Seconds]] = {}

unwritten: dict[Device, str] = {}
"""Why measurements of a device are in memory only: the error of writing its file."""


@contextmanager
def autotune(*, timeout: float | None = None) -> Iterator[None]:
    """Measure which kernel is fastest on this GPU, once per kind of call within the context.

    >>> import gpufold
    >>> with gpufold.autotune():
    ...     pass  # calls on CuPy arrays or CUDA tensors

    The first call of each kind runs every kernel that can serve it and waits for the GPU; kernels not compiled before
    take seconds. Later calls of the kind use the fastest kernel, also in later processes, through a file. Deterministic
    results are bitwise identical to those without tuning. Calls on the CPU, and on a stream that captures a CUDA graph,
    are not measured. The context applies to the thread that enters it.

    Parameters
    ----------
    timeout : float, optional
        Seconds after which no further kind of call is measured. The default is no limit.

    Raises
    ------
    TypeError, ValueError
        `timeout` is no real number.

    See Also
    --------
    warmup : Measure a call ahead, with ``autotune=True``.
    explain : Show the measured times.

    Notes
    -----
    The environment variable GPUFOLD_AUTOTUNE=1 does the same for a whole process, and 0 ignores measured times.
    GPUFOLD_CACHE_DIR is the folder of the files, by default ``~/.cache/gpufold``.
    """
    check_number("autotune", "timeout", seconds := inf if timeout is None else timeout, "float64")
    token = _ends.set(None if _SETTING == "0" else time.monotonic() + float(seconds))
    try:
        yield
    finally:
        _ends.reset(token)


def wanted() -> bool:
    """Return whether a race may begin."""
    return (ends := _ends.get()) is not None and time.monotonic() < ends


# ---------------------------------------------------------------------------------------------
# Measurements


class Decision(NamedTuple):
    """The plan of a call, and its basis."""

    plan: Plan
    seconds: Seconds
    """Measured seconds, this plan's first; empty if heuristics decided."""
    is_open: bool
    """Whether a race could change the plan."""


def decide(problem: Problem) -> Decision:
    """Decide by measurements if there are any, else by heuristics."""
    if problem.call.variant == "auto" and (known(problem.device) or wanted()):
        plans = tuple(registry.candidates(problem))
        if len(plans) > 1:
            seconds = known(problem.device).get(key_of(problem, plans))
            return Decision(plans[0], {}, True) if seconds is None else _by_time(plans, seconds)
    plan = registry.choose(problem.call, problem.input, problem.output, problem.device, problem.weight_out)
    return Decision(plan, {}, problem.call.variant == "auto" and not wanted())


def _by_time(plans: Sequence[Plan], seconds: Seconds) -> Decision:
    """Take the fastest plan by measurements, but the heuristics' plan, the first, unless another is clearly faster."""
    named = labels(plans)
    times = [seconds.get(label, inf) for label in named]
    best = min(range(len(plans)), key=times.__getitem__)
    best = best if times[best] < times[0] * (1 - MARGIN) else 0
    of_these = sorted((number != best, times[number], label) for number, label in enumerate(named))
    return Decision(plans[best], {label: value for _, value, label in of_these if value < inf}, False)


def key_of(problem: Problem, plans: Sequence[Plan]) -> str:
    """Return the key of a kind of call: the kernels that can run it, and its sizes to a factor of two.

    The macros of a kernel already contain the dtype, blocks, fusion and width of words.
    """
    kernels = [(plan.symbol, plan.defines) for plan in plans]
    arrays = [each for each in (problem.input, problem.output, problem.weight_out) if each is not None]
    extents = [[extent.bit_length() for extent in each.shape] for each in arrays]
    orders = [sorted(range(len(each.shape)), key=lambda axis: -abs(each.strides[axis])) for each in arrays]
    kind = repr((problem.call.operation, kernels, extents, orders))
    return hashlib.sha256(kind.encode()).hexdigest()[:20]


def labels(plans: Sequence[Plan]) -> list[str]:
    """Return a label per plan: its variant, and the macros by which it differs from other plans of that variant."""
    facts = [frozenset((("kernel", plan.symbol), *plan.defines)) for plan in plans]
    named = []
    for plan, own in zip(plans, facts, strict=True):
        alike = [each for other, each in zip(plans, facts, strict=True) if other.variant == plan.variant]
        differs = sorted(own - own.intersection(*alike))
        named.append("/".join([plan.variant, *(f"{name}={value}" for name, value in differs)]))
    return named


def known(device: Device) -> dict[str, Seconds]:
    """Return the measurements for a type of device: by this process, by earlier ones, or shipped with the package."""
    if device not in _learned:
        files = () if _SETTING == "0" else (KERNELS / "tuned" / _name(device), file_of(device))
        read = {key: seconds for file in files for key, seconds in _read(file).items()}
        return _learned.setdefault(device, read)  # another thread may have read them and measured more since
    return _learned[device]


def _read(path: Path) -> dict[str, Seconds]:
    """Return the measurements in a file, of each kind the last line; invalid lines are skipped."""
    found: dict[str, Seconds] = {}
    with suppress(OSError):
        for line in path.read_bytes().splitlines():
            with suppress(ArithmeticError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
                entry = json.loads(line)
                seconds = {label: float(value) for label, value in entry["seconds"].items()}
                if seconds and all(isfinite(value) and value > 0 for value in seconds.values()):
                    found[entry["key"]] = seconds
    return found


def _name(device: Device) -> str:
    """Return the name of a device's file, which is for these kernels only."""
    name = "".join(sign if sign.isalnum() else "-" for sign in device.name)
    return f"tuned-{name}-{device.multiprocessors}-{digest('*.cu*')[:12]}.jsonl"


def file_of(device: Device) -> Path:
    """Return the user's file for a device."""
    folder = os.environ.get("GPUFOLD_CACHE_DIR")
    if folder:
        return Path(folder, _name(device))
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(caches, "gpufold", _name(device))


def remember(problem: Problem, key: str, seconds: Seconds) -> None:
    """Keep measurements for this process and, if the user's file can be written, for later ones."""
    global generation
    device = problem.device
    known(device)[key] = seconds
    generation += 1
    if not getattr(sys.stderr, "closed", sys.stderr is None) and sys.stderr.isatty():
        times = ", ".join(f"{label} {1e6 * value:,.1f} us" for label, value in seconds.items())
        print(f"gpufold.autotune: {problem.call.operation} {problem.call.data_shape}: {times}", file=sys.stderr)
    entry = {"key": key, "operation": problem.call.operation, "shape": problem.call.data_shape, "seconds": seconds}
    line = f"\n{json.dumps(entry)}\n".encode()  # a line of its own, even after one that was cut
    path = file_of(device)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab", buffering=0) as file:  # at once: lines of several processes do not mix
            file.write(line)
        unwritten.pop(device, None)
    except OSError as error:
        unwritten[device] = str(error)


def forget() -> None:
    """Discard measurements in memory; files are read again."""
    global generation
    _learned.clear()
    generation += 1


def race(runs: Mapping[str, Callable[[], object]], clock: Callable[[Callable[[], object]], float]) -> Seconds:
    """Return the median seconds of each run, measured in turns after one warm-up of each.

    Runs that fail are left out.
    """
    samples: dict[str, list[float]] = {label: [] for label in runs}
    for _ in range(1 + ROUNDS):
        for label in tuple(samples):
            try:
                samples[label].append(clock(runs[label]))
            except (RuntimeError, MemoryError):
                del samples[label]
    return {label: median(taken[1:]) for label, taken in samples.items()}
