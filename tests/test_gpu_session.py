"""Half an hour on a GPU, rehearsed: the command, from end to end, where little is installed and much goes wrong.

The environment has NumPy, torch, pytest and rich alone, pytest-xdist or not, and CuPy or its stand-in; there is a copy
of the checkout, without its history, that nothing may be written to.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from faults import copy_checkout
from test_gpu import FUNCTIONS

from bench import gpu_session
from bench.__main__ import INTERRUPTED, _parser, main
from bench.gpu_session import ABSENT, DONE, FAILED, SANITIZER, STOPPED, TOOLS, do, half_an_hour, steps_of, summary
from bench.peers import PEERS
from bench.problems import select
from bench.regret import Choice, by_operation, of_file
from bench.results import ROOT, geometric_mean
from bench.terminal import Console
from bench.tune import LOST, tasks, tune

INSTALLED = {"cupy", "cupyx", "gpufold", "numpy", "torch"}
NOT_INSTALLED = {peer.module for peer in PEERS} - INSTALLED | {"dask", "jax", "matplotlib"}
STAND_IN = """sys.modules["cupyx"] = sys.modules["ml_dtypes"] = None
from bench.hostcuda import fake_cupy
sys.modules["cupy"] = fake_cupy.cupy()
"""
MEMCHECK_ALONE = f"""#!/bin/sh
shift {len(SANITIZER)}
test $1 = memcheck || exec echo 1 passed
shift
exec "$@"
"""
"""A compute-sanitizer that runs tests behind one of its tools, for there is nothing that it could look at."""

WRONG, DEADLY = "average_elementwise", "batch_to_space_index_map"
"""The kernel that gives wrong bits, and the one that takes the device down."""
STEPS = list(steps_of(_parser().parse_args(["chip", "--results", "folder"])))


def contents(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


class Rehearsal:
    """The command in a copy of the checkout, with an environment and results of its own."""

    def __init__(self, tmp_path, path, absent=(), stand_in="", **variables):
        environment = tmp_path / "environment"
        environment.mkdir()
        missing = f"import sys\nsys.modules.update(dict.fromkeys({NOT_INSTALLED.union(absent)}))\n"
        (environment / "sitecustomize.py").write_text(missing + stand_in)
        self.checkout, self.results = tmp_path / "checkout", tmp_path / "results"
        copy_checkout(self.checkout)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        self.environment |= {"PATH": path, "PYTHONPATH": f"{environment}{os.pathsep}{self.checkout}"}
        self.environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | variables

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


def details(page, step):
    """What the page has on a step that failed."""
    return re.search(rf"^## {step}\n\n```text\n(.*?)\n```$", page, re.M | re.S)[1]


@pytest.mark.all
@pytest.mark.peer("torch")
@pytest.mark.peer("cupy")
def test_without_a_driver_the_command_goes_as_far_as_it_can_and_says_why(tmp_path):
    rehearsal = Rehearsal(tmp_path, path="", absent={"xdist"})
    before = contents(rehearsal.checkout)
    status, page = rehearsal.run()
    assert status == 1
    assert contents(rehearsal.checkout) == before
    results = {name: result for name, (result, _) in rehearsal.steps().items()}
    assert results == dict.fromkeys(STEPS, FAILED) | dict.fromkeys(TOOLS, ABSENT)
    assert page.count("compute-sanitizer is not on the PATH") == len(TOOLS)
    for step in ("smoke", "tests", "large"):
        assert re.search("^SKIPPED .* no CUDA device", details(page, step)), page
    for step in ("tune", "benchmark"):
        assert "no GPU to measure on" in details(page, step)


@pytest.mark.all
@pytest.mark.hostcuda
@pytest.mark.peer("torch")
@pytest.mark.peer("xdist")
def test_half_an_hour_on_a_gpu_rehearsed(tmp_path):
    """A kernel gives wrong bits, one takes the device down, a call is killed, and the results move."""
    sanitizer = tmp_path / SANITIZER[0]
    sanitizer.write_text(MEMCHECK_ALONE)
    sanitizer.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    options = "-p bench.hostcuda.fake_cupy --of-each=1"
    rehearsal = Rehearsal(tmp_path, path, (), STAND_IN, PYTEST_ADDOPTS=options, FAKE_CUPY_LOSES_THE_DEVICE=DEADLY)
    source = rehearsal.checkout / "kernels" / f"{WRONG}.cu"
    quotient, dividend = "divide_or_zero(widen(element[number]), weight[number])", "widen(element[number])"
    broken = source.read_text().replace(quotient, dividend)
    assert broken != source.read_text()
    source.write_text(broken)
    before = contents(rehearsal.checkout)

    status, page = rehearsal.run("--steps", "2")
    assert status == 1
    assert "the stand-in for CuPy" in details(page, "machine")
    begun = rehearsal.steps()
    assert list(begun) == ["machine", "smoke"]

    killed = rehearsal.start("--steps", "1")
    while not (rehearsal.results / "tests.log").exists() and killed.poll() is None:
        time.sleep(0.1)
    killed.terminate()
    killed.communicate()
    assert killed.returncode == INTERRUPTED, "once what it has started is ended"
    assert rehearsal.steps()["tests"][0] == STOPPED
    rehearsal.results = rehearsal.results.rename(tmp_path / "elsewhere")

    status, page = rehearsal.run()
    assert status == 1
    steps = rehearsal.steps()
    assert list(steps) == [*(name for name in STEPS if name != "tests"), "tests"], "what was stopped has its turn last"
    assert {name: steps[name] for name in begun} == begun, "nothing is done again"
    smoke, memcheck = (
        dict(re.findall(r"^FAILED tests/test_gpu.py::test_smoke\[(\w+)\](.*)", details(page, step), re.M))
        for step in ("smoke", "memcheck")
    )
    assert smoke.keys() == {WRONG, DEADLY}, page
    assert "crashed while running" in smoke[DEADLY]
    assert "AssertionError" in smoke[WRONG]
    assert re.search(rf"^\| smoke \| FAILED .* {len(FUNCTIONS) - 2} passed", page, re.M), page
    assert smoke.keys() <= memcheck.keys(), "in one process, which the device is lost to"
    assert "cudaErrorIllegalAddress" in memcheck[DEADLY]
    assert re.search("^SKIPPED .* needs many GB", details(page, "large")), page
    assert "col2im-tiny-2x2" in page
    saved = "".join(path.read_text() for path in (rehearsal.results / "measured").rglob("*.json*"))
    assert '"naive gather"' in saved, "peers that use CuPy alone are timed"
    assert "AttributeError" not in saved
    (measured,) = (rehearsal.results / "tuned").iterdir()
    assert {steps[name][0] for name in ("racecheck", "initcheck", "synccheck", "tune")} == {DONE}
    assert [choice.operation for choice in of_file(measured)] == ["col2im", "im2col"]
    assert re.search(r"\| \*?all.* \| 2 \|", page), "by how much the rule loses"
    assert contents(rehearsal.checkout) == before
    assert (rehearsal.results / "summary.md").read_text().strip() == page[page.index("# Half") :].strip()


def test_steps_and_what_the_documents_say_of_them_end_before_ten_minutes():
    said = re.findall(r"^python -m bench (chip .*)$", (ROOT / "docs" / "gpu.md").read_text(), re.M)
    assert said
    for words in said:
        options = _parser().parse_args(words.split())
        assert options.steps * max(seconds for seconds, *_ in steps_of(options).values()) < 9 * 60


def test_what_does_not_end_in_time_is_ended_with_what_it_has_started(tmp_path):
    log, until = tmp_path / "slow.log", time.monotonic() + 10
    assert do(1, ["sh", "-c", "sleep 60 & echo $!; wait"], {}, log) == STOPPED
    child = Path("/proc", log.read_text().strip(), "cmdline")
    while child.exists() and child.read_bytes() and time.monotonic() < until:
        time.sleep(0.01)
    assert time.monotonic() < until


def test_what_is_stopped_says_first_what_has_failed(tmp_path):
    log, tests = tmp_path / "slow.log", tmp_path / "test_slow.py"
    tests.write_text("import time\ndef test_bad(): assert 0\ndef test_slow(): time.sleep(60)\n")
    assert do(5, [*gpu_session.PYTEST, str(tests)], {}, log) == STOPPED
    page = summary(tmp_path, ["slow"], {"slow": (STOPPED, 5.0)}, [])
    assert "test_slow.py::test_bad - assert 0" in details(page, "slow")


def test_results_of_other_kernels_are_refused(tmp_path):
    options = _parser().parse_args(["chip", "--results", str(tmp_path), "--steps", "0"])
    half_an_hour(options, ["chip"], Console())
    half_an_hour(options, ["chip"], Console())
    (tmp_path / "kernels.txt").write_text("others")
    with pytest.raises(ValueError, match="has the results of other kernels; name another folder"):
        half_an_hour(options, ["chip"], Console())


def test_a_command_that_lost_the_device_goes_on_in_another_process(tmp_path):
    log = tmp_path / "log"
    assert do(60, ["sh", "-c", f"test -s {log} || (echo lost; exit {LOST})"], {}, log) == DONE


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
    assert Counter((tmp_path / "tune.txt").read_text().splitlines()) == {wanted[0]: 3} | dict.fromkeys(wanted[1:], 2)
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
