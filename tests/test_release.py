"""What the code host runs and shows: workflows whose steps are pinned, and a citation of this version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import gpufold

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def workflow(name):
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())


def test_the_code_host_runs_what_must_pass_on_a_clean_clone():
    runs = [step["run"] for job in workflow("ci")["jobs"].values() for step in job["steps"] if "run" in step]
    assert runs == ["bash .ci/run", "make test", 'make test-versions VERSIONS="$VERSIONS"']


def test_the_lowest_and_the_newest_versions_are_those_that_make_names():
    versions = workflow("ci")["jobs"]["versions"]["strategy"]["matrix"]["versions"]
    assert f"\nVERSIONS := {' '.join(versions)}\n" in (ROOT / "Makefile").read_text()


def test_the_tests_run_on_every_python_that_is_supported():
    least = int(re.match(r">=3\.(\d+)$", PROJECT["requires-python"])[1])
    versions = workflow("ci")["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert versions[0] == f"3.{least}"
    assert versions == [f"3.{minor}" for minor in range(least, least + len(versions))]


@pytest.mark.parametrize("name", ["ci", "release"])
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
