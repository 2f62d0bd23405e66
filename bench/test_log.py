"""A plugin of pytest for one process of several: a line in a file for each test that begins or ends.

    python -m pytest -p bench.test_log --test-log 3.jsonl --part 3/14 --finished names.json tests/test_gpu.py

What is written outlives the process, however it ends, so that another one goes on with the tests that are left: a test
that began and did not end is what its process died of, or was under way when somebody stopped it. pytest-xdist is not
needed. Tests of many GB, which wait for each other, are all in the first part.
"""

from __future__ import annotations

import faulthandler
import json
from collections import Counter
from pathlib import Path

import pytest

from bench.tally import note

LONGEST_SECONDS = 240
"""A test that takes longer ends its process, and is written down as one that did not end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Name the file, the part and what is finished."""
    group = parser.getgroup("test-log")
    group.addoption("--test-log", type=Path, required=True, help="the file that gets the lines")
    group.addoption("--part", default="0/1", metavar="K/N", help="run part K of N, counted from 0")
    group.addoption("--finished", type=Path, help="a file with a JSON list of tests that are not run again")


def pytest_configure(config: pytest.Config) -> None:
    """Open the file."""
    config.pluginmanager.register(Log(config.getoption("--test-log")))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests of this part that are not finished, none that cannot run here."""
    reasons = {item: mark.kwargs["reason"] for item in items for mark in item.iter_markers("skip")}
    config.hook.pytest_deselected(items=list(reasons))
    for reason, number in Counter(reasons.values()).items():
        config.get_terminal_writer().line(f"{number} tests deselected: {reason}")
    items[:] = [item for item in items if item not in reasons]
    number, count = map(int, config.getoption("--part").split("/"))
    names = config.getoption("--finished")
    finished = set(json.loads(names.read_text())) if names else set()
    waiting = [item for item in items if item.nodeid not in finished]
    large = [item for item in waiting if "most_of_the_memory" in getattr(item, "fixturenames", ())]
    others = [item for item in waiting if item not in set(large)]
    items[:] = others[number::count] + (large if number == 0 else [])


class Log:
    """Writes what becomes of the tests."""

    def __init__(self, path):
        self.file, self.traces = path.open("a"), path.with_suffix(".trace").open("a")
        self.worst, self.seconds = None, 0.0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session):
        note(self.file, tests=[item.nodeid for item in session.items])

    def pytest_runtest_logstart(self, nodeid):
        note(self.file, begins=nodeid)
        self.worst, self.seconds = None, 0.0
        faulthandler.dump_traceback_later(LONGEST_SECONDS, exit=True, file=self.traces)

    def pytest_runtest_logreport(self, report):
        self.seconds += report.duration
        if report.outcome != "passed" and self.worst is None:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = getattr(report, "wasxfail", None) or (crash.message if crash else report.longreprtext)
            self.worst = {"outcome": report.outcome, "why": why[:1000]}
        if report.when == "teardown":
            faulthandler.cancel_dump_traceback_later()
            outcome = self.worst or {"outcome": "passed"}
            note(self.file, ends=report.nodeid, seconds=round(self.seconds, 2), **outcome)
