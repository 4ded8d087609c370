"""Pulling from a hub: choice of files, resume, digests, parallel files, and every refusal in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from imp_server.core import InvalidModel, ModelFileMissing
from imp_server.weights.catalogue import find_pulled, folder_name, pulled_models
from imp_server.weights.pull import pull

from tests.weights.hub_double import COMMIT, Hub, serving

BIG = os.urandom(3 << 20)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IMP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "home"


def repo(**changes: object) -> Hub:
    files = {
        "README.md": b"hello\n",
        "tiny-Q4_K_M-00001-of-00002.gguf": BIG,
        "tiny-Q4_K_M-00002-of-00002.gguf": b"second" * 1000,
        "tiny-Q8_0.gguf": b"eight" * 999,
        "mmproj-tiny-f16.gguf": b"eyes" * 10,
        "mtp-tiny-Q4_K_M.gguf": b"heads" * 10,
    }
    return Hub("org/tiny-GGUF", files, frozenset(name for name in files if name.endswith(".gguf")), **changes)  # type: ignore[arg-type]


def test_the_preferred_file_with_its_parts_and_sidecars() -> None:
    hub = repo()
    told: list[tuple[str, int, int]] = []
    with serving(hub) as url:
        pulled = pull("hf:org/tiny-GGUF", lambda *p: told.append(p), endpoint=url)
    assert pulled.name == "hf:org/tiny-GGUF" and pulled.path.name == "tiny-Q4_K_M-00001-of-00002.gguf"
    assert {file.path for file in pulled.manifest.files} == set(hub.files) - {"README.md", "tiny-Q8_0.gguf"}
    for file in pulled.manifest.files:
        assert (pulled.folder / file.path).read_bytes() == hub.files[file.path]
    assert {path.name for path in pulled.folder.iterdir()} == {f.path for f in pulled.manifest.files} | {"imp.json"}
    for name in (file.path for file in pulled.manifest.files):
        assert max(done for told_name, done, _ in told if told_name == name) == len(hub.files[name])


def test_here_already_means_no_request() -> None:
    with serving(repo()) as url:
        first = pull("hf:org/tiny-GGUF:Q8_0", endpoint=url)
    again = pull("org/tiny-GGUF:Q8_0", endpoint="http://127.0.0.1:9")
    assert again.path == first.path and first.path.name == "tiny-Q8_0.gguf"


def test_several_files_at_once() -> None:
    hub = repo()
    hub.files |= {f"part{i}.safetensors": os.urandom(1 << 20) for i in range(4)} | {"config.json": b"{}"}
    hub.files = {name: data for name, data in hub.files.items() if not name.endswith(".gguf")}
    hub.hold_s = 0.1
    with serving(hub) as url:
        pulled = pull("hf://org/tiny-GGUF", endpoint=url)
    assert pulled.path == pulled.folder and len(pulled.manifest.files) == 5
    assert hub.busiest > 1


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1 << 18)


@pytest.mark.usefixtures("small_chunks")
def test_a_cut_connection_goes_on_where_it_stopped() -> None:
    hub = repo(cut_after={"tiny-Q8_0.gguf": 1 << 20})
    hub.files["tiny-Q8_0.gguf"] = BIG
    with serving(hub) as url:
        pulled = pull("hf:org/tiny-GGUF:Q8_0", endpoint=url)
    assert pulled.path.read_bytes() == BIG
    assert [wanted for name, wanted in hub.ranges if name == "tiny-Q8_0.gguf"] == ["", f"bytes={1 << 20}-"]


@pytest.mark.usefixtures("small_chunks")
def test_a_second_pull_goes_on_where_the_first_was_stopped() -> None:
    hub = repo()
    hub.files["tiny-Q8_0.gguf"] = BIG

    def stop(file: str, done: int, total: int) -> None:
        if done >= 1 << 20:
            raise KeyboardInterrupt

    with serving(hub) as url:
        with pytest.raises(KeyboardInterrupt):
            pull("hf:org/tiny-GGUF:Q8_0", stop, endpoint=url)
        assert pulled_models() == []
        pulled = pull("hf:org/tiny-GGUF:Q8_0", endpoint=url)
    assert pulled.path.read_bytes() == BIG
    first, second = [wanted for name, wanted in hub.ranges if name == "tiny-Q8_0.gguf"]
    assert first == "" and int(second.removeprefix("bytes=").removesuffix("-")) >= 1 << 19


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    "part", [bytes(1 << 20), bytes(len(BIG)), BIG + b"more", b""], ids=["cut", "whole", "long", "empty"]
)
def test_a_damaged_part_is_fetched_again(home: Path, part: bytes) -> None:
    """A power cut may leave zeros where the first half of a file was, or the whole of it."""
    hub = repo()
    hub.files["tiny-Q8_0.gguf"] = BIG
    left = home / "models" / f".partial-{folder_name('hf:org/tiny-GGUF:Q8_0')}" / "tiny-Q8_0.gguf"
    left.parent.mkdir(parents=True)
    left.write_bytes(part)
    with serving(hub) as url:
        pulled = pull("hf:org/tiny-GGUF:Q8_0", endpoint=url)
    assert pulled.path.read_bytes() == BIG


@pytest.mark.parametrize("name", ["tiny-Q8_0.gguf", "config.json"])
def test_a_wrong_digest_is_refused_and_nothing_appears(name: str) -> None:
    hub = repo(corrupt=frozenset({name}))
    hub.files["config.json"] = b'{"a": 1}'
    with serving(hub) as url, pytest.raises(InvalidModel, match="expected") as caught:
        pull(f"hf:org/tiny-GGUF:{name}", endpoint=url)
    assert name in caught.value.message and caught.value.exit_code == 5
    assert pulled_models() == []


def test_refusals_are_one_line() -> None:
    with serving(repo()) as url:
        with pytest.raises(ModelFileMissing, match="has no Q5_0; it has Q4_K_M, Q8_0"):
            pull("hf:org/tiny-GGUF:Q5_0", endpoint=url)
        with pytest.raises(ModelFileMissing, match="hf:org/other doesn't exist"):
            pull("hf:org/other", endpoint=url)
    with pytest.raises(ModelFileMissing, match="can't reach the Hugging Face hub") as caught:
        pull("hf:org/tiny-GGUF", endpoint="http://127.0.0.1:9")
    assert "\n" not in caught.value.message and caught.value.exit_code == 4


def test_a_revision_is_pinned_to_its_commit() -> None:
    hub = repo()
    with serving(hub) as url:
        pulled = pull("hf:org/tiny-GGUF:Q8_0", revision="v1", name="mine", endpoint=url)
    assert pulled.manifest.source == "hf:org/tiny-GGUF:Q8_0@v1" and len(COMMIT) == 40
    assert find_pulled("mine") is not None
