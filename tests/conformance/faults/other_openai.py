"""What a server may do wrong in Completions, embeddings and the list of models."""

from __future__ import annotations

import base64
import itertools
import json
import struct
from typing import Any

from tests.conformance.bending import (
    choices,
    drop_last_text,
    in_events,
    in_json,
    in_reply,
    set_choices,
)
from tests.conformance.tape import Exchange, replace

TEXT, EMBED, MODELS = "/v1/completions", "/v1/embeddings", "/v1/models"


def _offsets_fall(reply: Any) -> None:
    for choice in reply["choices"]:
        choice["logprobs"]["text_offset"].reverse()


def _short_tokens(reply: Any) -> None:
    for choice in reply["choices"]:
        choice["logprobs"]["tokens"] = [token.strip() for token in choice["logprobs"]["tokens"]]


def _first_logprob(reply: Any) -> None:
    reply["choices"][0]["logprobs"]["token_logprobs"][0] = -0.5


def _floats_for_base64(exchange: Exchange) -> Exchange | None:
    if exchange.asked("encoding_format") != "base64":
        return None
    reply = json.loads(exchange.content)
    for item in reply["data"]:
        data = base64.b64decode(item["embedding"])
        item["embedding"] = list(struct.unpack(f"<{len(data) // 4}f", data))
    return replace(exchange, content=json.dumps(reply).encode())


def _long_vectors(reply: Any) -> None:
    for item in reply["data"]:
        item["embedding"] = [2 * x for x in item["embedding"]]


def _swapped_vectors(reply: Any) -> None:
    one, two = reply["data"]
    one["embedding"], two["embedding"] = two["embedding"], one["embedding"]


_CLOCK = itertools.count(1)


def _created_now(reply: Any) -> None:
    for model in reply["data"]:
        model["created"] += next(_CLOCK)


OTHER_OPENAI_FAULTS = [
    in_json("completions: offsets fall", TEXT, _offsets_fall),
    in_json("completions: tokens lose their blanks", TEXT, _short_tokens),
    in_json("completions: the prompt's first token has a logprob", TEXT, _first_logprob),
    in_json("completions: logprobs are null", TEXT, set_choices(logprobs=None)),
    in_json("completions: prompts answered in reverse", TEXT, lambda r: r["choices"].reverse()),
    in_events("completions: no [DONE]", TEXT, lambda events: events[:-1]),
    in_events("completions: the last text is lost", TEXT, drop_last_text),
    in_events(
        "completions: choices all have index 0", TEXT, lambda e: [c.update(index=0) for c in choices(e)] and None
    ),
    in_reply("embeddings: floats for base64", EMBED, _floats_for_base64),
    in_json("embeddings: vectors of length two", EMBED, _long_vectors),
    in_json("embeddings: two texts swapped", EMBED, _swapped_vectors),
    in_json("embeddings: all with index 0", EMBED, lambda r: [d.update(index=0) for d in r["data"]] and None),
    in_json("models: created is now", MODELS, _created_now),
    in_json("models: no owned_by", MODELS, lambda r: [m.pop("owned_by") for m in r["data"]] and None),
]
