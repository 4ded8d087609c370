"""What an engine process is told of the configuration: its own sections, no key, and nothing by the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from imp_server.config import Config, EngineConfig, child_environment
from imp_server.config.knobs import Knob, knobs
from imp_server.engine.client.process import ProcessEngine
from imp_server.engine.messages import Start, decode_to_engine, encode

WORD = "s3cr3t-that-nobody-may-read"


def sent(config: Config) -> bytes:
    return encode(ProcessEngine("a/model.gguf", "m", config)._start_message)


def takes_any_text(knob: Knob) -> bool:
    return knob.kind in (str, tuple) and not knob.choices


@pytest.mark.parametrize("knob", [k for k in knobs().values() if takes_any_text(k)], ids=lambda knob: knob.key)
def test_no_text_of_another_section_reaches_the_engine(knob: Knob) -> None:
    value: Any = (WORD,) if knob.kind is tuple else WORD
    is_told = WORD.encode() in sent(Config.of({knob.key: value}))
    its_own = knob.section in EngineConfig.__struct_fields__ and knob.key != "model.path"
    assert is_told == (its_own or knob.key == "router.models_dir")
    assert not (is_told and knob.secret)


def test_keys_are_among_what_was_tried() -> None:
    secret = {knob.key for knob in knobs().values() if knob.secret}
    assert "server.api_key" in secret and all(takes_any_text(knobs()[key]) for key in secret)


def test_what_the_engine_needs_arrives() -> None:
    values = {"cpu.threads": 3, "kv_cache.size_mib": 7, "server.max_input_tokens": 11, "router.models_dir": "d"}
    start = decode_to_engine(sent(Config.of(values))[4:])
    assert isinstance(start, Start) and start.model_path == b"a/model.gguf"
    told = start.config
    assert (told.cpu.threads, told.kv_cache.size_mib, told.max_input_tokens, told.models_dir) == (3, 7, 11, "d")
    assert told == Config.of(values).for_engine()


def test_a_path_that_is_no_text_arrives() -> None:
    path = os.fsdecode(b"caf\xe9.gguf")
    start = decode_to_engine(encode(ProcessEngine(path, "m", Config.of({"model.path": path}))._start_message)[4:])
    assert isinstance(start, Start) and os.fsdecode(start.model_path) == path


def test_children_inherit_no_knob_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IMP_API_KEY", "IMP_SET", "IMP_PORT", "LLAMA_API_KEY", "IMP_HOME", "HF_HOME"):
        monkeypatch.setenv(name, WORD)
    code = f"import os; print(sorted(name for name, value in os.environ.items() if value == {WORD!r}))"
    told = subprocess.run([sys.executable, "-S", "-c", code], env=child_environment(), capture_output=True, text=True)
    assert told.stdout.strip() == "['HF_HOME', 'IMP_HOME']"
