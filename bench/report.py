"""Tables of measurements."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from bench.problems import PROBLEMS
from bench.results import COPY, OTHER_WORK, OURS, Row, Run, geometric_mean


def milliseconds(seconds: float) -> str:
    """Return a number with three significant digits.

    >>> milliseconds(0.0123456), milliseconds(2.1e-6)
    ('12.3', '0.0021')
    """
    value = seconds * 1e3
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if value >= 0.1 else f"{value:.4f}"


EXPOSED = "!"
"""Mark of a time with gaps: the host took longer to enqueue the call than the device was kept busy."""


def _time(row: Row, name: str) -> str:
    if name in row.failures:
        return "FAIL" if row.failures[name].startswith("FAIL") else "error"
    times = row.times.get(name)
    return milliseconds(times.median) + EXPOSED * times.exposed if times else ""


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def cells(run: Run) -> list[list[str]]:
    """Return the table's header and rows as text; the last row holds the geometric means."""
    rows = [row for row in run.rows if row.times or row.failures]
    peers, variants = (
        [name for name in names if any(name in row.times or name in row.failures for row in rows)]
        for names in (run.peers, run.variants)
    )
    gpu = run.kind == "gpu"
    header = ["problem", "MB", "gpufold ms", "±", "GB/s", "% of copy", *(["host µs"] if gpu else [])]
    lines = [[*header, *variants, *peers, "fastest / gpufold"]]
    for row in rows:
        ours = row.times.get(OURS)
        line = [
            row.name,
            f"{row.bytes / 1e6:.3g}",
            _time(row, OURS),
            f"{ours.spread:.0%}" if ours else "",
            f"{row.bytes / ours.median / 1e9:.3g}" if ours else "",
            _percent(row.fraction_of_copy()),
        ]
        if gpu:
            line.append(f"{median(ours.host) * 1e6:.1f}{EXPOSED * ours.exposed}" if ours and ours.host else "")
        line += [_time(row, name) + ("*" if name == row.chosen else "") for name in variants]
        line += [_time(row, peer) for peer in peers]
        lines.append([*line, _times(row.speed_up(run.fastest_peer(row)))])
    mean = ["geometric mean", "", "", "", "", _percent(geometric_mean(row.fraction_of_copy() for row in rows))]
    mean += [""] * (gpu + len(variants))
    mean += [_times(geometric_mean(row.speed_up(peer) for row in rows)) for peer in peers]
    return [*lines, [*mean, _times(geometric_mean(row.speed_up(run.fastest_peer(row)) for row in rows))]]


def memory_cells(run: Run) -> list[list[str]]:
    """Return a table of the candidates' memory in MB as text; the last row holds the geometric means of the ratios."""
    rows = [row for row in run.rows if row.memory]
    names = [name for name in (OURS, *run.variants, *run.peers) if any(name in row.memory for row in rows)]
    lines = [
        [row.name, *(f"{row.memory[name] / 1e6:.3g}" if name in row.memory else "" for name in names)] for row in rows
    ]
    large = [row for row in rows if row.bytes >= LARGE_BYTES]
    ratios = [geometric_mean(row.memory_ratio(name) for row in large) for name in names]
    return [["memory, MB", *names], *lines, ["over gpufold's, geometric mean", *map(_times, ratios)]]


def tables(run: Run) -> list[list[list[str]]]:
    """Return the table of times and, if it was measured, of memory; the last row of each has means."""
    return [cells(run), *([memory_cells(run)] if any(row.memory for row in run.rows) else [])]


def footer(run: Run) -> list[str]:
    """Describe the machine and versions of a run."""
    lines = [
        "Times are medians in ms of samples taken in turns; ± is half the distance of the quartiles; "
        "peers' means are their time over gpufold's; "
        f"GB/s counts each input and output byte once; {COPY} moves as many bytes, in the same run."
    ]
    if any(row.memory for row in run.rows):
        lines.append(
            "Memory is the peak of one more call, its result included; none is shown of candidates with a pool of "
            "their own."
        )
    if any(times.exposed for row in run.rows for times in row.times.values()):
        lines.append(
            f"{EXPOSED} marks times with gaps: the host took longer to enqueue the call than flushing the cache kept "
            "the device busy."
        )
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    machine = f"{run.date}, {run.device}, commit {run.commit}"
    return [*lines, *run.notes, machine, versions, run.command, *failures(run)]


def failures(run: Run) -> list[str]:
    """List what was not timed, and why."""
    lines = []
    rows_of: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in run.rows:
        for name, reason in row.failures.items():
            rows_of[name, reason].append(row.name)
    for (name, reason), rows in rows_of.items():
        more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
        lines.append(f"{name} on {', '.join(rows[:3])}{more}: {' '.join(reason.split())}")
    return lines


LARGE_BYTES = 1_000_000
"""Least bytes of a problem in the means of an operation: smaller ones measure the overhead of a call."""


def large_rows(run: Run) -> dict[str, list[Row]]:
    """Return the rows of each operation's large problems, in their first dtypes, where gpufold was measured."""
    problems = {problem.name: problem for problem in PROBLEMS}
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in run.rows:
        problem = problems.get(row.problem)
        if problem and row.dtype == problem.dtypes[0] and row.bytes >= LARGE_BYTES and OURS in row.times:
            groups[row.operation + (", fused" if problem.fused else "")].append(row)
    return groups


def by_operation(run: Run) -> list[list[str]]:
    """Return a header, and the peers' times divided by gpufold's: geometric means over each operation's large problems.

    gpufold's own two passes are not among the fastest.
    """
    peers = [peer for peer in dict.fromkeys(run.peers) if any(peer in row.times for row in run.rows)]
    compared = [peer for peer in peers if peer not in OTHER_WORK]
    lines = [["", *peers, "fastest"]]
    for name, rows in large_rows(run).items():
        others = [[ratio for peer in compared if (ratio := row.speed_up(peer))] for row in rows]
        fastest = geometric_mean(min(ratios, default=None) for ratios in others)
        lines.append(
            [name, *(_times(geometric_mean(row.speed_up(peer) for row in rows)) for peer in peers), _times(fastest)]
        )
    return lines


def markdown(run: Run) -> str:
    """Return the same tables in Markdown, with the machine and versions, and the means of each operation."""
    body = []
    for lines in tables(run):
        bold = [f"**{text}**" if text else "" for text in lines[-1]]
        body += [*markdown_table([*lines[:-1], bold]), ""]
    notes = [f"- {text}" for text in footer(run)]
    return "\n".join([*body, *notes, "", *markdown_table(by_operation(run)), ""])


def markdown_table(lines: list[list[str]]) -> list[str]:
    """Return lines of texts as a table in Markdown, the first of them as its header."""
    header, *rows = lines
    ruler = ["---", *("---:" for _ in header[1:])]
    return [f"| {' | '.join(texts)} |" for texts in (header, ruler, *rows)]
