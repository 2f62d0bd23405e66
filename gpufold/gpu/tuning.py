"""Lets the GPU decide which of the plans that can serve a call is the fastest: measured once, and remembered.

Their results are bitwise identical, so a race changes no result, and a lost, old or damaged file costs only speed.
This module touches no GPU: `gpufold.gpu.launch` runs races, over a clock of its own.
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

from gpufold.calls import Unsupported
from gpufold.given import check_number
from gpufold.gpu import registry
from gpufold.gpu.plan import Device, Plan, Problem
from gpufold.gpu.sources import KERNELS, digest

ROUNDS = 5
"""Samples of each plan, of which the median counts."""
MARGIN = 0.05
"""By what share another plan must be faster than that of the rule."""
LINE_BYTES = 4096
"""Of a file's line, which is written at once: lines of several processes do not mix up to here."""

Seconds: TypeAlias = Mapping[str, float]
"""Of a launch, by the label of the plan."""

_SETTING = os.environ.get("GPUFOLD_AUTOTUNE", "")
_ends: ContextVar[float | None] = ContextVar("autotune", default=inf if _SETTING == "1" else None)
"""Until when races may begin, by the monotonic clock; None where none may."""

racing = threading.Lock()
"""Held by the one thread of the process that measures; others take what is known meanwhile."""

generation = 0
"""How often something was learned: what is prepared by an earlier one may be outdated."""

_learned: dict[Device, dict[str, Seconds]] = {}

unwritten: dict[Device, str] = {}
"""Why what was learned of a device is kept in memory alone, where its file cannot be written."""


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
# What is known


class Decision(NamedTuple):
    """Which plan a call takes, and by what."""

    plan: Plan
    seconds: Seconds
    """That were measured, of this plan first; empty where the rule decided."""
    is_open: bool
    """Whether a race could tell more."""


def decide(problem: Problem) -> Decision:
    """Decide by what is known, else by the rule."""
    if problem.call.variant == "auto" and (known(problem.device) or wanted()):
        plans = tuple(registry.candidates(problem))
        if len(plans) > 1:
            seconds = known(problem.device).get(key_of(problem, plans))
            return Decision(plans[0], {}, True) if seconds is None else _by_time(plans, seconds)
    plan = registry.choose(problem.call, problem.input, problem.output, problem.device, problem.weight_out)
    return Decision(plan, {}, problem.call.variant == "auto" and not wanted())


def _by_time(plans: Sequence[Plan], seconds: Seconds) -> Decision:
    """Take the plan that was measured to be the fastest; the rule's, the first, unless another clearly is."""
    named = labels(plans)
    times = [seconds.get(label, inf) for label in named]
    best = min(range(len(plans)), key=times.__getitem__)
    best = best if times[best] < times[0] * (1 - MARGIN) else 0
    of_these = sorted((number != best, times[number], label) for number, label in enumerate(named))
    return Decision(plans[best], {label: value for _, value, label in of_these if value < inf}, False)


def key_of(problem: Problem, plans: Sequence[Plan]) -> str:
    """Name a kind of call: by the kernels that can run it, and by sizes to a factor of two.

    What a kernel is compiled for has the dtype, the blocks, the fusion and the width of words already.
    """
    kernels = [(plan.symbol, plan.defines) for plan in plans]
    arrays = [each for each in (problem.input, problem.output, problem.weight_out) if each is not None]
    extents = [[extent.bit_length() for extent in each.shape] for each in arrays]
    orders = [sorted(range(len(each.shape)), key=lambda axis: -abs(each.strides[axis])) for each in arrays]
    kind = repr((problem.call.operation, kernels, extents, orders))
    return hashlib.sha256(kind.encode()).hexdigest()[:20]


def labels(plans: Sequence[Plan]) -> list[str]:
    """Name plans by their variant, and those of one variant by what they are compiled with besides."""
    facts = [frozenset((("kernel", plan.symbol), *plan.defines)) for plan in plans]
    named = []
    for plan, own in zip(plans, facts, strict=True):
        alike = [each for other, each in zip(plans, facts, strict=True) if other.variant == plan.variant]
        differs = sorted(own - own.intersection(*alike))
        named.append("/".join([plan.variant, *(f"{name}={value}" for name, value in differs)]))
    return named


def known(device: Device) -> dict[str, Seconds]:
    """Return what was measured on a device like this: by this process, by earlier ones, or by who made the package."""
    if device not in _learned:
        files = () if _SETTING == "0" else (KERNELS / "tuned" / _name(device), file_of(device))
        _learned[device] = {key: seconds for file in files for key, seconds in _read(file).items()}
    return _learned[device]


def _read(path: Path) -> dict[str, Seconds]:
    """Return what a file says, the last line of a kind; what is none of ours in it is passed over."""
    found: dict[str, Seconds] = {}
    with suppress(OSError):
        for line in path.read_bytes().splitlines():
            with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
                entry = json.loads(line)
                seconds = {str(label): float(value) for label, value in entry["seconds"].items()}
                if seconds and all(isfinite(value) and value > 0 for value in seconds.values()):
                    found[str(entry["key"])] = seconds
    return found


def _name(device: Device) -> str:
    """Return the name of a device's file, for these kernels alone."""
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
    """Keep what was measured, for this process and, in the user's file, for later ones, where it can be written."""
    global generation
    device = problem.device
    known(device)[key] = seconds
    generation += 1
    if sys.stderr.isatty():
        times = ", ".join(f"{label} {1e6 * value:,.1f} us" for label, value in seconds.items())
        print(f"gpufold.autotune: {problem.call.operation} {problem.call.data_shape}: {times}", file=sys.stderr)
    entry = {"key": key, "operation": problem.call.operation, "shape": problem.call.data_shape, "seconds": seconds}
    line = f"\n{json.dumps(entry)}\n".encode()  # on a line of its own, whatever was cut before
    if len(line) > LINE_BYTES:
        return
    path = file_of(device)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line)
        finally:
            os.close(file)
        unwritten.pop(device, None)
    except OSError as error:
        unwritten[device] = str(error)


def forget() -> None:
    """Let all that is known be read again."""
    global generation
    _learned.clear()
    generation += 1


def race(runs: Mapping[str, Callable[[], object]], clock: Callable[[Callable[[], object]], float]) -> Seconds:
    """Return the median seconds of each run, taken in turns after one of each that does not count.

    One that fails is left out.
    """
    samples: dict[str, list[float]] = {label: [] for label in runs}
    for _ in range(1 + ROUNDS):
        for label in tuple(samples):
            try:
                samples[label].append(clock(runs[label]))
            except (RuntimeError, MemoryError, Unsupported):
                del samples[label]
    return {label: median(taken[1:]) for label, taken in samples.items()}
