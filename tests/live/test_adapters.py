"""Adapters in a real server: chosen per request or for all, kept through sleep, and never mixed up in the cache."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live.served_model import serving, write_model
from tests.live.test_several_models import memory_mib
from tests.models.tiny_gguf import write_tiny_lora

PROMPT = "How are you today? " * 4


def completion(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    body = {"prompt": PROMPT, "n_predict": 12, "temperature": 0, "n_probs": 1, **fields}
    found: dict[str, Any] = http.post("/completion", json=body).raise_for_status().json()
    return found


def answer(http: httpx.Client, **fields: Any) -> list[tuple[int, float]]:
    """Ids and the bits of their logprobs."""
    found = completion(http, **fields)["completion_probabilities"]
    return [(one["id"], one["logprob"]) for one in found]


def scales(http: httpx.Client) -> list[float]:
    return [one["scale"] for one in http.get("/lora-adapters").raise_for_status().json()]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return write_model(folder), write_tiny_lora(folder / "loud.gguf"), write_tiny_lora(folder / "second.gguf")


@pytest.mark.timeout(120)
def test_adapters_and_sleep(paths: tuple[Path, Path, Path]) -> None:
    model, loud, second = paths
    options = ("--lora", f"other={second}", "--lora-scaled", f"{loud}:0.5", "--no-cpu-pack-cache")
    with (
        serving(model, *options, "--kv-cache-size-mib", "16") as (url, pid),
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        assert http.get("/lora-adapters").json() == [
            {"id": 0, "path": str(second), "scale": 0.0, "task_name": "", "prompt_prefix": "", "name": "other"},
            {"id": 1, "path": str(loud), "scale": 0.5, "task_name": "", "prompt_prefix": "", "name": "loud"},
        ]
        choices = {
            "bare": [{"id": 1, "scale": 0}],
            "half": [{"id": 1, "scale": 0.5}],
            "whole": [{"id": 1, "scale": 1}],
            "other": [{"id": 0, "scale": 1.0}],
            "both": [{"id": 0, "scale": 1.0}, {"id": 1, "scale": 1.0}],
        }
        alone = {name: answer(http, lora=lora, cache_prompt=False) for name, lora in choices.items()}
        assert len({str(one) for one in alone.values()}) == len(choices)
        with ThreadPoolExecutor(5) as pool:  # in one batch, and each from what only its like has cached
            for _ in range(2):
                asked = {name: pool.submit(answer, http, lora=lora) for name, lora in choices.items()}
                assert {name: one.result() for name, one in asked.items()} == alone
        assert answer(http) == answer(http, lora=[]) == alone["half"]
        _routes_of_openai(http)
        _changes_and_sleeps(http, pid, alone)


def _routes_of_openai(http: httpx.Client) -> None:
    def text(lora: Any, path: str = "/v1/completions") -> Any:
        body = {"model": "m", "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "lora": lora}
        reply = http.post(path, json=body)
        return reply.json()["choices"][0]["text"] if reply.status_code == 200 else reply.json()["error"]

    assert text("loud") == text([{"id": 1, "scale": 1}]) == completion(http, lora=[{"id": 1, "scale": 1}])["content"]
    assert text("other") == text([{"id": 0, "scale": 1}]) != text(None)
    assert text("nobody")["code"] == "lora_not_loaded" and "'nobody'" in text("nobody")["message"]
    assert text([{"id": 7, "scale": 1}])["code"] == "lora_not_loaded"


def _changes_and_sleeps(http: httpx.Client, pid: int, alone: dict[str, Any]) -> None:
    wrong = http.post("/lora-adapters", json=[{"id": 2, "scale": 1}])
    assert wrong.status_code == 400 and wrong.json()["error"]["code"] == "lora_not_found"
    assert scales(http) == [0.0, 0.5], "nothing of what is wrong was done"
    assert http.post("/lora-adapters", json=[{"id": 1, "scale": 1.0}]).json() == {"success": True}
    assert scales(http) == [0.0, 1.0] and answer(http) == alone["whole"]
    asleep = []
    for _ in range(3):
        assert http.post("/admin/suspend").status_code == 200
        assert scales(http) == [0.0, 1.0]
        asleep.append(memory_mib(pid))
        assert http.post("/admin/resume").status_code == 200
        assert answer(http) == alone["whole"]
    assert asleep[-1] < asleep[0] + 8, asleep
    http.post("/lora-adapters", json=[]).raise_for_status()
    assert scales(http) == [0.0, 0.0] and answer(http) == alone["bare"]
