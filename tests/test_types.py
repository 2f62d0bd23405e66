"""What type checkers and editors see; make lint checks tests/typed_calls.py."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

import gpufold
from gpufold.calls import SHAPES, OperationName, Variant
from gpufold.operations import OPERATIONS

ROOT = Path(__file__).resolve().parent.parent


def test_operations_have_one_list_of_names():
    assert set(get_args(OperationName)) == set(OPERATIONS) == set(SHAPES)


def test_variants_have_one_list_of_names():
    assert set(get_args(Variant)) == {"auto"}.union(*(gpufold.variants(name) for name in OPERATIONS))


def test_what_dir_shows_is_public():
    shown = {name for name in dir(gpufold) if not name.startswith("_")}
    assert shown <= {*gpufold.__all__, "dask", "jax", "onnx", "torch"}
    assert set(gpufold.__all__) <= shown


@pytest.mark.parametrize(
    ("module", "file", "untyped"),
    [
        ("gpufold", "__init__.py", ["Unsupported", "autotune", "set_num_threads", "warmup"]),
        ("gpufold.dask", "dask/__init__.py", []),
        ("gpufold.onnx", "onnx.py", ["Col2Im"]),
        ("gpufold.torch", "torch/__init__.py", ["InvalidValue"]),
    ],
)
def test_calls_are_typed_for_every_public_function(module, file, untyped):
    """But for what has no arrays or needs a device, and classes that nobody calls."""
    text = (ROOT / "tests" / "typed_calls.py").read_text()
    (names,) = re.findall(r"^__all__ = (\[[^]]+\])", (ROOT / "gpufold" / file).read_text(), re.MULTILINE)
    assert [name for name in ast.literal_eval(names) if f"{module}.{name}(" not in text] == untyped
