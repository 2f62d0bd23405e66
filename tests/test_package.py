"""The package: light to import, complete as a wheel, and the kernels found wherever it lies."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import gpufold

ROOT = Path(__file__).resolve().parent.parent
KERNELS = sorted(path.name for path in (ROOT / "kernels").iterdir())

CHECK = """
import sys, types
import numpy as np, gpufold, gpufold.sources
from pathlib import Path
assert "cupy" not in sys.modules
print(Path(gpufold.__file__).parent)
print(*sorted(path.name for path in gpufold.sources.KERNELS.iterdir()))
print(gpufold.col2im(np.ones((4, 4)), (3, 3), (2, 2)).sum())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_the_kernels_and_the_types_marker(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert sorted(name.removeprefix("gpufold/kernels/") for name in names if "/kernels/" in name) == KERNELS
    assert wheel.name.startswith(f"gpufold-{gpufold.__version__}-")
    assert "gpufold/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "bench", "kernels"))]


def run_check(python, folder):
    """Run from an empty folder, so that nothing is found by accident; give the package's folder."""
    folder.mkdir(exist_ok=True)
    run = subprocess.run([python, "-c", CHECK], cwd=folder, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    package, kernels, total = run.stdout.splitlines()
    assert kernels.split() == KERNELS
    assert float(total) == 16
    return Path(package)


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


def test_a_bare_checkout_works(tmp_path):
    run = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {[str(ROOT), *sys.path]!r}\n{CHECK}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[1].split() == KERNELS


def test_importing_needs_numpy_alone():
    code = (
        "import sys; before = set(sys.modules); import numpy; numpys = set(sys.modules); import gpufold\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - numpys}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    foreign = set(run.stdout.split()) - set(sys.stdlib_module_names) - {"gpufold", "numpy"}
    assert not foreign


def test_numpy_is_the_one_dependency_and_every_public_name_is_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == ["numpy>=2.1"]
    for name in gpufold.__all__:
        assert getattr(gpufold, name).__doc__
