"""A process that interrupts its own calls, as Ctrl-C does: `python tests/interrupts.py seed seconds at_least`.

A timer's signal comes at a random moment of a call on several threads; its handler raises KeyboardInterrupt, once,
twice or again and again, or computes another call. What was seen is printed as a dictionary.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
import time
from types import FrameType

import numpy as np

import gpufold

IMAGE, KERNEL = (96, 96), (3, 3)
PADS = {"pads_begin": 1, "pads_end": 1}
COLUMNS = np.random.default_rng(0).random((1, 144, 9216), np.float32)
POSITIONS = np.random.default_rng(1).integers(-40, 80, (80, 2))
PICTURE = COLUMNS[0].reshape(1152, 1152)

CALLS = {
    "col2im": lambda out: gpufold.col2im(COLUMNS, IMAGE, KERNEL, **PADS, out=out),
    "im2col": lambda out: gpufold.im2col(WANTED["col2im"], KERNEL, **PADS, out=out),
    "take_blocks": lambda out: gpufold.take_blocks(PICTURE, POSITIONS, (128, 128), out=out),
}
CODES = {call.__code__ for call in CALLS.values()}
WANTED: dict[str, np.ndarray] = {}


def ends(draw: random.Random, name: str, out: np.ndarray) -> bool:
    """Make a call that is interrupted at random moments; return whether it ended by an exception."""
    computes, left = draw.random() < 0.1, draw.choice((1, 1, 2, 20))

    def handle(_: int, frame: FrameType | None) -> None:
        nonlocal left
        while frame is not None and frame.f_code not in CODES:
            frame = frame.f_back
        if frame is None or not left:
            return
        left -= 1
        if not computes:
            signal.setitimer(signal.ITIMER_REAL, 3e-5 if left > 1 else 3e-4 * left)
            raise KeyboardInterrupt
        assert np.array_equal(gpufold.col2im(COLUMNS, IMAGE, KERNEL, **PADS), WANTED["col2im"])

    signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-5 + draw.random() * 0.003)
        CALLS[name](out)
    except KeyboardInterrupt:
        return True
    finally:
        left = 0  # no signal of this call that is still to be handled raises in a later one
        signal.setitimer(signal.ITIMER_REAL, 0)
    return False


def first_calls(draw: random.Random, count: int, seen: dict[str, int]) -> None:
    """Interrupt the first call of processes that have no thread but their own; they must end by themselves."""
    gpufold.set_num_threads(3)
    for _ in range(count):
        process, moment = os.fork(), draw.random()
        if not process:
            out = np.empty_like(WANTED["col2im"])
            ends(random.Random(moment), "col2im", out)
            sys.exit(0 if np.array_equal(CALLS["col2im"](out), WANTED["col2im"]) else 3)
        until = time.monotonic() + 20
        while (ended := os.waitpid(process, os.WNOHANG)) == (0, 0) and time.monotonic() < until:
            time.sleep(0.0005)
        if ended == (0, 0):
            os.kill(process, signal.SIGKILL)
            ended = os.waitpid(process, 0)
        code = os.waitstatus_to_exitcode(ended[1])
        seen["hung"] += code == -signal.SIGKILL
        seen["wrong"] += code not in (0, -signal.SIGKILL)
        seen["processes"] += 1


def later_calls(draw: random.Random, until: float, at_least: int, seen: dict[str, int]) -> None:
    """Interrupt calls of this process, look whether they go on writing, and whether the next ones are right."""
    while seen["interrupts"] < at_least or time.monotonic() < until:
        if draw.random() < 0.3:
            gpufold.set_num_threads(draw.choice((2, 3, 4)))  # others, which are still to be started
        name = draw.choice(list(CALLS))
        out = np.zeros_like(WANTED[name])
        if ends(draw, name, out):
            seen["interrupts"] += 1
            left = out.copy()
            time.sleep(0.001)
            seen["written_after"] += not np.array_equal(left, out)
        if draw.random() < 0.1:
            seen["wrong"] += not np.array_equal(CALLS[name](out), WANTED[name])


def main(seed: str, seconds: str, at_least: str) -> None:
    """Print how often what was seen."""
    began, draw = time.monotonic(), random.Random(int(seed))
    gpufold.set_num_threads(1)
    for name, call in CALLS.items():
        WANTED[name] = call(None)
    seen = dict.fromkeys(("interrupts", "processes", "written_after", "wrong", "hung"), 0)
    first_calls(draw, int(at_least) // 10, seen)
    faulthandler.dump_traceback_later(120, exit=True)  # its thread would not outlive a fork, which then waits for it
    later_calls(draw, began + float(seconds), int(at_least), seen)
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
