"""What a run measured, and under which circumstances; saved as JSON."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shlex
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from math import exp, log
from pathlib import Path

from bench.timing import Times

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).resolve().parent / "results"

OURS, COPY = "gpufold", "copy"


@dataclass
class Row:
    """One problem in one dtype, and the times of everything that ran it."""

    problem: str
    operation: str
    dtype: str
    bytes: int
    elements: int
    chosen: str | None = None
    """The variant that `auto` takes on a GPU."""
    threshold: str = ""
    """The planner's threshold that a sweep measures, if the row belongs to one; `value` is what is compared with it."""
    value: float = 0.0
    times: dict[str, Times] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """What was not timed, and why: a wrong result, an exception."""

    @property
    def name(self) -> str:
        return self.problem if self.dtype == "float32" else f"{self.problem} {self.dtype}"

    def seconds(self, name: str) -> float | None:
        """Give the median of a candidate that was measured."""
        return self.times[name].median if name in self.times else None

    def fraction_of_copy(self, name: str = OURS) -> float | None:
        ours, copy = self.seconds(name), self.seconds(COPY)
        return copy / ours if ours and copy else None

    def speed_up(self, peer: str) -> float | None:
        ours, other = self.seconds(OURS), self.seconds(peer)
        return other / ours if ours and other else None


@dataclass
class Run:
    """The rows of one run with everything that they depend on."""

    device: str
    kind: str
    """cpu or gpu."""
    threads: int
    versions: dict[str, str]
    commit: str
    command: str
    date: str
    peers: list[str]
    variants: list[str]
    notes: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def fastest_peer(self, row: Row) -> str | None:
        measured = [peer for peer in self.peers if peer in row.times]
        return min(measured, key=lambda peer: row.times[peer].median, default=None)

    def save(self, path: Path) -> None:
        """Write everything, every sample included."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Run:
        """Read what `save` wrote."""
        values = json.loads(path.read_text())
        rows = [
            Row(**{**row, "times": {name: Times(**times) for name, times in row["times"].items()}})
            for row in values.pop("rows")
        ]
        return cls(**values, rows=rows)


def saved(paths: Iterable[Path]) -> dict[Path, Run]:
    """Load the named results, or all that are saved with the project."""
    others = set(RESULTS.glob("gigapixel-*.json"))
    return {path: Run.load(path) for path in list(paths) or sorted(set(RESULTS.glob("*.json")) - others)}


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Give the geometric mean of the values that are there.

    >>> geometric_mean([1.0, None, 4.0])
    2.0
    """
    logarithms = [log(value) for value in values if value is not None]
    return exp(sum(logarithms) / len(logarithms)) if logarithms else None


def commit() -> str:
    """Name the commit of this checkout, and whether anything differs from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "not a checkout"


def processor() -> str:
    """Name this machine's CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def version(distribution: str) -> str:
    """Give the version of an installed distribution."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def command_line(arguments: list[str]) -> str:
    """Give the command that repeats this run."""
    return shlex.join(["python", "-m", "bench", *arguments])


def now() -> str:
    """Give the date and time, in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
