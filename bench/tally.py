"""What the logs of tests say: test_log.py writes them, a file for each process."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

BEGINNINGS = 2
"""How often a test may begin without an end before it is the reason that its process ends."""


def note(log: IO[str], **what: Any) -> None:
    """Add a line to a log, which outlives this process."""
    log.write(json.dumps(what) + "\n")
    log.flush()


@dataclass
class Tally:
    """What the logs of a folder say of its tests."""

    ends: dict[str, dict[str, Any]]
    waiting: set[str]
    begun: int

    @classmethod
    def of(cls, folder: Path) -> Tally:
        """Read every log; a test that began twice and never ended counts as one that ended its process."""
        lines: list[dict[str, Any]] = []
        for path in sorted(folder.glob("*.jsonl")):
            texts = path.read_text(encoding="utf-8").splitlines()
            lines += [json.loads(text) for text in texts if text.endswith("}")]  # the last one may be cut
        ends = {line["ends"]: line for line in lines if "ends" in line}
        begins = Counter(line["begins"] for line in lines if "begins" in line)
        for name, count in begins.items():
            if count >= BEGINNINGS:
                ends.setdefault(name, {"outcome": "failed", "why": f"began {count} times and ended its process"})
        tests = {name for line in lines for name in line.get("tests", ())}
        return cls(ends, tests - set(ends), begins.total())

    def failed(self) -> list[tuple[str, str]]:
        """Return the tests that failed with their reasons."""
        return [(name, end["why"]) for name, end in sorted(self.ends.items()) if end["outcome"] == "failed"]
