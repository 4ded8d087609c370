"""Taking files of this machine into the catalogue."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from imp_server.core import ConfigError, InvalidModel, ModelFileMissing, UnsupportedModel
from imp_server.weights import pull_local
from imp_server.weights.catalogue import find, find_pulled, folder_name, pulled_models, remove
from imp_server.weights.manifest import sha256_of
from imp_server.weights.pull import pull


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IMP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "files" / "small.gguf"
    path.parent.mkdir()
    path.write_bytes(os.urandom(5 << 20))
    return path


def test_a_file_is_copied_checked_and_found_by_name(model: Path) -> None:
    pulled = pull(str(model))
    assert pulled.name == "small" and pulled.path.read_bytes() == model.read_bytes()
    assert pulled.manifest.files[0].sha256 == sha256_of(model)
    model.unlink()
    wanted = find("small")
    assert wanted is not None and wanted.local == pulled.path
    assert [entry.name for entry in pulled_models()] == ["small"]
    assert remove("small") > 5 << 20
    assert pulled_models() == [] and find_pulled("small") is None
    with pytest.raises(ModelFileMissing, match="not among"):
        remove("small")


def test_parts_and_sidecars_come_along(tmp_path: Path) -> None:
    for name in ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "mtp-m.gguf", "other.gguf"):
        (tmp_path / name).write_bytes(name.encode())
    pulled = pull(str(tmp_path / "m-00002-of-00002.gguf"), name="m")
    assert {f.path for f in pulled.manifest.files} == {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "mtp-m.gguf"}
    assert pulled.path.name == "m-00001-of-00002.gguf"
    (tmp_path / "m-00001-of-00002.gguf").unlink()
    with pytest.raises(ModelFileMissing, match=r"m-00001-of-00002\.gguf is missing"):
        pull(str(tmp_path / "m-00002-of-00002.gguf"), name="again")


def test_a_folder_needs_weights_and_a_config(tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"w")
    with pytest.raises(UnsupportedModel, match="no model"):
        pull(str(folder))
    for name in ("config.json", "tokenizer.json", "1_Pooling/config.json", "notes.txt"):
        (folder / name).write_text("{}")
    pulled = pull(str(folder))
    assert pulled.path == pulled.folder and pulled.name == "hf"
    assert {f.path for f in pulled.manifest.files} == {
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "1_Pooling/config.json",
    }


def test_an_interrupted_copy_goes_on(model: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(file: str, done: int, total: int) -> None:
        if done >= 2 << 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(str(model), stop)
    partial = home / "models" / f".partial-{folder_name('small')}" / "small.gguf"
    assert partial.stat().st_size >= 2 << 20 and pulled_models() == []
    told: list[int] = []
    pulled = pull(str(model), lambda file, done, total: told.append(done))
    assert told[0] > 2 << 20, "the first two MiB are not copied again"
    assert pulled.path.read_bytes() == model.read_bytes()
    assert pulled.manifest.files[0].sha256 == sha256_of(model)


@pytest.mark.parametrize(
    "damage", [lambda d: bytes(len(d)), lambda d: d + b"more", lambda d: d[:-1] + b"?", lambda _: b""]
)
def test_a_damaged_part_of_a_copy_is_written_again(
    model: Path, home: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes]
) -> None:
    """A power cut may leave zeros, or more than the source has."""

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as cutting:
        cutting.setattr(os, "fsync", stop)
        with pytest.raises(KeyboardInterrupt):
            pull(str(model))
    part = home / "models" / ".partial-small" / "small.gguf"
    part.write_bytes(damage(model.read_bytes()[: 3 << 20]))
    pulled = pull(str(model))
    assert pulled.path.read_bytes() == model.read_bytes()
    assert pulled.manifest.files[0].sha256 == sha256_of(model)


def test_a_changed_source_is_copied_from_the_beginning(model: Path, home: Path) -> None:
    def stop(file: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(str(model), stop)
    model.write_bytes(os.urandom(5 << 20))
    assert pull(str(model)).path.read_bytes() == model.read_bytes()


def test_two_pulls_at_once_make_one_copy(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[tuple[Any, ...]] = []
    real = pull_local._copy

    def noted(*given: Any) -> Any:
        copies.append(given)
        return real(*given)

    monkeypatch.setattr(pull_local, "_copy", noted)
    threads = [threading.Thread(target=pull, args=(str(model),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(copies) == 1 and len(pulled_models()) == 1


def test_damage_is_noticed_by_size(model: Path) -> None:
    pulled = pull(str(model))
    pulled.path.write_bytes(b"cut")
    with pytest.raises(InvalidModel, match="has 3 bytes instead of"):
        find("small")
    remove("small")
    assert pull(str(model)).path.stat().st_size == 5 << 20


def test_names_of_known_models_are_not_taken(model: Path) -> None:
    with pytest.raises(ConfigError, match="known model"):
        pull(str(model), name="smollm2")
    with pytest.raises(ConfigError, match="--as"):
        pull(str(model.rename(model.with_name("minilm.gguf"))))


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc/self/status").exists(), reason="root may write anywhere")
def test_an_unwritable_cache_is_one_line(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("IMP_HOME", str(blocked / "home"))
    with pytest.raises(ConfigError, match=r"can't write .*set IMP_HOME") as caught:
        pull(str(model))
    assert "\n" not in caught.value.message and caught.value.exit_code == 1
    if os.geteuid() != 0:
        locked = tmp_path / "locked"
        locked.mkdir()
        locked.chmod(stat.S_IRUSR | stat.S_IXUSR)
        monkeypatch.setenv("IMP_HOME", str(locked))
        with pytest.raises(ConfigError, match="permission denied"):
            pull(str(model))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("./gone.gguf", "no model file"),
        ("/gone", "no model file"),
        ("smollm3", "did you mean smollm2"),
        ("xyz", "known"),
    ],
)
def test_names_that_lead_nowhere(name: str, part: str) -> None:
    with pytest.raises(ModelFileMissing, match=part) as caught:
        find(name)
    assert caught.value.exit_code == 4


def test_none_and_the_default(tmp_path: Path) -> None:
    assert find("none") is None
    wanted = find("")
    assert wanted is not None and wanted.name == "smollm2" and wanted.local is None
    (tmp_path / "x.gguf").write_bytes(b"")
    inside = find("x", str(tmp_path))
    assert inside is not None and inside.local == tmp_path / "x.gguf"


def test_folder_names_differ_where_names_differ() -> None:
    names = ["hf:a/b", "hf:a/b:c", "hf+a+b", "a b", "a=20=b", "ä", "..", "a/../b"]
    folders = {folder_name(name) for name in names}
    assert len(folders) == len(names)
    assert all(("/" not in name and not name.startswith("..")) or name == ".." for name in folders)
