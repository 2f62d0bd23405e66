"""Lets the GPU decide about every problem of the benchmark: what the package ships in kernels/tuned.

What is measured is written at once, and so are the lines of a log (see tally.py): another process goes on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import gpufold
from bench.measure import LOST, free_memory
from bench.problems import Problem, of_batch, select
from bench.tally import Tally, note
from bench.terminal import Console, progress, say
from gpufold.gpu import tuning

SMALLER = 8
"""By what a problem's batch on a GPU is divided for a smaller one, beside a batch of one: kinds of calls are apart by
factors of two."""


def tasks(named: Sequence[str]) -> Iterator[tuple[str, Problem, str]]:
    """Yield a name for each problem, batch and dtype, the whole batches first."""
    done = set[str]()
    for number in range(3):
        for problem in select(list(named), quick=False, gpu=True):
            batch = (problem.gpu_batch, -(-problem.gpu_batch // SMALLER), 1)[number]
            for dtype in problem.dtypes:
                name = f"{problem.name} {dtype} batch {batch}"
                if name not in done:
                    done.add(name)
                    yield name, replace(problem, geometry=of_batch(problem.geometry, batch)), dtype


def tune(folder: Path, named: Sequence[str], console: Console) -> int:
    """Race the kernels of all problems that are left, into `folder/tuned`; return the exit status."""
    import cupy

    if os.environ.get("GPUFOLD_AUTOTUNE") == "0":
        raise ValueError("GPUFOLD_AUTOTUNE=0 lets nothing be measured")
    os.environ["GPUFOLD_CACHE_DIR"] = str(folder / "tuned")
    tuning.forget()
    logs = folder / "tune"
    logs.mkdir(parents=True, exist_ok=True)
    wanted = {name: (problem, dtype) for name, problem, dtype in tasks(named)}
    before = Tally.of(logs)
    waiting = [name for name in wanted if name not in before.ends]
    with (logs / f"{len(list(logs.glob('*.jsonl'))) + 1}.jsonl").open("a") as log:
        note(log, tests=list(wanted))
        for name in progress(waiting, str):
            note(log, begins=name)
            outcome: dict[str, str] = {"outcome": "passed"}
            try:
                _race(*wanted[name])
            except (MemoryError, cupy.cuda.memory.OutOfMemoryError) as error:
                outcome = {"outcome": "skipped", "why": f"{type(error).__name__}: {error}"}
            except Exception as error:  # whatever a library raises
                outcome = {"outcome": "failed", "why": f"{type(error).__name__}: {error}"[:1000]}
            note(log, ends=name, **outcome)
            try:
                cupy.cuda.runtime.deviceSynchronize()
                free_memory(on_gpu=True)
            except Exception as error:
                say(console, f"The device is lost after {name}: {type(error).__name__}: {error}")
                return LOST
    failed = Tally.of(logs).failed()
    for name, why in failed:
        say(console, f"{name}: {why}")
    say(console, f"{len(wanted)} kinds of calls, measured in {folder / 'tuned'}")
    return int(bool(failed))


def _race(problem: Problem, dtype: str) -> None:
    """Call once where kernels may race, with data as the benchmark has them."""
    import cupy

    data = problem.data(dtype, library=cupy)
    with gpufold.autotune():
        problem(data)
