"""How much memory this machine can give us."""

from __future__ import annotations

from pathlib import Path

_FALLBACK = 4 << 30
_CGROUP_MAX = Path("/sys/fs/cgroup/memory.max")
_CGROUP_NOW = Path("/sys/fs/cgroup/memory.current")


def available_bytes() -> int:
    """Bytes that can still be used: what Linux calls available, bounded by the control group's limit."""
    return min(_available_of_machine(), _left_in_group())


def _available_of_machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return _FALLBACK
    found = next((line for line in lines if line.startswith("MemAvailable:")), "")
    return int(found.split()[1]) << 10 if found else _FALLBACK


def _left_in_group() -> int:
    try:
        limit, used = _CGROUP_MAX.read_text().strip(), int(_CGROUP_NOW.read_text())
        return 1 << 62 if limit == "max" else max(0, int(limit) - used)
    except (OSError, ValueError):
        return 1 << 62
