"""`imp bench` on a tiny model: every figure is there, and the JSON says what ran."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from imp_server.cli.main import run

from tests.models.tiny_gguf import write_tiny_llama


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("IMP_HOME", str(tmp_path / "home"))
    path = tmp_path / "tiny.gguf"
    write_tiny_llama(path)
    sizes = ["--prompt-tokens", "20", "--tokens", "4", "--streams", "3", "--rounds", "2"]
    return ["bench", str(path), *sizes]


def test_json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*arguments, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["loop"] == "EngineLoop" and said["speculation"] == "off"
    assert [r["scenario"] for r in said["results"]] == ["decode, 1 stream", "prefill 20", "3 streams"]
    compute = said["compute"]
    assert 0 < compute["gops"] < compute["ceiling_gops"] and compute["peak_gops"] > 0
    for result in said["results"]:
        assert result["low"] <= result["tokens_per_s"] <= result["high"]
        assert result["host_us_per_step"] > 0 and result["n_drafted"] == 0


def test_text(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    out = capsys.readouterr().out
    table = out.splitlines()[-4:]
    assert table[0].split() == ["RUN", "TOKENS/S", "LOW-HIGH", "GB/S", "SHARE", "HOST", "US/STEP", "DRAFTS"]
    assert [line[:16].strip() for line in table[1:]] == ["decode, 1 stream", "prefill 20", "3 streams"]
    assert all(line.endswith("none") and "%" in line for line in (table[1], table[3]))
    assert max(map(len, table)) < 80 and "quantisation" in out
    assert re.search(r"^compute +\d+ GOP/s in the prefill: \d+% of \d+", out, re.MULTILINE)
