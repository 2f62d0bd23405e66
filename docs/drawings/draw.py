"""Draw what functions do, and how fast: `python docs/drawings/draw.py` writes an SVG file of each beside itself.

Every number in a drawing is computed by gpufold. The files are the same on every run, so that a test compares them.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

import gpufold

ROOT = Path(__file__).resolve().parents[2]

COLOURS = ("#8ec5f0", "#f6c177", "#9bd6a3", "#ee9fb4")
"""Of the four blocks, or of the four entries of a batch."""
INK, FAINT, GREY = "#22303c", "#5f6e7b", "#f4f6f8"

NORMAL, SMALL = 11, 9.5

Corner = tuple[float, float]
Place = Any
"""The elements of an array that a block covers, as NumPy indexes them."""
Array = np.ndarray[Any, Any]

STYLE: dict[str, Any] = {
    "svg.hashsalt": "gpufold",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],
    "font.monospace": ["DejaVu Sans Mono", "Menlo", "Consolas"],
    "text.color": INK,
    "text.parse_math": False,
}


def col2im() -> Figure:
    """Draw four blocks of 3x3 at a stride of 2, which overlap in the middle row and column of an image of 5x5."""
    columns = np.tile(np.arange(1, 5), (9, 1))
    image = gpufold.col2im(columns, (5, 5), (3, 3), strides=2)[0]
    counts = gpufold.col2im(np.ones_like(columns), (5, 5), (3, 3), strides=2)[0]
    row = _Row("gpufold.col2im(columns, (5, 5), (3, 3), strides=2)", 9, gap=1.5)
    row.array(columns, [np.s_[:, block] for block in range(4)], "columns", "9 elements of 4 blocks")
    row.entries(columns.T.reshape(4, 3, 3), "blocks", "stride 2")
    row.array(
        image, [np.s_[y : y + 3, x : x + 3] for y in (0, 2) for x in (0, 2)], "image", "sums where blocks overlap"
    )
    row.array(counts, [], "overlaps", "the divisors of a mean", arrow=False)
    return row.figure


def im2col() -> Figure:
    """Draw an image of 3x4 whose four blocks of 2x2, which share the middle row, become columns."""
    image = np.arange(1, 13).reshape(1, 3, 4)
    columns = gpufold.im2col(image, (2, 2), strides=(1, 2))
    row = _Row("gpufold.im2col(image, (2, 2), strides=(1, 2))", 4.4)
    places = [np.s_[y : y + 2, x : x + 2] for y in (0, 1) for x in (0, 2)]
    row.array(image[0], places, "image", "one channel of 3 x 4")
    row.entries(columns.T.reshape(4, 2, 2), "blocks", "strides 1 and 2")
    row.array(columns, [np.s_[:, block] for block in range(4)], "columns", "4 elements of 4 blocks")
    row.lines("Each block becomes a column.", "A pixel under two blocks", "is copied twice.")
    return row.figure


def batch_to_space() -> Figure:
    """Draw a batch of four that becomes blocks of 2x2 in space, the last column of which is cropped."""
    batch = np.arange(24).reshape(4, 2, 3)
    whole = gpufold.batch_to_space(batch, (1, 2, 2))[0]
    space = gpufold.batch_to_space(batch, (1, 2, 2), crops_end=(0, 0, 1))[0]
    assert np.array_equal(whole[:, :5], space)
    row = _Row("gpufold.batch_to_space(batch, (1, 2, 2), crops_end=(0, 0, 1))", 4.6)
    row.entries(batch, "batch", "4 entries of 2 x 3")
    row.interleaved(whole, "1 entry of 4 x 5")
    row.lines("Each 2 x 2 block takes one", "element from each entry.", "", "The crop removes the last column.")
    return row.figure


def space_to_batch() -> Figure:
    """Draw an image that is padded by a column, and whose blocks of 2x2 become a batch of four."""
    space = np.arange(1, 21).reshape(1, 4, 5)
    batch = gpufold.space_to_batch(space, (1, 2, 2), pads_end=(0, 0, 1))
    row = _Row("gpufold.space_to_batch(space, (1, 2, 2), pads_end=(0, 0, 1))", 4.6)
    row.interleaved(np.pad(space[0], ((0, 0), (0, 1))), "1 entry of 4 x 5, padded")
    row.entries(batch, "batch", "4 entries of 2 x 3")
    row.lines("Each entry takes one element", "from every 2 x 2 block.", "", "Padding is zero.")
    return row.figure


def blocks() -> Figure:
    """Draw an array of 7, its three blocks of 3 at a stride of 2, and their sum and mean."""
    array = np.arange(1, 8)
    taken = gpufold.array_to_blocks(array, 3, strides=2)
    row = _Row("gpufold.array_to_blocks(array, 3, strides=2), blocks_to_array(blocks, (7,), 3, strides=2)", 4.2)
    row.array(array[None], [], "array", "7 elements")
    row.entries(taken[:, None], "blocks", "(3, 3)", per_row=1)
    left, top = row.part(7, 3, "array", "overlaps are summed or averaged")
    for below, reduction in ((0, "sum"), (2, "mean")):
        result = gpufold.blocks_to_array(taken.astype(float), (7,), 3, strides=2, reduction=reduction)
        _array(row.axes, (left, top + below), result[None], [np.s_[:, x : x + 3] for x in (0, 2, 4)])
        _note(row.axes, left + 7.5, top + below + 0.5, f'reduction="{reduction}"', ha="left")
    return row.figure


PLACES = [(0, 0), (1, 2), (3, 6)]
"""Positions of three blocks of 3x3 in an array of 5x8, one of them beyond the border."""
PLACED = [np.s_[row : row + 3, column : column + 3] for row, column in PLACES]
INSIDE = [np.s_[: 5 - row, : 8 - column] for row, column in PLACES]
"""Of each block, what is inside the array."""


def positions() -> Figure:
    """Draw three blocks that are added to an array at positions of any kind, one of them beyond the border."""
    tiles = np.arange(1, 4)[:, None, None] * np.ones((3, 3, 3), int)
    array = gpufold.add_blocks(np.zeros((5, 8), int), tiles, PLACES)
    row = _Row(f"gpufold.add_blocks(zeros((5, 8)), blocks, {PLACES})", 5)
    row.entries(tiles, "blocks", "each with a position", per_row=3, notes=PLACES)
    row.array(array, PLACED, "array", "outside the border elements are dropped")
    row.lines("take_blocks extracts blocks", "at the same positions.")
    return row.figure


def take_blocks() -> Figure:
    """Draw three blocks that are taken from an array, one of them beyond the border."""
    array = np.arange(1, 41).reshape(5, 8)
    row = _Row(f"gpufold.take_blocks(array, {PLACES}, 3)", 5)
    row.array(array, PLACED, "array", "5 x 8")
    row.entries(gpufold.take_blocks(array, PLACES, 3), "blocks", "(3, 3, 3)", per_row=3, notes=PLACES, inside=INSIDE)
    row.lines("Elements outside", "the array are zero,", "or as mode= says.")
    return row.figure


def grid_positions() -> Figure:
    """Draw where blocks of 4 lie on an axis of 11 for every choice of the last one."""
    figure, axes = _canvas(12.4, "gpufold.grid_positions((11,), 4, strides=3, last=...)")
    meant = {
        "shift": "moved in, as in MONAI",
        "even": "spaced evenly, as in nnU-Net",
        "over": "over the end, as in Demucs",
        "drop": "left out",
    }
    left = 4.4
    for row, (last, what) in enumerate(meant.items()):
        top = 1.5 + 2.8 * row
        begins = gpufold.grid_positions((11,), 4, strides=3, last=last)[:, 0].tolist()
        _text(axes, 0, top + 1, f'last="{last}"', ha="left", family="monospace")
        _frame(axes, left, top, 11, 2)
        for number, begin in enumerate(begins):
            corner = left + begin, top + 0.2 + 0.85 * (number % 2)
            _fill(axes, corner, 4, 0.75, COLOURS[number])
            _text(axes, corner[0] + 2, corner[1] + 0.38, str(begin), size=SMALL)
        _note(axes, left + 13.4, top + 1, f"the last block is {what}", ha="left")
    return figure


def stitcher() -> Figure:
    """Draw two tiles of 6 that overlap by 3, weighted by a window, their sums, weights and average."""
    window, tiles, places = np.array([1.0, 2, 3, 3, 2, 1]), np.array([[2.0] * 6, [8] * 6]), [(0,), (3,)]
    sums, weight = np.zeros(9), np.zeros(9)
    gpufold.add_blocks_(sums, tiles, places, window=window, weight_out=weight)
    blended = gpufold.Stitcher((9,), 6, window=window)
    blended.add(tiles, places)
    average = blended.result()
    assert np.allclose(average, sums / weight)
    title = "stitcher = gpufold.Stitcher((9,), 6, window=window); stitcher.add(tiles, positions); stitcher.result()"
    figure, axes = _canvas(8.6, title)
    both = [np.s_[:, :6], np.s_[:, 3:]]
    rows = (
        ("tile 1 x window", 0, tiles[0] * window, both[:1], COLOURS),
        ("tile 2 x window", 3, tiles[1] * window, [np.s_[:]], COLOURS[1:]),
        ("sums", 0, sums, both, COLOURS),
        ("weights", 0, weight, [], COLOURS),
        ("average", 0, np.round(average, 1), both, COLOURS),
    )
    for number, (name, begin, values, covers, colours) in enumerate(rows):
        top = 1.5 + 1.5 * number
        _text(axes, 0, top + 0.5, name, ha="left")
        _array(axes, (4.2 + begin, top), values[None], covers, colours)
    return figure


def speed() -> Figure:
    """Draw the peers' times over gpufold's of the saved run, as docs/performance.md has them."""
    from bench.report import by_operation
    from bench.results import Run

    (_, *peers), *measured = by_operation(Run.load(ROOT / "bench/results/cpu-2026-12-01.json"))
    shown = {"torch": "torch", "loop": "a NumPy loop", "fastest": "the fastest peer"}
    cells = {peer: [row[1 + peers.index(peer)] for row in measured] for peer in shown}
    factors = {peer: [float(cell.removesuffix("x") or 0) for cell in texts] for peer, texts in cells.items()}
    most = 1.08 * max(map(max, factors.values()))
    figure, axes = _chart(5.6, (0.1, 0.87), "time of a peer divided by gpufold's", most, 1)
    lines = np.arange(len(measured))
    axes.set_ylim(len(measured), -0.1)
    axes.set_yticks(lines + 0.45, [name for name, *_ in measured], size=SMALL)
    for place, ((peer, words), colour) in enumerate(zip(shown.items(), COLOURS[1:], strict=True)):
        bars = axes.barh(lines + 0.28 * place, factors[peer], 0.26, align="edge", color=colour, label=words)
        axes.bar_label(bars, cells[peer], padding=2, size=8, color=FAINT)
    axes.legend(loc="lower right", frameon=False, fontsize=SMALL)
    return figure


def gpu_speed() -> Figure:
    """Draw each problem's share of the speed of a copy, and their geometric mean, in the saved run on a GPU."""
    from bench.report import large_rows
    from bench.results import Run, geometric_mean

    groups = large_rows(Run.load(ROOT / "bench/results/gpu-h100-2026-11-27.json"))
    figure, axes = _chart(4.4, (0.13, 0.85), "per cent of the speed of a copy of as many bytes", 112, 100)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_yticks(range(len(groups)), list(groups), size=SMALL)
    for line, rows in enumerate(groups.values()):
        shares = [100 * (row.fraction_of_copy() or 0) for row in rows]
        axes.plot(shares, [line] * len(shares), "o", color=COLOURS[1], alpha=0.8, mew=0)
        mean = geometric_mean(shares) or 0
        axes.plot([mean, mean], [line - 0.3, line + 0.3], color=INK, lw=2)
    return figure


def badges() -> Figure:
    """Draw what pyproject.toml says of the package: what a badge would ask a server for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (status,) = (words for words in project["classifiers"] if words.startswith("Development Status"))
    facts = (
        ("Python", f"{project['requires-python'].removeprefix('>=')} or newer", COLOURS[0]),
        ("licence", project["license"], COLOURS[2]),
        ("status", status.rpartition(" ")[2].lower(), COLOURS[1]),
        ("needs", " ".join(project["dependencies"]).replace(">=", " ") + " or newer", COLOURS[3]),
    )
    figure = Figure(figsize=(8.4, 0.3), facecolor="none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 84), ylim=(0, 3))
    axes.set_axis_off()
    left = 0.0
    for name, what, colour in facts:
        for text, back, front in ((name, INK, "white"), (what, colour, INK)):
            width = 0.95 * len(text) + 1.8
            _fill(axes, (left, 0), width, 3, back)
            _text(axes, left + width / 2, 1.5, text, size=SMALL, color=front)
            left += width
        left += 1.2
    return figure


def _canvas(height: float, title: str) -> tuple[Figure, Axes]:
    """Return a white figure with a title, whose unit is the side of a cell, with y downwards."""
    width, margin, inches = 25.2, 0.8, 0.4
    figure = Figure(figsize=((width + 2 * margin) * inches, (height + 2 * margin) * inches), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-margin, width + margin), ylim=(height + margin, -margin))
    axes.set_axis_off()
    _text(axes, 0, 0.3, title, ha="left", family="monospace")
    return figure, axes


def _chart(height: float, vertical: tuple[float, float], what: str, most: float, even: float) -> tuple[Figure, Axes]:
    """Return a figure whose horizontal axis goes from zero to the most, with a line where two are even."""
    figure = Figure(figsize=(10.7, height), facecolor="white", layout="none")
    axes = figure.add_axes((0.2, vertical[0], 0.78, vertical[1]))
    axes.set(xlim=(0, most), xlabel=what)
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.axvline(even, color=INK, lw=1)
    return figure, axes


def _array(axes: Axes, corner: Corner, array: Array, places: Sequence[Place], colours: Sequence[str] = COLOURS) -> None:
    """Draw an array, each element in the colours of the blocks on it; those under several blocks are bold."""
    (left, top), (rows, columns) = corner, array.shape
    blocks = np.zeros((len(places), rows, columns), bool)
    for block, place in zip(blocks, places, strict=True):
        block[place] = True
    for (row, column), value in np.ndenumerate(array):
        stripes = [colour for colour, covers in zip(colours, blocks[:, row, column], strict=False) if covers] or [GREY]
        for number, colour in enumerate(stripes):
            _fill(axes, (left + column + number / len(stripes), top + row), 1 / len(stripes), 1, colour)
        weight = "bold" if len(stripes) > 1 else "normal"
        _text(axes, left + column + 0.5, top + row + 0.5, f"{value:g}", weight=weight)
    axes.vlines(left + np.arange(1, columns), top, top + rows, "white", lw=1.2)
    axes.hlines(top + np.arange(1, rows), left, left + columns, "white", lw=1.2)
    _frame(axes, left, top, columns, rows)


class _Row:
    """Arrays from left to right, each in the middle of the height with its name below, and arrows between them."""

    def __init__(self, title: str, high: float, gap: float = 2) -> None:
        top = 1.5
        self.figure, self.axes = _canvas(top + high + 1.4, title)
        self.middle, self.bottom, self.gap, self.right = top + high / 2, top + high, gap, 0.0

    def part(self, width: float, high: float, name: str, what: str, arrow: bool = True) -> Corner:
        """Return the corner of what comes next."""
        left = self.right + self.gap if self.right else 0.0
        if left and arrow:
            ends = (self.right + 0.35, self.middle), (left - 0.35, self.middle)
            style: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 13, "color": INK, "lw": 1.3}
            self.axes.add_patch(FancyArrowPatch(*ends, **style, shrinkA=0, shrinkB=0))
        _text(self.axes, left + width / 2, self.bottom + 0.75, name, weight="bold")
        _note(self.axes, left + width / 2, self.bottom + 1.4, what)
        self.right = left + width
        return left, self.middle - high / 2

    def array(self, array: Array, places: Sequence[Place], name: str, what: str, arrow: bool = True) -> Corner:
        """Draw an array; return its corner."""
        rows, columns = array.shape
        corner = self.part(columns, rows, name, what, arrow)
        _array(self.axes, corner, array, places)
        return corner

    def entries(
        self,
        arrays: Array,
        name: str,
        what: str,
        per_row: int = 2,
        notes: Sequence[Any] = ("",) * 4,
        inside: Sequence[Place] = (np.s_[:],) * 4,
    ) -> None:
        """Draw arrays in rows, each with a note below and in a colour of its own, as far as it is inside."""
        count, rows, columns = arrays.shape
        gap = 0.6 if per_row < 3 else 0.4
        width, high = (columns + gap) * per_row - gap, (rows + gap) * -(-count // per_row) - gap
        left, top = self.part(width, high, name, what)
        for number, array in enumerate(arrays):
            row, place = divmod(number, per_row)
            corner = left + place * (columns + gap), top + row * (rows + gap)
            _array(self.axes, corner, array, [inside[number]], COLOURS[number:])
            _note(self.axes, corner[0] + columns / 2, top + rows + 0.5, str(notes[number]))

    def interleaved(self, space: Array, what: str) -> None:
        """Draw blocks of 2x2, each of whose elements has its entry's colour; the last column is crop or padding."""
        rows, columns = space.shape
        left, top = self.array(space, [np.s_[y::2, x::2] for y, x in np.ndindex(2, 2)], "space", what)
        _fill(self.axes, (left + columns - 1, top), 1, rows, "white", alpha=0.65, zorder=4)
        for row, column in np.ndindex(rows // 2, columns // 2):
            _frame(self.axes, left + 2 * column, top + 2 * row, 2, 2)

    def lines(self, *lines: str) -> None:
        """Write lines one below the other behind the last array."""
        for number, line in enumerate(lines):
            y = self.middle + 0.62 * (number - (len(lines) - 1) / 2)
            _note(self.axes, self.right + 0.6, y, line, ha="left")


def _fill(axes: Axes, corner: Corner, width: float, height: float, colour: str, **options: Any) -> None:
    axes.add_patch(Rectangle(corner, width, height, facecolor=colour, lw=0, **options))


def _text(axes: Axes, x: float, y: float, text: str, size: float = NORMAL, ha: str = "center", **options: Any) -> None:
    axes.text(x, y, text, size=size, ha=ha, va="center_baseline", **options)


def _note(axes: Axes, x: float, y: float, text: str, size: float = SMALL, ha: str = "center") -> None:
    _text(axes, x, y, text, size, ha, color=FAINT)


def _frame(axes: Axes, x: float, y: float, width: float, height: float) -> None:
    axes.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor=INK, lw=1.1, joinstyle="round", zorder=5))


def save(folder: Path) -> list[Path]:
    """Write the drawings into a folder; return their paths."""
    paths = []
    sys.path.insert(0, str(ROOT))  # of the benchmark
    with mpl.rc_context(STYLE):
        drawings = [badges, col2im, im2col, batch_to_space, space_to_batch, blocks, positions, take_blocks]
        drawings += [grid_positions, stitcher, speed, gpu_speed]
        for drawing in drawings:
            paths.append(folder / f"{drawing.__name__}.svg")
            drawing().savefig(paths[-1], metadata={"Date": None, "Creator": None})
    return paths


if __name__ == "__main__":
    for path in save(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent):
        print(path)
