"""What lies on the disk for models that are gone: `imp rm` takes it along, `imp gc` frees it, doctor counts it."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest
from imp_server.backends.cpu.pack_files import Entry, Table, end_of, model_digest
from imp_server.cli import _machine
from imp_server.cli._leftovers import leftovers
from imp_server.cli.main import run
from imp_server.config import Config
from imp_server.engine.fingerprint import model_name
from imp_server.weights.catalogue import find_pulled, models_folder, pulled_models
from imp_server.weights.manifest import MANIFEST
from imp_server.weights.pull import pull

from tests.weights.gguf_writer import gguf_bytes


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IMP_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(_machine, "BANDWIDTH_SECONDS", 0.0)
    monkeypatch.setattr(_machine, "BANDWIDTH_BUFFER_BYTES", 1 << 20)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    path.write_bytes(gguf_bytes({"general.architecture": "unheard-of"}))
    return path


def pack(home: Path, model: Path, options: str = "0") -> Path:
    """A pack of this model as the cpu backend leaves it, 8 KiB long."""
    state = model.stat()
    table = Table(
        os.fsencode(model.resolve()), state.st_size, state.st_mtime_ns, [Entry("embedding", "Q8_0", 1, 32, 0)]
    )
    path = home / "packed" / f"{model_digest(model)}-{options * 32}.pack"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(8192) + end_of(table))
    return path


def listed(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, dict[str, object]]:
    assert run(["gc", "--json", *options]) == 0
    return {Path(row["path"]).name: row for row in json.loads(capsys.readouterr().out)}


def test_rm_takes_packs_and_prefixes_along(
    home: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pulled = pull(str(model), name="tiny")
    other = pull(str(model), name="other")
    gone = [pack(home, pulled.path, "0"), pack(home, pulled.path, "1")]
    stays = [pack(home, other.path), pack(home, model)]
    monkeypatch.setenv("IMP_PREFIX_CACHE_PATH", str(tmp_path / "kv"))
    (tmp_path / "kv").mkdir()

    class Header:
        path = pulled.path

    class Source:
        header = Header

    kept = tmp_path / "kv" / f"{model_name(Source).hex()[:16]}-{'0' * 32}.kv"  # type: ignore[arg-type]
    kept.write_bytes(bytes(4096))
    capsys.readouterr()
    assert run(["rm", "tiny"]) == 0
    assert "removed tiny, " in capsys.readouterr().out
    assert not any(path.exists() for path in [*gone, kept]) and all(path.exists() for path in stays)


def test_gc_lists_first_and_frees_when_told(home: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    used = pack(home, pull(str(model), name="tiny").path)
    unused = pack(home, model)
    model.unlink()
    zeros = home / "packed" / f"{'a' * 16}-{'b' * 32}.pack"
    zeros.write_bytes(bytes(8192))
    assert run(["gc"]) == 0
    text = capsys.readouterr().out
    assert "is gone" in text and "damaged" in text and "imp gc --yes" in text and "kB" in text
    assert all(path.exists() for path in (used, unused, zeros))
    rows = listed(capsys)
    assert set(rows) == {unused.name, zeros.name} and all(row["bytes"] and not row["deleted"] for row in rows.values())
    assert run(["gc", "--yes"]) == 0
    assert "freed" in capsys.readouterr().out
    assert used.exists() and not unused.exists() and not zeros.exists()
    assert run(["gc"]) == 0
    assert "nothing to free" in capsys.readouterr().out


def test_gc_knows_every_kind(home: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pull(str(model), name="tiny")
    models = models_folder()
    for name in (".partial-cut", ".partial-running", ".old-tiny", "unreadable"):
        (models / name).mkdir()
        (models / name / "part.gguf").write_bytes(bytes(5000))
    (models / "unreadable" / MANIFEST).write_bytes(bytes(300))
    (home / "responses.sqlite.damaged-1").write_bytes(bytes(5000))
    packing, stopped = home / "packed" / "now.partial", home / "packed" / "old.partial"
    packing.parent.mkdir()
    for path in (packing, stopped):
        path.write_bytes(bytes(5000))
    os.utime(stopped, (1, 1))
    with (models / ".lock-running").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = listed(capsys)
    assert set(rows) == {".partial-cut", ".old-tiny", "unreadable", "responses.sqlite.damaged-1", "old.partial"}
    assert [pulled.name for pulled in pulled_models()] == ["tiny"]


def test_prefixes_of_unknown_models_are_found(home: Path, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    folder.mkdir()
    for name in (f"{'c' * 16}-{'d' * 32}.kv", f"{'c' * 16}-{'d' * 32}.states", "letter.txt"):
        (folder / name).write_bytes(bytes(5000))
    config = Config.from_plain({"prefix_cache": {"path": str(folder)}})
    assert sorted(each.path.suffix for each in leftovers(config)) == [".kv", ".states"]
    assert leftovers(Config()) == []


def test_doctor_counts_it(home: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack(home, model)
    run(["doctor", "--json", "--port", "0"])
    assert "no model uses" not in capsys.readouterr().out
    model.unlink()
    run(["doctor", "--json", "--port", "0"])
    found = [row["text"] for row in json.loads(capsys.readouterr().out) if row["topic"] == "disk"]
    assert any("1 thing that no model uses" in text and "imp gc" in text for text in found)


@pytest.mark.parametrize("damage", [bytes(300), b"", b'{"name": "tiny", ', b"[1, 2]", b"\xff\xfe"])
def test_a_damaged_catalogue_entry_says_what_to_do(
    model: Path, damage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    pulled = pull(str(model), name="tiny")
    (pulled.folder / MANIFEST).write_bytes(damage)
    assert run(["ls"]) == 0
    capsys.readouterr()
    assert run(["show", "tiny"]) != 0
    assert "imp rm tiny" in capsys.readouterr().err
    assert run(["rm", "tiny"]) == 0
    assert run(["pull", str(model), "--as", "tiny", "--yes"]) == 0
    assert find_pulled("tiny") is not None
