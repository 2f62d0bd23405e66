"""The deliberate faults of faults.py are still faults of this code."""

from __future__ import annotations

import pytest
from faults import CHECKOUT, FAULTS, of_this_machine, run_tests


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_changes_one_place_of_its_file(fault):
    text = (CHECKOUT / fault.file).read_text()
    assert fault.breaks(text) != text


@pytest.mark.all
@pytest.mark.hostcuda
def test_a_fault_names_a_test_that_there_is():
    """Of those that other packages do not decide about."""
    status, output = run_tests(CHECKOUT, ["--collect-only", *sorted({fault.test for fault in of_this_machine()})])
    assert status == 0, output
