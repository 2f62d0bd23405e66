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


class Timer:
    """Signals at random moments while a call runs, and what their handler does."""

    def __init__(self, draw: random.Random) -> None:
        self._draw, self._left, self._computes = draw, 0, False
        signal.signal(signal.SIGALRM, self._handle)

    def ends(self, name: str, out: np.ndarray) -> bool:
        """Return whether a call ended by an exception."""
        self._computes, self._left = self._draw.random() < 0.1, self._draw.choice((1, 1, 2, 20))
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-5 + self._draw.random() * 0.003)
            CALLS[name](out)
        except KeyboardInterrupt:
            self._stop()
            return True
        self._stop()
        return False

    def _stop(self) -> None:
        """Let no signal of this call that is still to be handled raise in a later one."""
        self._left = 0
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _handle(self, _: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code not in CODES:
            frame = frame.f_back
        if frame is not None and self._left:
            self._left -= 1
            if not self._computes:
                signal.setitimer(signal.ITIMER_REAL, 3e-5 if self._left > 1 else 3e-4 * self._left)
                raise KeyboardInterrupt
            assert np.array_equal(gpufold.col2im(COLUMNS, IMAGE, KERNEL, **PADS), WANTED["col2im"])


def first_calls(draw: random.Random, timer: Timer, count: int, seen: dict[str, int]) -> None:
    """Interrupt the first call of processes that have no thread but their own; they must end by themselves."""
    gpufold.set_num_threads(3)
    for _ in range(count):
        process, moment = os.fork(), draw.random()
        if not process:
            timer.__init__(random.Random(moment))
            out = np.empty_like(WANTED["col2im"])
            timer.ends("col2im", out)
            sys.exit(0 if np.array_equal(CALLS["col2im"](out), WANTED["col2im"]) else 3)
        ends = time.monotonic() + 20
        while (ended := os.waitpid(process, os.WNOHANG)) == (0, 0) and time.monotonic() < ends:
            time.sleep(0.0005)
        if ended == (0, 0):
            os.kill(process, signal.SIGKILL)
            ended = os.waitpid(process, 0)
        code = os.waitstatus_to_exitcode(ended[1])
        seen["hung"] += code == -signal.SIGKILL
        seen["wrong"] += code not in (0, -signal.SIGKILL)
        seen["processes"] += 1


def later_calls(draw: random.Random, timer: Timer, ends: float, at_least: int, seen: dict[str, int]) -> None:
    """Interrupt calls of this process, look whether they go on writing, and whether the next ones are right."""
    while seen["interrupts"] < at_least or time.monotonic() < ends:
        if draw.random() < 0.3:
            gpufold.set_num_threads(draw.choice((2, 3, 4)))  # others, which are still to be started
        name = draw.choice(list(CALLS))
        out = np.zeros_like(WANTED[name])
        if timer.ends(name, out):
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
    timer = Timer(draw)
    first_calls(draw, timer, int(at_least) // 10, seen)
    faulthandler.dump_traceback_later(120, exit=True)  # its thread would not outlive a fork, which then waits for it
    later_calls(draw, timer, began + float(seconds), int(at_least), seen)
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
