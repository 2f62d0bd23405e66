"""The package: light to import, complete as a wheel, released from pinned sources, cited and packed as it is."""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from processes import python

import gpufold
from gpufold.extras import SUBMODULES

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
URLS = PROJECT["urls"]
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


TUNED = "tuned/tuned-some-chip-132-0123456789ab.jsonl"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return a folder with the sources and the wheel, built from a folder of any name where other files lie about."""
    folder = tmp_path_factory.mktemp("built")
    checkout = folder / "build" / "Über uns"
    ignored = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "results", "_build")
    shutil.copytree(ROOT, checkout, ignore=ignored, copy_function=shutil.copyfile)
    strays = "secret.env", "dist/junk", "build/junk", "docs/_build/junk", ".venv/junk", "gpufold/__pycache__/junk"
    for stray in strays:
        (checkout / stray).parent.mkdir(exist_ok=True)
        (checkout / stray).touch()
    tuned = checkout / "kernels" / TUNED
    tuned.parent.mkdir(exist_ok=True)
    tuned.touch()
    python("-m", "build", "--no-isolation", "--outdir", str(folder), str(checkout))
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    (path,) = built.glob("*.whl")
    return path


@packed
def test_the_sources_are_packed_without_what_lies_about(built):
    with tarfile.open(built / f"gpufold-{gpufold.__version__}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert not [name for name in names if "junk" in name or "secret" in name]
    assert f"kernels/{TUNED}" in names
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


@packed
def test_a_wheel_is_complete(wheel, tmp_path):
    """Unpacked before all else on the path, and run where nothing is found by accident."""
    site, elsewhere = tmp_path / "site", tmp_path / "empty"
    elsewhere.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        names = archive.namelist()
    assert wheel.name.startswith(f"gpufold-{gpufold.__version__}-")
    assert "gpufold/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.partition("/")[0] for name in names} == {"gpufold", f"gpufold-{gpufold.__version__}.dist-info"}
    seen = python("-c", CHECK, folder=elsewhere, PYTHONPATH=str(site))
    assert seen.splitlines() == [str(site / "gpufold"), " ".join(sorted([*KERNELS, TUNED])), "16.0"]


def test_a_call_on_numpy_arrays_needs_numpy_alone():
    code = (
        "import sys, numpy; before = set(sys.modules); import gpufold; gpufold.im2col(numpy.ones((1, 4)), (2,))\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    foreign = set(python("-c", code).split()) - set(sys.stdlib_module_names) - {"gpufold", "numpy"}
    assert not foreign


# ---- Submodules that load on first use


def printed(code, *unimportable):
    """Run code in a process of its own, where some packages cannot be imported; give the lines that it prints."""
    block = "".join(f"sys.modules[{name!r}] = None\n" for name in unimportable)
    code = f"import sys\n{block}import gpufold\n{code}"
    return python("-c", code).splitlines()


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


TO_INSTALL = """{0} needs the package {1}: pip install "gpufold[{2}]", or in a checkout pip install ".[{2}]"{3}"""


@pytest.mark.parametrize(
    ("use", "package", "said"),
    [
        *(
            (use, "dask", TO_INSTALL.format("gpufold.dask", "dask", "dask", ""))
            for use in ("gpufold.dask", "hasattr(gpufold, 'dask')", "import gpufold.dask", "from gpufold import dask")
        ),
        (
            "gpufold.warmup('im2col', ((1, 3, 8, 8), 'float32'), (3, 3))",
            "cupy",
            TO_INSTALL.format("gpufold.warmup", "cupy", "cuda13", " (cuda12 with a driver for CUDA 12)"),
        ),
    ],
)
def test_a_missing_package_is_an_import_error_that_says_what_to_install(use, package, said):
    code = f"try:\n    {use}\nexcept ImportError as error:\n    print(error.name, error, sep='\\n')"
    assert printed(code, package) == [package, said]


def test_dir_shows_what_is_public_and_can_be_had():
    """inspect.getmembers asks for each name, and knows AttributeError alone."""
    code = "import inspect\nprint(*sorted(name for name, _ in inspect.getmembers(gpufold)))"
    (names,) = printed(code, "dask", "torch")
    public = {name for name in names.split() if not name.startswith("_")}
    assert {*gpufold.__all__, "onnx"} <= public <= {*gpufold.__all__, "jax", "onnx"}


# ---- Releases, and the version as others cite and pack it


def read(path):
    """Return what a file in YAML or JSON holds."""
    return pytest.importorskip("yaml").safe_load((ROOT / path).read_text())


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_what_a_workflow_installs_is_pinned_by_hash(path):
    """CI's own scripts install ranges, which their tests are for; they publish nothing, and may only read."""
    assert read(path)["permissions"] in ({}, {"contents": "read"})
    for job in read(path)["jobs"].values():
        for command in [line for step in job["steps"] for line in step.get("run", "").splitlines()]:
            if re.search(r"\b(install|add|pipx|npx|uvx|curl|wget)\b", command):
                start, _ = command.rsplit(" -r ", 1)
                assert start == "python -m pip install --require-hashes --only-binary :all:"


def requirements(file):
    """Return the entries of a file of requirements, without comments."""
    lines = [line for line in (ROOT / file).read_text().splitlines() if not re.match(r"\s*#", line)]
    return re.split(r"\n(?=\S)", "\n".join(lines))


def test_a_release_is_built_by_what_is_pinned_alone():
    """Building in isolation would install what pyproject.toml names, and what that needs, as it is on that day."""
    runs = [step.get("run", "") for step in read(".github/workflows/release.yml")["jobs"]["build"]["steps"]]
    assert [run for run in runs if "-m build" in run] == ["python -m build --no-isolation"]
    needed = {re.match(r"[\w-]+", entry)[0] for entry in PYPROJECT["build-system"]["requires"]} | {"build", "twine"}
    assert needed <= {re.match(r"[\w-]+", entry)[0] for entry in requirements(".github/release-requirements.txt")}
    assert needed == set(requirements(".github/release-requirements.in"))


def test_only_the_job_that_publishes_may_sign_and_no_job_has_a_secret():
    path = ".github/workflows/release.yml"
    permissions = {name: job["permissions"] for name, job in read(path)["jobs"].items()}
    assert permissions == {"build": {"contents": "read"}, "publish": {"id-token": "write"}}
    assert "secrets." not in (ROOT / path).read_text()


CITED = {
    "CITATION.cff": {
        "version": gpufold.__version__,
        "license": PROJECT["license"],
        "repository-code": URLS["Repository"],
    },
    "codemeta.json": {
        "version": gpufold.__version__,
        "license": f"https://spdx.org/licenses/{PROJECT['license']}",
        "softwareRequirements": PROJECT["dependencies"],
        "runtimePlatform": f"Python {PROJECT['requires-python']}",
        "codeRepository": URLS["Repository"],
        "issueTracker": URLS["Issues"],
        "softwareHelp": URLS["Documentation"],
        **{name: PROJECT[name] for name in ("name", "description", "keywords")},
    },
}


@pytest.mark.parametrize("path", CITED)
def test_what_others_cite_is_what_pyproject_says(path):
    assert {name: read(path)[name] for name in CITED[path]} == CITED[path]


def test_readers_find_the_site_of_every_release():
    site = URLS["Documentation"]
    assert f"]({site})" in (ROOT / "README.md").read_text()
    pages = read("docs/_static/switcher.json")
    assert all(each["url"] == f"{site}/en/{each['version']}/" for each in pages)
    released = re.findall(r"^## \[([\d.]+)\] - ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert [each["version"] for each in pages] == ["latest", *released]


CONDA = {"cupy-cuda13x": "cupy", "dask": "dask-core", "torch": "pytorch"}
"""What conda-forge calls a package otherwise."""


def conda(requirements):
    """Return requirements in conda's form, which has no extras."""
    found = [re.fullmatch(r"([\w-]+)(?:\[.*\])?(>=.+)", requirement).groups() for requirement in requirements]
    return [f"{CONDA.get(name, name)} {bound}" for name, bound in found]


def test_the_recipe_for_conda_forge_needs_what_pyproject_needs():
    recipe, least = read("conda/recipe.yaml"), PROJECT["requires-python"].removeprefix(">=")
    assert recipe["context"] == {"version": gpufold.__version__, "python_min": least}
    needs, extras = recipe["requirements"], PROJECT["optional-dependencies"]
    assert needs["host"][2:] == conda(PYPROJECT["build-system"]["requires"])
    assert needs["run"][1:] == conda(PROJECT["dependencies"])
    constraints = {need for name in set(extras) - {"cuda12"} for need in conda(extras[name])}
    assert needs["run_constraints"] == sorted(constraints)
    assert recipe["about"]["license"] == PROJECT["license"]
    assert PROJECT["description"].startswith(recipe["about"]["summary"])


def test_nothing_has_a_name_of_its_own_in_a_folder_that_others_share():
    """What is temporary gets a folder or a file that `tempfile` or pytest makes, under a name that nobody knows."""
    files = [ROOT / "conftest.py", ROOT / "Makefile", ROOT / ".ci" / "run", *(ROOT / ".github").rglob("*.yml")]
    for folder in ("gpufold", "tests", "bench", "docs"):
        files += (ROOT / folder).rglob("*.py")
    files.remove(Path(__file__))
    words = ("gettempdir", "tempfile.mktemp", "/tmp", "/dev/shm")
    assert [(str(file), word) for file in files for word in words if word in file.read_text(encoding="utf-8")] == []
