"""Omitted parameters: the model's generation config, else its family's values, else ours."""

from __future__ import annotations

from typing import Any

import pytest
from imp_server.config import Config
from imp_server.core import InvalidRequest, SamplingIntent, SamplingParams
from imp_server.text.model import TextModel
from imp_server.text.sampling_defaults import default_sampling, sampling_params

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
    asked = SamplingIntent(temperature=0.0, top_k=0, repetition_penalty=1.0)
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
    made = params(SamplingIntent(**values))
    assert {name: getattr(made, name) for name in values} == values


def test_seeds() -> None:
    assert params(SamplingIntent()).seed != params(SamplingIntent()).seed
    assert params(SamplingIntent(seed=-1)).seed != params(SamplingIntent(seed=-1)).seed
    assert params(SamplingIntent(seed=-2)).seed == 2**64 - 2


def test_ignore_eos_and_bias() -> None:
    made = params(SamplingIntent(ignore_eos=True, logit_bias={9: 1.0, 3: -2.0}))
    assert made.banned_ids == (7,) and made.logit_bias == ((3, -2.0), (9, 1.0))
    with pytest.raises(InvalidRequest, match="100") as caught:
        params(SamplingIntent(logit_bias={100: 1.0}))
    assert caught.value.param == "logit_bias"
