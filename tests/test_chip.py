"""Half an hour on a GPU, rehearsed: the command, from end to end, where little is installed and much goes wrong.

The environment has NumPy, torch and pytest alone, and CuPy or its stand-in; there is no git, and a copy of the checkout
that nothing may be written to.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults import copy_checkout

from bench.chip import DONE, STEPS, STOPPED, Chip, half_an_hour, run_tests
from bench.report import FAILED
from bench.tally import Tally

ROOT = Path(__file__).resolve().parent.parent
STAND_IN = "import sys\nfrom bench.hostcuda import standin\nsys.modules['cupy'] = standin.cupy()\n"
OF_THE_HOST_BUILD = "nvidia-cuda-runtime", "nvidia-cuda-crt"
"""CUDA's headers, which the stand-in needs, and no GPU."""

WRONG, DEADLY = "average_direct", "space_to_batch_deinterleave"
"""The kernel that gives wrong bits, and the one that takes the device down."""


def distributions(names):
    """Return what is installed by these names and by all that they require."""
    found, waiting = {}, list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform
        if name not in found:
            found[name] = distribution
            needed = [each for each in distribution.requires or [] if "extra ==" not in each]
            waiting += [re.match(r"[\w.-]+", each)[0] for each in needed]
    return found.values()


def environment(folder, *names):
    """Make a virtual environment that has these packages and what they require; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for distribution in distributions(names):
        for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(distribution.locate_file(top))))
    return folder / "bin" / "python", packages


def checkout(folder):
    copy_checkout(folder)
    shutil.copy(ROOT / "conftest.py", folder)
    shutil.rmtree(folder / "bench" / "results", ignore_errors=True)
    return folder


def contents(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


class Rehearsal:
    """The command in a copy of the checkout, with an environment and results of its own."""

    def __init__(self, tmp_path, *packages, stand_in=True, **variables):
        self.python, site = environment(tmp_path / "environment", *packages)
        if stand_in:
            (site / "stands_in.py").write_text(STAND_IN)
            (site / "stands_in.pth").write_text("import stands_in\n")  # Debian's Python has a sitecustomize of its own
            variables["PYTEST_ADDOPTS"] = "-p bench.hostcuda.standin -p bench.hostcuda.torch_standin --of-each=1"
        tools = tmp_path / "tools"  # no git among them
        tools.mkdir()
        for name in ("g++", "as", "ld", "nm", "ar"):
            if found := shutil.which(name):
                (tools / name).symlink_to(Path(found).resolve())
        self.checkout, self.results = checkout(tmp_path / "checkout"), tmp_path / "results"
        home = {name: os.environ[name] for name in ("HOME", "XDG_CACHE_HOME", "TMPDIR") if name in os.environ}
        self.environment = (
            home | {"PATH": str(tools), "PYTHONPATH": str(self.checkout), "PYTHONDONTWRITEBYTECODE": "1"} | variables
        )

    def start(self, *words):
        options = ["--results", str(self.results), "--processes", "2", "--seconds", "0.01", *words]
        command = [self.python, "-m", "bench", "chip", *options, "--problem", "tiny", "--problem", "col2im-cells-9"]
        return subprocess.Popen(
            command,
            cwd=self.checkout,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *words):
        process = self.start(*words)
        output = process.communicate()[0]
        return process.returncode, output

    def steps(self):
        return json.loads((self.results / "chip.json").read_text())

    def failed(self, step):
        return {name.rpartition("::")[2]: why for name, why in Tally.of(self.results / step).failed()}

    def kill(self):
        """End every process of the command at once, as a machine that is taken away does."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if str(self.results).encode() in (folder / "cmdline").read_bytes():
                    os.kill(int(folder.name), signal.SIGKILL)
            except (OSError, ProcessLookupError):
                continue


@pytest.mark.all
@pytest.mark.peer("torch")
@pytest.mark.peer("cupy")
def test_without_a_driver_the_command_goes_as_far_as_it_can_and_says_why(tmp_path):
    rehearsal = Rehearsal(tmp_path, "numpy", "torch", "pytest", "cupy-cuda13x", stand_in=False)
    before = contents(rehearsal.checkout)
    status, page = rehearsal.run()
    assert status == 1
    assert contents(rehearsal.checkout) == before
    results = {name: step["result"] for name, step in rehearsal.steps().items()}
    assert results["machine"] == results["smoke"] == results["benchmark"] == FAILED
    assert results["tests"] == DONE, page  # those that need no GPU
    assert re.search(r"smoke \| FAILED .* tests deselected: no CUDA device", page), page
    assert "no GPU to measure on" in page


@pytest.mark.all
@pytest.mark.hostcuda
@pytest.mark.peer("torch")
def test_half_an_hour_on_a_gpu_rehearsed(tmp_path):
    """A kernel gives wrong bits, one takes the device down, a call is killed, and the results move away and back."""
    rehearsal = Rehearsal(tmp_path, "numpy", "torch", "pytest", *OF_THE_HOST_BUILD, STANDIN_LOSES_THE_DEVICE=DEADLY)
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
    assert list(rehearsal.failed("smoke")) == [f"test_smoke[{WRONG}]", f"test_smoke[{DEADLY}]"], page
    assert "ended its process" in rehearsal.failed("smoke")[f"test_smoke[{DEADLY}]"]

    killed = rehearsal.start("--steps", "1")
    while len(Tally.of(rehearsal.results / "tests").ends) < 5 and killed.poll() is None:
        time.sleep(0.5)
    rehearsal.kill()
    killed.communicate()
    assert rehearsal.steps()["tests"]["result"] == STOPPED
    ended = set(Tally.of(rehearsal.results / "tests").ends)
    shutil.move(rehearsal.results, tmp_path / "elsewhere")
    rehearsal.results.mkdir()
    shutil.copytree(tmp_path / "elsewhere", rehearsal.results, dirs_exist_ok=True, copy_function=shutil.copyfile)

    status, page = rehearsal.run()
    assert status == 1
    tally = Tally.of(rehearsal.results / "tests")
    assert ended < set(tally.ends)
    assert not tally.waiting
    steps = rehearsal.steps()
    assert steps["tests"]["goes"] == 2
    assert steps["smoke"]["goes"] == 1
    said = "".join(
        log.read_text() for log in (rehearsal.results / "tests").glob("*.log")
    )  # of those that were not killed
    assert "without bfloat16: ml_dtypes is not installed" in said
    assert "tests deselected: dask is not installed" in said
    for name, why in tally.failed():
        assert f"`{name.rpartition('::')[2]}`" in page, why
    assert f"test_smoke[{DEADLY}]" in page
    assert "col2im-tiny-2x2" in page
    saved = "".join(path.read_text() for path in (rehearsal.results / "measured").rglob("*.json*"))
    assert '"loop"' in saved, "peers that use CuPy alone are timed"
    assert "AttributeError" not in saved
    assert contents(rehearsal.checkout) == before
    assert (rehearsal.results / "summary.md").read_text().strip() == page[page.index("# Half") :].strip()


# ---- without other processes


@pytest.fixture
def chip(tmp_path):
    return Chip(tmp_path, 2, [], 0.1, None)


def test_steps_that_were_stopped_have_their_next_turn_after_the_others(chip, monkeypatch, capsys):
    log, answers = [], {"machine": [DONE], "smoke": [STOPPED, STOPPED, DONE], "tests": [FAILED], "sanitizers": [DONE]}
    steps = {name: (10.0, lambda chip, name=name: log.append(name) or answers[name].pop(0)) for name in answers}
    monkeypatch.setattr("bench.chip.STEPS", steps)
    assert half_an_hour(chip, 28, 3, ["chip"]) == 1
    assert log == ["machine", "smoke", "tests"]
    assert half_an_hour(chip, 28, 100, ["chip"]) == 1
    assert log[3:] == ["sanitizers", "smoke", "smoke"]
    half_an_hour(chip, 28, 100, ["chip"])
    assert len(log) == 6, "nothing is done again"
    assert "| tests | FAILED |" in capsys.readouterr().out


def test_no_step_begins_where_the_minutes_are_over(chip, monkeypatch):
    log = []
    monkeypatch.setattr("bench.chip.STEPS", {"machine": (10.0, lambda chip: log.append(chip.deadline) or DONE)})
    half_an_hour(chip, 0.4, 100, ["chip"])
    assert log == []
    start = time.monotonic()
    half_an_hour(chip, 0.6, 100, ["chip"])
    assert 9 < log[0] - start < 10.5


def test_each_step_takes_less_than_nine_minutes():
    assert all(seconds + 30 < 9 * 60 + 1 for seconds, _ in STEPS.values())


TESTS = """
import os, time, pytest
@pytest.mark.parametrize("number", range(6))
def test_number(number):
    if number == 3:
        os._exit(1)
    assert number != 4, "four is wrong"
"""


def test_tests_that_end_their_process_are_named_and_the_others_run(chip, tmp_path):
    (tmp_path / "test_six.py").write_text(TESTS)
    chip.deadline = time.monotonic() + 100
    assert run_tests(chip, "six", str(tmp_path / "test_six.py")) == FAILED
    tally = Tally.of(tmp_path / "six")
    assert [(name[-2], why) for name, why in tally.failed()] == [
        ("3", "began 2 times and ended its process"),
        ("4", "AssertionError: four is wrong\nassert 4 != 4"),
    ]
    assert len(tally.ends) == 6
    assert sum(json.loads(line).get("ends", "").endswith("[0]") for line in lines_of(tmp_path / "six")) == 1


def lines_of(folder):
    return [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]


def test_tests_that_do_not_end_in_time_are_stopped_with_what_they_started(chip, tmp_path):
    (tmp_path / "test_slow.py").write_text(TESTS.replace("os._exit(1)", "time.sleep(100)"))
    chip.deadline = time.monotonic() + 8
    assert run_tests(chip, "slow", str(tmp_path / "test_slow.py")) == STOPPED
    assert 0 < len(Tally.of(tmp_path / "slow").ends) < 6


def test_a_line_that_was_cut_is_not_read(tmp_path):
    (tmp_path / "1-0.jsonl").write_text('{"tests": ["a", "b"]}\n{"begins": "a"}\n{"ends": "a", "outcome": "pas')
    assert Tally.of(tmp_path).waiting == {"a", "b"}
