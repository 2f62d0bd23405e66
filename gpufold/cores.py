"""How many cores a process has: what it is told to use, may run on, and is granted time for."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path


def default() -> int:
    """Return how many threads a call uses where nothing was set."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        return 1
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # a list says it level by level
    wanted = wanted.strip().lstrip("0")
    if wanted.isdecimal():
        return int(wanted[:9])  # Python reads no number of thousands of digits
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, cores_granted()))


def cache_bytes(caches: str = "/sys/devices/system/cpu/cpu0/cache") -> int:
    """Return the size of the second-level cache, a core's own; a mebibyte where Linux does not say it."""
    with suppress(OSError, ValueError):
        for cache in Path(caches).glob("index*"):
            if (cache / "level").read_text().strip() == "2":
                size = int((cache / "size").read_text().strip().removesuffix("K")) << 10
                return min(max(size, 1 << 18), 1 << 22)
    return 1 << 20


@cache
def cores_granted(groups: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> int:
    """Return for how many cores Linux's control groups grant this process time: none of them may grant less."""
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
    """Return how long, in each period, the processes of a control group may run; zeros where nothing limits them."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with suppress(OSError, ValueError):
            quota, period = " ".join([(group / name).read_text() for name in names]).split()
            return int(quota), int(period)
    return 0, 0
