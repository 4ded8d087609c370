"""Which models a server of several has: files of a folder, sections of a preset file, what was fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from imp_server.api.model_host import ModelHost
from imp_server.cli._several_models import DiskCatalogue
from imp_server.config import Config
from imp_server.config.load import load
from imp_server.config.presets import serves_several
from imp_server.core import ConfigError, InvalidRequest
from imp_server.engine.client.scripted import ScriptedEngine
from imp_server.weights.manifest import write_manifest

from tests.api.byte_text import ByteText


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty catalogue."""
    monkeypatch.setenv("IMP_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "models"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "models"
    path.mkdir()
    for name in "abc":
        (path / f"{name}.gguf").write_bytes(b"GGUF" + b"x" * 96)
    return path


def catalogue(folder: Path | None, preset: str = "", **knobs: Any) -> DiskCatalogue:
    flags = {"router.models_dir": [str(folder)]} if folder else {}
    if preset:
        assert folder is not None
        file = folder.parent / "models.ini"
        file.write_text(preset)
        flags["router.models_preset"] = [str(file)]
    flags |= {name.replace("__", "."): [str(value)] for name, value in knobs.items()}
    return DiskCatalogue(load(flags), make_engine=lambda *_: ScriptedEngine(ByteText().vocabulary))


def hosts(*args: Any, **knobs: Any) -> dict[str, ModelHost]:
    return {host.id: host for host in catalogue(*args, **knobs).hosts()}


def fetched(home: Path, name: str) -> None:
    place = home / name
    place.mkdir(parents=True)
    (place / "x.gguf").write_bytes(b"GGUF")
    write_manifest(place, name, "pypi:x", "x.gguf", {"x.gguf": "0" * 64})


def test_when_there_are_several() -> None:
    several = Config.of({"router.models_dir": "d"})
    assert serves_several(several, None) and not serves_several(several, "smollm2")
    assert not serves_several(Config(), None)
    preset = Config.of({"router.models_preset": "f"})
    assert serves_several(preset, None)
    with pytest.raises(ConfigError, match="leave MODEL out"):
        serves_several(preset, "smollm2")


def test_a_folder_of_files(folder: Path, home: Path) -> None:
    fetched(home, "pulled")
    found = hosts(folder)
    assert list(found) == ["a", "b", "c", "pulled"]
    assert [host.source for host in found.values()] == ["folder"] * 3 + ["catalogue"]
    assert all(host.on_demand and host.rest == "unloaded" and not host.broken for host in found.values())
    assert found["a"].file_bytes == 100
    assert list(hosts(folder, router__catalogue=False)) == ["a", "b", "c"]
    assert list(hosts(home)) == ["pulled"]


def test_sections_have_names_and_knobs_of_their_own(folder: Path) -> None:
    text = (
        "[*]\ntop-k = 5\n[fast]\nmodel = a\nalias = quick,claude-*\ntags = x\nidle-unload-seconds = 9\n[c]\ntop-k = 6\n"
    )
    found = hosts(folder, text)
    assert list(found) == ["fast", "c", "b"]  # a is served as fast, and not a second time
    fast = found["fast"]
    assert (fast.aliases, fast.tags, fast.source) == (("quick", "claude-*"), ("x",), "preset")
    assert (fast.config.engine.idle_unload_s, fast.config.sampling.top_k) == (9, 5)
    assert found["b"].config.sampling.top_k == 5 and found["c"].config.sampling.top_k == 6


def test_what_is_broken_is_listed_and_says_why(folder: Path) -> None:
    found = hosts(folder, "[bad]\nmodel = a\nmax-sqe-len = 1\n[gone]\nmodel = nowhere\n[smollm2]\n")
    assert "max-sqe-len" in found["bad"].broken
    assert "no model nowhere" in found["gone"].broken
    assert "isn't here yet" in found["smollm2"].broken
    assert not found["b"].broken


def test_room(folder: Path) -> None:
    assert catalogue(folder).room.n_models == 4 and catalogue(folder).room.n_bytes > 0
    room = catalogue(folder, router__models_max=0, router__memory_mib=3).room
    assert (room.n_models, room.n_bytes) == (0, 3 << 20)


def test_what_a_client_may_have_fetched(folder: Path) -> None:
    found = catalogue(folder)
    assert found.checked("smollm2") == "smollm2" and found.checked("org/repo:Q4_0") == "hf:org/repo:Q4_0"
    assert found.fetch_command("org/repo")[-1] == "hf:org/repo"
    for name in ("/etc/passwd", "../x", "./a.gguf", "~/x", "a.gguf", str(folder / "a.gguf"), "x", ""):
        with pytest.raises(InvalidRequest, match="nothing that can be fetched"):
            found.checked(name)


def test_what_is_no_start(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        catalogue(folder / "nowhere")
    with pytest.raises(ConfigError, match="--alias"):
        catalogue(folder, model__alias="x")
