"""pytest collects what is left of the tests where packages of extras are missing."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCKED = """
import importlib.util, sys
missing, find_spec = {packages!r}, importlib.util.find_spec
sys.modules |= dict.fromkeys(missing)
importlib.util.find_spec = lambda name, package=None: None if name in missing else find_spec(name, package)
"""


@pytest.mark.all
@pytest.mark.parametrize("packages", [["onnx", "cupy", "dask"], None], ids=str)
def test_without_packages_the_modules_that_need_them_are_left_out(tmp_path, packages):
    """None stands for all: with NumPy and pytest alone."""
    spec = importlib.util.spec_from_file_location("rule_of_collection", ROOT / "conftest.py")
    rule = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rule)
    packages = packages or sorted({package for needed in rule.NEEDS.values() for package in needed})
    (tmp_path / "unimportable.py").write_text(BLOCKED.format(packages=packages))
    path = os.pathsep.join([str(tmp_path), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "unimportable", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    for pattern, needed in rule.NEEDS.items():
        assert not {*needed} & {*packages} or pattern.partition("*")[0] not in done.stdout, pattern
    for module in ("tests/test_errors.py", "tests/test_kernels.py", "gpufold/onnx.py", "gpufold/sliding.py"):
        assert f"{module}::" in done.stdout
