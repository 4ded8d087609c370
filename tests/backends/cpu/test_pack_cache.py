"""Packed weights on disk: mapped when they fit, packed anew when anything changed, never trusted when cut short."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from imp_server.backends.cpu import pack_files
from imp_server.backends.cpu.backend import CpuBackend
from imp_server.backends.cpu.lowering import matrix_names
from imp_server.backends.cpu.pack_cache import PackedWeights, load_packed

from tests.backends.cpu.running import logits_in_chunks, open_backend
from tests.backends.cpu.synthetic_models import VARIANTS, SyntheticSource

LLAMA = VARIANTS[0]


@pytest.fixture
def model(tmp_path: Path) -> SyntheticSource:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"model")
    return SyntheticSource(LLAMA.architecture, LLAMA.types, path=path)


def load(source: SyntheticSource, folder: Path, quantize: str = "none") -> PackedWeights:
    return load_packed(source, matrix_names(source.architecture), quantize, folder)


def test_the_second_start_maps_the_same_bytes(model: SyntheticSource, tmp_path: Path) -> None:
    folder = tmp_path / "packs"
    first, second = load(model, folder), load(model, folder)
    assert not first.from_cache and second.from_cache
    np.testing.assert_array_equal(first.buffer, second.buffer)
    assert [p.suffix for p in folder.iterdir()] == [".pack"]
    ids = np.arange(40) % 300
    warm = open_backend(model, pack_folder=folder)
    cold = open_backend(model)
    np.testing.assert_array_equal(logits_in_chunks(warm, ids, 40), logits_in_chunks(cold, ids, 40))


def test_the_second_start_asks_for_no_tensor(
    model: SyntheticSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint's packed integers would all be unpacked to learn their layout."""
    folder = tmp_path / "packs"
    first = load(model, folder)
    monkeypatch.setattr(model, "raw", None)
    second = load(model, folder)
    assert second.from_cache and second.shapes == first.shapes
    assert [second.address(n) - second.buffer.ctypes.data for n in second.shapes] == [
        first.address(n) - first.buffer.ctypes.data for n in first.shapes
    ]


def test_a_changed_file_is_packed_again_and_its_old_pack_removed(model: SyntheticSource, tmp_path: Path) -> None:
    folder = tmp_path / "packs"
    load(model, folder)
    os.utime(model.header.path, ns=(1, 1))
    assert not load(model, folder).from_cache
    assert len(list(folder.iterdir())) == 1


def test_other_options_are_another_pack(model: SyntheticSource, tmp_path: Path) -> None:
    folder = tmp_path / "packs"
    load(model, folder)
    assert not load(model, folder, "q8").from_cache


def test_a_pack_cut_short_is_not_read(model: SyntheticSource, tmp_path: Path) -> None:
    folder = tmp_path / "packs"
    load(model, folder)
    pack = next(folder.iterdir())
    pack.write_bytes(pack.read_bytes()[:-1])
    assert not load(model, folder).from_cache


Damage = Callable[[bytes], bytes]


def one_bit(where: float) -> Damage:
    def damage(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[int(where * (len(data) - 1))] ^= 0x10
        return bytes(changed)

    return damage


DAMAGES: dict[str, Damage] = {
    "first bit": one_bit(0.0),
    "middle bit": one_bit(0.5),
    "last bit": one_bit(1.0),
    "zeros": lambda data: bytes(len(data)),
    "a zero page at the end": lambda data: data[:-4096] + bytes(4096),
    "zeros behind the end": lambda data: data + bytes(4096),
    "cut in half": lambda data: data[: len(data) // 2],
    "one byte": lambda data: data[:1],
    "empty": lambda data: b"",
    "text": lambda data: b"what is this doing here? " * 100,
    "an end alone": lambda data: data[-pack_files.END_BYTES :],
    "an empty table": lambda data: pack_files.end_of(pack_files.Table(b"", 0, 0, [])),
    "a table of something else": lambda data: data + pack_files.end_of(pack_files.Table(b"", 0, 0, [])),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_pack_is_told_and_made_again(
    model: SyntheticSource, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Damage
) -> None:
    folder = tmp_path / "packs"
    good = load(model, folder).buffer.copy()
    pack = next(folder.iterdir())
    pack.write_bytes(damage(pack.read_bytes()))
    assert pack_files.why_unused(pack) in ("damaged", "")
    again = load(model, folder)
    assert not again.from_cache and "is damaged" in caplog.text
    np.testing.assert_array_equal(again.buffer, good)
    assert load(model, folder).from_cache


def test_a_pack_is_used_while_its_model_is_what_it_was(model: SyntheticSource, tmp_path: Path) -> None:
    folder = tmp_path / "packs"
    load(model, folder)
    (pack,) = folder.iterdir()
    assert pack_files.packs_of(folder, model.header.path) == [pack] and not pack_files.why_unused(pack)
    assert not pack_files.packs_of(folder, tmp_path / "other.gguf")
    os.utime(model.header.path, ns=(1, 1))
    assert "has changed" in pack_files.why_unused(pack)
    model.header.path.unlink()
    assert "is gone" in pack_files.why_unused(pack)
    pack.write_bytes(bytes(pack.stat().st_size))
    assert pack_files.why_unused(pack) == "damaged"


def test_without_a_writable_folder_the_model_runs_from_memory(
    model: SyntheticSource, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    weights = load(model, blocked / "packs")
    assert not weights.from_cache
    assert "each start will pack them" in caplog.text


def test_a_full_disk_is_left_alone(
    model: SyntheticSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What the weights need is said before it is taken."""
    folder = tmp_path / "packs"
    caplog.set_level("INFO")
    usage = type(shutil.disk_usage(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**40, 2**40 - 2**30, 2**30))
    assert not load(model, folder).from_cache and not list(folder.iterdir())
    assert "1024 MiB are free" in caplog.text and "each start will pack them" in caplog.text
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**40, 2**39, 2**39))
    load(model, folder)
    assert f"MiB in {folder}, where {2**39 >> 20} MiB are free" in caplog.text and len(list(folder.iterdir())) == 1


def test_progress_ends_at_one(model: SyntheticSource) -> None:
    seen: list[float] = []
    CpuBackend(model, on_progress=seen.append).close()
    assert seen == sorted(seen) and seen[-1] == 1.0
