"""A run's measurements, machine and versions; saved as JSON, a line per row."""

from __future__ import annotations

import json
import os
import platform
import shlex
import statistics
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.timing import Times

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).resolve().parent / "results"

OURS, COPY = "gpufold", "copy"


@dataclass
class Row:
    """A problem in one dtype, and the times of all candidates."""

    problem: str
    operation: str
    dtype: str
    bytes: int
    elements: int
    chosen: str | None = None
    """The variant that `auto` takes on a GPU."""
    times: dict[str, Times] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    """Peak memory of each candidate's call in bytes, including its result."""
    failures: dict[str, str] = field(default_factory=dict)
    """Candidates that were not timed, and why: a wrong result, an exception."""
    finished: bool = True
    """False if the device failed meanwhile: the row is measured again, without the candidates that failed."""

    @property
    def key(self) -> tuple[str, str]:
        """The key of a row in a run."""
        return self.problem, self.dtype

    @property
    def name(self) -> str:
        return self.problem if self.dtype == "float32" else f"{self.problem} {self.dtype}"

    def fraction_of_copy(self) -> float | None:
        return self.speed_up(COPY)

    def speed_up(self, peer: str | None) -> float | None:
        """Return a candidate's time divided by gpufold's, if both were measured."""
        ours, other = self.times.get(OURS), self.times.get(peer or "")
        return other.median / ours.median if ours and other else None

    def memory_ratio(self, peer: str) -> float | None:
        """Return a peer's memory divided by gpufold's."""
        ours, other = self.memory.get(OURS), self.memory.get(peer)
        return other / ours if ours and other else None


OTHER_WORK = (
    "gpufold.torch",
    "torch, gradient",
    "gpufold.torch, gradient",
    "gpufold.jax",
    "gpufold.map_tiles",
    "two passes",
)
"""Candidates that do not count as fastest peers: gpufold's own, and those with a gradient."""


@dataclass
class Run:
    """The rows of a run, with its machine, versions and options."""

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
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the command that results depend on; rows with other options belong to another run."""

    def fastest_peer(self, row: Row) -> str | None:
        measured = [peer for peer in self.peers if peer in row.times and peer not in OTHER_WORK]
        return min(measured, key=lambda peer: row.times[peer].median, default=None)

    def save(self, path: Path) -> None:
        """Write the run as JSON, with every sample, a line per value and per row."""
        values = asdict(self)
        rows = values.pop("rows")
        head = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)},\n" for name, value in values.items()]
        body = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        write_at_once(path, "".join(["{\n", *head, '"rows": [\n', body, "\n]\n}\n"]))

    @classmethod
    def load(cls, path: Path) -> Run:
        """Read what `save` wrote."""
        values = json.loads(path.read_text(encoding="utf-8"))
        rows = [
            Row(**{**row, "times": {name: Times(**times) for name, times in row["times"].items()}})
            for row in values.pop("rows")
        ]
        return cls(**values, rows=rows)

    def take_over(self, path: Path) -> None:
        """Adopt the rows of a saved run; raise ValueError if they were measured differently."""
        earlier = Run.load(path)
        differences = []
        for name in ("device", "kind", "threads", "commit", "versions", "peers", "variants", "options"):
            was, now = getattr(earlier, name), getattr(self, name)
            if was != now:
                differences.append(f"{name} was {was!r} and is {now!r}")
        if differences:
            raise ValueError(f"--resume: {path} was measured differently: {'; '.join(differences)}")
        self.rows, self.date, self.command = earlier.rows, earlier.date, earlier.command


def write_at_once(path: Path, text: str) -> None:
    """Replace a file atomically, also in a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def saved(paths: Iterable[Path]) -> dict[Path, Run]:
    """Load the named results, all of a folder that is named, or all that are saved with the project."""
    files: list[Path] = []
    for path in list(paths) or [RESULTS]:
        others = set(path.glob("gigapixel-*.json"))
        files += sorted(set(path.glob("*.json")) - others) if path.is_dir() else [path]
    return {path: Run.load(path) for path in files}


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Return the geometric mean of the values that are not None.

    >>> geometric_mean([1.0, None, 4.0])
    2.0
    """
    known = [value for value in values if value is not None]
    return statistics.geometric_mean(known) if known else None


def commit(given: str | None = None) -> str:
    """Return the given commit, or that of this checkout and whether anything differs from it."""
    if given:
        return given
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


def command_line(arguments: list[str]) -> str:
    """Return the command that repeats this run."""
    return shlex.join(["python", "-m", "bench", *arguments])


def now() -> str:
    """Return the date and time, in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
