"""Regret: how much slower choices are than the best measured kernel, for heuristics in races and `auto` in runs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.results import Run, geometric_mean
from gpufold.elements import ELEMENT_TYPES
from gpufold.operations import OPERATIONS, variants

VARIANTS = tuple(dict.fromkeys(name for operation in OPERATIONS for name in variants(operation)))
"""The kernel variants of all operations."""


@dataclass(frozen=True)
class Choice:
    """A choice among measured kernels."""

    source: str
    """The device and the kind of measurement."""
    operation: str
    problem: str
    taken: str
    best: str
    regret: float
    """Fraction by which it is slower than the best."""

    @classmethod
    def of(cls, source: str, operation: str, problem: str, taken: str, seconds: Mapping[str, float]) -> Choice:
        """Compare a choice by the seconds of each kernel."""
        best = min(seconds, key=seconds.__getitem__)
        return cls(source, operation, problem, taken, best, seconds[taken] / seconds[best] - 1)


def of_file(path: Path) -> Iterator[Choice]:
    """Yield the heuristics' choices in a file of `gpufold.autotune`, which lists the heuristics' kernel first."""
    choices = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, TypeError, LookupError, AttributeError, StopIteration):  # cut, or of another release
            entry = json.loads(line)
            operation, seconds = entry["operation"], entry["seconds"]
            problem, taken = f"{operation} of {tuple(entry['shape'])}", next(iter(seconds))
            choices[entry["key"]] = Choice.of(path.stem, operation, problem, taken, seconds)
    yield from choices.values()


def of_run(run: Run) -> Iterator[Choice]:
    """Yield the choices of `auto` in a run on a GPU, among the variants that it could take."""
    for row in run.rows:
        free = {
            name: times.median
            for name, times in row.times.items()
            if name in run.variants and (name != "atomic" or ELEMENT_TYPES[row.dtype].exact or name == row.chosen)
        }
        if row.chosen in free:
            yield Choice.of(run.device, row.operation, row.name, row.chosen, free)


def of_results(runs: Iterable[Run], paths: Iterable[Path]) -> list[Choice]:
    """Return the choices in runs and in files of races, which are named or in named folders."""
    choices = [choice for run in runs for choice in of_run(run)]
    for path in paths:
        files = sorted(path.glob("tuned-*.jsonl")) if path.is_dir() else [path] if path.suffix == ".jsonl" else []
        choices += [choice for file in files for choice in of_file(file)]
    return choices


def by_operation(choices: Iterable[Choice]) -> list[list[str]]:
    """Return a header, and for each source its operations: how many choices, their geometric mean and the worst."""
    groups: dict[tuple[str, str], list[Choice]] = defaultdict(list)
    for choice in choices:
        groups[choice.source, choice.operation].append(choice)
        groups[choice.source, "all"].append(choice)
    lines = [["regret", "", "choices", "geometric mean", "worst", "of", "taken", "best"]]
    for (source, operation), chosen in sorted(groups.items(), key=lambda group: (group[0][0], group[0][1] == "all")):
        worst = max(chosen, key=lambda choice: choice.regret)
        mean = (geometric_mean(1 + choice.regret for choice in chosen) or 1) - 1
        of_worst = [worst.problem, worst.taken, worst.best] if worst.regret else ["", "", ""]
        lines.append([operation, source, str(len(chosen)), f"{mean:.1%}", f"{worst.regret:.1%}", *of_worst])
    return lines
