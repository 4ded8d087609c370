"""--log-requests and --log-prompts-dir: what is in the files, who may read them, and a disk that hangs or is full."""

from __future__ import annotations

import json
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from imp_server.api.driver import silence_s
from imp_server.api.reports.files import FileWriter, PromptFiles, RequestLog
from imp_server.config.load import load
from imp_server.core import ConfigError, EngineFaulted
from imp_server.engine.client.script import Action, Fail, Wait, text_ids

from tests.api.live_server import LiveServer
from tests.live.toy_server import toy_server

CHAT = "/v1/chat/completions"
SECRET = "zanzibar"


def chat(text: str = SECRET, **more: Any) -> dict[str, Any]:
    return {"model": "toy", "messages": [{"role": "user", "content": text}], "max_tokens": 8, **more}


@contextmanager
def serving(**settings: Any) -> Iterator[tuple[LiveServer, httpx.Client]]:
    dotted = {name.replace("__", "."): value for name, value in settings.items()}
    with toy_server(settings=dotted) as live, httpx.Client(base_url=live.url, timeout=20) as http:
        live.engine.always(*text_ids("answer"))
        yield live, http


def lines_of(file: Path, n: int) -> list[dict[str, Any]]:
    """The first `n` lines, once they are there."""
    end = time.monotonic() + 5
    while len(lines := file.read_text().splitlines()) < n:
        assert time.monotonic() < end, lines
        time.sleep(0.02)
    return [json.loads(line) for line in lines]


# --- a line for every request ---------------------------------------------------------------------


def test_a_line_for_every_request_and_no_word_of_prompts_and_answers(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "requests.jsonl"
    with serving(log__requests=str(file), server__api_key=("k",)) as (_live, http):
        http.headers["authorization"] = "Bearer k"
        made = http.post(CHAT, json=chat(), headers={"x-request-id": "mine"}).json()
        streamed = http.post(CHAT, json=chat(stream=True)).headers["x-request-id"]
        http.post(CHAT, json=chat(temperature=9))
        http.post(CHAT, json=chat(), headers={"authorization": "Bearer no"})
        http.get("/v1/models")
        http.get("/health")
        lines = lines_of(file, 5)
    assert len(lines) == 5, "probes have none"
    first, second, refused, stranger, models = lines
    assert first["request_id"] == made["id"] and first["client_request_id"] == "mine"
    assert (first["method"], first["path"], first["status"], first["outcome"]) == ("POST", CHAT, 200, "ok")
    assert (first["model"], first["client"], first["finish"]) == ("toy", "127.0.0.1", "stop")
    assert first["completion_tokens"] == 7 and first["prompt_tokens"] > 6 and first["cached_tokens"] == 0
    assert set(first["timings"]) == {"queue_ms", "prefill_ms", "decode_ms", "ttft_ms"}
    assert first["first_token_ms"] <= first["duration_ms"] < 5000 and abs(first["time"] - time.time()) < 60
    assert second["request_id"] == streamed and "client_request_id" not in second
    assert (refused["status"], refused["outcome"]) == (400, "rejected") and refused["code"]
    assert (stranger["status"], stranger["code"]) == (401, "invalid_api_key")
    assert models["path"] == "/v1/models"
    text = file.read_text()
    assert SECRET not in text and "answer" not in text and "Bearer" not in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_texts_are_there_if_they_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    with serving(log__requests=str(file), log__request_texts=True) as (_live, http):
        http.post(CHAT, json=chat("eins\n\U0001f600 zwei"))
        http.post("/v1/completions", json={"model": "toy", "prompt": ["one", "two"], "max_tokens": 4})
        first, second = lines_of(file, 2)
    assert "eins\n\U0001f600 zwei" in first["prompt"] and "<|im_start|>" in first["prompt"]
    assert first["response"] == "answer"
    assert second["prompt"] == ["one", "two"] and "answ" in second["response"]


def test_what_becomes_of_requests(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    with serving(log__requests=str(file)) as (live, http):
        live.engine.play(*text_ids("ab"), Fail(EngineFaulted("a step failed")))
        http.post(CHAT, json=chat(stream=True))
        live.engine.play(*text_ids("ab"), Fail(EngineFaulted("a step failed")))
        http.post(CHAT, json=chat())
        actions: list[Action] = [text_ids("x"), Wait(0.02)]
        live.engine.play(*actions * 200)
        with http.stream("POST", CHAT, json=chat(stream=True, max_tokens=500)) as stream:
            next(line for line in stream.iter_lines() if '"x"' in line)
        streamed, whole, left = lines_of(file, 3)
    assert (streamed["status"], streamed["outcome"]) == (200, "failed")
    assert (whole["status"], whole["outcome"]) == (500, "failed")
    assert left["outcome"] == "cancelled" and left["finish"] == "none" and left["completion_tokens"] >= 1


def test_the_file_may_be_moved_away(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    with serving(log__requests=str(file)) as (_live, http):
        http.post(CHAT, json=chat())
        lines_of(file, 1)
        file.rename(tmp_path / "requests.1")
        http.post(CHAT, json=chat())
        while not file.exists():
            time.sleep(0.02)
        assert len(lines_of(file, 1)) == 1


def test_a_file_that_cannot_be_written_is_an_error_at_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "requests.jsonl"):
        with pytest.raises(ConfigError, match="--log-requests"):
            RequestLog(str(path), FileWriter())


def test_a_disk_that_hangs_costs_lines_and_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    door = threading.Event()
    monkeypatch.setattr(RequestLog, "_append", lambda *_: door.wait(20))
    monkeypatch.setattr("imp_server.api.reports.files._MOST_BYTES", 2000)
    door.set()
    with serving(log__requests=str(tmp_path / "requests.jsonl")) as (live, http):
        door.clear()
        begun = time.monotonic()
        for _ in range(20):
            assert http.post(CHAT, json=chat()).status_code == 200
        assert time.monotonic() - begun < 4
        writer = live.services.reports._writer
        assert 0 < writer._n_bytes <= 2000
        door.set()
        end = time.monotonic() + 5
        while writer._n_bytes:
            assert time.monotonic() < end
            time.sleep(0.02)


def test_a_full_disk_is_told_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    writer = FileWriter()

    def full() -> None:
        raise OSError(28, "No space left on device")

    for _ in range(5):
        writer.write(full, 10)
    writer.close()
    assert [r.getMessage() for r in caplog.records] == ["can't write about requests: No space left on device"]


# --- prompts --------------------------------------------------------------------------------------


def test_a_file_with_the_prompt_of_every_request_that_generates(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "prompts"
    with serving(log__prompts_dir=str(folder)) as (_live, http):
        for body in (chat(), chat(stream=True)):
            assert http.post(CHAT, json=body).status_code == 200
        http.post("/v1/completions", json={"model": "toy", "prompt": ["one", "zwei ü"], "max_tokens": 4})
        http.post("/v1/messages", json=chat())
        http.post("/v1/responses", json={"model": "toy", "input": SECRET})
        http.post("/completion", json={"prompt": "raw", "n_predict": 2})
        http.post("/v1/embeddings", json={"model": "toy", "input": "no"})
        http.post("/tokenize", json={"content": "no"})
        http.post(CHAT, json=chat(temperature=9))
    files = sorted(folder.iterdir())
    texts = [file.read_text() for file in files]
    assert len(files) == 6
    assert sum(f"user\n{SECRET}<|im_end|>" in text for text in texts) == 4
    assert json.loads(next(text for text in texts if text.startswith("["))) == ["one", "zwei ü"]
    assert "raw" in texts
    assert all(len(file.stem.partition("-")[0]) == 12 and file.suffix == ".txt" for file in files)
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_prompts_of_one_millisecond_have_names_of_their_own(tmp_path: Path) -> None:
    writer = FileWriter()
    for _ in range(2):  # another process, the same folder
        files = PromptFiles(str(tmp_path), writer, clock=lambda: 12.3456)
        for i in range(3):
            files.put([f"p{i}"])
    writer.close()
    found = {file.name: file.read_text() for file in tmp_path.iterdir()}
    more = {f"000000012345-{n}.txt": f"p{n % 3}" for n in range(1, 6)}
    assert found == {"000000012345.txt": "p0"} | more


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with serving(log__prompts_dir=str(tmp_path / "file" / "prompts")) as (_live, http):
        assert http.post(CHAT, json=chat()).status_code == 200
    told = [record.getMessage() for record in caplog.records if "log-prompts-dir" in record.getMessage()]
    assert len(told) == 1 and SECRET not in caplog.text


# --- silence --------------------------------------------------------------------------------------


def test_the_ping_interval_goes_by_llama_servers_name() -> None:
    for text, own_s in (("7", 7), ("0", 0), ("-1", 0)):
        config = load(flags={"streams.keep_alive_s": [text]}).config
        assert config.streams.keep_alive_s == own_s
        assert silence_s({}, config.streams.keep_alive_s) == own_s
