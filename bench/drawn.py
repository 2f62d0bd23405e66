"""Random problems from common ranges, because choices must not be made for the named problems only."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import prod

import numpy as np

from bench.problems import AT_POSITIONS, BLOCK_OPERATIONS, TAKING, Problem, itemsize_of
from bench.results import OURS, Row, Run, geometric_mean
from gpufold.geometry import Axis, SlidingGeometry, SpaceGeometry, space_axes

SLIDING = ("col2im", "im2col", *BLOCK_OPERATIONS, *AT_POSITIONS)
SPACE = ("batch_to_space", "space_to_batch")

DTYPES = ("float32",) * 4 + ("float64", "float16", "complex64", "uint8", "int32")

LEAST_BYTES, MOST_BYTES = 1 << 20, 1 << 26
"""Bytes of the larger array of a problem."""

PEERS = ("loop", "numpy", "torch", "onnxruntime", "openvino", "torch, scatter_add", "add.at", "pty-chi")
"""Peers: the faster of loops over blocks and over taps, a copy of a view, libraries, and sums by index."""


def problems(seed: int, count: int) -> list[Problem]:
    """Draw problems; each depends on the seed and its number alone."""
    return [_problem(np.random.default_rng([seed, number]), f"{seed}.{number}") for number in range(count)]


def _problem(rng: np.random.Generator, number: str) -> Problem:
    while True:
        operation, dtype = rng.choice((*SLIDING, *SPACE)), str(rng.choice(DTYPES))
        geometry = _space(rng) if operation in SPACE else _sliding(rng, operation)
        if geometry is None:
            continue
        problem = Problem("", str(operation), geometry, f"drawn as {number}", (dtype,))
        if operation in ("col2im", "blocks_to_array") and dtype in ("float32", "float64") and rng.random() < 0.3:
            reduction, window = rng.choice([("mean", ""), ("mean", "gaussian"), ("least_squares", "hann")])
            problem = replace(problem, reduction=str(reduction), window=str(window))
        problem = replace(problem, channels_last=bool(rng.random() < 0.2 and len(problem.input_shape) > 2))
        size = max(prod(problem.input_shape), prod(problem.output_shape)) * itemsize_of(dtype)
        if LEAST_BYTES <= size <= MOST_BYTES:
            return replace(problem, name=f"{number} {_described(problem)}")


def _sliding(rng: np.random.Generator, operation: str) -> SlidingGeometry | None:
    """Draw kernels of a network, with padding and dilation, or larger overlapping blocks."""
    rank = int(rng.choice((1, 2, 2, 2, 3)))
    kernels = rank > 1 and rng.random() < 0.5
    if kernels:
        channels = _between(rng, 1, 512)
        sizes = [_between(rng, 7, 256 if rank == 2 else 64)] * rank
        taps, strides = [int(rng.choice((2, 3, 3, 3, 5, 7)))] * rank, [int(rng.choice((1, 1, 2)))] * rank
    else:
        channels = _between(rng, 1, 8)
        sizes = [_between(rng, (16384, 64, 32)[rank - 1], (1 << 21, 2048, 192)[rank - 1])] * rank
        taps = [_between(rng, (64, 4, 3)[rank - 1], (2048, 256, 64)[rank - 1])] * rank
        strides = [max(1, int(tap * rng.choice((0.125, 0.25, 0.4, 0.5, 0.75, 1)))) for tap in taps]
    if rng.random() < 0.25:  # a value per axis
        sizes = [max(1, int(size * rng.uniform(0.5, 1))) for size in sizes]
        taps = [max(1, int(tap * rng.choice((0.5, 1)))) for tap in taps]
    axes = []
    for size, tap, stride in zip(sizes, taps, strides, strict=True):
        dilation, begin, end = 1, 0, 0
        if operation in ("col2im", "im2col") and rng.random() < 0.7:
            dilation = int(rng.choice((1, 1, 1, 2, 3, 6))) if kernels else 1
            begin = end = dilation * (tap - 1) // 2
            if rng.random() < 0.3:
                begin, end = int(rng.integers(0, tap)), int(rng.integers(0, tap))
        axes.append(Axis(size, tap, stride, dilation, begin, end))
    if any(axis.padded_size < axis.dilated_kernel for axis in axes):
        return None
    return SlidingGeometry((_between(rng, 1, 16), channels), tuple(axes))


def _space(rng: np.random.Generator) -> SpaceGeometry:
    """Draw blocks of sides 1 to 4, channels first or last, cropped in a third of all cases."""
    rank, block = int(rng.choice((1, 2, 2, 3))), int(rng.choice((2, 2, 3, 4)))
    blocks, grid = [block] * rank, [_between(rng, 4, (65536, 128, 24)[rank - 1]) for _ in range(rank)]
    place, channels = int(rng.choice((0, rank))), _between(rng, 1, 256)
    blocks.insert(place, 1)
    grid.insert(place, channels)
    crops = rng.random() < 0.33
    begin, end = ([int(rng.integers(0, n)) if crops else 0 for n in blocks] for _ in range(2))
    return SpaceGeometry((_between(rng, 1, 16),), space_axes(grid, blocks, begin, end))


def _between(rng: np.random.Generator, least: int, most: int) -> int:
    """Draw an integer whose logarithm is uniform."""
    return int(np.exp(rng.uniform(np.log(least), np.log(most + 1))))


def _described(problem: Problem) -> str:
    """Return the operation, the shape of the whole array, and arguments that differ from the defaults."""
    shape = problem.input_shape if problem.operation in TAKING else problem.output_shape
    given = {name: value for name, value in problem.arguments.items() if not name.startswith("output")}
    named = [
        f"{name} {','.join(map(str, value))}"
        for name, value in given.items()
        if set(value) != ({0} if name.startswith(("pads", "crops")) else {1})
    ]
    words = [problem.operation, "x".join(map(str, shape)), *named, problem.reduction, problem.window]
    return " ".join([word for word in words if word and word != "sum"] + ["channels last"] * problem.channels_last)


def distribution(run: Run) -> list[list[str]]:
    """Return a header and a row per operation: gpufold's time divided by the fastest peer's and by the loop's."""
    groups: dict[str, list[Row]] = defaultdict(list)
    measured = [row for row in run.rows if OURS in row.times]
    for row in measured:
        groups[row.operation].append(row)
    lines = [["gpufold's time over", "problems", "fastest: mean", "90 %", "worst", "loop: mean", "90 %", "worst"]]
    for operation, rows in (*sorted(groups.items()), ("all", measured)):
        over_peers = [ratio for row in rows if (ratio := over(run, row))]
        over_loops = [1 / ratio for row in rows if (ratio := row.speed_up("loop"))]
        lines.append([operation, str(len(rows)), *_spread(over_peers), *_spread(over_loops)])
    return lines


def over(run: Run, row: Row) -> float | None:
    """Return gpufold's time divided by the fastest peer's."""
    ratio = row.speed_up(run.fastest_peer(row))
    return 1 / ratio if ratio else None


def _spread(ratios: list[float]) -> list[str]:
    """Return the geometric mean, the 90th percentile and the largest of some ratios."""
    if not ratios:
        return [""] * 3
    return [f"{value:.2f}" for value in (geometric_mean(ratios) or 0, np.percentile(ratios, 90), max(ratios))]


def worst(run: Run) -> list[list[str]]:
    """Return a header and the ten problems with the largest ratio of gpufold's time to the fastest peer's."""
    ratios = {number: ratio for number, row in enumerate(run.rows) if (ratio := over(run, row))}
    lines = [["worst", "ms", "fastest peer", "ms", "times"]]
    for number in sorted(ratios, key=ratios.__getitem__, reverse=True)[:10]:
        row = run.rows[number]
        peer = run.fastest_peer(row) or ""  # all of these have one
        times = [f"{1e3 * row.times[name].median:.3g}" for name in (OURS, peer)]
        lines.append([row.name, times[0], peer, times[1], f"{ratios[number]:.2f}"])
    return lines
