"""How much memory there is: what Linux says, bounded by the control group's limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from imp_server.backends import machine


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(machine, "_CGROUP_MAX", tmp_path / "max")
    monkeypatch.setattr(machine, "_CGROUP_NOW", tmp_path / "current")
    monkeypatch.setattr(machine, "_meminfo", {"MemTotal": 8 << 30, "MemAvailable": 5 << 30}.get)
    return tmp_path


@pytest.mark.parametrize(
    ("limit", "now", "total", "available"),
    [
        (None, None, 8 << 30, 5 << 30),
        ("max", "1000", 8 << 30, 5 << 30),
        ("junk", "1000", 8 << 30, 5 << 30),
        (str(2 << 30), str(1 << 30), 2 << 30, 1 << 30),
        (str(2 << 30), str(3 << 30), 2 << 30, 0),
        (str(2 << 30), None, 2 << 30, 5 << 30),
        (str(16 << 30), "0", 8 << 30, 5 << 30),
    ],
)
def test_the_groups_limit_bounds_what_the_machine_has(
    group: Path, limit: str | None, now: str | None, total: int, available: int
) -> None:
    for name, text in (("max", limit), ("current", now)):
        if text is not None:
            (group / name).write_text(f"{text}\n")
    assert machine.total_bytes() == total
    assert machine.available_bytes() == available


def test_where_the_system_tells_nothing_a_guess_is_made(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_meminfo", dict[str, int]().get)
    assert machine.total_bytes() is None and machine.available_bytes() == 4 << 30


def test_this_process_is_in_memory() -> None:
    assert 1 << 20 < machine.resident_bytes() < 1 << 40
