"""The deliberate faults of faults.py are still faults of this code."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from faults import CHECKOUT, FAULTS, each_fault, run_tests


@each_fault
def test_a_fault_changes_one_place_of_its_file(fault):
    text = (CHECKOUT / fault.file).read_text()
    assert fault.breaks(text) != text


@pytest.mark.all
@pytest.mark.hostcuda
def test_a_fault_names_a_test_that_there_is():
    """Of those that other packages do not decide about."""
    names = {fault.test for fault in FAULTS if "test_torch" not in fault.test or find_spec("torch") is not None}
    status, output = run_tests(CHECKOUT, ["--collect-only", *sorted(names)])
    assert status == 0, output
