"""A live server with the real text side of a byte-level toy model and a scripted engine behind it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import openai
from imp_server.api.model_text_side import ModelTextSide
from imp_server.config import Config
from imp_server.engine.client.scripted import ScriptedEngine
from imp_server.text.model import TextModel

from tests.api.live_server import LiveServer, live_server
from tests.toy import CHATML, CONTROL_TOKENS, byte_model

MODEL = "toy"
TOOLS_CHATML = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<tool_call>"
    "<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message['content'] or '' }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""ChatML that shows tools, calls and earlier thinking, and lets the model think."""


@contextlib.contextmanager
def toy_server(
    template: str = CHATML,
    *,
    make_model: Callable[..., TextModel] = byte_model,
    context_length: int = 32768,
    settings: dict[str, Any] | None = None,
    tasks: tuple[str, ...] = ("generate", "embed", "score", "rank"),
    **options: Any,
) -> Iterator[LiveServer]:
    model = make_model(template, config=Config.of(settings or {}), context_length=context_length)

    def engine() -> ScriptedEngine:
        return ScriptedEngine(model.vocabulary, context_length=context_length, tasks=tasks)

    with live_server(engine, lambda: ModelTextSide(model), model=MODEL, settings=settings, **options) as server:
        yield server


def call_text(name: str, **arguments: Any) -> str:
    """A tool call in the notation that ChatML models write."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def openai_sdk(server: LiveServer, **options: Any) -> openai.OpenAI:
    """Every reply is validated against the SDK's types; nothing is retried."""
    return openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="k", max_retries=0, _strict_response_validation=True, **options
    )


def anthropic_sdk(server: LiveServer, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url=server.url, api_key="k", max_retries=0, _strict_response_validation=True, **options
    )


def prompt_of(server: LiveServer) -> str:
    """What the engine got last."""
    ids = memoryview(server.engine.requests_seen[-1].ids).cast("i")
    return b"".join(bytes([i]) if i < 256 else CONTROL_TOKENS[i - 256].encode() for i in ids).decode()
