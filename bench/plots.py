"""Draws saved results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as pyplot

from bench.results import COPY, OURS, Row, Run

COLOURS = {name: f"C{number}" for number, name in enumerate((OURS, "torch", "onnxruntime", "openvino", "sigpy"))}
"""The same in every figure; others follow in the order in which they come."""


def draw(run: Run, stem: str, output: Path) -> list[Path]:
    """Draw every figure that the results are good for, as PNG and SVG."""
    rows = [row for row in run.rows if OURS in row.times]
    figures: dict[str, Callable[[Run, list[Row]], Any]] = {
        "fraction-of-copy": _fraction_of_copy,
        "speed-up": _speed_up,
        "time-against-size": _time_against_size,
    }
    output.mkdir(parents=True, exist_ok=True)
    written = []
    for name, function in figures.items() if rows else ():
        figure = function(run, rows)
        figure.suptitle(f"{run.device}, commit {run.commit}", fontsize="small")
        for ending in ("png", "svg"):
            written.append(output / f"{stem}-{name}.{ending}")
            figure.savefig(written[-1], dpi=150)
        pyplot.close(figure)
    return written


def _colour(name: str, others: list[str]) -> str:
    return COLOURS.get(name) or f"C{len(COLOURS) + others.index(name)}"


def _by_problem(rows: list[Row]) -> tuple[Any, Any]:
    """Return a figure with a line per problem, the first on top."""
    figure, axes = pyplot.subplots(figsize=(9, 1.5 + 0.22 * len(rows)), layout="constrained")
    axes.set_yticks(range(len(rows)), [row.name for row in rows], fontsize="small")
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    return figure, axes


def _fraction_of_copy(run: Run, rows: list[Row]) -> Any:
    figure, axes = _by_problem(rows)
    axes.barh(range(len(rows)), [100 * (row.fraction_of_copy() or 0) for row in rows], color=COLOURS[OURS])
    axes.axvline(100, color="black", linewidth=1)
    axes.set_xlabel("gpufold: per cent of a copy of as many bytes, measured in the same run")
    return figure


def _speed_up(run: Run, rows: list[Row]) -> Any:
    figure, axes = _by_problem(rows)
    others = [peer for peer in run.peers if peer not in COLOURS]
    for peer in run.peers:
        points = [(row.speed_up(peer), y) for y, row in enumerate(rows) if row.speed_up(peer) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), "o", color=_colour(peer, others), label=peer, alpha=0.8)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}x")  # 0.5x, 1x, 2x
    axes.set_xlabel("time of a peer over the time of gpufold: to the right of 1, gpufold is faster")
    axes.legend(fontsize="small")
    return figure


def _time_against_size(run: Run, rows: list[Row]) -> Any:
    figure, axes = pyplot.subplots(figsize=(9, 6), layout="constrained")
    for operation in dict.fromkeys(row.operation for row in rows):
        points = [(row.bytes / 1e6, row.times[OURS].median * 1e3) for row in rows if row.operation == operation]
        axes.plot(*zip(*points, strict=True), "o", label=operation, alpha=0.8)
    copies = sorted((row.bytes / 1e6, row.times[COPY].median * 1e3) for row in rows if COPY in row.times)
    if copies:
        axes.plot(*zip(*copies, strict=True), "-", color="black", linewidth=1, label=COPY)
    axes.set(xscale="log", yscale="log", xlabel="compulsory bytes, MB", ylabel="ms")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return figure
