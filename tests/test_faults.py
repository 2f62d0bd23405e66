"""The deliberate faults of faults.py are still faults of this code."""

from __future__ import annotations

import pytest
from faults import CHECKOUT, FAULTS


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_changes_one_place_of_its_file(fault):
    text = (CHECKOUT / fault.file).read_text()
    assert fault.breaks(text) != text
    module, function = fault.test.partition("[")[0].split("::")
    assert f"def {function}(" in (CHECKOUT / module).read_text(), fault.test
