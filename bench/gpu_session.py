"""Half an hour on a GPU: what it is, tests, sanitizers and measurements, in steps that can be stopped.

Everything is written below one folder, and what is found there is not done again: a step that was stopped, by a time
limit or with its machine, goes on in the next call, in another copy of the checkout too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from bench import regret
from bench.measure import LOST
from bench.report import markdown, markdown_table
from bench.results import ROOT, Run, command_line, now, write_at_once
from bench.terminal import Console
from gpufold.gpu.sources import digest

NOT_BEGUN, DONE, FAILED, STOPPED, ABSENT = "not begun", "done", "FAILED", "to be continued", "left out"

SHORT, LONG, LAST_WORDS = 4 * 60, 8.5 * 60, 15
"""Seconds of a step in one go, where machines are lent for ten minutes, and for pytest to say then what failed."""

MACHINE = """
import platform, gpufold
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
print("Python", platform.python_version(), "on", platform.platform(), "with gpufold", gpufold.__version__)
for name in ("numpy", "torch", "triton", "jax"):
    with suppress(PackageNotFoundError):
        print(name, version(name))
import cupy
from gpufold.gpu import launch
runtime = cupy.cuda.runtime
print("cupy", cupy.__version__, "driver", runtime.driverGetVersion(), "runtime", runtime.runtimeGetVersion())
for number in range(runtime.getDeviceCount()):
    with cupy.cuda.Device(number):
        print(launch.device(number), runtime.memGetInfo())
"""

LONGEST = "-o", "faulthandler_timeout=240", "-o", "faulthandler_exit_on_timeout=true"
"""A test that takes longer ends its process, from pytest 9 on."""
PYTEST = sys.executable, "-m", "pytest", "-q", "-rfEs", "-p", "no:cacheprovider", *LONGEST
SMOKE, LARGE = "test_smoke", "test_past_two_to_the_31"
"""A launch of every kernel function, and what needs many GB."""
SANITIZER = "compute-sanitizer", "--error-exitcode", "77"
TOOLS = "memcheck", "racecheck", "initcheck", "synccheck"
FAILURE = "FAILED ", "ERROR tests", "SKIPPED ["
"""How pytest and the races begin to say, at the end of their logs, what failed or was skipped, and why."""

MEASURED = "measured/gpu.json"
"""What the benchmark has measured, below the folder."""

RULE = {"GPUFOLD_AUTOTUNE": "0"}
"""The rule chooses, whatever races have found."""
ALWAYS = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "CI": "true"}
"""Variables of what is run: nothing is written into the checkout, and pytest says a reason in full."""


def steps_of(options: argparse.Namespace) -> dict[str, tuple[float, list[str], dict[str, str]]]:
    """Return the seconds of each step in one go, its command and variables of its own."""

    def tests(processes: int, *words: str) -> list[str]:
        """By pytest-xdist in several processes, of which one that loses the device is replaced."""
        parallel = ["-p", "xdist", "-n", str(processes), "--dist", "worksteal"] if find_spec("xdist") else []
        return [*PYTEST, *parallel, "tests/test_gpu.py", *words]

    bench = [sys.executable, "-m", "bench"]
    named = [word for name in options.problem for word in ("--problem", name)]
    commit = ["--commit", options.commit] if options.commit else []
    saving = ["--save", str(options.results / MEASURED), "--resume", "--seconds", f"{options.seconds:g}"]
    arrays = [str(path) for path in ROOT.glob("tests/test_*_gpu.py") if find_spec(path.stem.split("_")[1])]
    alone = [*PYTEST, "-p", "no:xdist", "tests/test_gpu.py", "-k", SMOKE]
    return {
        "machine": (SHORT, [sys.executable, "-c", MACHINE], {}),
        "smoke": (SHORT, tests(options.processes, "-k", SMOKE), {}),
        "tests": (LONG, tests(options.processes, *arrays, "-k", f"not {SMOKE} and not {LARGE}"), {}),
        "large": (SHORT, tests(1, "-k", LARGE), {}),
        **{tool: (SHORT, [*SANITIZER, "--tool", tool, *alone], {}) for tool in TOOLS},
        "tune": (SHORT, [*bench, "tune", "--results", str(options.results), *named], {}),
        "benchmark": (LONG, [*bench, "--device", "gpu", "--full", *saving, *commit, *named], RULE),
    }


def half_an_hour(options: argparse.Namespace, words: list[str], console: Console) -> int:
    """Do the steps that are left, each once; write the summary after each. Return the exit status."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is ended first
    folder = options.results = options.results.resolve()
    path, steps = folder / "session.json", steps_of(options)
    results: dict[str, tuple[str, float]] = json.loads(path.read_text()) if path.exists() else {}
    _check_kernels(folder)
    left = [name for name in steps if name not in results]
    left += [name for name, (result, _) in results.items() if result == STOPPED]
    left = [name for name in left if name in (options.only or steps)]
    for name in left[: options.steps]:
        print(f"{now()} {name}", file=sys.stderr, flush=True)
        results.pop(name, None)  # where it is stopped again, it has its next turn after the others
        results[name] = STOPPED, 0.0
        write_at_once(path, json.dumps(results, indent=1))
        start = time.monotonic()
        result = do(*steps[name], folder / f"{name}.log")
        results[name] = result, time.monotonic() - start
        write_at_once(path, json.dumps(results, indent=1))
        write_at_once(folder / "summary.md", summary(folder, steps, results, words))
    print(summary(folder, steps, results, words))
    return int(any(result == FAILED for result, _ in results.values()))


def _check_kernels(folder: Path) -> None:
    """Raise if a folder has the results of other kernels."""
    path, kernels = folder / "kernels.txt", digest("*.cu*")
    if path.exists() and path.read_text() != kernels:
        raise ValueError(f"{folder} has the results of other kernels; name another folder")
    write_at_once(path, kernels)


def do(seconds: float, command: Sequence[str], variables: Mapping[str, str], log: Path) -> str:
    """Run a command, in another process again where the device was lost; return its result.

    Tests of which all are skipped have failed, for the reasons in the log.
    """
    if not shutil.which(command[0]):
        log.write_text(f"{command[0]} is not on the PATH\n")
        return ABSENT
    end, status = time.monotonic() + seconds, LOST
    with log.open("wb") as out:
        while status == LOST:
            try:
                status = run(command, out, end - time.monotonic(), os.environ | ALWAYS | variables)
            except subprocess.TimeoutExpired:
                return STOPPED
        if status < 0:
            out.write(f"ended by signal {-status}\n".encode())
    skipped = "pytest" in command and not re.search(r"\d+ (passed|xfailed)", log.read_text(errors="replace"))
    return FAILED if status or skipped else DONE


def run(command: Sequence[str], out: BinaryIO, seconds: float, environment: Mapping[str, str]) -> int:
    """Run a command, and end what it has started with it; return the exit status.

    It is a process group of this process's own session, with which a machine's owner ends it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it, and so would its processes
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, process_group=0
    ) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(LAST_WORDS)
            raise
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def summary(folder: Path, steps: Sequence[str], results: Mapping[str, tuple[str, float]], words: list[str]) -> str:
    """Return a page in Markdown on half an hour on a GPU, saved in a folder: each step, every failure, every row."""
    table, details = [["step", "result", "minutes", "end of its log"]], []
    for name in steps:
        result, seconds = results.get(name, (NOT_BEGUN, 0.0))
        log = folder / f"{name}.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        table.append([name, result, f"{seconds / 60:.1f}", lines[-1].replace("|", "/") if lines else ""])
        failed = [number for number, line in enumerate(lines) if line.startswith(FAILURE)]
        if result == FAILED or name == "machine" or (result == STOPPED and failed):
            details += ["", f"## {name}", "", "```text", *lines[next(iter(failed), -20) :], "```"]
    lines = ["# Half an hour on a GPU", "", f"{now()}, `{command_line(words)}`", "", *markdown_table(table), *details]
    if (folder / MEASURED).exists():
        measured = Run.load(folder / MEASURED)
        lines += ["", f"## Benchmark: {len(measured.rows)} rows", "", markdown(measured).rstrip()]
    if choices := regret.of_results([], [folder / "tuned"]):
        lines += ["", f"## Races: {len(choices)} kinds of calls, by how much the rule loses", ""]
        lines += markdown_table(regret.by_operation(choices))
    return "\n".join([*lines, "", f"All there is lies in {folder}: the command goes on where it stopped.", ""])
