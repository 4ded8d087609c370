"""Omitted parameters: the model's generation config, else its family's values, else ours."""

from __future__ import annotations

from typing import Any

import pytest
from imp_server.config import Config
from imp_server.core import ChatRequest, InvalidRequest, ReasoningIntent, SamplingIntent, SamplingParams, Tool
from imp_server.text.model import TextModel
from imp_server.text.plan import think_budget, think_wish
from imp_server.text.sampling_defaults import configured, default_sampling, sampling_params
from imp_server.text.thinking import ThinkTags

from tests.asked import sampling
from tests.toy import CHATML, byte_tokenizer


def params(intent: SamplingIntent, architecture: str = "", generation: dict[str, Any] | None = None) -> SamplingParams:
    return sampling_params(intent, default_sampling(architecture, generation or {}), end_ids=(7,), vocab_size=100)


def three(p: SamplingParams) -> tuple[float, float, int]:
    return p.temperature, p.top_p, p.top_k


def test_order() -> None:
    nothing = SamplingIntent()
    assert three(params(nothing)) == (0.7, 0.95, 40) and params(nothing).repetition_penalty == 1.0
    assert three(params(nothing, "qwen3")) == (0.6, 0.95, 20)
    config = {"temperature": 0.2, "top_k": 5, "repetition_penalty": 1.3, "do_sample": True, "top_p": None}
    assert three(params(nothing, "qwen3", config)) == (0.2, 0.95, 5)
    assert params(nothing, "qwen3", config).repetition_penalty == 1.3
    asked = sampling(temperature=0.0, top_k=0, repetition_penalty=1.0)
    assert three(params(asked, "qwen3", config)) == (0.0, 0.95, 0)
    assert params(asked, "qwen3", config).repetition_penalty == 1.0


def test_the_originals_penalty() -> None:
    assert default_sampling("", {}, original=True)["repetition_penalty"] == 1.05
    config = Config.of({"model.sampling_defaults": "original"})
    model = TextModel(byte_tokenizer(), {"default": CHATML}, config)
    assert model.sampling_defaults["repetition_penalty"] == 1.05


def test_every_field_arrives() -> None:
    values: dict[str, Any] = {
        "temperature": 0.1, "top_k": 2, "top_p": 0.3, "min_p": 0.4, "typical_p": 0.5, "presence_penalty": 0.6,
        "frequency_penalty": 0.7, "repetition_penalty": 0.8, "repeat_last_n": 9, "dry_multiplier": 1.0, "dry_base": 1.1,
        "dry_allowed_length": 12, "dry_penalty_last_n": 13, "mirostat": 2, "mirostat_tau": 1.4, "mirostat_eta": 1.5,
        "seed": 16, "dynatemp_range": 1.7, "dynatemp_exponent": 1.8, "top_n_sigma": 1.9, "xtc_probability": 0.2,
        "xtc_threshold": 0.21, "dry_sequence_breakers": ("x",),
    }  # fmt: skip
    made = params(sampling(**values))
    assert {name: getattr(made, name) for name in values} == values


def test_seeds() -> None:
    assert params(SamplingIntent()).seed != params(SamplingIntent()).seed
    assert params(sampling(seed=-1)).seed != params(sampling(seed=-1)).seed
    assert params(sampling(seed=-2)).seed == 2**64 - 2


def test_ignore_eos_and_bias() -> None:
    made = params(SamplingIntent(ignore_eos=True, logit_bias={9: 1.0, 3: -2.0}))
    assert made.banned_ids == (7,) and made.logit_bias == ((3, -2.0), (9, 1.0))
    with pytest.raises(InvalidRequest, match="100") as caught:
        params(SamplingIntent(logit_bias={100: 1.0}))
    assert caught.value.param == "logit_bias"


def test_what_the_server_was_started_with() -> None:
    config = Config.of({
        "sampling.temperature": 0.0,
        "sampling.top_k": 7,
        "sampling.top_p": 0.5,
        "sampling.repetition_penalty": 1.2,
        "sampling.presence_penalty": -0.5,
        "model.sampling_defaults": "original",
    })  # fmt: skip
    model = TextModel(byte_tokenizer(), {"default": CHATML}, config)
    made = sampling_params(SamplingIntent(), model.sampling_defaults, end_ids=(), vocab_size=9)
    assert (three(made), made.repetition_penalty, made.presence_penalty) == ((0.0, 0.5, 7), 1.2, -0.5)
    asked = sampling(temperature=0.9, presence_penalty=0.0)
    made = sampling_params(asked, model.sampling_defaults, end_ids=(), vocab_size=9)
    assert (made.temperature, made.presence_penalty, made.top_k) == (0.9, 0.0, 7)
    assert configured(default_sampling("qwen3", {}), Config().sampling) == default_sampling("qwen3", {})


def test_every_value_that_a_server_may_be_started_with() -> None:
    values = {
        "dry_multiplier": 1.0, "dry_base": 1.1, "dry_allowed_length": 12, "dry_penalty_last_n": 13, "repeat_last_n": 9,
        "mirostat": 1, "mirostat_tau": 1.4, "mirostat_eta": 1.5, "dynatemp_range": 1.7, "dynatemp_exponent": 1.8,
        "top_n_sigma": 1.9, "xtc_probability": 0.2, "xtc_threshold": 0.21,
    }  # fmt: skip
    config = Config.of({f"sampling.{name}": value for name, value in values.items()})
    model = TextModel(byte_tokenizer(), {"default": CHATML}, config)
    made = sampling_params(SamplingIntent(), model.sampling_defaults, end_ids=(), vocab_size=9)
    assert {name: getattr(made, name) for name in values} == values


def test_thinking_beside_tools_and_its_budget() -> None:
    tags, tools = ThinkTags("<think>", "</think>", "</think>"), (Tool("f", "", {}),)
    for knobs, on in (({}, False), ({"beside_tools": True}, True), ({"beside_tools": True, "budget_tokens": 0}, False)):
        reasoning = Config.of({f"reasoning.{name}": value for name, value in knobs.items()}).reasoning
        assert think_wish(ChatRequest((), tools=tools), reasoning, tags).on is on
    own = Config.of({"reasoning.budget_tokens": 7}).reasoning
    assert think_budget(ReasoningIntent(), own, 100) == 7
    assert think_budget(ReasoningIntent(budget_tokens=3), own, 100) == 3


def test_ids_that_end_and_ids_that_wait() -> None:
    made = params(SamplingIntent(min_tokens=3, stop_token_ids=(9,)))
    assert [made.banned_at(n) for n in (0, 2, 3)] == [(7, 9), (7, 9), ()]
    assert params(SamplingIntent(stop_token_ids=(9,))).banned_at(0) == ()
    ignoring = params(SamplingIntent(ignore_eos=True, stop_token_ids=(7,)))
    assert ignoring.banned_at(0) == (), "the end that is asked for by its id is still one"
    with pytest.raises(InvalidRequest, match="stop_token_ids names token 100"):
        params(SamplingIntent(stop_token_ids=(100,)))
