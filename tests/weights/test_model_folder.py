"""Which models lie in a folder, by their places alone."""

from __future__ import annotations

from pathlib import Path

from imp_server.weights.manifest import write_manifest
from imp_server.weights.model_folder import models_in


def put(path: Path, size: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def test_files_and_folders(tmp_path: Path) -> None:
    put(tmp_path / "b.gguf", 5)
    put(tmp_path / "a.GGUF")
    for part in (1, 2, 3):
        put(tmp_path / f"split-0000{part}-of-00003.gguf", 10 * part)
    put(tmp_path / "own" / "weights-Q4.gguf", 7)
    put(tmp_path / "own" / "mmproj-own.gguf")
    put(tmp_path / "hf" / "config.json")
    put(tmp_path / "hf" / "model.safetensors", 20)
    for ignored in ("mmproj-b.gguf", "mtp-b.gguf", "notes.txt", ".hidden.gguf", ".partial-x/c.gguf", "empty/readme"):
        put(tmp_path / ignored)
    found = {model.name: model for model in models_in(tmp_path)}
    assert list(found) == ["a", "b", "hf", "own", "split"]
    assert found["split"].path == tmp_path / "split-00001-of-00003.gguf"
    assert found["own"].path == tmp_path / "own" / "weights-Q4.gguf" and found["hf"].path == tmp_path / "hf"
    assert [found[name].file_bytes for name in ("b", "split", "own", "hf")] == [5, 60, 7, 24]
    assert not any(model.is_pulled for model in found.values())


def test_the_catalogue_is_such_a_folder(tmp_path: Path) -> None:
    put(tmp_path / "hf+org+repo" / "file.gguf", 9)
    write_manifest(tmp_path / "hf+org+repo", "hf:org/repo", "hf:org/repo", "file.gguf", {"file.gguf": "0" * 64})
    (model,) = models_in(tmp_path)
    assert (model.name, model.file_bytes, model.is_pulled) == ("hf:org/repo", 9, True)
    assert model.path == tmp_path / "hf+org+repo" / "file.gguf"


def test_no_folder_holds_nothing(tmp_path: Path) -> None:
    assert models_in(tmp_path / "nowhere") == []
