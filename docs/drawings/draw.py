"""Draw what functions do, and which to take: `python docs/drawings/draw.py` writes an SVG file of each beside itself.

Every number in a drawing is computed by gpufold. The files are the same on every run, so that a test compares them.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from itertools import pairwise
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
    figure, axes = _canvas(11.9, "gpufold.col2im(columns, (5, 5), (3, 3), strides=2)")
    top, bottom = 1.5, 10.5
    middle = (top + bottom) / 2

    _array(axes, (0, top), columns, [(block, 0, 1, 9) for block in range(4)], COLOURS)
    _caption(axes, blocks / 2, bottom, "columns", "9 elements of 4 blocks")

    left = 5.7
    _arrow(axes, blocks, left, middle)
    _entries(axes, (left, middle - 3.2), columns.T.reshape(blocks, taps, taps), (3.4, 3.4))
    _caption(axes, left + 3.2, bottom, "blocks", "stride 2")

    left, above = 13.8, middle - size / 2
    _arrow(axes, 12.1, left, middle)
    half = size / 2  # a pixel under several blocks has the colours of all
    quarters = [(x, y, half, half) for y in (0, half) for x in (0, half)]
    _array(axes, (left, above), image, quarters, COLOURS, bold=counts > 1)
    _caption(axes, left + half, bottom, "image", "sums where blocks overlap")

    left = 20.2
    cells = [(x, y, 1, 1) for y, x in np.ndindex(counts.shape)]
    _array(axes, (left, above), counts, cells, [GREYS[int(count)] for count in counts.flat])
    _caption(axes, left + half, bottom, "overlaps", 'reduction="mean" divides by them')
    return figure


def im2col() -> Figure:
    """Draw an image of 3x4 whose four blocks of 2x2, which share the middle row, become columns."""
    image = np.arange(1, 13).reshape(1, 3, 4)
    columns = gpufold.im2col(image, (2, 2), strides=(1, 2))
    figure, axes = _canvas(7.1, "gpufold.im2col(image, (2, 2), strides=(1, 2))")
    top, bottom = 1.3, 5.7
    middle = (top + bottom) / 2
    halves = [(x, y, 2, 1.5) for y in (0, 1.5) for x in (0, 2)]  # a pixel under two blocks has the colours of both
    _array(axes, (0, middle - 1.5), image[0], halves, COLOURS)
    _caption(axes, 2, bottom, "image", "one channel of 3 x 4")
    left = 6.4
    _arrow(axes, 4, left, middle)
    _entries(axes, (left, middle - 2.2), columns.T.reshape(4, 2, 2), (2.4, 2.4))
    _caption(axes, left + 2.2, bottom, "blocks", "strides 1 and 2")
    left = 13.2
    _arrow(axes, 10.8, left, middle)
    _array(axes, (left, top + 0.2), columns, [(block, 0, 1, 4) for block in range(4)], COLOURS)
    _caption(axes, left + 2, bottom, "columns", "4 elements of 4 blocks")
    _lines(axes, left + 5.4, middle, "Each block becomes a column.", "A pixel under two blocks", "is copied twice.")
    return figure


def batch_to_space() -> Figure:
    """Draw a batch of four that becomes blocks of 2x2 in space, the last column of which is cropped."""
    batch = np.arange(24).reshape(4, 2, 3)
    whole = gpufold.batch_to_space(batch, (1, 2, 2))[0]
    space = gpufold.batch_to_space(batch, (1, 2, 2), crops_end=(0, 0, 1))[0]
    kept = space.shape[1]
    assert np.array_equal(whole[:, :kept], space)
    figure, axes = _canvas(7.5, "gpufold.batch_to_space(batch, (1, 2, 2), crops_end=(0, 0, 1))")
    top, bottom = 1.5, 6.1
    middle = (top + bottom) / 2

    _entries(axes, (0, top), batch, (3.6, 2.6))
    _caption(axes, 3.3, bottom, "batch", "4 entries of 2 x 3")

    left, above = 8.6, middle - 2
    _arrow(axes, 6.6, left, middle)
    _interleaved(axes, (left, above), whole, kept, framed=kept, veil=0.72)
    _caption(axes, left + kept / 2, bottom, "space", "1 entry of 4 x 5")

    lines = ("Each 2 x 2 block takes one", "element from each entry.", "", "The crop removes the last column.")
    _lines(axes, left + 7, middle, *lines)
    return figure


def space_to_batch() -> Figure:
    """Draw an image that is padded by a column, and whose blocks of 2x2 become a batch of four."""
    space = np.arange(1, 21).reshape(1, 4, 5)
    batch = gpufold.space_to_batch(space, (1, 2, 2), pads_end=(0, 0, 1))
    padded = np.pad(space[0], ((0, 0), (0, 1)))
    figure, axes = _canvas(7.5, "gpufold.space_to_batch(space, (1, 2, 2), pads_end=(0, 0, 1))")
    top, bottom = 1.5, 6.1
    middle = (top + bottom) / 2
    _interleaved(axes, (0, middle - 2), padded, space.shape[2], framed=padded.shape[1], veil=0.55)
    _caption(axes, 2.5, bottom, "space", "1 entry of 4 x 5, padded")
    left = 8.0
    _arrow(axes, 6, left, middle)
    _entries(axes, (left, top), batch, (3.6, 2.6))
    _caption(axes, left + 3.3, bottom, "batch", "4 entries of 2 x 3")
    lines = ("Each entry takes one element", "from every 2 x 2 block.", "", "Padding is zero.")
    _lines(axes, left + 8, middle, *lines)
    return figure


def blocks() -> Figure:
    """Draw an array of 7, its three blocks of 3 at a stride of 2, and their sum and mean."""
    array = np.arange(1, 8)[None]
    taken = gpufold.array_to_blocks(array[0], 3, strides=2)
    sums = gpufold.blocks_to_array(taken, (7,), 3, strides=2)[None]
    mean = gpufold.blocks_to_array(taken.astype(float), (7,), 3, strides=2, reduction="mean")[None]
    assert np.array_equal(mean, array)
    figure, axes = _canvas(
        6.4, "gpufold.array_to_blocks(array, 3, strides=2), blocks_to_array(blocks, (7,), 3, strides=2)"
    )
    middle = 3.4
    _array(axes, (0, middle - 0.5), array, [(0, 0, 7, 1)], [GREYS[1]])
    _caption(axes, 3.5, middle + 2, "array", "7 elements")
    _arrow(axes, 7, 9, middle)
    _entries(axes, (9, middle - 2.1), taken[:, None], (0, 1.6), per_row=1)
    _caption(axes, 10.5, middle + 2, "blocks", "(3, 3)")
    _arrow(axes, 12, 14, middle)
    parts = [(0, 0, 2.5, 1), (2.5, 0, 2, 1), (4.5, 0, 2.5, 1)]
    for top, result, name in ((middle - 1.5, sums, '"sum"'), (middle + 0.5, mean.astype(int), '"mean"')):
        _array(axes, (14, top), result, parts, COLOURS[:3], bold=result != array)
        _note(axes, 21.5, top + 0.5, f"reduction={name}", ha="left")
    _caption(axes, 17.5, middle + 2, "array", "overlaps are summed or averaged")
    return figure


def positions() -> Figure:
    """Draw three blocks that are added to an array at positions of any kind, one of them beyond the border."""
    size, places = (5, 8), [(0, 0), (1, 2), (3, 6)]
    tiles = np.arange(1, 4)[:, None, None] * np.ones((3, 3, 3), int)
    array = gpufold.add_blocks(np.zeros(size, int), tiles, places)
    counts = gpufold.add_blocks(np.zeros(size, int), np.ones_like(tiles), places)
    figure, axes = _canvas(8.4, f"gpufold.add_blocks(zeros((5, 8)), blocks, {places})")
    top, bottom = 1.7, 6.7
    middle = (top + bottom) / 2
    for number, (colour, tile, place) in enumerate(zip(COLOURS, tiles, places, strict=False)):
        corner = (3.4 * number, middle - 1.5)
        _array(axes, corner, tile, [(0, 0, 3, 3)], [colour])
        _note(axes, corner[0] + 1.5, corner[1] + 3.5, str(place))
    _caption(axes, 4.9, bottom, "blocks", "each with a position")
    left = 12.4
    _arrow(axes, 9.9, left, middle)
    _covered(axes, (left, top), array, places, bold=counts > 1)
    _caption(axes, left + 4, bottom, "array", "outside the border elements are dropped")
    _lines(axes, left + 8.6, middle, "take_blocks extracts blocks", "at the same positions.")
    return figure


def take_blocks() -> Figure:
    """Draw three blocks that are taken from an array, one of them beyond the border."""
    places = [(0, 0), (1, 2), (3, 6)]
    array = np.arange(1, 41).reshape(5, 8)
    tiles = gpufold.take_blocks(array, places, 3)
    figure, axes = _canvas(8.4, f"gpufold.take_blocks(array, {places}, 3)")
    top, bottom = 1.7, 6.7
    middle = (top + bottom) / 2
    _covered(axes, (0, top), array, places)
    _caption(axes, 4, bottom, "array", "5 x 8")
    left = 10.4
    _arrow(axes, 8, left, middle)
    for number, (colour, tile, (row, column)) in enumerate(zip(COLOURS, tiles, places, strict=False)):
        corner, size = (left + 3.4 * number, middle - 1.5), (min(3, 8 - column), min(3, 5 - row))
        _array(axes, corner, tile, [(0, 0, 3, 3), (0, 0, *size)], [GREYS[1], colour])
        _note(axes, corner[0] + 1.5, corner[1] + 3.5, str((row, column)))
    _caption(axes, left + 4.9, bottom, "blocks", "(3, 3, 3)")
    _lines(axes, left + 10.6, middle, "Elements outside", "the array are zero,", "or as mode= says.")
    return figure


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


def choosing() -> Figure:
    """Draw the questions that lead from blocks to the functions that extract and reassemble them."""
    figure, axes = _canvas(9.4)
    rows = (1.4, 3.9, 6.4, 8.9)
    questions = (
        ("Between the batch", "and spatial axes?"),
        ("At arbitrary positions,", "or tiles to average?"),
        ("As columns, or with", "dilation or padding?"),
    )
    answers = (
        ("space_to_batch", "batch_to_space", "dilated convolutions"),
        ("take_blocks", "add_blocks, Stitcher", "tiles, patches, probes"),
        ("im2col", "col2im", "torch's unfold and fold"),
        ("array_to_blocks", "blocks_to_array", "block-major layout"),
    )
    width, high, left = 7.0, 1.7, 8.8
    for row, lines in zip(rows, questions, strict=False):
        _fill(axes, (0, row - high / 2), width, high, GREYS[1])
        _frame(axes, 0, row - high / 2, width, high)
        for number, line in enumerate(lines):
            _text(axes, width / 2, row + 0.62 * (number - 0.5), line)
        _arrow(axes, width, left, row)
        axes.text((width + left) / 2, row - 0.35, "yes", ha="center", size=SMALL, color=FAINT)
    for above, below in pairwise(rows):
        end = below if below == rows[-1] else below - high / 2
        axes.plot([width / 2] * 2, [above + high / 2, end], color=INK, lw=1.3)
        axes.text(width / 2 + 0.25, (above + below) / 2 + 0.15, "no", size=SMALL, color=FAINT)
    _arrow(axes, width / 2 - 0.35, left, rows[-1])
    for row, colour, (out, back, why) in zip(rows, COLOURS, answers, strict=True):
        for number, name in enumerate((out, back)):
            corner = left + number * 5.2, row - 0.6
            _fill(axes, corner, 5.0, 1.2, colour)
            _text(axes, corner[0] + 2.5, row, name, family="monospace")
        _note(axes, left + 10.6, row, why, ha="left")
    for number, name in enumerate(("extract", "reassemble")):
        _text(axes, left + 2.5 + number * 5.2, 0.25, name, weight="bold")
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
    array: np.ndarray[Any, Any],
    parts: Iterable[tuple[float, float, float, float]],
    colours: Iterable[str],
    *,
    bold: Any = False,
    framed: bool = True,
) -> None:
    """Colour parts (x, y, width, height) of an array, and part its elements by white lines."""
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


def _entries(axes: Axes, corner: Corner, arrays: np.ndarray[Any, Any], step: Corner, per_row: int = 2) -> None:
    """Draw arrays in rows, each in a colour of its own."""
    for number, (colour, array) in enumerate(zip(COLOURS, arrays, strict=False)):
        row, place = divmod(number, per_row)
        rows, columns = array.shape
        _array(axes, (corner[0] + place * step[0], corner[1] + row * step[1]), array, [(0, 0, columns, rows)], [colour])


def _interleaved(
    axes: Axes, corner: Corner, space: np.ndarray[Any, Any], kept: int, *, framed: int, veil: float
) -> None:
    """Draw blocks of 2x2 in space, each of whose elements has its entry's colour; columns are kept up to the veil."""
    (left, top), (rows, columns) = corner, space.shape
    cells = [(x, y, 1, 1) for y, x in np.ndindex(space.shape)]
    colours = [COLOURS[y % 2 * 2 + x % 2] for y, x in np.ndindex(space.shape)]
    _array(axes, corner, space, cells, colours, framed=False)
    _fill(axes, (left + kept, top), columns - kept, rows, "white", alpha=veil, zorder=4)
    for row, column in np.ndindex(2, 3):
        _frame(axes, left + 2 * column, top + 2 * row, min(2, framed - 2 * column), 2)


def _covered(
    axes: Axes, corner: Corner, array: np.ndarray[Any, Any], places: list[tuple[int, int]], bold: Any = False
) -> None:
    """Draw an array and over it blocks of 3x3, without what is beyond the border."""
    (left, top), (rows, columns) = corner, array.shape
    _array(axes, corner, array, [(0, 0, columns, rows)], [GREYS[1]], bold=bold)
    for colour, (row, column) in zip(COLOURS, places, strict=False):
        high, wide = min(3, rows - row), min(3, columns - column)
        _fill(axes, (left + column, top + row), wide, high, colour, alpha=0.75, zorder=1)


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


def _caption(axes: Axes, x: float, y: float, name: str, what: str) -> None:
    _text(axes, x, y + 0.75, name, weight="bold")
    _note(axes, x, y + 1.4, what)


def _lines(axes: Axes, x: float, middle: float, *lines: str) -> None:
    """Write lines one below the other, centred on a height."""
    for number, line in enumerate(lines):
        _note(axes, x, middle + 0.62 * (number - (len(lines) - 1) / 2), line, ha="left")


def save(folder: Path) -> list[Path]:
    """Write the drawings into a folder; return their paths."""
    paths = []
    sys.path.insert(0, str(ROOT))  # of the benchmark
    with mpl.rc_context(STYLE):
        drawings = [badges, col2im, im2col, batch_to_space, space_to_batch, blocks, positions, take_blocks]
        drawings += [grid_positions, stitcher, speed, gpu_speed, choosing]
        for drawing in drawings:
            paths.append(folder / f"{drawing.__name__}.svg")
            drawing().savefig(paths[-1], metadata={"Date": None, "Creator": None})
    return paths


if __name__ == "__main__":
    for path in save(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent):
        print(path)
