"""Every plan and specialisation that the planner makes for what tests/test_kernels.py draws."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from itertools import product

from executors import DEVICES, arrays_of, plans_of
from test_kernels import ROWS, SUMS, drawn, drawn_call, laid_out

from gpufold.calls import Unsupported
from gpufold.gpu.sources import KERNELS
from gpufold.operations import variants

SOURCES = sorted(path.name for path in KERNELS.glob("*.cu"))


@cache
def plans():
    """Plan four draws of each row by every variant; of each kernel function and specialisation one plan is left.

    The last of a row with weights of its own is widened.
    """
    found = {}
    for row, number in product(ROWS, range(4)):
        what = drawn(row, number)
        if row.windows and row.operation in SUMS and number == 3:
            what = what._replace(source="float32", dtype="float64")
        call, before, view = drawn_call(row, what)
        arrays = arrays_of(call, before)
        for variant, device in product(variants(row.operation), DEVICES):
            with suppress(Unsupported):
                for plan in plans_of(call, variant, laid_out(call, arrays, view, what, variant), device):
                    for step in (*plan.prologue, plan):
                        found[step.symbol, step.defines] = step
    return list(found.values())
