"""`imp doctor` finds what there is and says what stands in the way."""

from __future__ import annotations

import json
import os
import socket
from importlib import util
from pathlib import Path

import msgspec
import pytest
from imp_server.backends.cuda.proof.kept import KeptVerdict, KernelVerdict
from imp_server.cli import _machine
from imp_server.cli import doctor as doctor_module
from imp_server.cli.main import run
from imp_server.config import Config


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IMP_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(_machine, "BANDWIDTH_SECONDS", 0.0)
    monkeypatch.setattr(_machine, "BANDWIDTH_BUFFER_BYTES", 1 << 20)


def examine(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    code = run(["doctor", "--json", *arguments])
    topics: dict[str, list[dict[str, str]]] = {}
    for finding in json.loads(capsys.readouterr().out):
        topics.setdefault(finding["topic"], []).append(finding)
    return code, topics


def test_every_topic_is_covered(capsys: pytest.CaptureFixture[str]) -> None:
    _, topics = examine(capsys, "--port", "0")
    wanted = {"imp", "packages", "extras", "cpu", "cores", "memory", "bandwidth", "native", "gpu", "disk", "model"}
    assert wanted | {"port"} <= set(topics)
    assert "GB/s" in topics["bandwidth"][0]["text"]
    assert "imp pull smollm2" in topics["model"][0]["text"]


def test_a_gpu_without_a_backend_for_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(_machine, "gpus", lambda: ["Some Card, 24 GB"])
    monkeypatch.setattr(doctor_module, "exists", lambda name: name != "cuda")
    _, topics = examine(capsys, "--port", "0")
    assert "Some Card" in topics["gpu"][0]["text"] and "no GPU backend" in topics["gpu"][0]["text"]
    assert "cuda" not in topics["extras"][0]["text"]
    monkeypatch.setattr(doctor_module, "exists", lambda _: True)
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    found = doctor_module.gpu(Config())[0].text
    assert "--backend cuda" in found and "untried on real cards" in found and "pip install 'torch" in found


def test_what_is_known_of_cuda_kernels_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("IMP_HOME", str(tmp_path))
    monkeypatch.setattr(_machine, "gpus", lambda: ["Some Card, 24 GB"])
    assert len(doctor_module.gpu(Config())) == 1
    kept = KeptVerdict("Some Card, driver 1", "tiny.gguf", KernelVerdict(["norm"], {"embed": "off by 1"}, 3))
    (tmp_path / "kernels" / "verdicts").mkdir(parents=True)
    (tmp_path / "kernels" / "verdicts" / "1.json").write_bytes(msgspec.json.encode(kept))
    (finding,) = doctor_module.gpu(Config())[1:]
    assert finding.verdict == "note" and finding.text.startswith("tiny.gguf on Some Card, driver 1: kernels for 1 ")
    assert finding.text.endswith("; not embed: off by 1")


def test_the_same_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    run(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("imp       ") and any(line.startswith("bandwidth ") for line in lines)


def test_a_taken_port_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        _, topics = examine(capsys, "--port", str(taken.getsockname()[1]))
    assert topics["port"][0]["verdict"] == "note" and "--port" in topics["port"][0]["text"]


def test_what_stands_in_the_way_is_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, topics = examine(capsys, "--model", "./gone.gguf")
    assert code == 1 and topics["model"][0]["verdict"] == "bad"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("IMP_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(os, "access", lambda *_: False)
    code, topics = examine(capsys)
    assert code == 1 and "set IMP_HOME" in topics["disk"][0]["text"]


def test_no_library_and_no_torch_is_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor_module, "native_folder", lambda: tmp_path)
    _, topics = examine(capsys)
    assert topics["native"][0]["verdict"] == "note" and "reference backend" in topics["native"][0]["text"]
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    code, topics = examine(capsys)
    assert code == 1 and topics["native"][0]["verdict"] == "bad"


def test_bandwidth_is_a_speed() -> None:
    assert _machine.read_bandwidth(2, 0.01) > 1e7  # one pass, whose pages a busy machine may take seconds to give
