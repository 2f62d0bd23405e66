"""Tables and lines of text, by rich."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import TypeVar

try:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
except ImportError as error:
    raise ImportError("the benchmark needs the package rich: pip install --group bench", name="rich") from error

Item = TypeVar("Item")

GAP = 2
"""Spaces between the columns of a table."""


def show(console: Console, lines: Sequence[Sequence[str]], totals: bool = False) -> None:
    """Print a header and rows of texts, columns of numbers on the right; the last row may be totals.

    What does not fit the console is printed as several tables, each of which has the first column, so that no header
    and no number is cut.
    """
    columns = list(zip(*lines, strict=True))
    whole = [number == 0 or _are_numbers(texts[1:]) for number, texts in enumerate(columns)]
    widths = [
        GAP + max(len(word) for text in texts for word in ([text] if uncut else text.split() or [""]))
        for texts, uncut in zip(columns, whole, strict=True)
    ]
    parts = [[0]]
    for number in range(1, len(columns)):
        if len(parts[-1]) > 1 and sum(widths[each] for each in (*parts[-1], number)) > console.width:
            parts.append([0])
        parts[-1].append(number)
    for part in parts:
        table = Table(box=None)
        for number in part:
            right = number > 0 and whole[number]
            table.add_column(Text(columns[number][0]), justify="right" if right else "left", no_wrap=whole[number])
        for row in lines[1:]:
            style = "bold" if totals and row is lines[-1] else None
            table.add_row(*(Text(row[number]) for number in part), style=style)
        console.print(table)


def _are_numbers(texts: Sequence[str]) -> bool:
    """Return whether texts are numbers, maybe with a table's marks, or empty."""
    bare = [text.strip("<%x*!±") for text in texts if text]
    return all(text.replace(".", "", 1).replace("e+", "").isdigit() for text in bare)


def say(console: Console, line: str) -> None:
    """Print a line as it is, however long, so that a command in it can be copied."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def progress(items: Sequence[Item], name: Callable[[Item], str]) -> Iterator[Item]:
    """Yield the items, and print a line to the standard error when each is done, for logs and terminals alike."""
    start, total = perf_counter(), len(items)
    for number, item in enumerate(items, 1):
        began = perf_counter()
        yield item
        now = perf_counter()
        done = f"{number}/{total} ({100 * number // total} %)"
        line = f"{done} {name(item)}: {now - began:.1f} s, {now - start:.0f} s in all"
        print(line, file=sys.stderr, flush=True)
