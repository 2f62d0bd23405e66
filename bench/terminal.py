"""Tables and lines of text, by rich."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any, TypeVar

try:
    from rich.console import Console as RichConsole
    from rich.table import Table
except ImportError as error:
    raise ImportError("the benchmark needs the package rich: pip install --group bench", name="rich") from error

Item = TypeVar("Item")

INTERRUPTED = 130
"""Exit status of a command that its user stopped."""

GAP = "  "
"""Between the columns of a table."""


class Console(RichConsole):
    """Prints a table that does not fit the terminal as several, each of which has the first column."""

    def print(self, *items: Any, **options: Any) -> None:
        """Print tables so that no header and no number is cut, and anything else as it is."""
        for item in items or ("",):
            for part in self._parts(item) if isinstance(item, Table) else [item]:
                super().print(part, **options)

    def _parts(self, table: Table) -> Iterator[Table]:
        first, *others = range(len(table.columns))
        columns = [first]
        for number in others:
            if len(columns) > 1 and not self._fits(_with_columns(table, [*columns, number])):
                yield _with_columns(table, columns)
                columns = [first]
            columns.append(number)
        yield _with_columns(table, columns)

    def _fits(self, table: Table) -> bool:
        """Return whether every number and header is shown whole, and every word of other columns."""
        widths = (
            max(max(map(len, [text] if column.no_wrap else text.split()), default=0) for text in _texts(column))
            for column in table.columns
        )
        return sum(width + len(GAP) for width in widths) <= self.width


def _texts(column: Any) -> list[str]:
    """Return what stands in a column of a table."""
    return [column.header, *column.cells]


def _with_columns(table: Any, numbers: list[int]) -> Any:
    """Return a table of some columns of another; those on the right, of numbers, are never narrower than they are."""
    part = Table(box=table.box, title=table.title if 1 in numbers else None)
    for number in numbers:
        column = table.columns[number]
        part.add_column(column.header, justify=column.justify, no_wrap=column.no_wrap or column.justify == "right")
    for row, cells in zip(table.rows, zip(*(table.columns[n].cells for n in numbers), strict=True), strict=True):
        part.add_row(*cells, style=row.style, end_section=row.end_section)
    return part


def table_of(lines: Sequence[Sequence[str]], totals: bool = False) -> Table:
    """Return a header and rows of texts as a table, columns of numbers on the right; the last row may be totals."""
    header, *rows = lines
    table = Table(box=None)
    for number, name in enumerate(header):
        texts = [row[number].strip("<%x*!±") for row in rows if row[number]]
        numeric = number > 0 and all(text.replace(".", "", 1).replace("e+", "").isdigit() for text in texts)
        table.add_column(name, justify="right" if numeric else "left", no_wrap=number == 0)
    for number, row in enumerate(rows):
        last = totals and number + 1 == len(rows)
        table.add_row(*row, style="bold" if last else None, end_section=totals and number + 2 == len(rows))
    return table


def say(console: Console, line: str) -> None:
    """Print a line as it is, however long, so that a command in it can be copied."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def progress(items: Iterable[Item], name: Callable[[Item], str], total: int) -> Iterator[Item]:
    """Yield the items, and print a line to the standard error when each is done, for logs and terminals alike."""
    start = perf_counter()
    for number, item in enumerate(items, 1):
        began = perf_counter()
        yield item
        now = perf_counter()
        done = f"{number}/{total} ({100 * number // total} %)"
        line = f"{done} {name(item)}: {now - began:.1f} s, {now - start:.0f} s in all"
        print(line, file=sys.stderr, flush=True)
