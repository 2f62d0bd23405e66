"""The command line: `python -m bench --help`."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from bench import drawn
from bench.gpu_session import half_an_hour
from bench.host import host
from bench.measure import (
    FREEING,
    LOST,
    PREPARATION,
    Bench,
    DeviceLostError,
    Task,
    cpu_bench,
    device_kind,
    fill,
    gpu_bench,
    missing,
    new_run,
)
from bench.problems import PROBLEMS, select
from bench.regret import VARIANTS, by_operation, of_results
from bench.report import footer, markdown, tables
from bench.results import OURS, command_line, saved
from bench.terminal import Console, say, show
from bench.tune import tune

QUICK_SECONDS, FULL_SECONDS = 0.7, 5.0
"""Seconds of measurement per problem and dtype."""

WIDTH = 160
"""Width of a table that is written to a file."""

Command: TypeAlias = Callable[[argparse.Namespace, list[str], Console], int]
"""Runs a command by its options and the command line, and returns the exit status."""

INTERRUPTED = 130
"""Exit status of a run that the user stopped."""


def _parser() -> argparse.ArgumentParser:
    named = argparse.ArgumentParser(add_help=False)
    repeated: dict[str, Any] = {"action": "append", "default": [], "metavar": "NAME"}
    named.add_argument("--problem", **repeated, help="problems with it in their name")
    into = argparse.ArgumentParser(add_help=False)
    into.add_argument("--results", type=Path, required=True, metavar="DIR", help="all that is written; goes on there")
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        parents=[named],
        description="Measure gpufold beside its peers, each result checked before it is timed. "
        "Without an argument: the quick table, on the GPU where there is one.",
    )
    parser.set_defaults(run=_table)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="each problem in its first dtype: the default on a CPU")
    length.add_argument("--full", action="store_true", help="every problem in all its dtypes: the default on a GPU")
    _add_measuring(parser, "auto", "cpu", "gpu")
    commands = parser.add_subparsers(dest="command", title="other commands", metavar="COMMAND")

    def command(name: str, run: Command, what: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=what, parents=parents)
        made.set_defaults(run=run)
        return made

    command("problems", _problems, "list the problems and where they come from")
    random = command("random", _random, "measure problems that are drawn, on a CPU: the distribution of ratios")
    random.add_argument("--problems", type=int, default=200, metavar="N")
    random.add_argument("--seed", type=int, default=[0], nargs="+", help="for N problems each")
    _add_measuring(random, "cpu")
    report = command("report", _report, "draw saved results, and give their tables in Markdown")
    report.add_argument("--output", type=Path, default=Path("build/report"), help="folder for figures and tables")
    report.add_argument(
        "--results",
        type=Path,
        nargs="+",
        default=[],
        metavar="PATH",
        help="saved results, or folders of them, else those in bench/results",
    )
    command("host", host, "measure what a repeated GPU call costs before the launch, without a GPU", named)
    chip = command("chip", half_an_hour, "half an hour on a GPU: tests, sanitizers, measurements", named, into)
    chip.add_argument("--steps", type=int, default=100, metavar="N", help="of which each takes less than nine minutes")
    chip.add_argument("--only", nargs="+", metavar="STEP", help="of these steps, such as tune")
    chip.add_argument("--seconds", type=float, default=0.5, help="measuring time of a problem in one dtype")
    chip.add_argument("--processes", type=int, default=max(1, min(14, (os.cpu_count() or 1) - 2)), metavar="N")
    chip.add_argument("--commit", metavar="HASH", help="of this code, where git does not say")
    command("tune", _tune, "race the kernels of every problem, into a file that the package can ship", named, into)
    return parser


def _add_measuring(parser: argparse.ArgumentParser, *devices: str) -> None:
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--seconds", type=float, help="measuring time of a problem in one dtype")
    parser.add_argument("--threads", type=int, help="CPU threads of every candidate, else all cores")
    parser.add_argument("--save", type=Path, metavar="FILE.json", help="write what is measured, after each row")
    parser.add_argument("--resume", action="store_true", help="go on with what is saved, and measure what it lacks")
    parser.add_argument("--commit", metavar="HASH", help="of this code, where git does not say")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    options = parser.parse_args(words)
    warnings.filterwarnings("ignore", module="cupy._environment")  # about libraries not used here
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    try:
        run: Command = options.run
        return run(options, words, console)
    except ModuleNotFoundError as error:
        parser.error(f"{options.command or 'the benchmark'} needs {error.name}, which is not installed")
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    except KeyboardInterrupt:
        say(console, "Interrupted.")
        return INTERRUPTED


def _problems(options: argparse.Namespace, words: list[str], console: Console) -> int:
    listed = [["problem", "input", "output", "MB", "dtypes", "from"]]
    for problem in PROBLEMS:
        megabytes = f"{problem.compulsory_bytes(problem.dtypes[0]) / 1e6:.3g}"
        shapes = (" x ".join(map(str, shape)) for shape in (problem.input_shape, problem.output_shape))
        listed.append([problem.name, *shapes, megabytes, " ".join(problem.dtypes), problem.origin])
    show(console, listed)
    return 0


def _report(options: argparse.Namespace, words: list[str], console: Console) -> int:
    results = [path for path in options.results if path.suffix != ".jsonl"]
    runs = saved(results) if results or not options.results else {}
    choices = of_results(runs.values(), options.results)
    if not runs and not choices:
        say(console, "No results are saved yet: python -m bench --save bench/results/NAME.json")
    for path, run in runs.items():
        options.output.mkdir(parents=True, exist_ok=True)
        written = [options.output / f"{path.stem}.md"]
        written[0].write_text(markdown(run), encoding="utf-8")
        try:
            from bench.plots import draw

            written += draw(run, path.stem, options.output)
        except ModuleNotFoundError as error:
            say(console, f"No figure of {path.stem}: {error.name} is not installed.")
        say(console, f"{path}: {', '.join(map(str, written))}")
    if choices:
        show(console, by_operation(choices))
    return 0


def _tune(options: argparse.Namespace, words: list[str], console: Console) -> int:
    device_kind("gpu")
    return tune(options.results.resolve(), options.problem, console)


def _table(options: argparse.Namespace, words: list[str], console: Console) -> int:
    kind = device_kind(options.device)
    quick = options.quick or (kind == "cpu" and not options.full)
    seconds = (QUICK_SECONDS if quick else FULL_SECONDS) if options.seconds is None else options.seconds
    choices = {"problems": options.problem, "quick": quick, "seconds": seconds}
    bench = cpu_bench(options.threads, seconds) if kind == "cpu" else gpu_bench(seconds)
    tasks = [
        (problem, dtype)
        for problem in select(options.problem, quick, kind == "gpu")
        for dtype in problem.dtypes[: 1 if quick else None]
    ]
    return _measure(bench, tasks, choices, options, words, console)


def _random(options: argparse.Namespace, words: list[str], console: Console) -> int:
    seconds = QUICK_SECONDS if options.seconds is None else options.seconds
    bench = cpu_bench(options.threads, seconds)
    bench.peers = [peer for peer in bench.peers if peer.name in drawn.PEERS]
    tasks = [(each, each.dtypes[0]) for seed in options.seed for each in drawn.problems(seed, options.problems)]
    return _measure(bench, tasks, {"seeds": options.seed, "seconds": seconds}, options, words, console)


def _measure(
    bench: Bench,
    tasks: list[Task],
    choices: dict[str, Any],
    options: argparse.Namespace,
    words: list[str],
    console: Console,
) -> int:
    """Measure what is not saved yet and print it; if stopped, say how to resume. Return the exit status."""
    run, path = new_run(bench, command_line(words), options.commit, choices), options.save
    if options.resume and path is None:
        raise ValueError("--resume goes on with what --save names, which is missing")
    if path is not None and path.exists():
        if not options.resume:
            raise ValueError(f"{path} exists: --resume goes on with it, another name leaves it as it is")
        run.take_over(path)

    def save() -> None:
        if path is not None:
            run.save(path)

    stopped, status = "", 0
    try:
        fill(bench, run, tasks, save)
    except KeyboardInterrupt:
        stopped, status = "Interrupted.", INTERRUPTED
    except DeviceLostError as lost:
        stopped, status = f"Stopped: {lost}.", LOST
    else:
        status = int(any(name in row.failures for row in run.rows for name in (OURS, *VARIANTS, PREPARATION, FREEING)))
    if stopped:
        done = f"{len(tasks) - len(missing(run, tasks))} of {len(tasks)} rows are saved in {path}"
        again = command_line([*(word for word in words if word != "--resume"), "--resume"])
        say(console, stopped)
        say(console, f"{done}; go on with: {again}" if path else "Nothing is saved, for want of --save.")
    if options.command == "random":
        show(console, drawn.distribution(run))
        show(console, drawn.worst(run))
    else:
        for lines in tables(run):
            show(console, lines, totals=True)
    for line in footer(run):
        say(console, line)
    if path and run.rows:
        say(console, f"saved to {path}")
    return status


if __name__ == "__main__":
    sys.exit(main())
