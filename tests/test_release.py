"""What the code host runs and shows: workflows whose steps are pinned, and the version as others cite and pack it."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import gpufold

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
WORKFLOWS = sorted(path.stem for path in (ROOT / ".github" / "workflows").glob("*.yml"))


def workflow(name):
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())


def test_the_code_host_runs_what_must_pass_on_a_clean_clone():
    runs = [step["run"] for job in workflow("ci")["jobs"].values() for step in job["steps"] if "run" in step]
    assert runs == ["bash .ci/run", "make test", 'make test-versions VERSIONS="$VERSIONS"']


def test_the_tests_run_on_every_python_that_is_supported():
    least = int(re.match(r">=3\.(\d+)$", PROJECT["requires-python"])[1])
    versions = workflow("ci")["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert versions[0] == f"3.{least}"
    assert versions == [f"3.{minor}" for minor in range(least, least + len(versions))]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_what_a_workflow_installs_is_pinned_by_hash(name):
    """CI's own scripts install ranges, which their tests are for; they publish nothing, and may only read."""
    runs = [step["run"] for job in workflow(name)["jobs"].values() for step in job["steps"] if "run" in step]
    commands = [line for run in runs for line in run.splitlines()]
    for command in commands:
        if re.search(r"\b(install|add|pipx|npx|uvx|curl|wget)\b", command):
            start, file = command.rsplit(" -r ", 1)
            assert start == "python -m pip install --require-hashes --only-binary :all:"
            assert all(re.fullmatch(PINNED, entry) for entry in requirements(file)), file
    assert workflow(name)["permissions"] in ({}, {"contents": "read"})


PINNED = r"[\w.-]+==[\w.]+( ; [^\\]+)?( \\\n +--hash=sha256:[0-9a-f]{64})+"
"""A version, and the hash of each of its files."""


def requirements(file):
    """The entries of a file of requirements, without comments."""
    lines = [line for line in (ROOT / file).read_text().splitlines() if not re.match(r"\s*#", line)]
    return re.split(r"\n(?=\S)", "\n".join(lines))


def test_a_release_is_built_by_what_is_pinned_alone():
    """Building in isolation would install what pyproject.toml names, and what that needs, as it is on that day."""
    runs = [step.get("run", "") for step in workflow("release")["jobs"]["build"]["steps"]]
    assert [run for run in runs if "-m build" in run] == ["python -m build --no-isolation"]
    names = {re.match(r"[\w-]+", entry)[0] for entry in requirements(".github/release-requirements.txt")}
    needed = {re.match(r"[\w-]+", entry)[0] for entry in PYPROJECT["build-system"]["requires"]}
    assert {*needed, "build", "twine"} <= names
    asked = (ROOT / ".github" / "release-requirements.in").read_text().splitlines()
    assert {line for line in asked if not line.startswith("#")} == {*needed, "build", "twine"}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_an_action_is_a_commit_and_keeps_no_credentials(name):
    for job in workflow(name)["jobs"].values():
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"])
                if step["uses"].startswith("actions/checkout@"):
                    assert step["with"]["persist-credentials"] is False


def test_only_the_job_that_publishes_may_sign_and_no_job_has_a_secret():
    jobs = workflow("release")["jobs"]
    assert workflow("release")["permissions"] == {}
    assert {name: job["permissions"] for name, job in jobs.items()} == {
        "build": {"contents": "read"},
        "publish": {"id-token": "write"},
    }
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text()


def test_a_citation_names_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == gpufold.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["repository-code"] == PROJECT["urls"]["Repository"]
    assert {"cff-version", "message", "title", "type", "authors"} <= citation.keys()


def test_codemeta_says_what_pyproject_says():
    meta = json.loads((ROOT / "codemeta.json").read_text())
    assert meta["version"] == gpufold.__version__
    assert meta["license"] == f"https://spdx.org/licenses/{PROJECT['license']}"
    assert meta["softwareRequirements"] == PROJECT["dependencies"]
    assert meta["runtimePlatform"] == f"Python {PROJECT['requires-python']}"
    assert meta["codeRepository"] == PROJECT["urls"]["Repository"]
    assert meta["issueTracker"] == PROJECT["urls"]["Issues"]
    assert meta["softwareHelp"] == PROJECT["urls"]["Documentation"]
    assert [author["name"] for author in meta["author"]] == [author["name"] for author in PROJECT["authors"]]
    for name in ("name", "description", "keywords"):
        assert meta[name] == PROJECT[name]


def test_readers_find_the_site_of_every_release():
    site = PROJECT["urls"]["Documentation"]
    assert f"]({site})" in (ROOT / "README.md").read_text()
    pages = json.loads((ROOT / "docs" / "_static" / "switcher.json").read_text())
    assert all(each["url"] == f"{site}/en/{each['version']}/" for each in pages)
    released = re.findall(r"^## \[([\d.]+)\] - ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert [each["version"] for each in pages] == ["latest", *released]


CONDA = {"cupy-cuda13x": "cupy", "dask": "dask-core", "torch": "pytorch"}
"""What conda-forge calls a package otherwise."""


def test_the_recipe_for_conda_forge_needs_what_pyproject_needs():
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    assert recipe["context"] == {
        "version": gpufold.__version__,
        "python_min": PROJECT["requires-python"].removeprefix(">="),
    }
    needs = recipe["requirements"]
    assert needs["host"][2:] == conda(PYPROJECT["build-system"]["requires"])
    assert needs["run"][1:] == conda(PROJECT["dependencies"])
    extras = PROJECT["optional-dependencies"]
    constraints = {need for name in set(extras) - {"cuda12"} for need in conda(extras[name])}
    assert needs["run_constraints"] == sorted(constraints)
    assert recipe["about"]["license"] == PROJECT["license"]
    assert PROJECT["description"].startswith(recipe["about"]["summary"])


def conda(requirements):
    """The same requirements in conda's form, which has no extras."""
    found = [re.fullmatch(r"([\w-]+)(?:\[.*\])?(>=.+)", requirement).groups() for requirement in requirements]
    return [f"{CONDA.get(name, name)} {bound}" for name, bound in found]
