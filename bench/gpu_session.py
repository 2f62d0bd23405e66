"""Half an hour on a GPU: what it is, tests, sanitizers, measurements and their report, in steps that can be stopped.

Everything is written below one folder, and what is found there is not done again: a step that was stopped, by a time
limit or with its machine, goes on in the next call, in another copy of the checkout too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from bench import regret
from bench.measure import LOST
from bench.report import by_operation, failures, markdown_table
from bench.results import ROOT, command_line, now, saved, write_at_once

NOT_BEGUN, DONE, FAILED, STOPPED, ABSENT = "not begun", "done", "FAILED", "to be continued", "left out"

STEP_SECONDS = 8.5 * 60
"""For a step in one go, where machines are lent for ten minutes."""
LEAST_SECONDS = 30
"""No step begins where less is left."""

MACHINE = """
import platform, gpufold
print("Python", platform.python_version(), "on", platform.platform(), "with gpufold", gpufold.__version__)
for name in ("numpy", "torch", "cupy"):
    print(name, __import__(name).__version__)
import cupy
from gpufold.gpu import launch
runtime = cupy.cuda.runtime
print("driver", runtime.driverGetVersion(), "runtime", runtime.runtimeGetVersion())
for number in range(runtime.getDeviceCount()):
    print(launch.device(number), runtime.memGetInfo())
"""

LONGEST = "-o", "faulthandler_timeout=240", "-o", "faulthandler_exit_on_timeout=true"
"""A test that takes longer ends its process, from pytest 9 on."""
PYTEST = sys.executable, "-m", "pytest", "-q", "-rfEs", "-p", "no:cacheprovider", *LONGEST
SMOKE = "tests/test_gpu.py", "-k", "test_smoke"
LARGE = "test_past_two_to_the_31"
SANITIZER = "compute-sanitizer"
RESULTS = "measured", "tuned"
"""Folders of what the benchmark and the races leave."""

SKIPPED = re.compile(r"^SKIPPED \[\d+\] \S+ (.*)$", re.MULTILINE)
FAILURE = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - (.*(?:\n(?!FAILED |ERROR |SKIPPED |\d).*)*))?$", re.MULTILINE)
"""What pytest and the races say of one that has failed: its name, and why, in one or more lines."""

ALWAYS = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "CI": "true"}
"""Variables of what is run: nothing is written into the checkout, and pytest says a reason in full."""


@dataclass
class Session:
    """What the steps share."""

    folder: Path
    processes: int
    named: list[str]
    """Of the command that measures: --problem NAME, as often as that is wanted."""
    seconds: float
    """For a problem that is measured."""
    commit: str | None
    deadline: float = 0.0
    """When the step that is under way has to end."""
    notes: list[str] = field(default_factory=list)

    def logs(self, name: str) -> list[Path]:
        """Return what the commands of a step have printed."""
        return sorted(self.folder.glob(f"{name}*.log"))

    def run(self, name: str, *commands: Sequence[str | Path], **variables: str) -> str:
        """Run commands at the same time, each with a log, until the deadline; their exit statuses decide.

        They are process groups of this process's own session, with which a machine's owner ends them.
        """
        processes: dict[Path, subprocess.Popen[bytes]] = {}
        options: dict[str, Any] = {"cwd": ROOT, "env": os.environ | ALWAYS | variables, "stdin": subprocess.DEVNULL}
        try:
            for number, command in enumerate(commands):
                log = self.folder / (f"{name}-{number}.log" if number else f"{name}.log")
                with log.open("ab") as out:
                    processes[log] = subprocess.Popen(command, **options, stdout=out, stderr=out, process_group=0)
            for process in processes.values():
                process.wait(max(0.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return STOPPED
        finally:
            for process in processes.values():
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # what it has started too
                    process.wait()
        for log, process in processes.items():
            last = log.read_text(errors="replace").rstrip().rpartition("\n")[2]
            note = f"exit status {process.returncode}: {last}" if process.returncode else last
            self.notes += [note] if note not in self.notes else []
        return FAILED if any(process.returncode for process in processes.values()) else DONE

    def test(self, name: str, *commands: Sequence[str]) -> str:
        """Run tests; where one of the commands has skipped all of its own, they failed for the reasons given there."""
        result = self.run(name, *commands)
        texts = [log.read_text(errors="replace") for log in self.logs(name)]
        if result != DONE or all(re.search(r"\d+ (passed|xfailed)", text) for text in texts):
            return result
        self.notes += sorted({reason for text in texts for reason in SKIPPED.findall(text)})
        return FAILED

    def measure(self, name: str, *words: str | Path, **variables: str) -> str:
        """Run a command of the benchmark, in another process again where the device was lost."""
        while True:
            result = self.run(name, [sys.executable, "-m", "bench", *words], **variables)
            if result != FAILED or not self.notes[-1].startswith(f"exit status {LOST}:"):
                return result


def run_tests(session: Session, name: str, words: Sequence[str], processes: int | None = None) -> str:
    """Run tests, by pytest-xdist in several processes, of which one that loses the device is replaced."""
    count = str(processes or session.processes)
    parallel = ["-p", "xdist", "-n", count, "--dist", "worksteal"] if find_spec("xdist") else []
    return session.test(name, [*PYTEST, *parallel, *words])


def sanitize(session: Session, name: str) -> str:
    """Run one of compute-sanitizer's tools over a launch of every kernel function, in up to eight processes."""
    if not shutil.which(SANITIZER):
        session.notes.append(f"{SANITIZER} of the CUDA toolkit is not on the PATH")
        return ABSENT
    if (listed := session.run(name, [*PYTEST, "--collect-only", *SMOKE])) != DONE:
        return listed
    tests = [line for log in session.logs(name) for line in log.read_text().splitlines() if "::" in line]
    count, commands = min(session.processes, 8), []
    for number in range(count):
        port = str(49152 + 16 * number)  # those without one look for it together, and give up
        waits = ["--launch-timeout", "120", "--port", port]
        tool = [SANITIZER, "--target-processes", "all", "--error-exitcode", "77", *waits, "--tool", name]
        commands.append([*tool, *PYTEST, *tests[number::count]])
    return session.test(name, *commands)


def tune(session: Session, name: str) -> str:
    """Race the kernels of the problems against each other; what the package knows of this device is not raced again."""
    return session.measure(name, "tune", "--results", session.folder, *session.named)


def benchmark(session: Session, name: str) -> str:
    """Measure problems beside their peers, with the choices of the rule."""
    words = ["--device", "gpu", "--full", "--seconds", f"{session.seconds:g}"]
    words += ["--save", str(session.folder / RESULTS[0] / "gpu.json"), "--resume"]
    words += ["--commit", session.commit] if session.commit else []
    return session.measure(name, *words, *session.named, GPUFOLD_AUTOTUNE="0")


def report(session: Session, name: str) -> str:
    """Draw what was measured, and say what the choices of `auto` cost."""
    results = [session.folder / part for part in RESULTS]
    return session.measure(name, "report", "--output", session.folder / "report", "--results", *results)


Step: TypeAlias = Callable[[Session, str], str]
"""Does a step by its name; returns its result."""

STEPS: dict[str, tuple[float, Step]] = {
    "machine": (60, lambda session, name: session.run(name, [sys.executable, "-c", MACHINE])),
    "smoke": (STEP_SECONDS / 2, partial(run_tests, words=SMOKE)),
    "tests": (
        STEP_SECONDS,
        partial(run_tests, words=["tests/test_gpu.py", "tests/test_torch_gpu.py", "-k", f"not smoke and not {LARGE}"]),
    ),
    "large": (STEP_SECONDS / 2, partial(run_tests, words=["tests/test_gpu.py", "-k", LARGE], processes=1)),
    **{tool: (STEP_SECONDS / 2, sanitize) for tool in ("memcheck", "racecheck", "initcheck", "synccheck")},
    "tune": (STEP_SECONDS / 2, tune),
    "benchmark": (STEP_SECONDS, benchmark),
    "report": (STEP_SECONDS / 4, report),
}
"""The seconds of a step in one go, and what it does."""


def half_an_hour(session: Session, minutes: float, most_steps: int, words: list[str]) -> int:
    """Do the steps that are left, as many as the time allows; write the summary after each. Return the exit status."""
    path = session.folder / "session.json"
    for part in RESULTS:
        (session.folder / part).mkdir(parents=True, exist_ok=True)
    saved = json.loads(path.read_text()) if path.exists() else {}
    empty = {"result": NOT_BEGUN, "goes": 0, "seconds": 0.0, "note": ""}
    steps: dict[str, Any] = {name: {**empty, **saved.get(name, {})} for name in STEPS}
    for _ in range(most_steps):
        left = [name for name, step in steps.items() if step["result"] in (NOT_BEGUN, STOPPED)]
        seconds = 60 * minutes - sum(step["seconds"] for step in steps.values())
        if not left or seconds < LEAST_SECONDS:
            break
        name = min(left, key=lambda name: int(steps[name]["goes"]))  # one that was stopped has its next turn last
        step = steps[name]
        step["goes"], step["result"] = step["goes"] + 1, STOPPED
        write_at_once(path, json.dumps(steps, indent=1))
        print(f"{now()} {name}", file=sys.stderr, flush=True)
        start, session.notes = time.monotonic(), []
        for log in session.logs(name):
            log.unlink()
        session.deadline = start + min(STEPS[name][0], seconds)
        step["result"] = STEPS[name][1](session, name)
        step["note"], step["seconds"] = "; ".join(session.notes), step["seconds"] + time.monotonic() - start
        write_at_once(path, json.dumps(steps, indent=1))
        write_at_once(session.folder / "summary.md", summary(session.folder, steps, words))
    print(summary(session.folder, steps, words))
    return int(any(step["result"] == FAILED for step in steps.values()))


def summary(folder: Path, steps: Mapping[str, Mapping[str, Any]], words: list[str]) -> str:
    """Return a page in Markdown on half an hour on a GPU, saved in a folder: the machine, each step, every failure."""
    log, reasons = folder / "machine.log", defaultdict[str, list[str]](list)
    facts = log.read_text(errors="replace").splitlines()[-8:] if log.exists() else []
    table = [["step", "result", "minutes", "goes", ""]]
    for name, step in steps.items():
        note = str(step["note"]).replace("|", "/")
        table.append([name, step["result"], f"{step['seconds'] / 60:.1f}", str(step["goes"]), note])
        if step["result"] == FAILED:
            reasons[note].append(name)
    for path in sorted(folder.glob("*.log")):
        for name, why in FAILURE.findall(path.read_text(errors="replace")):
            reasons[f"{path.stem}: {' '.join(why.split())[:300]}"].append(name.rpartition("::")[2])
    measured, tuned = (folder / part for part in RESULTS)
    runs = saved([measured])
    lines = ["# Half an hour on a GPU", "", f"{now()}, `{command_line(words)}`", "", *(f"- {line}" for line in facts)]
    lines += ["", *markdown_table(table), "", "## Failures", ""]
    lines += [f"- {why}: {', '.join(f'`{name}`' for name in names)}" for why, names in reasons.items()]
    lines += [f"- {path.name}: {line}" for path, run in runs.items() for line in failures(run)]
    lines += [] if lines[-1] else ["None."]
    for path, run in runs.items():
        shares = {row.name: share for row in run.rows if (share := row.fraction_of_copy())}
        least = ", ".join(f"{name} {shares[name]:.0%}" for name in sorted(shares, key=shares.__getitem__)[:8])
        lines += ["", f"## {path.stem}: {len(run.rows)} rows on {run.device}, commit {run.commit}", ""]
        lines += [f"Least of a copy's speed: {least}.", "", *markdown_table(by_operation(run))] if shares else []
    if choices := regret.of_results([], [tuned]):
        lines += ["", f"## {tuned.name}: {len(choices)} kinds of calls, by how much the rule loses", ""]
        lines += markdown_table(regret.by_operation(choices))
    return "\n".join([*lines, "", f"All there is lies in {folder}: the command goes on where it stopped.", ""])
