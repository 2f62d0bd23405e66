"""The drawings of the README are those that their script makes of what gpufold computes today."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.peer("matplotlib")  # which the script imports

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "drawings"

NUMBER = re.compile(r"(?<![\w#.])-?\d+(?:\.\d+)?(?!\w)")

STYLE = re.compile(r'(?<=style=")[^"]*')

TOLERANCE = 0.5
"""In points: another matplotlib may place a letter a little elsewhere."""


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawings")
    return {path.name: path.read_text() for path in runpy.run_path(str(FOLDER / "draw.py"))["save"](folder)}


def test_every_drawing_is_kept(drawn):
    assert set(drawn) == {path.name for path in FOLDER.glob("*.svg")}


def sorted_values(style):
    """Return the values of a style in one order, without their names: some matplotlib write fonts at length."""
    return " ".join(sorted(re.findall(r"'[^']+'|[^\s;,']+", re.sub(r"[a-z-]+: ", "", style[0]))))


@pytest.mark.parametrize("name", [path.name for path in sorted(FOLDER.glob("*.svg"))])
def test_a_drawing_is_as_its_script_makes_it(drawn, name):
    kept, made = (STYLE.sub(sorted_values, text) for text in ((FOLDER / name).read_text(), drawn[name]))
    assert re.findall(r">([^<\n]+)</text>", kept) == re.findall(r">([^<\n]+)</text>", made)
    assert NUMBER.sub("", kept) == NUMBER.sub("", made), "python docs/drawings/draw.py draws them anew"
    numbers = [np.array(NUMBER.findall(text), np.float64) for text in (kept, made)]
    np.testing.assert_allclose(*numbers, rtol=0, atol=TOLERANCE)
