"""What `auto` loses against the best variant on random problems, by prediction: whether its thresholds are right.

Each operation has as many problems, of any kernel, stride and size, which nobody picked; bench/traffic.py predicts all
variants of each.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from math import log2, prod, sqrt
from multiprocessing import get_context

from rich.table import Table

import bench.traffic
from bench import hostcuda
from bench.problems import AT_POSITIONS, BLOCK_OPERATIONS, Problem, sliding, space
from bench.results import geometric_mean
from bench.traffic import PROCESSES, plan_of, work_of
from gpufold.calls import Unsupported
from gpufold.operations import variants

OPERATIONS = ("col2im", "im2col", *BLOCK_OPERATIONS, "batch_to_space", "space_to_batch", *AT_POSITIONS)
MOST_INSTRUCTIONS = 2_000_000
"""Of warps, enough to tell variants apart."""
LARGEST_KERNEL = {1: 1024, 2: 40, 3: 10}
MOST_BLOCKS = {1: 4096, 2: 256, 3: 32}
"""Along each axis, by rank."""


def random_problem(seed: int) -> tuple[Problem, str]:
    """Return a problem, of the operation whose turn it is, and its dtype.

    >>> random_problem(3)[0].operation
    'array_to_blocks'
    """
    rng, operation = random.Random(seed), OPERATIONS[seed % len(OPERATIONS)]
    dtype = rng.choice(("float32", "float32", "float16", "uint8", "complex64"))
    elements = int(2 ** rng.uniform(20, 26))
    if "space" in operation:
        block = [rng.choice((2, 2, 3, 4, 5, 6, 8, 16)) for _ in range(rng.choice((2, 2, 3)))]
        margin, channels = rng.choice((0, 0, 0, 1)), rng.choice((1, 16, 64))
        size = [max(4, int(2 ** rng.uniform(2, 7))) * side for side in block]
        shape = (max(1, elements // (channels * prod(size))), channels, *(side - 2 * margin for side in size))
        both = space(str(seed), "random", shape, (1, *block), margin, dtypes=(dtype,))
        return next(problem for problem in both if problem.operation == operation), dtype
    rank = rng.choice((1, 2, 2, 2, 3))
    kernel = [int(2 ** rng.uniform(0.6, log2(LARGEST_KERNEL[rank]))) for _ in range(rank)]
    if rng.random() < 0.7:
        kernel = kernel[:1] * rank
    shares = rng.choice((0.0, 0.0, 0.5, 0.5, 0.75, 1.0, rng.random()))
    if operation in AT_POSITIONS:
        shares = rng.choice((0.25, 0.5, 1.0, 2.5))
    stride = [max(1, int(shares * taps)) for taps in kernel]
    dilation = [rng.choice((2, 3)) if "col" in operation and rng.random() < 0.1 else 1] * rank
    pad = [rng.choice((0, 0, taps // 2)) if "col" in operation else 0 for taps in kernel]
    blocks = [int(2 ** rng.uniform(2, log2(MOST_BLOCKS[rank]))) for _ in range(rank)]
    extents = zip(blocks, stride, kernel, dilation, pad, strict=True)
    size = [max(1, (count - 1) * step + (taps - 1) * gap + 1 - 2 * side) for count, step, taps, gap, side in extents]
    planes = max(1, elements // (prod(blocks) * prod(kernel)))
    channels = min(planes, rng.choice((1, 3, 4, 16, 64)))
    shape = (planes // channels, channels, *size)
    (problem,) = sliding(
        str(seed),
        "random",
        shape,
        tuple(kernel),
        tuple(stride),
        tuple(pad),
        tuple(dilation),
        operations=(operation,),
        dtypes=(dtype,),
    )
    return problem, dtype


@dataclass(frozen=True)
class Loss:
    """What `auto` took for a problem, and the variant that is predicted to be fastest."""

    operation: str
    chosen: str
    best: str
    times: float
    """As fast as what was chosen, by the geometric means of the worst and the best case."""


def loss_of(seed: int) -> Loss | None:
    """Predict each variant that gives the bits that `auto` does; None where no smaller problem stands for this one."""
    bench.traffic.MOST_INSTRUCTIONS = MOST_INSTRUCTIONS
    problem, dtype = random_problem(seed)
    speeds: dict[str, float] = {}
    for variant in set(variants(problem.operation)) - {"atomic"}:
        with suppress(Unsupported):
            plan, done, _, _ = work_of(problem, variant, dtype)
            prediction = hostcuda.predict(plan, done)
            speeds[variant] = sqrt(prediction.worst * prediction.best)
    chosen = plan_of(problem, "auto", dtype).variant
    if chosen not in speeds:
        return None
    best = max(speeds, key=speeds.__getitem__)
    return Loss(problem.operation, chosen, best, speeds[best] / speeds[chosen])


def losses(count: int) -> Iterator[Loss | None]:
    """Predict so many random problems, some at a time, in their order."""
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        yield from pool.map(loss_of, range(count))


def losses_table(found: Iterable[Loss]) -> Table:
    """Return a row per operation: what `auto` loses in the mean and at worst, and where."""
    by_operation: dict[str, list[Loss]] = defaultdict(list)
    for loss in found:
        by_operation[loss.operation].append(loss)
        by_operation["all"].append(loss)
    table = Table("operation", box=None)
    for heading in ("problems", "mean loss", "worst", "auto", "best"):
        table.add_column(heading, justify="right")
    for operation in sorted(by_operation, key=lambda name: (name == "all", name)):
        of_operation = by_operation[operation]
        worst = max(of_operation, key=lambda loss: loss.times)
        mean = geometric_mean(loss.times for loss in of_operation) or 1.0
        row = (str(len(of_operation)), f"{mean - 1:.1%}", f"{worst.times - 1:.0%}", worst.chosen, worst.best)
        table.add_row(operation, *row)
    return table
