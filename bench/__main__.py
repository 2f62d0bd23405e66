"""The command line: `python -m bench --help`."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

import gpufold
from bench.measure import Bench, cpu_bench, device_facts, device_kind, gpu_bench, new_row
from bench.problems import PROBLEMS, Problem, select
from bench.report import footer, markdown, table
from bench.results import OURS, Run, command_line, commit, saved
from gpufold.plan import H200
from gpufold.planners import VARIANTS

QUICK_SECONDS, FULL_SECONDS = 0.7, 5.0
"""Measuring time of a problem in one dtype."""

WIDTH = 160
"""Of a table that goes into a file."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure gpufold beside its peers, each result checked before it is timed. "
        "Without an argument: the quick table, on the GPU where there is one.",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "gpu"), default="auto")
    parser.add_argument("--problem", action="append", default=[], metavar="NAME", help="problems with it in their name")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME", help="GPU kernel variants, else all")
    parser.add_argument("--dtype", metavar="NAME", help="run every problem in this dtype in place of its own")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="each problem in its first dtype: the default on a CPU")
    length.add_argument("--full", action="store_true", help="every problem in all its dtypes: the default on a GPU")
    parser.add_argument("--seconds", type=float, help="measuring time of a problem in one dtype")
    parser.add_argument("--threads", type=int, help="CPU threads of every candidate, else all cores")
    parser.add_argument("--save", type=Path, metavar="FILE.json", help="write everything that was measured")
    commands = parser.add_subparsers(dest="command", title="other commands", metavar="COMMAND")
    commands.add_parser("problems", help="list the problems and where they come from")
    photo = commands.add_parser("photo", help="remove noise from a photograph with im2col and col2im")
    photo.add_argument("--output", type=Path, default=Path("build/photo"), help="folder for the pictures")
    photo.add_argument("--noise", type=float, default=0.1, help="standard deviation, where white is 1")
    photo.add_argument("--seed", type=int, default=0)
    report = commands.add_parser("report", help="draw saved results, and give their tables in Markdown")
    report.add_argument("--output", type=Path, default=Path("build/report"), help="folder for figures and tables")
    host = commands.add_parser("host", help="measure what a repeated GPU call costs before the launch, without a GPU")
    host.add_argument("--problem", action="append", default=[], metavar="NAME")
    traffic = commands.add_parser("traffic", help="predict the kernels' speed from runs on the CPU")
    traffic.add_argument("--problem", action="append", default=[], metavar="NAME")
    crossover = commands.add_parser("crossover", help="sweep sizes through the variants: where thresholds belong")
    crossover.add_argument("--save", type=Path, metavar="FILE.json", help="write what a GPU measured")
    crossover.add_argument("--seconds", type=float, default=1.0, help="measuring time of a point")
    gigapixel = commands.add_parser("gigapixel", help="stitch a large picture into Zarr with dask, on this machine")
    gigapixel.add_argument("--side", type=int, default=8192, help="pixels, at least; from 32768 on it is a gigapixel")
    gigapixel.add_argument("--memory", default="1GiB", metavar="BYTES", help="limit of a worker, such as 800MiB")
    gigapixel.add_argument("--workers", type=int, nargs="*", default=[1, 2], metavar="N", help="clusters to measure")
    gigapixel.add_argument("--folder", type=Path, help="where the picture goes for a while, else the temporary folder")
    gigapixel.add_argument("--save", type=Path, metavar="FILE.json", help="write what was measured")
    regret = commands.add_parser("regret", help="what the choices of auto cost, from saved results")
    for command in (report, crossover, regret):
        command.add_argument("results", type=Path, nargs="*", help="saved results, else those in bench/results")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; give the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    options = parser.parse_args(words)
    warnings.filterwarnings("ignore", module="cupy._environment")  # about libraries that nothing here uses
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    commands = {
        None: _measure,
        "problems": _problems,
        "photo": _photo,
        "report": _report,
        "host": _host,
        "traffic": _traffic,
        "crossover": _crossover,
        "regret": _regret,
        "gigapixel": _gigapixel,
    }
    try:
        return commands[options.command](options, words, console)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))


def _problems(options: argparse.Namespace, words: list[str], console: Console) -> int:
    listed = Table(Column("problem", no_wrap=True), "input", "output", "MB", "dtypes", "from", box=None)
    for problem in PROBLEMS:
        megabytes = f"{problem.compulsory_bytes(problem.dtypes[0]) / 1e6:.3g}"
        shapes = (" x ".join(map(str, shape)) for shape in (problem.input_shape, problem.output_shape))
        listed.add_row(problem.name, *shapes, megabytes, " ".join(problem.dtypes), problem.origin)
    console.print(listed)
    return 0


def _photo(options: argparse.Namespace, words: list[str], console: Console) -> int:
    from bench.photo import photo

    return photo(options.output, options.noise, options.seed, console)


def _host(options: argparse.Namespace, words: list[str], console: Console) -> int:
    from bench.host import host

    return host(options.problem, console)


def _traffic(options: argparse.Namespace, words: list[str], console: Console) -> int:
    from bench.traffic import assumptions, count, import_hostcuda, traffic_table

    import_hostcuda()
    problems = select(options.problem, quick=False, gpu=True)
    lines = []
    with _progress() as progress:
        bar = progress.add_task("", total=len(problems))
        try:
            for problem in problems:
                progress.update(bar, description=problem.name)
                lines += count(problem)
                progress.advance(bar)
        except KeyboardInterrupt:
            progress.console.print("interrupted")
    console.print(traffic_table(lines, saved([])))
    for line in (*assumptions(), f"gpufold {gpufold.__version__}, commit {commit()}", command_line(words)):
        console.print(line, highlight=False, markup=False)
    return 0


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)


def _report(options: argparse.Namespace, words: list[str], console: Console) -> int:
    from bench.plots import draw

    runs = saved(options.results)
    if not runs:
        console.print("No results are saved yet: python -m bench --save bench/results/NAME.json", highlight=False)
    for path, run in runs.items():
        written = draw(run, path.stem, options.output)
        if any(not row.threshold for row in run.rows):
            written.append(options.output / f"{path.stem}.md")
            written[-1].write_text(markdown(run))
        console.print(f"{path}: {', '.join(map(str, written))}", highlight=False)
    return 0


def _crossover(options: argparse.Namespace, words: list[str], console: Console) -> int:
    from bench.crossover import crossover_table, sweeps

    if options.results or device_kind("auto") == "cpu":
        runs = list(saved(options.results).values())
    else:
        facts = device_facts()
        bench, run = gpu_bench([], options.seconds)
        bench.peers, run.command, runs = [], command_line(words), [run]
        for sweep in sweeps(facts.multiprocessors, facts.threads_per_multiprocessor):
            bench.variants = [*sweep.below, *sweep.above]
            run.variants = list(dict.fromkeys([*run.variants, *bench.variants]))
            tasks = [(problem, "float32") for _, problem in sweep.points]
            if not _fill(bench, run, tasks):
                break
            for (value, _), row in zip(sweep.points, run.rows[-len(tasks) :], strict=True):
                row.threshold, row.value = sweep.threshold, value
        if options.save:
            run.save(options.save)
    table = crossover_table(runs, sweeps(H200.multiprocessors, H200.threads_per_multiprocessor))
    return _print_or_say(table, "python -m bench crossover --save bench/results/crossover.json", console)


def _regret(options: argparse.Namespace, words: list[str], console: Console) -> int:
    from bench.crossover import regret_table

    return _print_or_say(regret_table(saved(options.results)), "python -m bench --save bench/results/gpu.json", console)


def _gigapixel(options: argparse.Namespace, words: list[str], console: Console) -> int:
    from bench.gigapixel import gigapixel

    return gigapixel(options.side, options.memory, options.workers, options.folder, options.save, words, console)


def _print_or_say(table: Table, command: str, console: Console) -> int:
    if table.row_count:
        console.print(table)
    else:
        console.print(f"No GPU measurements of this are saved; on a machine with a GPU: {command}", highlight=False)
    return 0


def _fill(bench: Bench, run: Run, tasks: list[tuple[Problem, str]]) -> bool:
    """Measure problems into new rows of a run, behind a progress bar; False where the user stopped it."""
    try:
        with _progress() as progress:
            bar = progress.add_task("", total=len(tasks))
            for problem, dtype in tasks:
                progress.update(bar, description=f"{problem.name} {dtype}")
                row = new_row(problem, dtype)
                run.rows.append(row)
                bench.measure(problem, dtype, row)
                progress.advance(bar)
    except KeyboardInterrupt:
        run.notes.append(f"Interrupted at {run.rows[-1].name}." if run.rows else "Interrupted.")
        return False
    return True


def _measure(options: argparse.Namespace, words: list[str], console: Console) -> int:
    kind = device_kind(options.device)
    quick = options.quick or (kind == "cpu" and not options.full)
    problems = select(options.problem, quick, kind == "gpu")
    seconds = (QUICK_SECONDS if quick else FULL_SECONDS) if options.seconds is None else options.seconds
    known = list(dict.fromkeys(name for operation in VARIANTS for name in gpufold.variants(operation)))
    if unknown := set(options.variant) - set(known):
        raise ValueError(f"--variant must be of {', '.join(known)}, got {', '.join(sorted(unknown))}")
    if kind == "cpu" and options.variant:
        raise ValueError("--variant names a GPU kernel, and this run is on a CPU")
    bench, run = cpu_bench(options.threads, seconds) if kind == "cpu" else gpu_bench(options.variant or known, seconds)
    run.command = command_line(words)
    tasks = [
        (problem, dtype)
        for problem in problems
        for dtype in ((options.dtype,) if options.dtype else problem.dtypes[:1] if quick else problem.dtypes)
    ]
    _fill(bench, run, tasks)
    console.print(table(run))
    for line in footer(run):
        console.print(line, highlight=False, markup=False)
    if options.save:
        run.save(options.save)
        console.print(f"saved to {options.save}", highlight=False)
    return 1 if any(name in row.failures for row in run.rows for name in (OURS, *known)) else 0


if __name__ == "__main__":
    sys.exit(main())
