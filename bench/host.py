"""Measures the host's overhead of a repeated GPU call before the launch, and of a call on a frame of sound on the CPU.

CuPy's arrays, allocator and launch are those of a stand-in that is made to do nothing, and everything between them is
gpufold's own: checks, geometry, plan and packed arguments, from their caches. Where torch is installed its tensors are
measured too: on the CPU, passing for a GPU's, though none has memory.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from importlib.util import find_spec
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

import gpufold
from bench.hostcuda import fake_cupy
from bench.problems import Problem, dtype_of, select
from bench.results import command_line, commit, processor
from bench.terminal import Console, say, show
from bench.timing import CpuClock, Times, interleave
from gpufold.compute import launcher

MEASURED_SECONDS = 0.2
"""Seconds for the samples of calls that take turns."""

TARGET = 10e-6
"""Seconds that a repeated call may take."""

ADDRESSES = count(1 << 40, 1 << 40)
"""Addresses of stand-ins, which are apart though none has memory."""


def _memory(size: int = 0) -> SimpleNamespace:
    """Stand in for memory of a device."""
    return SimpleNamespace(ptr=next(ADDRESSES))


class StandInArray(fake_cupy.ndarray):
    """An array of the stand-in on the first, current device, without memory."""

    class Device(nullcontext[None]):
        """A device whose context costs nothing."""

        id = 0

    device = Device()
    flags = SimpleNamespace(c_contiguous=True)

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        super().__init__(shape, dtype, _memory())


StandInArray.__module__ = "cupy"  # by which calls recognise the library


@contextmanager
def stand_in() -> Iterator[None]:
    """Let gpufold import the stand-in for CuPy, whose functions in a repeated call take no time."""
    cupy, kernel = fake_cupy.cupy(), SimpleNamespace(kernel=lambda *arguments: None)
    stream = SimpleNamespace(ptr=0, is_capturing=lambda: False)
    sys.modules["cupy"] = cupy
    try:
        with (
            patch.multiple(cupy, ndarray=StandInArray, empty=cache(StandInArray), RawKernel=lambda *program: kernel),
            patch.multiple(cupy.cuda, alloc=cache(_memory), get_current_stream=lambda: stream),
            patch.multiple(cupy.cuda.runtime, getDevice=lambda: 0, memsetAsync=lambda *arguments: None),
        ):
            yield
    finally:
        del sys.modules["cupy"]
        sys.modules.pop("gpufold.gpu.launch", None)
        launcher.cache_clear()


def in_turns(*calls: Callable[[], Any]) -> list[float]:
    """Return the median time of each call; all were made before."""
    results: dict[str, Times] = {}
    clock = CpuClock(pause=lambda seconds: None)
    interleave({str(number): call for number, call in enumerate(calls)}, clock, MEASURED_SECONDS, results, _raise)
    return [results[str(number)].median for number in range(len(calls))]


def _raise(name: str, error: Exception) -> None:
    raise error


def host(options: argparse.Namespace, words: list[str], console: Console) -> int:
    """Print the overhead of first and repeated calls; CuPy must not have been imported in this process."""
    problems = select(options.problem, quick=False, gpu=True)
    if "cupy" in sys.modules:
        raise ValueError("host replaces CuPy, which this process has imported")
    with stand_in():
        rows = [_measure(problem) for problem in problems]
    headings = ["first call µs", "repeated µs", "with out= µs", "gpufold.torch µs"]
    lines = [["problem", *(headings if find_spec("torch") else headings[:-1])]]
    lines += [[name, *(f"{cost * 1e6:.1f}" for cost in costs)] for name, *costs in rows]
    show(console, lines)
    worst = max(repeated for _, _, *costs in rows for repeated in costs)
    (frame,) = in_turns(_stream())
    for text in (
        f"Repeated calls take at most {worst * 1e6:.1f} µs up to the launch ({TARGET * 1e6:.0f} are allowed), without "
        "what CuPy's allocator and launch cost. A first call plans; it compiles too, which is not counted.",
        f"A stereo frame of 1,024 samples, a new one every 256, takes {frame * 1e6:.1f} µs through a Stitcher without "
        "an end, on NumPy arrays: add and finished.",
        f"{processor()}, python {sys.version.split()[0]}, gpufold {gpufold.__version__}, commit {commit()}",
        command_line(words),
    ):
        say(console, text)
    return 0


def _stream() -> Callable[[], Any]:
    """Return a function that adds a frame to a stream and takes the finished samples, with a window and the mean."""
    stream, frame = gpufold.Stitcher((2, None), 1024, window=np.hanning(1024).astype(np.float32)), count(0, 256)
    samples = np.ones((1, 2, 1024), np.float32)

    def step() -> None:
        stream.add(samples, [(next(frame),)])
        stream.finished()

    return step


def _measure(problem: Problem) -> list[Any]:
    """Return a problem's name and the overhead of its first call, of repeated calls, and of calls on tensors."""
    call, *others = _calls(problem, gpufold, StandInArray)
    _, first = CpuClock().first(call)
    costs = [problem.name, first, *in_turns(call, *others)]
    return [*costs, _on_tensors(problem)] if find_spec("torch") else costs


def _calls(problem: Problem, module: Any, array: Callable[[tuple[int, ...], Any], Any]) -> list[Callable[[], Any]]:
    """Return a problem's call of a module on stand-ins and, if the module has `out=`, the call with it."""
    dtype = dtype_of(problem.dtypes[0])
    data, result = array(problem.input_shape, dtype), array(problem.output_shape, dtype)
    positions, fused = problem.given(lambda each: array(each.shape, each.dtype))
    if problem.operation == "add_blocks":
        call = partial(module.add_blocks_, result, data, *positions, **fused)
        return [call, call] if module is gpufold else [call]
    call = partial(getattr(module, problem.operation), data, *positions, **problem.arguments, **fused)
    return [call, partial(call, out=result)] if module is gpufold else [call]


def _on_tensors(problem: Problem) -> float:
    """Return the overhead of a repeated call on tensors, with an allocated tensor in place of torch's allocator."""
    import torch

    from gpufold.torch import executing, tensors

    def tensor(shape: tuple[int, ...], dtype: Any) -> torch.Tensor:
        interface = {"version": 3, "data": (next(ADDRESSES), False), "shape": shape, "typestr": np.dtype(dtype).str}
        return torch.from_numpy(np.asarray(SimpleNamespace(__array_interface__=interface)))

    new_empty = cache(lambda like, shape, dtype=None: tensor(shape, tensors.name_of(dtype or like.dtype)))
    with (
        patch.multiple(executing, is_on_gpu=lambda tensor: True, _stream_of=lambda tensor: (0, 0)),
        patch.object(torch.Tensor, "new_empty", new_empty),
    ):
        (call,) = _calls(problem, gpufold.torch, tensor)
        return in_turns(call)[0]
