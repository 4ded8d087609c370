"""Templates and tokenizers of strangers' model files: the same words as here, and a 400 where they never end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from imp_server.config import Config
from imp_server.core import ContextLengthExceeded, InvalidModel, InvalidRequest, TemplateRefused, TemplateTooCostly
from imp_server.text import model_workers
from imp_server.text.model import TextModel
from imp_server.text.model_workers import WARM_UP, ModelWorkers, RemoteEncoder
from imp_server.text.template import ChatTemplate
from imp_server.text.templates import builtin_templates, is_ours
from imp_server.vocab.encoder import LibraryEncoder
from imp_server.vocab.from_json import tokenizer_of_json
from imp_server.vocab.known_steps import steps_are_known
from imp_server.vocab.pre_kinds import PRE_KINDS
from imp_server.weights.header import read_header
from imp_server.workers.client import Workers
from imp_server.workers.wire import JobLimits

from tests.models.tiny_gguf import write_tiny_llama
from tests.text.asking import chat, message
from tests.text.hostile_templates import DOUBLING, TOKENIZERS, sequence, split, tokenizer_file
from tests.toy import CHATML, byte_tokenizer

QUICK = JobLimits(cpu_s=0.3, memory_bytes=512 << 20)
CONTEXT = 16384
ENDLESS = (
    "{% if messages[0].content == 'stuck' %}"
    "{% for i in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}{% endif %}"
)
LIFTED = "tests.workers.some_jobs:without_budgets"
"""What else goes on for ever in the sandbox would be a fault of it."""


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    found = Workers((WARM_UP,))
    yield found
    found.close()


@pytest.fixture
def lifted() -> Iterator[Workers]:
    found = Workers((WARM_UP, LIFTED))
    yield found
    found.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_workers, "TEMPLATE_LIMITS", QUICK)
    monkeypatch.setattr(model_workers, "TOKENIZER_LIMITS", QUICK)


def model(workers: Workers, template: str, **config: Any) -> TextModel:
    own = ModelWorkers(workers)
    return TextModel(byte_tokenizer(), {"default": template}, Config.of(config), context_length=CONTEXT, workers=own)


def says(text: str) -> Any:
    return chat(message("user", text))


def test_prompts_are_the_same_here_and_there(workers: Workers) -> None:
    theirs = model(workers, CHATML + "{# not ours #}{{ bos_token }}")
    ours = TextModel(byte_tokenizer(), {"default": theirs.chat_template}, Config(), context_length=CONTEXT)
    assert theirs.workers is not None and theirs.workers.apart == {"template"} and ours.workers is None
    for text in ("hi", "Größe <|im_end|> 好", "x" * 3000, "\n"):
        request = says(text)
        assert theirs.prepare_chat(request, 1).request.digest == ours.prepare_chat(request, 1).request.digest
        assert theirs.apply_template(says("a")) == ours.apply_template(says("a"))
        assert theirs.count(says("b")) == ours.count(says("b"))
    assert theirs.prompts.default.traits == ours.prompts.default.traits


def test_refusals_have_the_templates_words(workers: Workers) -> None:
    refusing = model(workers, "{% if messages[0].content == 'no' %}{{ raise_exception('not this') }}{% endif %}ok")
    with pytest.raises(TemplateRefused, match="not this"):
        refusing.prepare_chat(says("no"), 1)
    assert refusing.apply_template(says("yes")) == "ok"
    with pytest.raises(InvalidModel, match="line 2"):
        model(workers, "a\n{% if %}")


@pytest.mark.usefixtures("quick")
def test_what_never_ends_is_a_400_and_the_next_one_is_served(lifted: Workers) -> None:
    stuck = model(lifted, ENDLESS + CHATML)
    assert stuck.apply_template(says("hi"))
    own = stuck.workers
    assert own is not None
    for n in range(1, 4):
        began = time.monotonic()
        with pytest.raises(TemplateTooCostly, match="'default'") as refused:
            stuck.prepare_chat(says("stuck"), 1)
        assert refused.value.status == 400 and time.monotonic() - began < 10
        assert own.killed == {"template": n, "tokenizer": 0}
        assert bool(own.trouble) == (n == 3)
    assert stuck.apply_template(says("hi")) and own.trouble == ""


def test_doubling_templates_are_asked_once(workers: Workers) -> None:
    began = time.monotonic()
    doubling = model(workers, DOUBLING[0])
    _ = doubling.prompts.default
    with pytest.raises(TemplateTooCostly):
        doubling.prepare_chat(says("hi"), 1)
    assert time.monotonic() - began < 30


def test_output_is_bounded_by_the_context(workers: Workers) -> None:
    most = 8 * CONTEXT
    wordy = model(workers, "{{ messages[0].content | replace('a', 'b' * 100) }}")
    assert len(wordy.apply_template(says("a" * (most // 100)))) <= most
    with pytest.raises(TemplateTooCostly, match=str(most)):
        wordy.apply_template(says("a" * (most // 100 + 1)))
    with pytest.raises(ContextLengthExceeded):
        wordy.apply_template(says("x" * (most + 2**20)))


def test_ours_run_here(workers: Workers) -> None:
    for source in builtin_templates().values():
        assert is_ours(source)
    assert not is_ours(CHATML)
    ours = model(workers, builtin_templates()["chatml"])
    assert ours.workers is not None and not ours.workers.apart
    assert isinstance(ours.prompts.default.template, ChatTemplate)


# --- tokenizers ---------------------------------------------------------------------------------


def written(tmp_path: Path, data: dict[str, Any]) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(data))
    return path


def test_which_files_are_known() -> None:
    assert steps_are_known(tokenizer_file())
    for kind in PRE_KINDS.values():
        steps = [split(p) for p in kind.patterns]
        steps.append({"type": "ByteLevel", "add_prefix_space": False, "use_regex": False})
        assert steps_are_known(tokenizer_file(pre_tokenizer=sequence("pretokenizers", steps)))
    for data in TOKENIZERS:
        assert not steps_are_known(data)


def test_ids_are_the_same_here_and_there(workers: Workers, tmp_path: Path) -> None:
    path = written(tmp_path, tokenizer_file(pre_tokenizer=split("[ab]+|.")))
    here = tokenizer_of_json(path, {}, foreign=LibraryEncoder.of_json)
    there = tokenizer_of_json(path, {}, foreign=ModelWorkers(workers).encoder)
    for text in ("", "abcab", "x" * 5000, "a b\n!~"):
        assert np.array_equal(here.encode(text), there.encode(text))
        assert here.n_ids_before(text, len(text) // 2) == there.n_ids_before(text, len(text) // 2)
    assert here.vocabulary.digest == there.vocabulary.digest
    with pytest.raises(InvalidModel, match="refuses it"):
        tokenizer_of_json(
            written(tmp_path, tokenizer_file(pre_tokenizer=split("("))), {}, foreign=ModelWorkers(workers).encoder
        )


@pytest.mark.parametrize("is_foreign", [True, False])
def test_a_model_that_is_loaded_has_its_own_tokenizer_apart(workers: Workers, tmp_path: Path, is_foreign: bool) -> None:
    path = written(tmp_path, tokenizer_file(pre_tokenizer=split("[ab]+|.")) if is_foreign else tokenizer_file())
    header = replace(
        read_header(write_tiny_llama(tmp_path / "m.gguf")), format="safetensors", tokenizer_json=path, tokenizer={}
    )
    loaded = TextModel.load(header, Config(), workers)
    assert loaded.workers is not None
    assert ("tokenizer" in loaded.workers.apart) is loaded.tokenizer.is_foreign is is_foreign
    assert isinstance(loaded.tokenizer._encoder, RemoteEncoder) is is_foreign
    loaded.workers.close()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("number", range(len(TOKENIZERS)))
def test_hostile_tokenizers_end(workers: Workers, tmp_path: Path, number: int) -> None:
    began = time.monotonic()
    path = written(tmp_path, TOKENIZERS[number])
    own = ModelWorkers(workers)

    def longer_and_longer() -> None:
        tokenizer = tokenizer_of_json(path, {}, foreign=own.encoder)
        for n in (20, 2000, 100_000):
            tokenizer.encode("x" * n)
            tokenizer.encode("x" * n + "z")

    with pytest.raises((InvalidRequest, InvalidModel)):
        longer_and_longer()
    assert time.monotonic() - began < 20
    own.close()
