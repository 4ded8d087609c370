"""Files of strangers: read or refused, within bounds on time and memory, whatever their headers claim."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imp_server.core import InvalidModel
from imp_server.engine.model_files import open_with_tokenizer
from imp_server.vocab.from_json import tokenizer_of_json
from imp_server.weights.gguf import GgufFile
from imp_server.weights.safetensors import SafetensorsFile

from tests.models.tiny_gguf import write_tiny_llama
from tests.weights.hostile_files import gguf_files, judge, llama_files, safetensors_files, tokenizer_files

Read = Callable[[Path], object]


def encode_something(path: Path) -> object:
    tokenizer = tokenizer_of_json(path, {"bos_token": "a", "eos_token": {"content": "b"}}, eos_ids=(1, 2**40))
    return tokenizer.decode(tokenizer.encode("ab <s> é", control=True, add_special=True).tolist())


KINDS: dict[str, tuple[st.SearchStrategy[bytes], str, Read]] = {
    "gguf": (gguf_files(), "m.gguf", GgufFile),
    "llama": (llama_files(), "m.gguf", open_with_tokenizer),
    "safetensors": (safetensors_files(), "m.safetensors", SafetensorsFile),
    "tokenizer": (tokenizer_files(), "tokenizer.json", encode_something),
}


def run(kind: str, folder: Path, n_examples: int) -> Counter[str]:
    strategy, name, read = KINDS[kind]
    outcomes: Counter[str] = Counter()

    @settings(max_examples=n_examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(strategy)
    def each(raw: bytes) -> None:
        path = folder / name
        path.write_bytes(raw)
        outcomes[judge(lambda: read(path), len(raw))] += 1

    each()
    return outcomes


@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_file_is_read_or_refused(kind: str, tmp_path: Path) -> None:
    outcomes = run(kind, tmp_path, 50)
    assert sum(outcomes.values()) >= 50 and any(name != "ok" for name in outcomes), "some are refused"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_many_hostile_files(kind: str, tmp_path: Path) -> None:
    run(kind, tmp_path, 1500)


def test_a_vocabulary_that_cannot_write_what_it_does_not_know_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    model = {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]]}
    path.write_text(json.dumps({"version": "1.0", "model": model}))
    with pytest.raises(InvalidModel, match=r"tokenizer\.json: the tokenizers library refuses it: .*unk_id"):
        tokenizer_of_json(path, {})
    path.write_text(json.dumps({"version": "1.0", "added_tokens": True, "model": {**model, "unk_id": 0}}))
    with pytest.raises(InvalidModel, match=r"tokenizer\.json: a field has a value of the wrong kind"):
        tokenizer_of_json(path, {})


def test_more_layers_than_tensors_are_refused_before_they_are_made(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", keys={"block_count": 4096})
    with pytest.raises(InvalidModel, match=r"llama\.block_count' is 4096, not what 21 tensors can be"):
        open_with_tokenizer(path)


def test_the_judge_notices_what_it_is_for() -> None:
    def hold() -> Any:
        return bytearray(200 * 2**20)

    with pytest.raises(AssertionError, match="bytes held"):
        judge(hold, 10)
    with pytest.raises(ZeroDivisionError):
        judge(lambda: 1 / 0, 10)
    assert judge(lambda: json.loads("1"), 10) == "ok"
