"""What each test that CI runs reaches, recorded by a plugin of pytest, so that a mutant meets those tests alone.

    python -m pytest -n 2 -p reach --reach FOLDER

`make faults RANDOM=60` records that first, in a copy of the checkout, and draws mutants of the copy. Recorded are
seconds, lines of gpufold, and the specialisations of kernels that are executed. Everything that gpufold remembers is
forgotten before each test: what another test has worked out is worked out again.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from faults import copy_checkout, run_tests

from bench.hostcuda.build import with_includes

Kernel = tuple[str, str, tuple[tuple[str, str], ...]]
"""Source, symbol, defines."""


class Reach(NamedTuple):
    seconds: dict[str, float]
    lines: dict[tuple[str, int], set[str]]
    """The tests that run a line of a file."""
    kernels: dict[Kernel, set[str]]
    """The tests that execute a specialisation."""

    @classmethod
    def recorded(cls, folder: Path) -> Reach:
        """Read what every process of a run has written."""
        reach = cls({}, defaultdict(set), defaultdict(set))
        for path in folder.glob("*.json"):
            tests, lines, kernels = json.loads(path.read_text())
            reach.seconds.update({test: seconds for test, seconds in tests.items() if seconds is not None})
            names = list(tests)
            for file, line, numbers in lines:
                reach.lines[file, line] |= {names[number] for number in numbers}
            for source, symbol, defines, numbers in kernels:
                reach.kernels[source, symbol, tuple(map(tuple, defines))] |= {names[number] for number in numbers}
        return reach

    def of_line(self, file: str, line: int) -> set[str]:
        """Return the tests that reach a line of Python, or the nearest before it that any test reaches.

        What only the import of a module runs is reached by every test.
        """
        nearest = (self.lines[file, near] for near in range(line, 0, -1) if (file, near) in self.lines)
        return next(nearest, set()) or set(self.seconds)

    def of_file(self, path: Path) -> list[Kernel]:
        """Return the kernels that a source or header of kernels is a part of, each function once before its next."""
        parts: dict[str, dict[Path, bytes]] = {source: {} for source, *_ in self.kernels}
        for source, made_of in parts.items():
            if (path.parent / source).exists():  # others are of tests alone
                with_includes(path.parent / source, (), made_of)
        kernels = random.Random(0).sample(sorted(self.kernels), len(self.kernels))
        return in_turns([kernel for kernel in kernels if path in parts[kernel[0]]], lambda kernel: kernel[:2])

    def fastest(self, tests: set[str]) -> list[str]:
        """Order tests: the fastest of each test function, then the second of each."""
        return in_turns(sorted(tests, key=self.seconds.__getitem__), lambda test: test.partition("[")[0])


def in_turns(found: list, kind: Callable) -> list:
    """Order what is found: the first of each kind, then the second of each."""
    turns: Counter = Counter()

    def turn(each: Any) -> int:
        turns[kind(each)] += 1
        return turns[kind(each)]

    return sorted(found, key=turn)


WITHOUT = "*test_torch*", "*clients*", "*test_gpu_session*"
"""Modules that take no part: of packages that `make test` does not install, and of copies of the checkout."""


def pytest_addoption(parser):
    parser.addoption("--reach", type=Path, help="the folder that gets what each test reaches")
    parser.addoption("--random", type=int, default=0, help="draw so many mutants")
    parser.addoption("--seed", type=int, default=0, help="of the draw")
    parser.addoption("--kernels", action="store_true", help="draw from kernels and planners alone")
    parser.addoption("--folder", default="", help="what a draw leaves, and goes on with when it is asked for again")


def pytest_configure(config):
    option, is_worker = config.option, hasattr(config, "workerinput")
    if option.reach and (is_worker or not config.getoption("numprocesses", None)):
        config.pluginmanager.register(Recorder(option.reach))
    if option.random and not is_worker:
        if not option.folder:
            temporary = TemporaryDirectory()
            option.folder = temporary.name
            config.add_cleanup(temporary.cleanup)
        record(Path(option.folder))


def record(folder: Path) -> None:
    """Copy the checkout and record what its tests reach, unless the folder has both."""
    records, begun = folder / "reach", folder / "begun"
    if records.exists():
        return
    shutil.rmtree(folder / "checkout", ignore_errors=True)
    copy_checkout(folder / "checkout")
    begun.mkdir(exist_ok=True)
    recording = "-p", "xdist", "-n", "2", "--dist", "worksteal", "--all", "-p", "reach", f"--reach={begun}"
    _, output = run_tests(folder / "checkout", [], *recording, *(f"--ignore-glob={name}" for name in WITHOUT))
    if re.search(r"^ERROR ", output, re.MULTILINE):
        pytest.exit(f"{output}\nA module was not collected, whose tests no mutant would meet.", returncode=1)
    begun.rename(records)


class Recorder:
    def __init__(self, folder):
        import coverage

        from bench.hostcuda import execute, machine

        self.path = folder / f"{os.getpid()}.json"
        self.tests, self.kernels, self.failed = {}, defaultdict(set), set()
        for module, name in ((execute, "build_kernel"), (machine, "_code")):
            setattr(module, name, self.noting(getattr(module, name)))
        self.coverage = coverage.Coverage(data_file=None, source=["gpufold"])
        self.coverage.start()

    def noting(self, function):
        def noted(source, symbol, defines, *rest):
            self.kernels[Path(source).name, symbol, defines].add(len(self.tests) - 1)
            return function(source, symbol, defines, *rest)

        return noted

    def pytest_runtest_logstart(self, nodeid):
        for name, module in list(sys.modules.items()):
            if name.startswith("gpufold"):
                for member in vars(module).values():
                    getattr(member, "cache_clear", int)()
        self.tests[nodeid] = 0.0
        self.coverage.switch_context(str(len(self.tests) - 1))

    def pytest_runtest_logreport(self, report):
        self.tests[report.nodeid] += report.duration
        if not report.passed:
            self.failed.add(list(self.tests).index(report.nodeid))

    def pytest_sessionfinish(self):
        self.coverage.stop()
        lines, data = [], self.coverage.get_data()
        for file in data.measured_files():
            for line, contexts in data.contexts_by_lineno(file).items():
                numbers = {int(context) for context in contexts if context} - self.failed
                lines.append((os.path.relpath(file), line, sorted(numbers)))
        kernels = [(*kernel, sorted(numbers - self.failed - {-1})) for kernel, numbers in self.kernels.items()]
        passed = {test: None if n in self.failed else seconds for n, (test, seconds) in enumerate(self.tests.items())}
        self.path.write_text(json.dumps((passed, lines, kernels)))
