"""Half an hour on a GPU, rehearsed: the command, from end to end, where little is installed and much goes wrong.

The environment has NumPy, torch, pytest and rich alone, pytest-xdist or not, and CuPy or its stand-in; there is no git,
and a copy of the checkout that nothing may be written to.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from faults import copy_checkout
from test_gpu import FUNCTIONS

from bench.__main__ import INTERRUPTED, _parser, main
from bench.gpu_session import ABSENT, DONE, FAILED, STEPS, STOPPED, Session, half_an_hour, sanitize
from bench.peers import PEERS
from bench.problems import select
from bench.regret import Choice, by_operation, of_file
from bench.results import geometric_mean
from bench.terminal import Console
from bench.tune import LOST, tasks, tune

ROOT = Path(__file__).resolve().parent.parent
INSTALLED = {"cupy", "cupyx", "gpufold", "numpy", "torch"}
NOT_INSTALLED = {peer.module for peer in PEERS} - INSTALLED | {"dask", "matplotlib"}
STAND_IN = """sys.modules["cupyx"] = sys.modules["ml_dtypes"] = None
from bench.hostcuda import fake_cupy
sys.modules["cupy"] = fake_cupy.cupy()
"""

WRONG, DEADLY = "average_elementwise", "batch_to_space_index_map"
"""The kernel that gives wrong bits, and the one that takes the device down."""


def contents(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


class Rehearsal:
    """The command in a copy of the checkout, with an environment and results of its own."""

    def __init__(self, tmp_path, absent=(), stand_in="", **variables):
        environment = tmp_path / "environment"
        environment.mkdir()
        missing = f"import sys\nsys.modules.update(dict.fromkeys({NOT_INSTALLED.union(absent)}))\n"
        (environment / "sitecustomize.py").write_text(missing + stand_in)
        tools = tmp_path / "tools"  # no git among them
        tools.mkdir()
        for name in ("g++", "as", "ld", "nm", "ar"):
            if found := shutil.which(name):
                (tools / name).symlink_to(Path(found).resolve())
        self.checkout, self.results = tmp_path / "checkout", tmp_path / "results"
        copy_checkout(self.checkout)
        shutil.rmtree(self.checkout / "bench" / "results", ignore_errors=True)
        home = {name: os.environ[name] for name in ("HOME", "XDG_CACHE_HOME", "TMPDIR") if name in os.environ}
        paths = f"{environment}{os.pathsep}{self.checkout}"
        mine = {"PATH": str(tools), "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
        self.environment = home | mine | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | variables

    def start(self, *words):
        options = ["--results", str(self.results), "--processes", "2", "--seconds", "0.01", *words]
        command = [sys.executable, "-m", "bench", "chip", *options, "--problem", "tiny"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, cwd=self.checkout, env=self.environment, **pipes, start_new_session=True)

    def run(self, *words):
        process = self.start(*words)
        output = process.communicate()[0]
        return process.returncode, output

    def steps(self):
        return json.loads((self.results / "session.json").read_text())


@pytest.mark.all
@pytest.mark.peer("torch")
@pytest.mark.peer("cupy")
def test_without_a_driver_the_command_goes_as_far_as_it_can_and_says_why(tmp_path):
    rehearsal = Rehearsal(tmp_path, absent={"xdist"})
    before = contents(rehearsal.checkout)
    status, page = rehearsal.run()
    assert status == 1
    assert contents(rehearsal.checkout) == before
    results = {name: step["result"] for name, step in rehearsal.steps().items()}
    assert all(results[name] == FAILED for name in ("machine", "smoke", "tests", "large", "tune", "benchmark")), page
    assert results["memcheck"] == ABSENT
    assert "No results are saved yet" in page
    for step in ("smoke", "tests", "large"):
        assert re.search(rf"{step} \| FAILED .* skipped.* no CUDA device", page), page
    assert "no GPU to measure on" in page


@pytest.mark.all
@pytest.mark.hostcuda
@pytest.mark.peer("torch")
@pytest.mark.peer("xdist")
def test_half_an_hour_on_a_gpu_rehearsed(tmp_path):
    """A kernel gives wrong bits, one takes the device down, a call is killed, and the results move away and back."""
    options = "-p bench.hostcuda.fake_cupy --of-each=1"
    rehearsal = Rehearsal(tmp_path, (), STAND_IN, PYTEST_ADDOPTS=options, FAKE_CUPY_LOSES_THE_DEVICE=DEADLY)
    source = rehearsal.checkout / "kernels" / f"{WRONG}.cu"
    broken = source.read_text().replace(
        "divide_or_zero(widen(element[number]), weight[number])", "widen(element[number])"
    )
    assert broken != source.read_text()
    source.write_text(broken)
    before = contents(rehearsal.checkout)

    status, page = rehearsal.run("--steps", "2")
    assert status == 1
    assert "the stand-in for CuPy" in page
    said = re.findall(r"^- smoke: (.*): `(.*?)`$", page, re.M)
    assert {name for _, name in said} == {f"test_smoke[{WRONG}]", f"test_smoke[{DEADLY}]"}, page
    assert any("crashed while running" in why for why, _ in said), page
    assert f" {len(FUNCTIONS) - 2} passed" in rehearsal.steps()["smoke"]["note"]

    killed = rehearsal.start("--steps", "1")
    while not (rehearsal.results / "tests.log").exists() and killed.poll() is None:
        time.sleep(0.1)
    killed.terminate()
    killed.communicate()
    assert killed.returncode == INTERRUPTED, "once what it has started is ended"
    assert rehearsal.steps()["tests"]["result"] == STOPPED
    shutil.move(rehearsal.results, tmp_path / "elsewhere")
    rehearsal.results.mkdir()
    shutil.copytree(tmp_path / "elsewhere", rehearsal.results, dirs_exist_ok=True, copy_function=shutil.copyfile)

    status, page = rehearsal.run()
    assert status == 1
    steps = rehearsal.steps()
    assert {name: step["goes"] for name, step in steps.items()} == dict.fromkeys(STEPS, 1) | {"tests": 2}
    assert f"`test_smoke[{DEADLY}]`" in page
    assert re.search(r"large \| FAILED .* needs many GB", page), page
    assert "col2im-tiny-2x2" in page
    saved = "".join(path.read_text() for path in (rehearsal.results / "measured").rglob("*.json*"))
    assert '"naive gather"' in saved, "peers that use CuPy alone are timed"
    assert "AttributeError" not in saved
    (measured,) = (rehearsal.results / "tuned").iterdir()
    assert steps["tune"]["result"] == steps["report"]["result"] == DONE
    assert [choice.operation for choice in of_file(measured)] == ["col2im", "im2col"]
    assert re.search(r"\| \*?all.* \| 2 \|", page), "by how much the rule loses"
    assert contents(rehearsal.checkout) == before
    assert (rehearsal.results / "summary.md").read_text().strip() == page[page.index("# Half") :].strip()


# ---- without other processes


@pytest.fixture
def session(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # whose imports take longer than the tests
    return Session(tmp_path, 2, [], 0.1, None)


def test_steps_that_were_stopped_have_their_next_turn_after_the_others(session, monkeypatch, capsys):
    log, answers = [], {"machine": [DONE], "smoke": [STOPPED, STOPPED, DONE], "tests": [FAILED], "sanitizers": [DONE]}
    steps = {name: (10.0, lambda session, name: log.append(name) or answers[name].pop(0)) for name in answers}
    monkeypatch.setattr("bench.gpu_session.STEPS", steps)
    assert half_an_hour(session, 28, 3, ["chip"]) == 1
    assert log == ["machine", "smoke", "tests"]
    assert session.deadline < time.monotonic() + 10, "the seconds of a step"
    assert half_an_hour(session, 28, 100, ["chip"]) == 1
    assert log[3:] == ["sanitizers", "smoke", "smoke"]
    half_an_hour(session, 28, 100, ["chip"])
    assert len(log) == 6, "nothing is done again"
    assert "| tests | FAILED |" in capsys.readouterr().out
    (session.folder / "session.json").unlink()
    answers |= {"machine": [DONE], "smoke": [DONE]}
    half_an_hour(session, 0.1, 100, ["chip"])
    assert len(log) == 6, "no step begins where the minutes are over"


def test_steps_and_what_the_documents_say_of_them_end_before_ten_minutes():
    longest = max(seconds for seconds, _ in STEPS.values())
    assert longest < 9 * 60
    said = re.findall(r"^python -m bench (chip .*)$", (ROOT / "docs" / "gpu.md").read_text(), re.M)
    assert said
    assert all(_parser().parse_args(words.split()).steps * longest < 600 for words in said)


def test_what_does_not_end_in_time_is_ended_with_what_it_has_started(session):
    session.deadline = time.monotonic() + 1
    assert session.run("slow", ["sh", "-c", "sleep 60 & echo $!; wait"], ["true"]) == STOPPED
    child = Path("/proc", (session.folder / "slow.log").read_text().strip(), "cmdline")
    until = time.monotonic() + 10
    while child.exists() and child.read_bytes() and time.monotonic() < until:
        time.sleep(0.01)
    assert time.monotonic() < until


@pytest.mark.all
def test_each_kernel_function_is_launched_behind_one_of_several_sanitizers(session, monkeypatch):
    tool = session.folder / "compute-sanitizer"
    tool.write_text('#!/bin/sh\necho "$8 $*"\necho 1 passed\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(session.folder), prepend=os.pathsep)
    session.deadline = time.monotonic() + 60
    assert sanitize(session, "memcheck") == DONE
    ran = [re.search(r"^(\d{5,}) (.*)", log.read_text(), re.M).groups() for log in session.logs("memcheck")]
    assert len({port for port, _ in ran}) == len(ran) == session.processes
    tests = [re.findall(r"::test_smoke\[(\w+)\]", words) for _, words in ran]
    assert sorted(name for part in tests for name in part) == sorted(FUNCTIONS)
    assert max(map(len, tests)) - min(map(len, tests)) <= 1


LOG = """
FAILED tests/test_gpu.py::test_one[1] - AssertionError:
Arrays are not equal
FAILED tests/test_gpu.py::test_two - AssertionError: Arrays are not equal
ERROR tests/test_torch_gpu.py - ImportError: no torch
SKIPPED [1] tests/test_gpu.py:7: no CUDA device
2 failed, 1 error in 0.12s
"""


def test_the_summary_has_every_failure_once_with_its_reason(session, capsys):
    (session.folder / "tests.log").write_text(LOG)
    assert half_an_hour(session, 28, 0, []) == 0
    page = capsys.readouterr().out
    assert "- tests: AssertionError: Arrays are not equal: `test_one[1]`, `test_two`\n" in page
    assert "- tests: ImportError: no torch: `tests/test_torch_gpu.py`\n" in page


# ---- races of every problem, and what they say of the rule


def test_every_problem_of_a_gpu_is_raced_in_each_dtype_and_several_batches():
    named = list(tasks([]))
    names = [name for name, _, _ in named]
    whole = {(problem.name, dtype) for problem in select([], quick=False, gpu=True) for dtype in problem.dtypes}
    assert len(names) == len(set(names))
    assert {(problem.name, dtype) for _, problem, dtype in named[: len(whole)]} == whole, "the GPU's batches first"
    assert {problem.name for _, problem, _ in named if problem.geometry.batch == 1} == {name for name, _ in whole}


@pytest.mark.all
@pytest.mark.hostcuda
@pytest.mark.peer("cupy")
def test_races_go_on_where_they_stopped_and_are_left_in_a_file_that_the_package_knows(cupy, tmp_path, monkeypatch):
    from gpufold.gpu import launch, tuning

    console, wanted = Console(), [name for name, _, _ in tasks(["tiny"])]
    (tmp_path / "tune.txt").write_text(f"{wanted[0]}\n")  # which ended its process, or was stopped
    assert tune(tmp_path, ["tiny"], console) == 0
    assert Counter((tmp_path / "tune.txt").read_text().split("\n")) == {"": 1, wanted[0]: 3} | dict.fromkeys(
        wanted[1:], 2
    )
    (measured,) = (tmp_path / "tuned").iterdir()
    said = measured.read_bytes()
    monkeypatch.setattr("bench.tune._race", lambda problem, dtype: pytest.fail("raced again"))
    assert tune(tmp_path, ["tiny"], console) == 0
    assert measured.read_bytes() == said
    assert measured.name == tuning._name(launch.device(0)), "in a folder of the package it is read"
    assert len(tuning._read(measured)) == len(list(of_file(measured)))


@pytest.mark.all
@pytest.mark.peer("cupy")
def test_a_race_that_fails_is_noted_and_a_lost_device_ends_the_process(cupy, tmp_path, monkeypatch, capsys):
    def race(problem, dtype):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr("bench.tune._race", race)
    assert tune(tmp_path / "fails", ["tiny"], Console()) == 1
    assert tune(tmp_path / "fails", ["tiny"], Console()) == 1, "in another process too"
    assert "FAILED col2im-tiny-2x2 float32 batch 1 - RuntimeError: no such kernel" in capsys.readouterr().out
    monkeypatch.setattr(cupy.cuda.runtime, "deviceSynchronize", lambda: race(None, ""))
    for _ in tasks(["tiny"]):
        assert tune(tmp_path / "lost", ["tiny"], Console()) == LOST
    assert tune(tmp_path / "lost", ["tiny"], Console()) == 1, "none is begun again"


def test_races_are_not_run_where_nothing_may_be_measured(cupy, tmp_path, monkeypatch):
    monkeypatch.setenv("GPUFOLD_AUTOTUNE", "0")
    with pytest.raises(ValueError, match="GPUFOLD_AUTOTUNE=0"):
        tune(tmp_path, ["tiny"], Console())


def test_regret_is_told_by_operation_from_the_last_line_of_a_kind_of_call(tmp_path, capsys):
    """The rule's kernel is named first; what is torn or of another release is passed over."""

    def line(key, operation, **seconds):
        return json.dumps({"key": key, "operation": operation, "shape": [2, 3], "seconds": seconds})

    lines = [
        line("a", "col2im", gather=9.0, gather_parts=1.0),
        line("a", "col2im", gather=1.5, gather_parts=1.0),
        line("b", "col2im", gather=1.0, gather_parts=2.0),
        line("c", "im2col", per_block=4.0, taps=2.0),
        line("d", "im2col", per_block=4.0)[:-5],
    ]
    path = tmp_path / "tuned-some-chip-132-0123456789ab.jsonl"
    path.write_text("\n".join(lines))
    choices = list(of_file(path))
    assert choices[0] == Choice(path.stem, "col2im", "col2im of (2, 3)", "gather", "gather_parts", 0.5)
    rows = {row[0]: row for row in by_operation(choices)}
    assert rows["col2im"][2:5] == ["2", f"{geometric_mean([1.5, 1]) - 1:.1%}", "50.0%"]
    assert rows["im2col"][2:] == ["1", "100.0%", "100.0%", "im2col of (2, 3)", "per_block", "taps"]
    assert rows["all"][2:5] == ["3", f"{geometric_mean([1.5, 1, 2]) - 1:.1%}", "100.0%"]
    assert main(["report", "--results", str(tmp_path), "--output", str(tmp_path / "report")]) == 0
    assert "100.0%" in capsys.readouterr().out
