"""What the machine leaves us: cgroup quotas of both versions, sibling threads, affinity."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from imp_server.backends.cpu.threads import affinity, default_threads, physical_cores, quota_cores


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_no_quota(tmp_path: Path) -> None:
    assert quota_cores(tmp_path, tmp_path / "missing") == math.inf
    for text in ("max 100000\n", "nonsense", "1 0"):
        write(tmp_path / "cpu.max", text)
        assert quota_cores(tmp_path, tmp_path / "missing") == math.inf


def test_version_2_takes_the_tightest_of_ours_and_those_above(tmp_path: Path) -> None:
    write(tmp_path / "own", "0::/a/b\n")
    write(tmp_path / "a" / "cpu.max", "150000 100000\n")
    write(tmp_path / "a" / "b" / "cpu.max", "max 100000\n")
    assert quota_cores(tmp_path, tmp_path / "own") == 1.5


def test_version_1(tmp_path: Path) -> None:
    write(tmp_path / "own", "4:cpu,cpuacct:/x\n")
    write(tmp_path / "cpu,cpuacct" / "x" / "cpu.cfs_quota_us", "200000\n")
    write(tmp_path / "cpu,cpuacct" / "x" / "cpu.cfs_period_us", "100000\n")
    assert quota_cores(tmp_path, tmp_path / "own") == 2.0


def test_sibling_threads_are_one_core(tmp_path: Path) -> None:
    for cpu in range(4):
        write(tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list", f"{cpu % 2},{cpu % 2 + 2}\n")
    assert physical_cores({0, 1, 2, 3}, tmp_path) == 2
    assert physical_cores({0, 2}, tmp_path) == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_affinity_is_respected() -> None:
    before = affinity()
    try:
        os.sched_setaffinity(0, {min(before)})
        assert default_threads() == 1
    finally:
        os.sched_setaffinity(0, before)
