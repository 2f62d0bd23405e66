"""What the README shows runs, and says what it prints."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_sessions_print_what_they_show(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # they write pictures
    sessions = [block for block in BLOCKS if ">>>" in block]
    assert sessions
    globs: dict[str, object] = {}
    for number, block in enumerate(sessions):
        test = doctest.DocTestParser().get_doctest(block, globs, f"README block {number}", "README.md", 0)
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
        runner.run(test, clear_globs=False)
        assert not runner.failures
        globs = test.globs


@pytest.mark.peer("torch")
def test_the_torch_equivalent_is_one():
    (block,) = [block for block in BLOCKS if "torch" in block]
    exec(compile(block, "README.md", "exec"), {})  # it asserts


def test_commands_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert {"bench", "test", "sanitize", "measure"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for command in set(re.findall(r"python -m bench[ a-z]*", README + makefile)):
        subprocess.run([sys.executable, *command.split()[1:], "--help"], cwd=ROOT, check=True, capture_output=True)


def test_files_and_pictures_exist():
    for path in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / path).exists(), path
