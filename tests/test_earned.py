"""Each kernel variant is 1.3 times as fast as the others somewhere, by the model; one that is nowhere would go.

docs/model.md has the table. The plain ways, which users compare the others with, stay whatever the model says.
"""

from __future__ import annotations

import re
from contextlib import suppress
from math import sqrt
from pathlib import Path

import pytest

import bench.traffic
from bench import hostcuda
from bench.problems import PROBLEMS
from bench.traffic import plan_of, work_of
from gpufold.calls import Unsupported
from gpufold.operations import variants

MODEL = Path(__file__).parents[1] / "docs" / "model.md"

PLAIN_WAYS = {
    "col2im_gather",
    "col2im_atomic",
    "im2col_direct",
    "batch_to_space_index_map",
    "space_to_batch_direct",
    "add_blocks_gather",
    "add_blocks_atomic",
}

MOST_INSTRUCTIONS = 4_000_000
"""Of warps, enough to tell variants apart."""

EARNED = {
    "col2im_gather_blocks": ("blocks_to_array-blocks-8x8-s1", "float32", 3.4),
    "col2im_gather_parts": ("col2im-audio-2048-s512", "float32", 4.3),
    "col2im_gather_pixels": ("blocks_to_array-stitch-512x512-s256", "float32", 2.4),
    "im2col_packed": ("array_to_blocks-blocks-7x7-s1", "uint8", 3.4),
    "im2col_staged": ("im2col-audio-400-s160", "float32", 1.35),
    "im2col_taps": ("array_to_blocks-blocks-16x16-s8", "float32", 4.2),
    "im2col_words": ("im2col-resnet-3x3-s1", "uint8", 2),
    "batch_to_space_packed": ("batch_to_space-nchw-6x6", "uint8", 2.2),
    "space_to_batch_deinterleave": ("space_to_batch-nchw-2x2", "uint8", 1.8),
    "add_blocks_lists": ("add_blocks-particles-7x7", "float32", 1.3),
    "take_blocks_direct": ("take_blocks-particles-7x7", "float32", 25),
    "take_blocks_owners": ("take_blocks-probes-256x256", "complex64", 1.3),
}
"""For each kernel a problem, its dtype, and how many times as fast as the best other variant it is predicted to be at
least, on an H200: by the geometric means of the worst and the best case."""


def problem_of(kernel):
    name, dtype, _ = EARNED[kernel]
    return next(problem.for_gpu for problem in PROBLEMS if problem.name == name), dtype


def test_every_kernel_has_a_problem_that_it_is_for():
    operations = ("col2im", "im2col", "batch_to_space", "space_to_batch", "add_blocks", "take_blocks")
    kernels = {f"{operation}_{variant}" for operation in operations for variant in variants(operation)}
    assert kernels - PLAIN_WAYS == set(EARNED)


@pytest.mark.parametrize("kernel", EARNED)
def test_auto_takes_the_kernel_for_it(kernel):
    assert plan_of(problem_of(kernel)[0], "auto", problem_of(kernel)[1]).source == f"{kernel}.cu"


@pytest.mark.all
@pytest.mark.nvrtc
@pytest.mark.hostcuda
@pytest.mark.parametrize("kernel", EARNED)
def test_without_it_the_problem_takes_longer(kernel, monkeypatch):
    monkeypatch.setattr(bench.traffic, "MOST_INSTRUCTIONS", MOST_INSTRUCTIONS)
    problem, dtype = problem_of(kernel)
    speeds = {}
    for variant in variants(problem.operation):
        with suppress(Unsupported):
            plan, done, _, _ = work_of(problem, variant, dtype)
            prediction = hostcuda.predict(plan, done)
            speeds[plan.source.removesuffix(".cu")] = sqrt(prediction.worst * prediction.best)
    own = speeds.pop(kernel)
    assert own / max(speeds.values()) >= EARNED[kernel][-1], speeds


def test_the_table_says_what_is_tested():
    rows = re.findall(r"^\| `(\w+)` \| (\S+) (\w+) \| ([\d.]+)x \|$", MODEL.read_text(), re.M)
    assert {kernel: (name, dtype, float(times)) for kernel, name, dtype, times in rows} == EARNED
    assert min(times for *_, times in EARNED.values()) >= 1.3
