"""By how much a choice of `auto` loses against the best variant that was measured."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path

from bench.results import Row, Run
from bench.terminal import Table
from gpufold.elements import ELEMENT_TYPES
from gpufold.operations import OPERATIONS, variants

VARIANT_NAMES = {name for operation in OPERATIONS for name in variants(operation)}
"""Of all operations."""


def regret(row: Row) -> tuple[str, float] | None:
    """Return the best variant that `auto` was free to take, and how much slower its choice was; None: not measured."""
    free = [
        name
        for name in row.times
        if name == row.chosen or (name in VARIANT_NAMES and (name != "atomic" or ELEMENT_TYPES[row.dtype].exact))
    ]
    if row.chosen is None or row.chosen not in free:
        return None
    best = min(free, key=lambda name: row.times[name].median)
    return best, row.times[row.chosen].median / row.times[best].median - 1


def regret_table(runs: Mapping[Path, Run]) -> Table:
    """Return a row per problem: what `auto` took, what was best, and the difference; then mean and worst."""
    table = Table("problem", "device", "auto", "best", box=None)
    table.add_column("regret", justify="right")
    found = []
    for run in runs.values():
        for row in run.rows:
            if (answer := regret(row)) is not None:
                found.append(answer[1])
                table.add_row(row.name, run.device, row.chosen, answer[0], f"{answer[1]:.1%}")
    if found:
        mean = prod(1 + value for value in found) ** (1 / len(found)) - 1
        table.add_section()
        table.add_row("geometric mean", "", "", "", f"{mean:.1%}")
        table.add_row("worst", "", "", "", f"{max(found):.1%}")
    return table
