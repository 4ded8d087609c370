"""Completions, embeddings and the native routes, broken."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from imp_server.api.validation import Validators
from imp_server.core import PromptRequest
from imp_server.dialects import imp_native
from imp_server.dialects.handler import JsonReply
from imp_server.dialects.llamacpp import handlers as llamacpp
from imp_server.dialects.llamacpp import reply as llamacpp_reply
from imp_server.dialects.openai import embeddings as openai_embeddings
from imp_server.dialects.openai.embeddings import EmbeddingFold
from imp_server.dialects.openai_completions import reply as openai_completions_reply
from imp_server.dialects.openai_completions.reply import CompletionFold, CompletionStream, LegacyLogprobs
from imp_server.dialects.progress import Underway

from tests.asked import changed
from tests.conformance.breaking import (
    Break,
    after,
    frames,
    instead,
    without,
)


def _bytes_swapped(raw: Any) -> Any:
    value = json.loads(bytes(raw))
    return msgspec.Raw(json.dumps(value[::-1]).encode()) if isinstance(value, str) else raw


def _asked_otherwise(name: str, number: int, **fields: Any) -> Break:
    """The engine is asked for something else than the client did."""

    def change(requests: tuple[PromptRequest, ...]) -> tuple[PromptRequest, ...]:
        return tuple(changed(request, **fields) for request in requests)

    return after(name, f"llamacpp/completion/{number}", llamacpp, "prompt_requests", change)


OTHER_BREAKS = [
    after(
        "completions: the echo is missing",
        "openai-completions/reply",
        CompletionFold,
        "_choice",
        lambda c: c.update(text=c["text"][5:]),
    ),
    after(
        "completions: choices lack logprobs", "openai-completions/reply", CompletionFold, "_choice", without("logprobs")
    ),
    after(
        "completions: choices all have index 0",
        "openai-completions/reply",
        CompletionFold,
        "_choice",
        lambda c: c.update(index=0),
    ),
    after(
        "completions: offsets stay at 0",
        "openai-completions/logprobs",
        LegacyLogprobs,
        "take",
        lambda a: a.update(text_offset=[0] * len(a["tokens"])),
    ),
    after("completions: no [DONE]", "openai-completions/streaming", CompletionStream, "close", lambda f: f[:-1]),
    frames(
        "completions: chunks lack finish_reason",
        "openai-completions/streaming",
        CompletionStream,
        "_chunk",
        lambda d: d.update(choices=[{k: v for k, v in c.items() if k != "finish_reason"} for c in d["choices"]]),
    ),
    after("completions: no usage", "openai-completions/reply", openai_completions_reply, "usage_body", lambda u: {}),
    instead(
        "embeddings: vectors keep their length",
        "openai-embeddings",
        openai_embeddings,
        "normalised",
        lambda vector, kind: vector,
    ),
    after("embeddings: base64 is garbled", "openai-embeddings", EmbeddingFold, "_encoded", _bytes_swapped),
    after(
        "embeddings: the order is reversed",
        "openai-embeddings",
        EmbeddingFold,
        "body",
        lambda b: b.update(
            data=[d | {"embedding": o["embedding"]} for d, o in zip(b["data"], b["data"][::-1], strict=True)]
        ),
    ),
    instead(
        "embeddings: dimensions are ignored",
        "openai-embeddings",
        openai_embeddings,
        "check_embeds",
        lambda card, dimensions: None,
    ),
    after("native: no timings", "llamacpp/completion", llamacpp_reply._Completions, "final", without("timings")),
    instead(
        "native: stop_type is always eos", "llamacpp/completion", llamacpp_reply, "_stop_type", lambda finish: "eos"
    ),
    after(
        "native: the end isn't marked",
        "llamacpp/completion",
        llamacpp_reply._Completions,
        "final",
        lambda b: b.update(stop=False),
    ),
    after(
        "native: props tell another context",
        "llamacpp/probes",
        llamacpp,
        "_model",
        lambda r: (r[0]._replace(context_length=7), r[1]),
    ),
    after(
        "native: probabilities after sampling have a logprob",
        "llamacpp/completion/13",
        llamacpp_reply,
        "_probability",
        lambda p: p.update(logprob=-1.0),
    ),
    _asked_otherwise("native: probabilities are those before sampling", 13, logprobs_as_drawn=False),
    _asked_otherwise("native: indentation doesn't matter", 14, min_indent=0),
    _asked_otherwise("native: predictions may take for ever", 15, predict_s=None),
    after(
        "native: progress ends before the prompt does",
        "llamacpp/completion/17",
        Underway,
        "feed",
        lambda told: [p for p in told if p["prompt_progress"]["processed"] < p["prompt_progress"]["total"]],
    ),
    after("native: settings hide the seed", "llamacpp/completion/18", llamacpp_reply, "settings_body", without("seed")),
    instead("misspelt fields aren't named", "imp/ignored-fields", Validators, "ignored_fields", lambda *_: []),
    after(
        "a suspended server says that its model is there",
        "imp/state",
        imp_native,
        "_health",
        lambda reply: JsonReply({**reply.body, "model_loaded": True}),
    ),
]
