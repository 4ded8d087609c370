"""Both tiers keep bytes exactly, under a hard cap; whatever a disk does to the file is a miss and a count."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from imp_server.schedule.tiers.file import FileTier
from imp_server.schedule.tiers.host import HostTier
from imp_server.schedule.tiers.opening import open_kept, open_unnamed
from imp_server.schedule.tiers.record import BlockRecord, content_hash, root_hash
from imp_server.schedule.tiers.slab import HEAD_BYTES, SlabFile
from imp_server.schedule.tiers.tier import Tier

PAYLOAD = 1000
SLOT = SlabFile(-1, b"", PAYLOAD).slot_bytes
FINGERPRINT = b"f" * 32

Make = Callable[[int], Tier]


def record(number: int, size: int = PAYLOAD, parent: bytes | None = None) -> BlockRecord:
    parent = root_hash(0) if parent is None else parent
    key = number.to_bytes(64, "big")
    return BlockRecord(content_hash(parent, key), parent, key, 1, random.Random(number).randbytes(size))


def file_tier(path: Path, n_slots: int = 8, fingerprint: bytes = FINGERPRINT, payload: int = PAYLOAD) -> FileTier:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    file = SlabFile(fd, fingerprint, payload)
    return FileTier(file, HEAD_BYTES + n_slots * file.slot_bytes, persists=True)


def find(tier: Tier, wanted: BlockRecord) -> BlockRecord | None:
    return tier.get(wanted.digest, wanted.parent, wanted.key)


@pytest.fixture(params=["host", "file"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """A tier with room for so many records of PAYLOAD bytes."""
    if request.param == "host":
        return lambda n: HostTier(n * (PAYLOAD + 256))
    return lambda n: file_tier(tmp_path / "tier", n)


def test_what_comes_back_is_what_went_in(make: Make) -> None:
    tier = make(8)
    records = [record(i, size) for i, size in enumerate((0, 1, 17, 999, PAYLOAD))]
    assert all(tier.put(each) for each in records)
    assert [find(tier, each) for each in records] == records
    assert (tier.n_entries, tier.counts.stored, tier.counts.hits, tier.counts.faults) == (5, 5, 5, 0)


def test_the_cap_is_hard_and_dropping_makes_room(make: Make) -> None:
    tier = make(3)
    records = [record(i) for i in range(5)]
    assert [tier.put(each) for each in records] == [True, True, True, False, False]
    assert not tier.has_room(PAYLOAD)
    assert tier.n_bytes <= 3 * (PAYLOAD + 512)
    tier.drop(records[1].digest)
    tier.drop(records[1].digest)
    assert tier.has_room(PAYLOAD) and tier.put(records[4])
    assert [find(tier, each) is not None for each in records] == [True, False, True, False, True]


def test_an_entry_above_the_cap_is_not_attempted(make: Make) -> None:
    tier = make(0)
    assert not tier.takes(PAYLOAD)
    assert not tier.put(record(1))
    assert (tier.counts.refused, tier.counts.faults, tier.n_bytes) == (1, 0, 0)


def test_nothing_matches_other_tokens(make: Make) -> None:
    """Even if a hash were to collide."""
    tier = make(3)
    kept = record(1)
    for parent, key in ((kept.parent, record(2).key), (record(2).digest, kept.key)):
        tier.put(kept)
        assert tier.get(kept.digest, parent, key) is None
        assert tier.n_entries == 0, "an entry that isn't what it should be is gone"
    assert tier.counts.faults == 2


def test_the_next_process_finds_everything(tmp_path: Path) -> None:
    first = file_tier(tmp_path / "a")
    records = [record(i) for i in range(4)]
    for each in records:
        first.put(each)
    first.drop(records[2].digest)
    first.close()
    second = file_tier(tmp_path / "a")
    assert [entry.digest for entry in second.known()] == [records[i].digest for i in (0, 1, 3)]
    assert [find(second, each) for each in records] == [records[0], records[1], None, records[3]]
    assert second.put(record(9)), "the dropped one's slot is free"


@pytest.mark.parametrize("change", ["fingerprint", "payload", "head"])
def test_another_fingerprint_starts_anew(tmp_path: Path, change: str) -> None:
    first = file_tier(tmp_path / "a")
    first.put(record(1))
    first.close()
    if change == "head":
        damage(tmp_path / "a", 40)
    other = file_tier(
        tmp_path / "a",
        fingerprint=b"g" * 32 if change == "fingerprint" else FINGERPRINT,
        payload=PAYLOAD + 64 if change == "payload" else PAYLOAD,
    )
    assert list(other.known()) == [] and find(other, record(1)) is None
    assert (tmp_path / "a").stat().st_size == HEAD_BYTES


def test_a_smaller_cap_cuts_the_file(tmp_path: Path) -> None:
    first = file_tier(tmp_path / "a", 8)
    for i in range(8):
        first.put(record(i))
    first.close()
    second = file_tier(tmp_path / "a", 3)
    assert second.n_entries == 3
    assert (tmp_path / "a").stat().st_size <= HEAD_BYTES + 3 * SLOT


# --- faults -------------------------------------------------------------------------------------


def damage(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("at", [0, 4, 12, 20, 30, 60, 100, 160, 190, 256, 700, 256 + PAYLOAD - 1])
def test_a_changed_byte_is_a_miss(tmp_path: Path, at: int) -> None:
    """In the slot's magic, its sizes, hashes, tokens, sums and contents."""
    tier = file_tier(tmp_path / "a")
    kept, other = record(1), record(2)
    tier.put(other)
    tier.put(kept)
    damage(tmp_path / "a", HEAD_BYTES + SLOT + at)
    assert find(tier, kept) is None
    assert (tier.counts.faults, tier.n_entries) == (1, 1)
    assert find(tier, other) == other
    assert tier.put(kept) and find(tier, kept) == kept, "it can be stored again"


@pytest.mark.parametrize("at", [0, 4, 20, 60, 100, 160, 700])
def test_a_byte_changed_between_processes_is_a_miss(tmp_path: Path, at: int) -> None:
    tier = file_tier(tmp_path / "a")
    kept = record(1)
    tier.put(kept)
    tier.close()
    damage(tmp_path / "a", HEAD_BYTES + at)
    tier = file_tier(tmp_path / "a")
    assert find(tier, kept) is None
    assert tier.put(kept) and find(tier, kept) == kept


@pytest.mark.parametrize("size", [0, 100, HEAD_BYTES, HEAD_BYTES + 10, HEAD_BYTES + SLOT, HEAD_BYTES + SLOT + 300])
@pytest.mark.parametrize("restart", [False, True])
def test_a_truncated_file_loses_what_it_lost(tmp_path: Path, size: int, restart: bool) -> None:
    tier = file_tier(tmp_path / "a")
    records = [record(i) for i in range(3)]
    for each in records:
        tier.put(each)
    os.truncate(tmp_path / "a", size)
    if restart:
        tier.close()
        tier = file_tier(tmp_path / "a")
    n_whole = max(0, size - HEAD_BYTES) // SLOT
    assert [find(tier, each) for each in records] == [*records[:n_whole], *[None] * (3 - n_whole)]
    assert all(tier.put(each) for each in records)
    assert [find(tier, each) for each in records] == records


@pytest.mark.parametrize(("start", "size"), [(0, HEAD_BYTES + 3 * SLOT), (0, HEAD_BYTES), (HEAD_BYTES, SLOT)])
@pytest.mark.parametrize("filler", [b"\0", b"\xff"])
def test_zeros_are_a_miss(tmp_path: Path, start: int, size: int, filler: bytes) -> None:
    """What a power cut leaves: the whole file, its head or one slot were never written."""
    tier = file_tier(tmp_path / "a")
    records = [record(i) for i in range(3)]
    for each in records:
        tier.put(each)
    tier.close()
    data = bytearray((tmp_path / "a").read_bytes())
    data[start : start + size] = filler * size
    (tmp_path / "a").write_bytes(data)
    again = file_tier(tmp_path / "a")
    n_lost = 1 if start else 3
    assert [find(again, each) for each in records] == [*[None] * n_lost, *records[n_lost:]]
    assert all(again.put(each) for each in records) and [find(again, each) for each in records] == records


def test_a_write_cut_short_by_a_kill_is_a_miss_for_the_next_process(tmp_path: Path) -> None:
    kept = [record(i) for i in range(2)]
    for n_written in (1, 100, 256, 257, SLOT - 70):
        path = tmp_path / str(n_written)
        tier = file_tier(path)
        tier.put(kept[0])
        tier.put(kept[1])
        tier.close()
        whole = path.read_bytes()
        path.write_bytes(whole[: HEAD_BYTES + SLOT + n_written])
        again = file_tier(path)
        assert find(again, kept[0]) == kept[0]
        assert find(again, kept[1]) is None


def test_a_full_disk_keeps_what_is_there_and_is_tried_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = file_tier(tmp_path / "a", 2000)
    kept = record(1)
    tier.put(kept)
    n_tries = 0
    write = os.pwrite

    def full(fd: int, data: bytes, at: int) -> int:
        nonlocal n_tries
        n_tries += 1
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", full)
    assert not any(tier.put(record(i)) for i in range(2, 600))
    assert 8 <= n_tries <= 16, "a full disk must not cost every eviction a try"
    assert tier.counts.faults == n_tries
    assert find(tier, kept) == kept
    monkeypatch.setattr(os, "pwrite", write)
    assert any(tier.put(record(i)) for i in range(600, 1200)), "room came back"
    assert tier.put(record(5000)), "and is used"


def test_writes_that_come_in_pieces_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[:100], at))
    tier = file_tier(tmp_path / "a")
    assert tier.put(record(1)) and find(tier, record(1)) == record(1)


def test_an_unreadable_disk_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = file_tier(tmp_path / "a")
    tier.put(record(1))

    def broken(*_: object) -> bytes:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "pread", broken)
    assert find(tier, record(1)) is None and tier.counts.faults == 1
    broken_from_the_start = file_tier(tmp_path / "b")
    assert find(broken_from_the_start, record(1)) is None


# --- the folder of kept caches ------------------------------------------------------------------


def test_two_servers_on_one_path(tmp_path: Path) -> None:
    first = open_kept(tmp_path / "kept", b"m" * 16, FINGERPRINT)
    assert first is not None
    assert open_kept(tmp_path / "kept", b"m" * 16, FINGERPRINT) is None, "the second runs without"
    other_model = open_kept(tmp_path / "kept", b"n" * 16, FINGERPRINT)
    assert other_model is not None
    os.close(first)
    again = open_kept(tmp_path / "kept", b"m" * 16, FINGERPRINT)
    assert again is not None
    os.close(again)
    os.close(other_model)


def test_files_of_another_fingerprint_are_removed_if_unused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    old = open_kept(tmp_path, b"m" * 16, b"1" * 32)
    other = open_kept(tmp_path, b"n" * 16, b"1" * 32)
    assert old is not None and other is not None
    new = open_kept(tmp_path, b"m" * 16, b"2" * 32)
    assert new is not None and len(list(tmp_path.iterdir())) == 3, "the old one is in use"
    os.close(old)
    os.close(other)
    third = open_kept(tmp_path, b"m" * 16, b"3" * 32)
    assert third is not None
    left = {path.name.split("-")[1][:2] for path in tmp_path.iterdir() if path.name.startswith((b"m" * 8).hex())}
    assert left == {"32", "33"} and len(list(tmp_path.iterdir())) == 3
    assert sum("is removed" in line for line in caplog.messages) == 1
    os.close(new)
    os.close(third)


def test_a_folder_that_cannot_be_written_is_no_reason_to_stop(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(Exception, match="names a folder"):
        open_kept(tmp_path / "file", b"m" * 16, FINGERPRINT)
    assert (tmp_path / "file").read_text() == "mine"
    assert open_kept(Path("/proc/nowhere"), b"m" * 16, FINGERPRINT) is None
    assert open_kept(tmp_path / ("long" * 100), b"m" * 16, FINGERPRINT) is None


def test_an_unnamed_file_leaves_nothing_behind(tmp_path: Path) -> None:
    fd = open_unnamed(tmp_path / "spill")
    assert list((tmp_path / "spill").iterdir()) == []
    tier = FileTier(SlabFile(fd, FINGERPRINT, PAYLOAD), 1 << 20, persists=False)
    assert tier.put(record(1)) and find(tier, record(1)) == record(1)
