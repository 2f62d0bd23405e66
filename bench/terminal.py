"""Tables and lines of text: rich's where it is installed, and plain ones where it is not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, TypeVar

Item = TypeVar("Item")

INTERRUPTED = 130
"""Exit status of a command that its user stopped."""

GAP = "  "
"""Between the columns of a plain table."""


class PlainTable:
    """As much of rich's Table as the benchmark uses, as lines of text."""

    def __init__(self, *headers: str, box: None = None) -> None:
        self.headers, self.right = list(headers), [False] * len(headers)
        self.rows: list[list[str]] = []

    @property
    def row_count(self) -> int:
        return len(self.rows)

    def add_column(self, header: str, *, justify: str = "left", no_wrap: bool = False) -> None:
        """Add a column; a plain line never wraps."""
        self.headers.append(header)
        self.right.append(justify == "right")

    def add_row(self, *texts: str, style: str | None = None) -> None:
        """Add a row, which may lack its last cells; plain text has no style."""
        self.rows.append([*texts, *[""] * (len(self.headers) - len(texts))])

    def add_section(self) -> None:
        """Separate the rows before from those that follow by an empty line."""
        self.rows.append([""] * len(self.headers))

    def __str__(self) -> str:
        lines = [self.headers, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

        def cell(text: str, width: int, right: bool) -> str:
            return text.rjust(width) if right else text.ljust(width)

        return "\n".join(GAP.join(map(cell, line, widths, self.right)).rstrip() for line in lines)


class PlainConsole:
    """As much of rich's Console as the benchmark uses."""

    def __init__(self, *, width: int | None = None) -> None: ...

    def print(self, item: object, *, highlight: bool = False, **of_rich: bool) -> None:
        """Print a table or a line."""
        print(item, flush=True)

    @contextmanager
    def status(self, text: str) -> Iterator[PlainConsole]:
        """Print what goes on while it goes on; the console itself takes what follows."""
        self.update(text)
        yield self

    def update(self, text: str) -> None:
        """Print what goes on now, if that is said."""
        if text:
            print(text, file=sys.stderr, flush=True)


try:
    from rich.console import Console as RichConsole
    from rich.table import Table
except ImportError:
    Console, Table = PlainConsole, PlainTable  # type: ignore[misc, assignment]
else:

    class Console(RichConsole):  # type: ignore[no-redef]
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


__all__ = ["INTERRUPTED", "Console", "PlainConsole", "PlainTable", "Table", "progress", "say"]


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
