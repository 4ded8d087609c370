"""What a client asks for is said once on its way, and what nobody changes arrives as it was."""

from __future__ import annotations

import pytest
from imp_server.core import (
    AdapterUse,
    ChatRequest,
    GenerateRequest,
    GenerationOptions,
    OutputIntent,
    PromptRequest,
    SamplingIntent,
    SamplingParams,
)
from imp_server.core.chat import SETTABLE

from tests.asked import changed, made
from tests.text.asking import HI
from tests.toy import byte_model

ODD = GenerationOptions(2, 3, True, 1, 0.5, False, (AdapterUse("a"),), -7, 1, 4, 5)
"""No field as it is unless said."""


def fields(struct: type) -> set[str]:
    return set(struct.__struct_fields__)  # type: ignore[attr-defined]


def test_no_field_is_said_twice() -> None:
    assert fields(ChatRequest) & fields(PromptRequest) == {"model", "output", "sampling", "cache", "options"}
    parts = fields(GenerationOptions) | fields(OutputIntent)
    assert not parts & (fields(ChatRequest) | fields(PromptRequest) | fields(GenerateRequest))
    assert not fields(GenerationOptions) & fields(OutputIntent)
    assert fields(SamplingIntent) & fields(SamplingParams) == {"logit_bias", "min_tokens"}


def test_options_arrive_as_they_were() -> None:
    assert all(getattr(ODD, name) != getattr(GenerationOptions(), name) for name in fields(GenerationOptions))
    model = byte_model()
    chat, prompt = model.prepare_chat(changed(HI, options=ODD), 1), model.prepare_prompt(made(PromptRequest, ("a",)), 1)
    assert chat.request.options is ODD and prompt.request.options == GenerationOptions()
    assert model.prepare_prompt(PromptRequest(("a",), options=ODD), 1).request.options is ODD


def test_sampling_can_be_asked_what_its_law_has() -> None:
    assert {"temperature", "seed", "xtc_threshold"} <= set(SETTABLE) <= fields(SamplingParams)
    assert SamplingIntent({"top_k": 3}).asked["top_k"] == 3
    for name in ("temprature", "banned_ids", "min_tokens"):
        with pytest.raises(TypeError, match=name):
            SamplingIntent({name: 1})
