"""How much memory this machine has, and can give us."""

from __future__ import annotations

import os
from pathlib import Path

_FALLBACK = 4 << 30
_CGROUP_MAX = Path("/sys/fs/cgroup/memory.max")
_CGROUP_NOW = Path("/sys/fs/cgroup/memory.current")
_NO_LIMIT = 1 << 62


def total_bytes() -> int | None:
    """Bytes that it has, bounded by the control group's limit; None where it doesn't say."""
    total = _meminfo("MemTotal")
    return None if total is None else min(total, _group_limit())


def available_bytes() -> int:
    """Bytes that can still be used: what Linux calls available, bounded by the control group's limit."""
    available = _meminfo("MemAvailable")
    return min(_FALLBACK if available is None else available, _left_in_group())


def resident_bytes() -> int:
    """Of this process, in memory now; 0 where the system doesn't say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _meminfo(name: str) -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith(f"{name}:")), "")
    return int(found.split()[1]) << 10 if found else None


def _group_limit() -> int:
    try:
        limit = _CGROUP_MAX.read_text().strip()
        return _NO_LIMIT if limit == "max" else int(limit)
    except (OSError, ValueError):
        return _NO_LIMIT


def _left_in_group() -> int:
    try:
        return max(0, _group_limit() - int(_CGROUP_NOW.read_text()))
    except (OSError, ValueError):
        return _NO_LIMIT
