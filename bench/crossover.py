"""What GPU measurements say about the planner: where its thresholds belong, and what its choices cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp, inf, log, prod
from pathlib import Path
from typing import Any

from bench.problems import Problem, sliding
from bench.results import Row, Run
from bench.terminal import Table
from gpufold.calls import Call
from gpufold.elements import ELEMENT_TYPES
from gpufold.gpu import choice
from gpufold.gpu import plan as planning
from gpufold.gpu.plan import Operand
from gpufold.gpu.variants import add_blocks, col2im, im2col, take_blocks, unfold
from gpufold.operations import OPERATIONS


@dataclass(frozen=True)
class Sweep:
    """Problems along a value: the planner takes a variant of `above` where the value reaches the threshold."""

    threshold: str
    present: float
    below: tuple[str, ...]
    above: tuple[str, ...]
    points: tuple[tuple[float, Problem], ...]
    largest: bool = False
    """Whether the constant is the largest value of `below`, in place of the least of `above`."""


def _one(name: str, value: float, operation: str = "col2im", **arguments: Any) -> tuple[float, Problem]:
    (problem,) = sliding(f"{name}-{value:g}", "sweep", operations=(operation,), **arguments)
    return value, problem


def _placed(name: str, side: int, per_element: bool, arguments: dict[str, Any]) -> tuple[float, Problem]:
    """Return blocks at positions of their own, by the tests of blocks against tiles, all or for each element."""
    _, problem = _one(name, side, "add_blocks", **arguments)
    blocks = problem.planned_geometry
    operands = Operand.contiguous(blocks.blocks_shape), Operand.contiguous(blocks.array_shape)
    plan = add_blocks.gather(planning.Problem(Call("add_blocks", blocks, "float32", problem.fusion), *operands))
    return prod(plan.grid) * blocks.count / (prod(blocks.blocks_shape) if per_element else 1), problem


def _taken(name: str, side: int, stride: int, overlap: bool) -> tuple[float, Problem]:
    """Return blocks taken at positions of their own, by their elements for each of the image, or for each thread."""
    size = stride * (1024 // stride - 1) + side
    _, problem = _one(
        f"{name}-{side}", stride, "take_blocks", image_shape=(1, 4, size, size), kernel=side, stride=stride
    )
    array, blocks = Operand.contiguous(problem.input_shape), Operand.contiguous(problem.output_shape)
    call = Call("take_blocks", problem.planned_geometry, "float32", problem.fusion)
    plan = take_blocks.owners(planning.Problem(call, array, blocks))
    return prod(blocks.shape) / (prod(array.shape) if overlap else prod(plan.grid) * prod(plan.block)), problem


def _strided(stride: int, kernel: int, size: int = 1024, planes: int = 8) -> dict[str, Any]:
    return {"image_shape": (1, planes, size, size), "kernel": kernel, "stride": stride}


def sweeps(multiprocessors: int) -> tuple[Sweep, ...]:
    """Return a sweep for each threshold between variants; a device's size says how full the small ones make it."""
    gathers = ("gather", "gather_parts", "gather_pixels")
    return (
        Sweep(
            "choice.PIXELS_MIN_STRIDE",
            choice.PIXELS_MIN_STRIDE,
            ("gather",),
            ("gather_pixels",),
            tuple(
                _one("blocks-first-stride", stride, **_strided(stride, 2 * stride), blocks_first=True)
                for stride in (1, 2, 3, 4, 5, 6, 8, 12, 16)
            ),
        ),
        Sweep(
            "choice.PARTS_MIN_STRIDE",
            choice.PARTS_MIN_STRIDE,
            ("gather_pixels",),
            ("gather_parts",),
            tuple(
                _one("wide-stride", stride, image_shape=(1, 8, 512 * 1024), kernel=(48,), stride=stride)
                for stride in (1, 2, 3, 4, 5, 6, 8, 12, 16, 24)
            ),
        ),
        Sweep(
            "choice.SHORT_ROWS_MIN_STRIDE",
            choice.SHORT_ROWS_MIN_STRIDE,
            ("gather",),
            ("gather_parts",),
            tuple(
                _one(
                    "short-rows-stride",
                    stride,
                    image_shape=(64, 1, *3 * (6 * stride,)),
                    kernel=2 * stride,
                    stride=stride,
                )
                for stride in (2, 4, 6, 8, 10, 12, 14, 16)
            ),
        ),
        Sweep(
            "col2im.GATHER_MAX_STRIDE",
            col2im.GATHER_MAX_STRIDE + 1,
            ("gather",),
            ("gather_parts",),
            tuple(_one("stride", stride, **_strided(stride, 2 * stride)) for stride in (2, 4, 6, 8, 10, 12, 14, 16)),
            largest=True,
        ),
        Sweep(
            "col2im.GATHER_MAX_KERNEL",
            col2im.GATHER_MAX_KERNEL + 1,
            ("gather",),
            ("gather_pixels",),
            tuple(
                _one("kernel", kernel, image_shape=(1, 8, 512 * 1024), kernel=(kernel,))
                for kernel in (4, 8, 12, 16, 20, 24, 28, 32)
            ),
            largest=True,
        ),
        Sweep(
            "choice.PIXELS_MIN_TAPS",
            choice.PIXELS_MIN_TAPS,
            ("gather",),
            ("gather_pixels",),
            tuple(
                _one("cells", (kernel // 2) ** 2, image_shape=(1, 1, 128, 128), kernel=kernel, stride=2)
                for kernel in (4, 6, 8, 10, 12, 16, 20, 24)
            ),
        ),
        Sweep(
            "choice.BLOCKS_MIN_BYTES",
            choice.BLOCKS_MIN_BYTES,
            gathers,
            ("gather_blocks",),
            tuple(
                _one("bytes-of-a-block", 4 * kernel**2, "blocks_to_array", **_strided(1, kernel, 512, 16))
                for kernel in (2, 3, 4, 5, 6, 7, 8, 12)
            ),
        ),
        Sweep(
            "choice.BLOCKS_MIN_PIXELS",
            choice.BLOCKS_MIN_PIXELS,
            gathers,
            ("gather_blocks",),
            tuple(
                _one(
                    "pixels",
                    planes * 128 * 128 / (2 * multiprocessors),
                    "blocks_to_array",
                    **_strided(1, 8, 128, planes),
                )
                for planes in (1, 2, 4, 8, 12, 16, 24, 32, 64)
            ),
        ),
        Sweep(
            "choice.BLOCKS_MAX_STRIDE",
            choice.BLOCKS_MAX_STRIDE + 1,
            ("gather_blocks",),
            ("gather_pixels",),
            tuple(
                _one("whole-blocks-stride", stride, "blocks_to_array", **_strided(stride, 8))
                for stride in (1, 2, 3, 4, 5, 6)
            ),
            largest=True,
        ),
        Sweep(
            "choice.LISTS_MIN_TESTS",
            choice.LISTS_MIN_TESTS,
            ("gather",),
            ("lists",),
            tuple(_placed("lists", side, False, _strided(2 * side, side, 4096, 1)) for side in (512, 256, 64, 32, 16)),
        ),
        Sweep(
            "choice.TESTS_OF_AN_ELEMENT",
            choice.TESTS_OF_AN_ELEMENT,
            ("gather",),
            ("lists",),
            tuple(_placed("tests", side, True, _strided(side // 4, side, 1024, 1)) for side in (64, 32, 16, 8, 4)),
        ),
        Sweep(
            "choice.PIXELS_OF_AN_ELEMENT",
            choice.PIXELS_OF_AN_ELEMENT,
            ("lists",),
            ("atomic",),
            tuple(
                _one("sparse", (stride / 4) ** 2, "add_blocks", dtypes=("int32",), **_strided(stride, 4, 4096, 1))
                for stride in (4, 8, 12, 16, 24)
            ),
        ),
        Sweep(
            "choice.TAKEN_MIN_ELEMENTS",
            choice.TAKEN_MIN_ELEMENTS,
            ("direct",),
            ("owners",),
            tuple(_taken("taken", side, side // 2, False) for side in (16, 32, 48, 64, 96, 128)),
        ),
        Sweep(
            "choice.TAKEN_MIN_OVERLAP",
            choice.TAKEN_MIN_OVERLAP,
            ("direct",),
            ("owners",),
            tuple(_taken("overlap", 256, stride, True) for stride in (288, 256, 224, 192, 160, 128)),
        ),
        Sweep(
            "choice.WORDS_OF_A_ROW",
            choice.WORDS_OF_A_ROW,
            ("direct",),
            ("words",),
            tuple(
                _one("row-words", words, "im2col", image_shape=(1, 64, 131, 4 * words + 3), kernel=3)
                for words in (8, 16, 24, 32, 48, 64, 128)
            ),
        ),
        Sweep(
            "im2col.PACKED_LANE_BYTES",
            im2col.PACKED_LANE_BYTES + 1,
            ("packed",),
            ("taps",),
            tuple(
                _one("packed-lane-bytes", 4 * stride, "array_to_blocks", **_strided(stride, 7))
                for stride in (1, 2, 3, 4, 5, 6, 7, 8)
            ),
            largest=True,
        ),
        Sweep(
            "unfold.STAGED_LINES",
            unfold.STAGED_LINES,
            ("direct",),
            ("staged",),
            tuple(
                _one("lines", 1 + 31 * stride / 32, "im2col", **_strided(stride, stride, planes=32))
                for stride in (3, 5, 7, 9, 11, 13, 15, 17, 21, 25)
            ),
        ),
        Sweep(
            "unfold.NEAR_WORDS",
            unfold.NEAR_WORDS + 1,
            ("direct",),
            ("staged",),
            tuple(
                _one("lane-words", stride // 4, "im2col", **_strided(stride, stride, planes=96))
                for stride in (4, 8, 16, 32, 64)
            ),
            largest=True,
        ),
    )


@dataclass(frozen=True)
class Verdict:
    """What the points of a sweep say."""

    supported: float
    """The threshold that loses least: the least value that belongs above it."""
    last_below: float
    present_cost: float
    """Mean slow-down of the present threshold against always taking the faster side."""
    present_worst: float


def judge(points: Mapping[float, tuple[float, float]], present: float) -> Verdict:
    """Weigh thresholds on points: value to the seconds below and above; keeps `present` where nothing is better.

    >>> judge({1: (1.0, 2.0), 2: (1.0, 1.5), 4: (2.0, 1.0)}, present=2).supported
    4
    """

    def losses(threshold: float) -> list[float]:
        return [log((above if value >= threshold else below) / min(below, above)) for value, (below, above) in ordered]

    ordered = sorted(points.items())
    candidates = [present, *(value for value, _ in ordered), inf]
    supported = min(candidates, key=lambda threshold: round(sum(losses(threshold)), 9))
    last_below = max((value for value, _ in ordered if value < supported), default=-inf)
    present_losses = losses(present)
    return Verdict(supported, last_below, exp(sum(present_losses) / len(ordered)), exp(max(present_losses)))


def _fastest(row: Row, variants: Iterable[str]) -> float | None:
    return min((row.times[name].median for name in variants if name in row.times), default=None)


def crossover_table(runs: Iterable[Run], known: Iterable[Sweep]) -> Table:
    """Return a row per threshold and device that was measured."""
    by_name = {sweep.threshold: sweep for sweep in known}
    table = Table("threshold", "device", box=None)
    for heading in ("points", "present", "supported", "mean cost of present", "worst"):
        table.add_column(heading, justify="right")
    for run in runs:
        points: dict[str, dict[float, tuple[float, float]]] = defaultdict(dict)
        for row in run.rows:
            if row.threshold not in by_name:
                continue
            below, above = (
                _fastest(row, side) for side in (by_name[row.threshold].below, by_name[row.threshold].above)
            )
            if below and above:
                points[row.threshold][row.value] = below, above
        for name, measured in points.items():
            sweep, verdict = by_name[name], judge(measured, by_name[name].present)
            supported = verdict.last_below if sweep.largest else verdict.supported
            table.add_row(
                name,
                run.device,
                str(len(measured)),
                f"{sweep.present - sweep.largest:g}",
                f"{supported:g}",
                f"{verdict.present_cost - 1:.1%}",
                f"{verdict.present_worst - 1:.1%}",
            )
    return table


def regret(row: Row) -> tuple[str, float] | None:
    """Return the best variant that `auto` was free to take, and how much slower its choice was; None: not measured."""
    free = [
        name
        for name in row.times
        if name == row.chosen or (name in VARIANT_NAMES and (name != "atomic" or ELEMENT_TYPES[row.dtype].exact))
    ]
    if row.chosen is None or row.chosen not in free:
        return None
    best = min(free, key=lambda name: row.times[name].median)
    return best, row.times[row.chosen].median / row.times[best].median - 1


VARIANT_NAMES = {name for operation in OPERATIONS.values() for name in operation.variants}
"""Of all operations."""


def regret_table(runs: Mapping[Path, Run]) -> Table:
    """Return a row per problem: what `auto` took, what was best, and the difference; then mean and worst."""
    table = Table("problem", "device", "auto", "best", box=None)
    table.add_column("regret", justify="right")
    found = []
    for run in runs.values():
        for row in run.rows:
            if not row.threshold and (answer := regret(row)) is not None:
                found.append(answer[1])
                table.add_row(row.name, run.device, row.chosen, answer[0], f"{answer[1]:.1%}")
    if found:
        mean = prod(1 + value for value in found) ** (1 / len(found)) - 1
        table.add_section()
        table.add_row("geometric mean", "", "", "", f"{mean:.1%}")
        table.add_row("worst", "", "", "", f"{max(found):.1%}")
    return table
