"""Pages are a matter of speed: what holds the weights changes, never a byte of them."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from imp_server.backends.cpu import pages
from imp_server.backends.cpu.pages import HUGE

SMAPS = """\
7f0000000000-7f0000400000 r--p 00000000 fe:00 17 /packs/a.pack
Rss:                4096 kB
AnonHugePages:         0 kB
FilePmdMapped:      2048 kB
7f0000400000-7f0000800000 rw-p 00000000 00:00 0
Rss:                4096 kB
AnonHugePages:      4096 kB
FilePmdMapped:         0 kB
"""


Bytes = npt.NDArray[np.uint8]


class At:
    """A stand-in for a buffer at a given address."""

    def __init__(self, address: int) -> None:
        self.ctypes = type("Pointer", (), {"data": address})


@pytest.mark.parametrize(
    ("address", "expected"),
    [(0x7F0000000000, 2 << 20), (0x7F0000001000, 2 << 20), (0x7F0000400000, 4 << 20), (0x7F0000800000, 0)],
)
def test_only_the_mapping_that_holds_the_buffer_counts(tmp_path: Path, address: int, expected: int) -> None:
    maps = tmp_path / "smaps"
    maps.write_text(SMAPS)
    buffer: Any = At(address)
    assert pages.backed_bytes(buffer, maps) == expected


def test_a_system_that_says_nothing_has_none(tmp_path: Path) -> None:
    assert pages.backed_bytes(np.zeros(1, np.uint8), tmp_path / "absent") == 0
    assert not pages.are_offered(tmp_path / "absent")


@pytest.mark.parametrize(("text", "offered"), [("always [madvise] never", True), ("always madvise [never]", False)])
def test_the_switch_of_the_system_is_respected(tmp_path: Path, text: str, offered: bool) -> None:
    switch = tmp_path / "enabled"
    switch.write_text(text)
    assert pages.are_offered(switch) is offered


@pytest.fixture
def small_pages(tmp_path: Path) -> Bytes:
    """A mapping in small pages of 8 MiB of random bytes."""
    path = tmp_path / "weights"
    data = np.random.default_rng(0).integers(0, 256, 4 * HUGE, dtype=np.uint8)
    path.write_bytes(data.tobytes())
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped.madvise(mmap.MADV_NOHUGEPAGE)
    buffer = np.frombuffer(mapped, dtype=np.uint8)
    assert int(buffer.sum(dtype=np.int64)) == int(data.sum(dtype=np.int64))
    return buffer


def test_small_pages_are_copied_to_huge_ones(small_pages: Bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "are_offered", lambda: True)
    monkeypatch.setattr(pages, "backed_bytes", lambda buffer: 0)
    copy = pages.moved(small_pages)
    assert copy.ctypes.data % HUGE == 0
    assert not np.shares_memory(copy, small_pages)
    np.testing.assert_array_equal(copy, small_pages)


def test_what_is_huge_already_stays(small_pages: Bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "backed_bytes", lambda buffer: len(buffer) // 2)
    assert pages.moved(small_pages) is small_pages


def test_without_memory_for_a_copy_nothing_moves(small_pages: Bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "are_offered", lambda: True)
    monkeypatch.setattr(pages, "backed_bytes", lambda buffer: 0)
    monkeypatch.setattr(pages, "available_bytes", lambda: len(small_pages))
    assert pages.moved(small_pages) is small_pages


@pytest.mark.skipif(not pages.are_offered(), reason="this system offers no transparent huge pages")
def test_touched_room_is_backed_by_huge_pages() -> None:
    buffer = pages.room(16 * HUGE)
    buffer[:] = 1
    backed = pages.backed_bytes(buffer)
    if not backed:
        pytest.skip("the system has no free huge page")
    assert backed % HUGE == 0 and buffer.ctypes.data % HUGE == 0


def resident_bytes(buffer: Bytes) -> int:
    address, inside = buffer.ctypes.data, False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            name, _, rest = line.partition(" ")
            if not name.endswith(":"):
                start, _, end = name.partition("-")
                inside = int(start, 16) <= address < int(end, 16)
            elif inside and name == "Rss:":
                return int(rest.split()[0]) << 10
    return 0


def test_what_was_read_once_leaves_resident_memory_and_can_be_read_again(small_pages: Bytes) -> None:
    before = small_pages.copy()
    assert resident_bytes(small_pages) == len(small_pages)
    pages.let_go(small_pages[5000:])
    assert resident_bytes(small_pages) <= mmap.PAGESIZE
    np.testing.assert_array_equal(small_pages, before)


def test_memory_of_our_own_is_never_let_go() -> None:
    own = np.arange(100, dtype=np.uint8)
    pages.let_go(own)
    assert own[99] == 99
