"""The prediction model against what is known of kernels' speeds: a public simulator's answers, and a plain copy's.

GPGPU-Sim 4 executed the kernels' PTX (compute capability 7.5) on a chip shaped like 16 of an H200's 132
multiprocessors with their share of memory, and gave speeds relative to a copy of its own. That is a judge beside the
model, not a measurement: the balance of its chip was never held against hardware either, and its arrays of 10 to 21 MB
leave only 3 to 8 waves of thread blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

import hostcuda
from bench.problems import Problem, sliding, space
from bench.traffic import NAIVE, work_on
from gpufold.gpu.plan import H200

pytestmark = [pytest.mark.nvrtc, pytest.mark.hostcuda, pytest.mark.all]

CHIP = replace(
    H200,
    name="16 multiprocessors of an H200",
    multiprocessors=16,
    copy_bandwidth=H200.copy_bandwidth * 16 / H200.multiprocessors,
    memory_bandwidth=H200.memory_bandwidth * 16 / H200.multiprocessors,
    l2_bytes=H200.l2_bytes * 16 // H200.multiprocessors,
)

TOLERANCE = 0.15
"""That a simulated speed may lie beside the predicted range, of itself."""


@dataclass(frozen=True)
class Known:
    """A simulated speed, as a fraction of the copy's."""

    name: str
    problem: Problem
    simulated: float
    variant: str = "auto"
    why_off: str = ""
    """Where the prediction is off by more than TOLERANCE: why."""


def columns(operation: str, shape, kernel, stride=1, pad=0) -> Problem:
    (problem,) = sliding(
        "simulated", "a simulator", shape, kernel, stride, pad, operations=(operation,), gpu_batch=shape[0]
    )
    return problem


IMAGES = columns("col2im", (2, 32, 64, 64), 3, pad=1)

KNOWN = (
    Known("3x3-s1", columns("col2im", (4, 32, 64, 64), 3, pad=1), 0.91),
    Known("3x3-s1-half", IMAGES, 0.90),
    Known(
        "3x3-s1-half-naive",
        IMAGES,
        0.38,
        NAIVE,
        "the simulator issues PTX, where each of its divisions is one instruction and in machine code about twenty",
    ),
    Known("3x3-s2", columns("col2im", (1, 64, 112, 112), 3, 2, 1), 0.82),
    Known("7x7-s3", columns("col2im", (1, 10, 225, 225), 7, 3, 3), 0.73),
    Known("16x16-s8-planes", columns("col2im", (1, 4, 320, 512), 16, 8), 0.78),
    Known("16x16-s8", columns("col2im", (1, 1, 640, 1024), 16, 8), 0.76),
    Known("3x3x3", columns("col2im", (1, 4, 16, 32, 64), 3, pad=1), 0.83),
    Known("im2col-3x3-s1", columns("im2col", (2, 32, 64, 64), 3, pad=1), 0.80),
    Known(
        "batch-to-space-2x2",
        space("simulated", "a simulator", (2, 64, 112, 112), (1, 2, 2), gpu_batch=2)[0],
        0.73,
        why_off="what was simulated moved pixels of one plane a thread; now it is two, in half the thread blocks",
    ),
    Known("blocks-16x16-s8-planes", columns("blocks_to_array", (1, 4, 320, 512), 16, 8), 0.87),
    Known(
        "blocks-16x16-s8",
        columns("blocks_to_array", (1, 1, 640, 1024), 16, 8),
        0.59,
        why_off="what was simulated added up a pixel a thread; now it is a word of four",
    ),
)


def predicted(known: Known) -> hostcuda.Prediction:
    whole, done = work_on(known.problem, known.variant, "float32", CHIP)
    return hostcuda.predict(whole, done, CHIP)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_simulated_speeds_lie_in_the_predicted_range_or_it_is_said_why_not(known):
    prediction = predicted(known)
    low, high = prediction.worst, prediction.best
    beside = max(low - known.simulated, known.simulated - high, 0.0) / known.simulated
    print(f"{known.name}: simulated {known.simulated:.0%}, predicted {low:.0%} to {high:.0%}")
    assert (beside > TOLERANCE) == bool(known.why_off), f"{beside:.0%} beside {low:.2f} to {high:.2f}"
