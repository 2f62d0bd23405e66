"""Processes of their own for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]


def python(*arguments: str, given: str | None = None, folder: Path = CHECKOUT, **variables: str) -> str:
    """Run Python in a process of its own, which finds the checkout and its tests; return what it printed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    paths = os.pathsep.join(map(str, (CHECKOUT, CHECKOUT / "tests", *sys.path[1:])))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=inherited | {"PYTHONPATH": paths} | variables,
        input=given,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
