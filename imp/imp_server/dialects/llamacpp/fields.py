"""llama.cpp's forms of a prompt, of biases and of a number of choices, which OpenAI's routes take as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from imp_server.core import VisionUnavailable
from imp_server.dialects.handler import Call

Prompt = tuple[str | int, ...]
Bias = tuple[int | str, float]
"""(token id or text, value)."""

BANNED = -1e6
"""logit_bias `false`."""


def prompts_of(value: Any) -> list[Prompt]:
    """Text, an object, or a list with an id at its top is one prompt; any other list is several."""
    if isinstance(value, str):
        return [(value,)]
    if isinstance(value, dict):
        return [(_text_of(value),)]
    if any(not isinstance(item, str | list | dict) for item in value):
        return [tuple(item if isinstance(item, str) else int(item) for item in value)]
    return [prompt for item in value for prompt in prompts_of(item)]


def _text_of(prompt: Mapping[str, Any]) -> str:
    """Of a prompt with media, or of the parts of a message. Raises VisionUnavailable if it has any media."""
    if "content" in prompt:
        return "".join(part["text"] for part in prompt["content"])
    if prompt.get("multimodal_data"):
        raise VisionUnavailable("this model reads text only", param="prompt.multimodal_data")
    text: str = prompt["prompt_string"]
    return text


def choices_of(body: Mapping[str, Any]) -> int:
    """Completions per prompt, or answers of a chat."""
    return int(body.get("n_cmpl", body.get("n", 1)))


def bias_of(value: Any) -> list[Bias]:
    """A key of the object form is an id where it can be read as one."""
    if isinstance(value, dict):
        pairs: Sequence[Any] = [(int(key) if key.isdecimal() else key, bias) for key, bias in value.items()]
    else:
        pairs = [(item if isinstance(item, str) else int(item), bias) for item, bias in value or ()]
    return [(token, BANNED if bias is False else float(bias)) for token, bias in pairs]


async def bias_by_id(call: Call) -> dict[int, float]:
    """The call's logit_bias, texts resolved: every token of a text gets the text's value."""
    found: dict[int, float] = {}
    for token, value in bias_of(call.body.get("logit_bias")):
        if isinstance(token, int):
            found[token] = value
        else:
            ids = await call.services.tokenize(call.model, [token], add_special=False, parse_special=True)
            found |= dict.fromkeys(ids, value)
    return found


async def with_bias_by_id(call: Call) -> dict[str, Any]:
    """The call's body with its logit_bias in OpenAI's form."""
    if not isinstance(call.body.get("logit_bias"), list):
        return call.body
    return call.body | {"logit_bias": await bias_by_id(call)}
