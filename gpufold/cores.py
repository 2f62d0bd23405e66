"""How many cores a process may use: by its settings, its affinity mask and its control groups."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path


def default() -> int:
    """Return how many threads a call uses by default."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        return 1
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # a list has one value per nesting level
    wanted = wanted.strip().lstrip("0")
    if wanted.isdecimal():
        return int(wanted[:9])  # int() refuses thousands of digits
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, cores_granted()))


def cache_bytes(caches: str = "/sys/devices/system/cpu/cpu0/cache") -> int:
    """Return the size of a core's L2 cache in bytes; 1 MiB if Linux does not report it."""
    with suppress(OSError, ValueError):
        for cache in Path(caches).glob("index*"):
            if (cache / "level").read_text().strip() == "2":
                size = int((cache / "size").read_text().strip().removesuffix("K")) << 10
                return min(max(size, 1 << 18), 1 << 22)
    return 1 << 20


@cache
def cores_granted(groups: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> int:
    """Return how many cores' time Linux's control groups grant this process: the least that any of them grants."""
    granted = sys.maxsize
    with suppress(OSError):
        for line in Path(own).read_text(errors="replace").splitlines():
            _, controllers, path = (*line.split(":", 2), "", "")[:3]  # no controllers are named in version 2
            root = Path(groups, controllers) if controllers else Path(groups)
            group = root / path.lstrip("/")
            for each in (group, *group.parents) if not controllers or "cpu" in controllers.split(",") else ():
                quota, period = _quota(each)
                if quota > 0 and period > 0:
                    granted = min(granted, -(-quota // period))
                if each == root:
                    break
    return granted


def _quota(group: Path) -> tuple[int, int]:
    """Return the CPU quota and period of a control group in microseconds; zeros if it has no limit."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with suppress(OSError, ValueError):
            quota, period = " ".join([(group / name).read_text() for name in names]).split()
            return int(quota), int(period)
    return 0, 0
