"""What type checkers and editors see; make lint checks tests/typed_calls.py."""

from __future__ import annotations

from typing import get_args

import gpufold
from gpufold.calls import SHAPES, OperationName, Variant
from gpufold.operations import OPERATIONS


def test_operations_have_one_list_of_names():
    assert set(get_args(OperationName)) == set(OPERATIONS) == set(SHAPES)


def test_variants_have_one_list_of_names():
    assert set(get_args(Variant)) == {"auto"}.union(*(gpufold.variants(name) for name in OPERATIONS))
