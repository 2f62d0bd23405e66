"""Processes of their own for tests, and what the GPU tests of several, which share one device, owe each other."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]


def python(*arguments: str, given: str | None = None, **variables: str) -> str:
    """Run Python in a process of its own, which finds the checkout and its tests; return what it printed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    paths = os.pathsep.join(map(str, (CHECKOUT, CHECKOUT / "tests", *sys.path[1:])))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=CHECKOUT,
        env=inherited | {"PYTHONPATH": paths} | variables,
        input=given,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def alone(name: str):
    """Let one process of a user at a time into the block, however they were started.

    The operating system opens the lock where a process ends in whatever way. Its file is empty and stays, in a folder
    that is the user's own: in one that others share, whoever knows its name could put a link to another file there.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "gpufold"
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def end_where_the_device_is_dead(request, synchronize, error) -> None:
    """Wait for the device after a test, and end the process where that fails twice in a row.

    CUDA's sticky errors, such as an access to memory that is not there, fail every later call of a process: all tests
    that follow would be red and the cause one of many. Under pytest-xdist the worker dies, which is reported as a crash
    of this test, and another worker takes the rest; without it the session ends. An error that does not stay fails this
    test alone.
    """
    try:
        synchronize()
        return
    except error as first:
        message = f"{request.node.nodeid} left the device in error: {first}"
    try:
        synchronize()
    except error:
        if not hasattr(request.config, "workerinput"):
            pytest.exit(f"{message}; nothing can run on it any more", returncode=1)
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"\n{message}; its process ends", file=sys.stderr, flush=True)
        os._exit(1)
    pytest.fail(message)
