"""pytest collects what is left of the tests wherever a package of an extra is missing."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(path for folder in ("gpufold", "tests") for path in (ROOT / folder).rglob("*.py"))
DASK = [str(path.relative_to(ROOT)) for path in FILES if path.is_relative_to(ROOT / "gpufold" / "dask")]


@pytest.fixture(scope="module")
def rule():
    """The conftest.py of the checkout, under another name than that of the tests."""
    spec = importlib.util.spec_from_file_location("rule_of_collection", ROOT / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


COLLECT = ("pytest", "--collect-only", "-q", "-p", "unimportable", "-p", "no:cacheprovider", "--assert=plain")


def collect(folder, packages, *paths):
    """Collect in a process that cannot import some packages; give what is left out by the lines that say so."""
    folder.joinpath("unimportable.py").write_text(f"import sys\nsys.modules |= dict.fromkeys({sorted(packages)!r})\n")
    path = os.pathsep.join([str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = subprocess.run(
        [sys.executable, "-m", *COLLECT, *paths],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr
    said = re.findall(r"^(.+) not collected: without (.+) \((.+)\)$", run.stdout, re.MULTILINE)
    left_out = {module: set(missing.split(", ")) for modules, missing, _ in said for module in modules.split(", ")}
    return run.stdout, left_out, {install for _, _, installs in said for install in installs.split(" and ")}


@pytest.mark.all
def test_without_cupy_what_launches_is_left_out(tmp_path):
    collected, left_out, installs = collect(tmp_path, ["cupy"], "gpufold", "tests/test_launch.py")
    assert left_out == {"gpufold/gpu/launch.py": {"cupy"}}
    assert installs == {"pip install '.[cuda13]'"}
    assert re.search(r"\d+ tests deselected: cupy is not installed", collected)
    assert "gpufold/sliding.py::gpufold.sliding.col2im" in collected


@pytest.mark.all
def test_without_cupy_onnx_and_dask_what_imports_them_is_left_out(tmp_path):
    collected, left_out, installs = collect(tmp_path, ["cupy", "onnx", "dask"])
    assert left_out == {
        "gpufold/gpu/launch.py": {"cupy"},
        **{file: {"dask"} for file in DASK},
        "tests/test_dask.py": {"dask"},
        "tests/onnx_models.py": {"onnx"},
        "tests/test_onnx.py": {"onnx"},
        "tests/test_peers.py": {"onnx"},
    }
    assert installs == {"pip install '.[cuda13]'", "pip install --group test"}
    for module in ("gpufold/onnx.py", "tests/test_add_blocks.py", "tests/test_col2im_kernels.py"):
        assert f"{module}::" in collected


@pytest.mark.parametrize("test", ["", "::test_without_onnx_only_the_class_is_missing", "::test_not_there[1-2]"])
def test_a_module_that_is_named_is_left_out_too(tmp_path, test):
    collected, left_out, _ = collect(tmp_path, ["onnx"], f"tests/test_onnx.py{test}", "tests/test_types.py")
    assert left_out == {"tests/test_onnx.py": {"onnx"}}
    assert "tests/test_onnx.py::" not in collected
    assert "tests/test_types.py::" in collected


@pytest.mark.all
def test_a_module_that_nobody_asked_for_is_not_spoken_of(tmp_path):
    _, left_out, _ = collect(tmp_path, ["cupy", "dask"], "gpufold/sliding.py", "tests/test_errors.py")
    assert left_out == {}


def test_with_numpy_and_pytest_alone_collection_ends(rule, tmp_path):
    collected, left_out, _ = collect(tmp_path, rule.EXTRAS)
    assert left_out["gpufold/gpu/launch.py"] == {"cupy"}
    assert all(left_out[file] == {"dask"} for file in DASK)
    assert {"dask", "distributed", "hypothesis"} <= left_out["tests/test_dask.py"]
    for module in ("tests/test_errors.py", "tests/test_package.py", "gpufold/onnx.py", "gpufold/sliding.py"):
        assert module not in left_out
        assert f"{module}::" in collected


def test_only_packages_of_extras_are_excused(rule, tmp_path):
    """A misspelt import is no package that could be installed: it stops the collection."""
    known = {*sys.stdlib_module_names, "numpy", "pytest", "_pytest", *rule.EXTRAS}
    for file in FILES:
        for name in rule.imports(file):
            assert name.partition(".")[0] in known or rule.files_of(name), f"{file}: {name} is of no extra"
    needs = {
        "import numppy\nimport json, dask.array\ndef later():\n    import onnx\n": {"dask"},
        "try:\n    from scipy import signal\nexcept ImportError:\n    raise\nimport test_launch\n": {
            "scipy",
            "ml_dtypes",
        },
        "from test_peers import itertools\n": {"onnx", "ml_dtypes"},
        "this is no Python": set(),
    }
    for number, (text, packages) in enumerate(needs.items()):
        module = tmp_path / f"module{number}.py"
        module.write_text(text)
        assert rule.needs(module) == packages, text


def test_every_extra_exists(rule):
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = {f"'.[{name}]'" for name in pyproject["project"]["optional-dependencies"]}
    assert set(rule.EXTRAS.values()) <= extras | {f"--group {name}" for name in pyproject["dependency-groups"]}
