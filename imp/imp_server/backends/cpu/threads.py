"""How many threads the machine leaves us: affinity, cgroup quota, physical cores."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_CPUS = Path("/sys/devices/system/cpu")


def affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def quota_cores(root: Path = _CGROUP, own: Path = Path("/proc/self/cgroup")) -> float:
    """Cores that the cgroup lets us use at once, in version 1 or 2; infinite without a quota."""
    best = math.inf
    for folder in _own_groups(root, own):
        best = min(best, _quota_v2(folder / "cpu.max"), _quota_v1(folder))
    return best


def _own_groups(root: Path, own: Path) -> list[Path]:
    """Our cgroup's folders and all above them: the tightest counts."""
    folders = [root, root / "cpu", root / "cpu,cpuacct"]
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = line.split(":", 2)
        base = root / controllers if controllers else root
        relative = Path(path.lstrip("/"))
        folders += [base / relative, *(base / parent for parent in relative.parents)]
    return folders


def _quota_v2(path: Path) -> float:
    try:
        quota, period = path.read_text().split()[:2]
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def _quota_v1(folder: Path) -> float:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return math.inf
    return quota / period if quota > 0 and period > 0 else math.inf


def physical_cores(cpus: set[int], root: Path = _CPUS) -> int:
    """Cores behind these logical CPUs; two threads of one core share its vector units."""
    cores = set()
    for cpu in cpus:
        try:
            cores.add((root / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores))


def default_threads() -> int:
    """What a step may get at the most when nobody says it."""
    cores = physical_cores(affinity())
    return max(1, min(cores, math.ceil(min(quota_cores(), cores))))
