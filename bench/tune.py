"""Lets the GPU decide about every problem of the benchmark: what the package ships in kernels/tuned.

What is measured is written at once, and so is what begins and ends: another process goes on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import gpufold
from bench.measure import LOST, free_memory
from bench.problems import Problem, of_batch, select
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
    """Race the kernels of all problems that are left, into `folder/tuned`; return the exit status.

    `folder/tune.txt` has a line for each that begins, another for each that ends, and that of each failure. What is
    named there twice is not begun again: it has ended, or two processes have ended in it.
    """
    import cupy

    if os.environ.get("GPUFOLD_AUTOTUNE") == "0":
        raise ValueError("GPUFOLD_AUTOTUNE=0 lets nothing be measured")
    os.environ["GPUFOLD_CACHE_DIR"] = str(folder / "tuned")
    tuning.forget()
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {name: (problem, dtype) for name, problem, dtype in tasks(named)}
    with (folder / "tune.txt").open("a+", buffering=1) as log:
        log.seek(0)
        said = log.read().splitlines()
        failed = [line for line in said if line.startswith("FAILED ")]
        for name in progress([name for name in wanted if said.count(name) < 2], str):
            print(name, file=log)
            try:
                _race(*wanted[name])
                cupy.cuda.runtime.deviceSynchronize()
            except (MemoryError, cupy.cuda.memory.OutOfMemoryError) as error:
                say(console, f"{name} is left out: {error}")
            except Exception as error:  # whatever a library raises
                failed.append(f"FAILED {name} - {type(error).__name__}: {' '.join(str(error).split())}")
                print(failed[-1], file=log)
            print(name, file=log)
            try:
                cupy.cuda.runtime.deviceSynchronize()
                free_memory(on_gpu=True)
            except Exception as error:
                say(console, f"The device is lost after {name}: {type(error).__name__}: {error}")
                return LOST
    for line in failed:
        say(console, line)
    say(console, f"{len(wanted)} kinds of calls, {len(failed)} failed, measured in {folder / 'tuned'}")
    return int(bool(failed))


def _race(problem: Problem, dtype: str) -> None:
    """Call once where kernels may race, with data as the benchmark has them."""
    import cupy

    data = problem.data(dtype, library=cupy)
    with gpufold.autotune():
        problem(data)
