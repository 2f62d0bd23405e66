"""Plots of saved results."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as pyplot

from bench.results import COPY, OURS, Run


def draw(run: Run, stem: str, output: Path) -> list[Path]:
    """Draw the times of peers and of a copy divided by gpufold's, a line per problem, as PNG and SVG."""
    rows = [row for row in run.rows if OURS in row.times]
    if not rows:
        return []
    figure, axes = pyplot.subplots(figsize=(9, 1.5 + 0.22 * len(rows)), layout="constrained")
    colours = ("black", *matplotlib.colormaps["tab20"].colors)
    for name, colour in zip((COPY, *run.peers), colours, strict=False):
        points = [(ratio, y) for y, row in enumerate(rows) if (ratio := row.speed_up(name)) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), "|" if name == COPY else "o", color=colour, label=name, alpha=0.8)
    axes.set_yticks(range(len(rows)), [row.name for row in rows], fontsize="small")
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.axvline(1, color="black", linewidth=1)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}x")  # 0.5x, 1x, 2x
    axes.set_xlabel("time of a peer, or of a copy of as many bytes, over the time of gpufold")
    axes.legend(fontsize="small")
    figure.suptitle(f"{run.device}, commit {run.commit}", fontsize="small")
    written = [output / f"{stem}.{ending}" for ending in ("png", "svg")]
    for path in written:
        figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return written
