"""What type checkers and editors see; make lint checks tests/typed_calls.py."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import gpufold
from gpufold.calls import SHAPES, OperationName
from gpufold.operations import OPERATIONS

ROOT = Path(__file__).resolve().parent.parent
CALLS = ROOT / "tests" / "typed_calls.py"


def test_operations_have_one_list_of_names():
    assert set(get_args(OperationName)) == set(OPERATIONS) == set(SHAPES)


def test_what_dir_shows_is_public():
    shown = {name for name in dir(gpufold) if not name.startswith("_")}
    assert shown <= {*gpufold.__all__, "dask", "onnx", "torch"}
    assert set(gpufold.__all__) <= shown


def test_calls_are_typed_for_every_public_function():
    text = CALLS.read_text()
    assert [name for name in gpufold.__all__ if f"gpufold.{name}(" not in text] == UNTYPED


UNTYPED = ["Unsupported", "get_num_threads", "set_num_threads", "warmup"]
"""What has no arrays, or compiles for a device."""
