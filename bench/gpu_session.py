"""Half an hour on a GPU: what it is, tests, sanitizers, measurements and their report, in steps that can be stopped.

Everything is written below one folder, and what is found there is not done again: a step that was stopped, by a time
limit or with its machine, goes on in the next call, in another copy of the checkout too.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench import regret
from bench.report import by_operation, failures, markdown_table
from bench.results import ROOT, command_line, now, saved, write_at_once
from bench.tally import Tally

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


LEASH = """
import os, signal, subprocess, sys, threading
def end_with_who_started_this():
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=end_with_who_started_this, daemon=True).start()
status = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL).wait()
os._exit(status if status >= 0 else 128 - status)
"""
"""Runs a command, and ends with it, or it and what it has started when nobody holds the other end of its input: where
this process was killed, say, and the next call goes on with the same files."""

SANITIZED, PORT, PORTS = 8, 49152, 16
"""compute-sanitizers at a time, each with ports of its own: those without one look for it together, and give up."""


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

    def start(self, words: Sequence[str | Path], log: Path, **variables: str) -> subprocess.Popen[bytes]:
        """Start a Python command, whose output is added to a file; a tool may stand before Python.

        It does not outlive this process, nor does what it starts itself.
        """
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"} | variables
        leashed = [sys.executable, "-I", "-S", "-c", LEASH, *words]
        with log.open("ab") as out:
            return subprocess.Popen(
                leashed,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def finish(self, processes: list[subprocess.Popen[bytes]]) -> bool:
        """Wait for processes; end those that are there at the deadline, with what they have started, and return False.

        What they have measured until then is saved.
        """
        ended = True
        try:
            for process in processes:
                process.wait(max(0.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            ended = False
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        return ended

    def run(self, name: str, *words: str | Path, **variables: str) -> str:
        """Run a Python command; its exit status decides."""
        log = self.folder / f"{name}.log"
        if not self.finish([process := self.start([sys.executable, *words], log, **variables)]):
            return STOPPED
        if process.returncode:
            self.notes.append(f"exit status {process.returncode}: {log.read_text(errors='replace').splitlines()[-1]}")
        return FAILED if process.returncode else DONE


def run_tests(
    session: Session,
    name: str,
    *arguments: str,
    before: Callable[[int], Sequence[str]] = lambda part: (),
    most: int = 64,
) -> str:
    """Run tests in processes of their own until each has ended, whatever ends the processes.

    Of these there are `most` at a time, and `before` says what tool stands before each.
    """
    folder, processes = session.folder / name, min(session.processes, most)
    folder.mkdir(exist_ok=True)
    while True:
        earlier, finished = Tally.of(folder), folder / "finished.json"
        write_at_once(finished, json.dumps(sorted(earlier.ends)))
        words = [sys.executable, *PYTEST, *arguments]
        number, started = len(list(folder.glob("*-0.jsonl"))) + 1, []
        for part in range(processes):
            path = folder / f"{number}-{part}.jsonl"
            options = [f"--test-log={path}", f"--part={part}/{processes}", f"--finished={finished}"]
            started.append(session.start([*before(part), *words, *options], path.with_suffix(".log")))
        ended, tally = session.finish(started), Tally.of(folder)
        session.notes[:] = [
            f"{len(tally.ends)} tests ended, {len(tally.failed())} failed, {len(tally.waiting)} are left"
        ]
        if not ended:
            return STOPPED
        if tally.ends and not tally.waiting:
            wrong = {process.returncode for process in started} - {0, 1, 5}  # 5: a part without tests
            session.notes += [f"processes ended with {wrong}, see {name}/{number}-*.log"] if wrong else []
            return FAILED if wrong or tally.failed() else DONE
        if tally.begun == earlier.begun:
            said = (folder / f"{number}-0.log").read_text().splitlines()
            session.notes += ["no test begins", *[line for line in said if "deselected:" in line]]
            return FAILED


def sanitizers(session: Session) -> str:
    """Run compute-sanitizer's tools over a launch of every kernel function."""
    if not shutil.which(SANITIZER):
        session.notes.append(f"{SANITIZER} of the CUDA toolkit is not on the PATH")
        return ABSENT
    names = "memcheck", "racecheck", "initcheck", "synccheck"
    answers = [
        run_tests(session, f"sanitizers-{name}", *SMOKE, before=partial(sanitizer, name), most=SANITIZED)
        for name in names
    ]
    return next((answer for answer in (STOPPED, FAILED) if answer in answers), DONE)


def sanitizer(tool: str, part: int) -> list[str]:
    """Return what stands before one of several commands that compute-sanitizer looks at at the same time."""
    waits = ["--launch-timeout", "120", "--port", str(PORT + part * PORTS)]
    return [SANITIZER, "--target-processes", "all", "--error-exitcode", "77", *waits, "--tool", tool]


def tune(session: Session) -> str:
    """Race the kernels of the problems against each other; what the package knows of this device is not raced again."""
    return _in_new_processes(session, "tune", ["tune", "--results", str(session.folder), *session.named])


def benchmark(session: Session) -> str:
    """Measure problems beside their peers, with the choices of the rule."""
    words = ["--device", "gpu", "--full", "--seconds", f"{session.seconds:g}"]
    words += ["--save", str(session.folder / "measured" / "gpu.json"), "--resume"]
    words += ["--commit", session.commit] if session.commit else []
    return _in_new_processes(session, "benchmark", [*words, *session.named], GPUFOLD_AUTOTUNE="0")


def _in_new_processes(session: Session, name: str, words: list[str], **variables: str) -> str:
    """Run a command of the benchmark, again where the device was lost."""
    for _ in range(8):
        answer = session.run(name, "-m", "bench", *words, **variables)
        if answer != FAILED or not session.notes[-1].startswith("exit status 3:"):
            break
    return answer


def report(session: Session) -> str:
    """Draw what was measured, and say what the choices of `auto` cost."""
    results = [path for name in ("measured", "tuned") if (path := session.folder / name).exists()]
    if not results:
        session.notes.append("nothing was measured")
        return ABSENT
    return session.run("report", "-m", "bench", "report", "--output", session.folder / "report", "--results", *results)


SANITIZER = "compute-sanitizer"
SMOKE = "tests/test_gpu.py", "-k", "test_smoke"
PYTEST = *("-m", "pytest", "-q"), *("-p", "bench.test_log", "-p", "no:cacheprovider", "-p", "no:randomly")

STEPS: dict[str, tuple[float, Callable[[Session], str]]] = {
    "machine": (60, lambda session: session.run("machine", "-c", MACHINE)),
    "smoke": (120, lambda session: run_tests(session, "smoke", *SMOKE)),
    "tests": (
        STEP_SECONDS,
        lambda session: run_tests(session, "tests", "tests/test_gpu.py", "tests/test_torch_gpu.py"),
    ),
    "sanitizers": (STEP_SECONDS / 2, sanitizers),
    "tune": (STEP_SECONDS / 2, tune),
    "benchmark": (STEP_SECONDS, benchmark),
    "report": (STEP_SECONDS / 4, report),
}
"""The seconds of a step in one go, and what it does."""


def half_an_hour(session: Session, minutes: float, most_steps: int, words: list[str]) -> int:
    """Do the steps that are left, as many as the time allows; write the summary after each. Return the exit status."""
    path = session.folder / "session.json"
    session.folder.mkdir(parents=True, exist_ok=True)
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
        session.deadline = start + min(STEPS[name][0], seconds)
        step["result"] = STEPS[name][1](session)
        step["note"], step["seconds"] = "; ".join(session.notes), step["seconds"] + time.monotonic() - start
        write_at_once(path, json.dumps(steps, indent=1))
        write_at_once(session.folder / "summary.md", summary(session.folder, steps, words))
    print(summary(session.folder, steps, words))
    return int(any(step["result"] == FAILED for step in steps.values()))


def summary(folder: Path, steps: Mapping[str, Mapping[str, Any]], words: list[str]) -> str:
    """Return a page in Markdown on half an hour on a GPU, saved in a folder: the machine, each step, every failure."""
    log, reasons = folder / "machine.log", defaultdict(list)
    facts = log.read_text(errors="replace").splitlines()[-8:] if log.exists() else []
    table = [["step", "result", "minutes", "goes", ""]]
    for name, step in steps.items():
        note = str(step["note"]).replace("|", "/")
        table.append([name, step["result"], f"{step['seconds'] / 60:.1f}", str(step["goes"]), note])
        if step["result"] == FAILED:
            reasons[note].append(name)
    for path in sorted({path.parent for path in folder.glob("*/*.jsonl")}):
        for name, why in Tally.of(path).failed():
            reasons[f"{path.name}: {' '.join(why.split())[:300]}"].append(name.rpartition("::")[2])
    runs = saved([folder / "measured"]) if (folder / "measured").exists() else {}
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
    tuned = folder / "tuned"
    if choices := regret.of_results([], [tuned]):
        lines += ["", f"## {tuned.name}: {len(choices)} kinds of calls, by how much the rule loses", ""]
        lines += markdown_table(regret.by_operation(choices))
    return "\n".join([*lines, "", f"All there is lies in {folder}: the command goes on where it stopped.", ""])
