"""Tests that share a device in several processes: who waits, and who is blamed. Needs no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from processes import alone

PATHS = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
ENVIRONMENT |= {"PYTHONPATH": os.pathsep.join(PATHS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""A process of its own, though it is started by one of pytest-xdist; without plugins that take longer than the test."""

IN_PROCESSES = ("-p", "xdist.plugin", "-n")


def test_one_process_at_a_time(tmp_path):
    """Each notes that it begins and that it ends: nobody begins before the one before has ended."""
    script = textwrap.dedent("""
        import sys, time
        from processes import alone
        def note(word):
            with open(sys.argv[1], "a") as file:
                file.write(word + "\\n")
        with alone("gpufold-test-of-the-lock"):
            note("begins")
            time.sleep(0.2)
            note("ends")
    """)
    notes = tmp_path / "notes"
    command = [sys.executable, "-c", script, str(notes)]
    started = [subprocess.Popen(command, env=ENVIRONMENT) for _ in range(4)]
    assert [process.wait() for process in started] == [0] * 4
    assert notes.read_text().split() == ["begins", "ends"] * 4


def test_a_planted_link_is_not_written_through(tmp_path, monkeypatch):
    """Neither where anybody can plant one nor where a user can."""
    name, target = "gpufold-test-of-the-lock", tmp_path / "target"
    target.write_text("kept")
    shared, own = tmp_path / "shared", tmp_path / "cache" / "gpufold"
    shared.mkdir()
    own.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    monkeypatch.setenv("XDG_CACHE_HOME", str(own.parent))
    for planted in (name, f"{name}.lock", f"{name}-{os.getuid()}", f"{name}-{os.getuid()}.lock"):
        (shared / planted).symlink_to(target)
    with alone(name):
        assert target.read_text() == "kept"
        assert [file.name for file in own.iterdir()] == [f"{name}.lock"]
    (own / f"{name}.lock").unlink()
    (own / f"{name}.lock").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"), alone(name):
        pass
    assert target.read_text() == "kept"


def test_nothing_has_a_name_of_its_own_in_a_folder_that_others_share():
    """What is temporary gets a folder or a file that `tempfile` or pytest makes, under a name that nobody knows."""
    root = Path(__file__).parents[1]
    files = [root / "conftest.py", root / "Makefile", root / ".ci" / "run", *(root / ".github").rglob("*.yml")]
    for folder in ("gpufold", "tests", "bench", "docs"):
        files += (root / folder).rglob("*.py")
    files.remove(Path(__file__))
    words = ("gettempdir", "tempfile.mktemp", "/tmp", "/dev/shm")
    assert [(str(file), word) for file in files for word in words if word in file.read_text(encoding="utf-8")] == []


TESTS = """
import pytest
from processes import end_where_the_device_is_dead

FAILURES = []

class DeviceError(RuntimeError):
    pass

def synchronize():
    if FAILURES:
        raise DeviceError(FAILURES.pop())

@pytest.fixture(autouse=True)
def named(request):
    yield
    end_where_the_device_is_dead(request, synchronize, DeviceError)

def test_before():
    pass

def test_passing_error():
    FAILURES.append("an error that passes")

def test_culprit():
    FAILURES.extend(["an illegal address"] * 1000)

def test_after():
    assert not FAILURES
"""


def run(folder, *arguments):
    (folder / "test_device.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", *arguments, "test_device.py"]
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.peer("xdist")
def test_a_test_that_leaves_the_device_in_error_ends_its_worker_and_the_others_go_on(tmp_path):
    status, output = run(tmp_path, *IN_PROCESSES, "1")
    assert status == 1, output
    assert "crashed while running 'test_device.py::test_culprit'" in output
    assert "test_culprit left the device in error: an illegal address; its process ends" in output
    assert "PASSED test_device.py::test_after" in output
