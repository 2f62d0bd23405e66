"""Draw what functions do, and how fast: `python docs/drawings/draw.py` writes an SVG file of each beside itself.

Every number in a drawing is computed by gpufold. The files are the same on every run, so that a test compares them.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

import gpufold

ROOT = Path(__file__).resolve().parents[2]

COLOURS = ("#8ec5f0", "#f6c177", "#9bd6a3", "#ee9fb4")
"""Of the four blocks, or of the four entries of a batch."""
INK, FAINT = "#22303c", "#5f6e7b"
GREYS = {1: "#f4f6f8", 2: "#d9e0e6", 4: "#b3bfca"}
"""The more blocks cover a pixel, the darker it is."""

NORMAL, SMALL = 11, 9.5

Corner = tuple[float, float]
Part = tuple[float, float, float, float]
"""Of an array: x, y, width and height."""
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
    size, taps, blocks, stride = 5, 3, 4, 2
    columns = np.tile(np.arange(1, blocks + 1), (taps * taps, 1))
    image = gpufold.col2im(columns, (size, size), (taps, taps), strides=stride)[0]
    counts = gpufold.col2im(np.ones_like(columns), (size, size), (taps, taps), strides=stride)[0]
    row = _Row("gpufold.col2im(columns, (5, 5), (3, 3), strides=2)", 9, gap=1.7)
    row.array(columns, [(block, 0, 1, 9) for block in range(4)], COLOURS, "columns", "9 elements of 4 blocks")
    row.entries(columns.T.reshape(blocks, taps, taps), (3.4, 3.4), "blocks", "stride 2")
    half = size / 2  # a pixel under several blocks has the colours of all
    quarters = [(x, y, half, half) for y in (0, half) for x in (0, half)]
    row.array(image, quarters, COLOURS, "image", "sums where blocks overlap", bold=counts > 1)
    cells = [(x, y, 1, 1) for y, x in np.ndindex(counts.shape)]
    greys = [GREYS[int(count)] for count in counts.flat]
    corner = row.part(size, size, "overlaps", 'reduction="mean" divides by them', arrow=False)
    _array(row.axes, corner, counts, cells, greys)
    return row.figure


def im2col() -> Figure:
    """Draw an image of 3x4 whose four blocks of 2x2, which share the middle row, become columns."""
    image = np.arange(1, 13).reshape(1, 3, 4)
    columns = gpufold.im2col(image, (2, 2), strides=(1, 2))
    row = _Row("gpufold.im2col(image, (2, 2), strides=(1, 2))", 4.4)
    halves = [(x, y, 2, 1.5) for y in (0, 1.5) for x in (0, 2)]  # a pixel under two blocks has the colours of both
    row.array(image[0], halves, COLOURS, "image", "one channel of 3 x 4")
    row.entries(columns.T.reshape(4, 2, 2), (2.4, 2.4), "blocks", "strides 1 and 2")
    row.array(columns, [(block, 0, 1, 4) for block in range(4)], COLOURS, "columns", "4 elements of 4 blocks")
    row.lines("Each block becomes a column.", "A pixel under two blocks", "is copied twice.")
    return row.figure


def batch_to_space() -> Figure:
    """Draw a batch of four that becomes blocks of 2x2 in space, the last column of which is cropped."""
    batch = np.arange(24).reshape(4, 2, 3)
    whole = gpufold.batch_to_space(batch, (1, 2, 2))[0]
    space = gpufold.batch_to_space(batch, (1, 2, 2), crops_end=(0, 0, 1))[0]
    kept = space.shape[1]
    assert np.array_equal(whole[:, :kept], space)
    row = _Row("gpufold.batch_to_space(batch, (1, 2, 2), crops_end=(0, 0, 1))", 4.6)
    row.entries(batch, (3.6, 2.6), "batch", "4 entries of 2 x 3")
    row.interleaved(whole, kept, "space", "1 entry of 4 x 5", framed=kept, veil=0.72)
    row.lines("Each 2 x 2 block takes one", "element from each entry.", "", "The crop removes the last column.")
    return row.figure


def space_to_batch() -> Figure:
    """Draw an image that is padded by a column, and whose blocks of 2x2 become a batch of four."""
    space = np.arange(1, 21).reshape(1, 4, 5)
    batch = gpufold.space_to_batch(space, (1, 2, 2), pads_end=(0, 0, 1))
    padded = np.pad(space[0], ((0, 0), (0, 1)))
    row = _Row("gpufold.space_to_batch(space, (1, 2, 2), pads_end=(0, 0, 1))", 4.6)
    row.interleaved(padded, space.shape[2], "space", "1 entry of 4 x 5, padded", framed=padded.shape[1], veil=0.55)
    row.entries(batch, (3.6, 2.6), "batch", "4 entries of 2 x 3")
    row.lines("Each entry takes one element", "from every 2 x 2 block.", "", "Padding is zero.")
    return row.figure


def blocks() -> Figure:
    """Draw an array of 7, its three blocks of 3 at a stride of 2, and their sum and mean."""
    array = np.arange(1, 8)[None]
    taken = gpufold.array_to_blocks(array[0], 3, strides=2)
    sums = gpufold.blocks_to_array(taken, (7,), 3, strides=2)[None]
    mean = gpufold.blocks_to_array(taken.astype(float), (7,), 3, strides=2, reduction="mean")[None]
    assert np.array_equal(mean, array)
    row = _Row("gpufold.array_to_blocks(array, 3, strides=2), blocks_to_array(blocks, (7,), 3, strides=2)", 4.2)
    row.array(array, [(0, 0, 7, 1)], [GREYS[1]], "array", "7 elements")
    row.entries(taken[:, None], (0, 1.6), "blocks", "(3, 3)", per_row=1)
    left, top = row.part(7, 3, "array", "overlaps are summed or averaged")
    parts = [(0, 0, 2.5, 1), (2.5, 0, 2, 1), (4.5, 0, 2.5, 1)]
    for below, result, name in ((0, sums, '"sum"'), (2, mean.astype(int), '"mean"')):
        _array(row.axes, (left, top + below), result, parts, COLOURS[:3], bold=result != array)
        _note(row.axes, left + 7.5, top + below + 0.5, f"reduction={name}", ha="left")
    return row.figure


def positions() -> Figure:
    """Draw three blocks that are added to an array at positions of any kind, one of them beyond the border."""
    size, places = (5, 8), [(0, 0), (1, 2), (3, 6)]
    tiles = np.arange(1, 4)[:, None, None] * np.ones((3, 3, 3), int)
    array = gpufold.add_blocks(np.zeros(size, int), tiles, places)
    counts = gpufold.add_blocks(np.zeros(size, int), np.ones_like(tiles), places)
    row = _Row(f"gpufold.add_blocks(zeros((5, 8)), blocks, {places})", 5)
    row.tiles(tiles, places, [(3, 3)] * 3, "each with a position")
    row.covered(array, places, "outside the border elements are dropped", bold=counts > 1)
    row.lines("take_blocks extracts blocks", "at the same positions.")
    return row.figure


def take_blocks() -> Figure:
    """Draw three blocks that are taken from an array, one of them beyond the border."""
    places = [(0, 0), (1, 2), (3, 6)]
    array = np.arange(1, 41).reshape(5, 8)
    tiles = gpufold.take_blocks(array, places, 3)
    row = _Row(f"gpufold.take_blocks(array, {places}, 3)", 5)
    row.covered(array, places, "5 x 8")
    row.tiles(tiles, places, [(min(3, 8 - column), min(3, 5 - line)) for line, column in places], "(3, 3, 3)")
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
        _note(axes, left + 13, top + 1, f"the last block is {what}", ha="left")
    return figure


def stitcher() -> Figure:
    """Draw two tiles of 6 that overlap by 3, weighted by a window, their sums, weights and average."""
    window, tiles, places = np.array([1, 2, 3, 3, 2, 1]), np.array([[2] * 6, [8] * 6]), [(0,), (3,)]
    sums, weight = np.zeros(9), np.zeros(9)
    gpufold.add_blocks_(sums, tiles.astype(float), places, window=window, weight_out=weight)
    blended = gpufold.Stitcher((9,), 6, window=window.astype(float))
    blended.add(tiles.astype(float), places)
    average = blended.result()
    assert np.allclose(average, sums / weight)
    title = "stitcher = gpufold.Stitcher((9,), 6, window=window); stitcher.add(tiles, positions); stitcher.result()"
    figure, axes = _canvas(8.6, title)
    left = 4.2
    both = [COLOURS[0], COLOURS[2], COLOURS[1]]
    rows = (
        ("tile 1 x window", 0, COLOURS[:1], tiles[0] * window),
        ("tile 2 x window", 3, COLOURS[1:2], tiles[1] * window),
        ("sums", 0, both, sums.astype(int)),
        ("weights", 0, [GREYS[1], GREYS[2], GREYS[1]], weight.astype(int)),
        ("average", 0, both, np.round(average, 1)),
    )
    for number, (name, begin, colours, values) in enumerate(rows):
        top, width = 1.5 + 1.5 * number, 2 * len(values)
        _text(axes, 0, top + 0.5, name, ha="left")
        part = width / len(colours)
        for place, colour in enumerate(colours):
            _fill(axes, (left + 2 * begin + place * part, top), part, 1, colour)
        _frame(axes, left + 2 * begin, top, width, 1)
        for column, value in enumerate(values):
            _text(axes, left + 2 * (begin + column) + 1, top + 0.5, f"{value:g}")
    return figure


def speed() -> Figure:
    """Draw the peers' times over gpufold's of the saved run, as docs/performance.md has them."""
    from bench.report import by_operation
    from bench.results import Run

    (_, *peers), *measured = by_operation(Run.load(ROOT / "bench/results/cpu-2026-11-28.json"))
    shown = {"torch": "torch", "loop": "a NumPy loop", "fastest": "the fastest peer"}
    figure, axes = _chart(5.6, (0.1, 0.87), "time of a peer divided by gpufold's", 9.4, 1)
    axes.set_ylim(len(measured), -0.1)
    axes.set_yticks([row + 0.45 for row in range(len(measured))], [name for name, *_ in measured], size=SMALL)
    for place, ((peer, words), colour) in enumerate(zip(shown.items(), COLOURS[1:], strict=True)):
        label: str | None = words
        for row, (_, *cells) in enumerate(measured):
            cell = cells[peers.index(peer)]
            if cell:
                factor, top = float(cell.removesuffix("x")), row + 0.28 * place
                _fill(axes, (0, top), factor, 0.26, colour, label=label)
                _note(axes, factor + 0.06, top + 0.14, cell, ha="left", size=8)
                label = None
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


def _canvas(height: float, title: str = "") -> tuple[Figure, Axes]:
    """Return a white figure whose unit is the side of a cell, with y downwards."""
    width, margin, inches = 25.2, 0.8, 0.4
    figure = Figure(figsize=((width + 2 * margin) * inches, (height + 2 * margin) * inches), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-margin, width + margin), ylim=(height + margin, -margin))
    axes.set_axis_off()
    if title:
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


def _array(
    axes: Axes,
    corner: Corner,
    array: Array,
    parts: Iterable[Part],
    colours: Iterable[str],
    bold: Any = False,
    framed: bool = True,
) -> None:
    """Colour parts of an array, and part its elements by white lines."""
    (left, top), (rows, columns) = corner, array.shape
    for (x, y, width, height), colour in zip(parts, colours, strict=True):
        _fill(axes, (left + x, top + y), width, height, colour)
    lines = [[(left + x, top), (left + x, top + rows)] for x in range(1, columns)]
    lines += [[(left, top + y), (left + columns, top + y)] for y in range(1, rows)]
    axes.add_collection(LineCollection(lines, colors="white", linewidths=1.2, zorder=2))
    if framed:
        _frame(axes, left, top, columns, rows)
    heavy = np.broadcast_to(bold, array.shape)
    for (row, column), value in np.ndenumerate(array):
        weight = "bold" if heavy[row, column] else "normal"
        _text(axes, left + column + 0.5, top + row + 0.5, str(value), weight=weight)


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
            _arrow(self.axes, self.right, left, self.middle)
        _text(self.axes, left + width / 2, self.bottom + 0.75, name, weight="bold")
        _note(self.axes, left + width / 2, self.bottom + 1.4, what)
        self.right = left + width
        return left, self.middle - high / 2

    def array(
        self, array: Array, parts: Iterable[Part], colours: Iterable[str], name: str, what: str, **options: Any
    ) -> Corner:
        """Draw an array; return its corner."""
        rows, columns = array.shape
        corner = self.part(columns, rows, name, what)
        _array(self.axes, corner, array, parts, colours, **options)
        return corner

    def entries(self, arrays: Array, step: Corner, name: str, what: str, per_row: int = 2) -> None:
        """Draw arrays one below the other, so many beside each other, each in a colour of its own."""
        count, rows, columns = arrays.shape
        width, high = step[0] * (per_row - 1) + columns, step[1] * (-(-count // per_row) - 1) + rows
        left, top = self.part(width, high, name, what)
        for number, (colour, array) in enumerate(zip(COLOURS, arrays, strict=False)):
            row, place = divmod(number, per_row)
            corner = left + place * step[0], top + row * step[1]
            _array(self.axes, corner, array, [(0, 0, columns, rows)], [colour])

    def tiles(self, tiles: Array, places: list[tuple[int, int]], inside: Iterable[Corner], what: str) -> None:
        """Draw blocks of 3x3 with their positions, coloured as far as they lie inside an array."""
        left, top = self.part(3.4 * len(tiles) - 0.4, 3, "blocks", what)
        for number, (colour, tile, place, size) in enumerate(zip(COLOURS, tiles, places, inside, strict=False)):
            begin = left + 3.4 * number
            _array(self.axes, (begin, top), tile, [(0, 0, 3, 3), (0, 0, *size)], [GREYS[1], colour])
            _note(self.axes, begin + 1.5, top + 3.5, str(place))

    def covered(self, array: Array, places: list[tuple[int, int]], what: str, bold: Any = False) -> None:
        """Draw an array and over it blocks of 3x3, without what is beyond the border."""
        rows, columns = array.shape
        left, top = self.array(array, [(0, 0, columns, rows)], [GREYS[1]], "array", what, bold=bold)
        for colour, (row, column) in zip(COLOURS, places, strict=False):
            wide, high = min(3, columns - column), min(3, rows - row)
            _fill(self.axes, (left + column, top + row), wide, high, colour, alpha=0.75, zorder=1)

    def interleaved(self, space: Array, kept: int, name: str, what: str, *, framed: int, veil: float) -> None:
        """Draw blocks of 2x2, each of whose elements has its entry's colour; columns are kept up to the veil."""
        (rows, columns), places = space.shape, list(np.ndindex(space.shape))
        cells, colours = [(x, y, 1, 1) for y, x in places], [COLOURS[y % 2 * 2 + x % 2] for y, x in places]
        left, top = self.array(space, cells, colours, name, what, framed=False)
        _fill(self.axes, (left + kept, top), columns - kept, rows, "white", alpha=veil, zorder=4)
        for row, column in np.ndindex(2, 3):
            _frame(self.axes, left + 2 * column, top + 2 * row, min(2, framed - 2 * column), 2)

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


def _arrow(axes: Axes, start: float, end: float, y: float) -> None:
    ends = (start + 0.35, y), (end - 0.35, y)
    axes.add_patch(FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=13, color=INK, lw=1.3, shrinkA=0, shrinkB=0))


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
