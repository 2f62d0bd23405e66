"""The package: light to import, complete as a wheel, and the kernels found wherever it lies."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import gpufold
from gpufold.extras import SUBMODULES

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
KERNELS = sorted(path.relative_to(ROOT / "kernels").as_posix() for path in (ROOT / "kernels").rglob("*.*"))

CHECK = """
import sys, types
import numpy as np, gpufold, gpufold.gpu.sources
from pathlib import Path
assert "cupy" not in sys.modules
print(Path(gpufold.__file__).parent)
kernels = gpufold.gpu.sources.KERNELS
print(*sorted(path.relative_to(kernels).as_posix() for path in kernels.rglob("*.*")))
print(gpufold.col2im(np.ones((4, 4)), (3, 3), (2, 2)).sum())
"""


def packed(test):
    """Mark a test as one that builds the package, as is done without a network."""
    for module in ("build", "hatchling", "hatch_fancy_pypi_readme"):
        test = pytest.mark.peer(module)(test)
    return test


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


@packed
def test_the_wheel_holds_the_kernels_and_the_types_marker(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert sorted(name.removeprefix("gpufold/kernels/") for name in names if "/kernels/" in name) == KERNELS
    assert wheel.name.startswith(f"gpufold-{gpufold.__version__}-")
    assert "gpufold/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "bench", "kernels"))]


@packed
def test_the_sources_are_packed_from_any_folder_without_what_lies_about(tmp_path):
    checkout = tmp_path / "build" / "Über uns"
    ignored = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "results", "_build")
    shutil.copytree(ROOT, checkout, ignore=ignored, copy_function=shutil.copyfile)
    for stray in (
        "secret.env",
        "dist/junk",
        "build/junk",
        "docs/_build/junk",
        ".venv/junk",
        "gpufold/__pycache__/junk",
    ):
        (checkout / stray).parent.mkdir(exist_ok=True)
        (checkout / stray).touch()
    tuned = checkout / "kernels" / "tuned" / "tuned-some-chip-132-0123456789ab.jsonl"
    tuned.parent.mkdir(exist_ok=True)
    tuned.touch()
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(checkout)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert f"gpufold/kernels/tuned/{tuned.name}" in zipfile.ZipFile(wheel).namelist()
    with tarfile.open(tmp_path / f"gpufold-{gpufold.__version__}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert not [name for name in names if "junk" in name or "secret" in name]
    assert f"kernels/tuned/{tuned.name}" in names
    assert {"LICENSE", "README.md", "CITATION.cff", "Makefile", "pyproject.toml", "docs/index.md"} <= names
    for folder in ("gpufold", "kernels", "tests", "bench", ".github"):
        files = {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.[cpy]*") if path.is_file()}
        assert {file for file in files if "__pycache__" not in file and "/results/" not in file} <= names


@packed
def test_an_index_shows_a_readme_whose_links_lead_to_the_repository(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        readme = archive.read(name).decode().partition("\n\n")[2]
    assert readme.startswith("# gpufold\n")
    targets = re.findall(r"\]\(([^)]+)\)", readme)
    assert len(targets) > 10
    elsewhere = re.findall(r"\]\((https?:[^)]+)\)", (ROOT / "README.md").read_text())
    for target in set(targets) - set(elsewhere):
        path = re.sub(
            r"^https://(raw\.githubusercontent\.com/gpufold/gpufold|github\.com/gpufold/gpufold/blob)/main/", "", target
        )
        assert path != target, f"{target} is dead on an index"
        assert (ROOT / path).exists(), target


def run_check(python, folder):
    """Run from an empty folder, so that nothing is found by accident; give the package's folder."""
    folder.mkdir(exist_ok=True)
    run = subprocess.run([python, "-c", CHECK], cwd=folder, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    package, kernels, total = run.stdout.splitlines()
    assert kernels.split() == KERNELS
    assert float(total) == 16
    return Path(package)


@packed
def test_a_wheel_works_in_an_environment_of_its_own(wheel, tmp_path):
    """NumPy is borrowed from this environment; gpufold comes from the wheel alone."""
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([python, "-c", query], capture_output=True, text=True, check=True).stdout.strip())
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    import numpy

    (site / "numpy").symlink_to(Path(numpy.__file__).parent)
    libraries = Path(numpy.__file__).parent.parent / "numpy.libs"
    if libraries.exists():
        (site / "numpy.libs").symlink_to(libraries)
    assert run_check(python, tmp_path / "empty") == site / "gpufold"


def test_this_environment_works_from_an_empty_folder(tmp_path):
    """As make sets it up, this is the editable install."""
    assert run_check(sys.executable, tmp_path / "empty") == Path(gpufold.__file__).parent


def test_importing_needs_numpy_alone():
    code = (
        "import sys; before = set(sys.modules); import numpy; numpys = set(sys.modules); import gpufold\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - numpys}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    foreign = set(run.stdout.split()) - set(sys.stdlib_module_names) - {"gpufold", "numpy"}
    assert not foreign


def test_warmup_says_what_to_install():
    assert printed(
        "try:\n    gpufold.warmup('im2col', ((1, 3, 8, 8), 'float32'), (3, 3))\n"
        "except ImportError as error:\n    print(error)",
        "cupy",
    ) == [
        'gpufold.warmup needs the package cupy: pip install "gpufold[cuda13]", or in a checkout '
        'pip install ".[cuda13]" (cuda12 with a driver for CUDA 12)'
    ]


def test_numpy_is_the_one_dependency_and_every_public_name_is_there():
    assert PROJECT["dependencies"] == ["numpy>=2.1.1"]
    for name in gpufold.__all__:
        assert getattr(gpufold, name).__doc__


# ---------------------------------------------------------------------------------------------
# Submodules that load on first use


def printed(code, *unimportable):
    """Run code in a process of its own, where some packages cannot be imported; give the lines that it prints."""
    block = "".join(f"sys.modules[{name!r}] = None\n" for name in unimportable)
    code = f"import sys\n{block}import gpufold\n{code}"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[*map(pytest.mark.peer, packages)]) for name, packages in SUBMODULES.items()]
)
def test_a_submodule_is_there_without_an_import_of_its_own(name):
    heavy = {"cupy", "torch", *SUBMODULES}
    loaded = f"print(*sorted({heavy!r} & set(sys.modules)))"
    before, found, module, again = printed(
        f"dir(gpufold)\n{loaded}\nprint(hasattr(gpufold, {name!r}))\nprint(gpufold.{name}.col2im.__module__)\n"
        f"print(gpufold.{name} is sys.modules['gpufold.{name}'])"
    )
    assert before == "", "import gpufold loads none of them, nor does dir"
    assert found == "True"
    assert module.startswith(f"gpufold.{name}")
    assert again == "True"


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match=r"^module 'gpufold' has no attribute 'col2in'"):
        gpufold.col2in  # noqa: B018
    assert not hasattr(gpufold, "__wrapped__")
    assert getattr(gpufold, "fold", None) is None
    with pytest.raises(ImportError, match="cannot import name 'fold' from 'gpufold'"):
        from gpufold import fold  # noqa: F401


@pytest.mark.parametrize(
    "use",
    ["gpufold.dask", "hasattr(gpufold, 'dask')", "import gpufold.dask", "from gpufold import dask"],
)
def test_a_missing_package_is_an_import_error_that_says_what_to_install(use):
    code = f"try:\n    {use}\nexcept ImportError as error:\n    print(error.name, error, sep='\\n')"
    package, message = printed(code, "dask")
    assert package == "dask"
    assert message == (
        'gpufold.dask needs the package dask: pip install "gpufold[dask]", or in a checkout pip install ".[dask]"'
    )


def test_every_name_of_dir_can_be_had():
    """inspect.getmembers asks for each, and knows AttributeError alone."""
    code = "import inspect\nprint(*sorted(name for name, _ in inspect.getmembers(gpufold)))"
    (names,) = printed(code, "dask", "torch")
    assert {*gpufold.__all__, "onnx"} <= set(names.split())
    assert not {"dask", "torch"} & set(names.split())


def test_type_checkers_know_every_submodule():
    """They do not run __getattr__, which would make any misspelt name an attribute."""
    tree = ast.parse(Path(gpufold.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    assert [alias.asname for node in block.body for alias in node.names] == sorted(SUBMODULES)
    assert set(SUBMODULES) <= set(PROJECT["optional-dependencies"])
    for name in SUBMODULES:
        folder = Path(gpufold.__file__).parent
        assert (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()


def test_the_project_is_alpha_until_a_gpu_has_run_it():
    (status,) = (name for name in PROJECT["classifiers"] if name.startswith("Development Status"))
    runs = [json.loads(path.read_text()) for path in (ROOT / "bench" / "results").glob("*.json")]
    if not any(run.get("kind") == "gpu" for run in runs):
        assert status.endswith("3 - Alpha")
        assert "No GPU has run gpufold yet" in (ROOT / "README.md").read_text()
