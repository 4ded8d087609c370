"""POST /v1/embeddings."""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import Callable
from typing import Any

import msgspec

from imp_server.core import Finish, InvalidRequest, OutputEvent, PromptRequest, Vectors
from imp_server.dialects.base import Fold, ReplyContext
from imp_server.dialects.handler import Call, Generate, ModelCard, Reply, handler
from imp_server.dialects.llamacpp.fields import Prompt, prompts_of
from imp_server.dialects.openai.usage import UsageSum

NONE = "none"
UNIT_LENGTH = 2


@handler
async def create_embedding(call: Call) -> Reply:
    prompts = await call.worked(prompts_of, call.body["input"])
    card = await call.services.ready_card(call.model)
    check_embeds(card, call.body.get("dimensions"))
    if card.pooling == NONE:
        raise InvalidRequest(
            f"{card.id!r} makes one vector per token here (model.pooling none), for which this route has no shape: use "
            "POST /embedding, or start the server with --pooling last or mean",
            param="model",
            code="embeddings_unsupported",
        )
    return embed(call, call.model, prompts, EmbeddingFold)


def embed(call: Call, model: str, prompts: list[Prompt], fold: Callable[[ReplyContext], Fold]) -> Generate:
    """The vectors of each prompt, whatever shape `fold` gives the reply."""
    norm = call.body.get("embd_normalize", call.services.config.server.embd_normalize)
    context = call.reply_context("embd-", model, n=len(prompts), norm=norm)
    requests = tuple(PromptRequest(prompt=prompt, model=model, task="embed") for prompt in prompts)
    return Generate(requests, context, False, fold)


def check_embeds(card: ModelCard, dimensions: int | None = None) -> None:
    """Raises InvalidRequest. A model that is still loading is found out later."""
    if card.loaded and "embed" not in card.tasks:
        raise InvalidRequest(f"model {card.id!r} makes no embeddings", param="model", code="embeddings_unsupported")
    if dimensions is not None and card.width is not None and dimensions > card.width:
        message = f'"dimensions" must be at most {card.width}, which is what {card.id!r} has'
        raise InvalidRequest(message, param="dimensions", code="dimensions_unsupported")


def normalised(vector: array[float], kind: int) -> array[float]:
    """As llama.cpp's embd_normalize: 2 unit length, 1 sum of magnitudes, 0 largest magnitude 32760, -1 untouched, more:
    that p-norm."""
    if kind < 0:
        return vector
    if kind == UNIT_LENGTH:
        scale = math.sqrt(sum(x * x for x in vector))
    elif kind == 1:
        scale = sum(abs(x) for x in vector)
    elif (largest := max(abs(x) for x in vector)) and kind > UNIT_LENGTH:
        scale = largest * sum((abs(x) / largest) ** kind for x in vector) ** (1 / kind)
    else:
        scale = largest / 32760
    return array("f", (x / scale for x in vector)) if scale > 0 else vector


class EmbeddingFold:
    """Owner of the vectors of one reply. Each is encoded as it arrives: thousands of floats are slow to write."""

    def __init__(self, context: ReplyContext) -> None:
        self._context = context
        self._base64 = context.body.get("encoding_format") == "base64"
        self._normalise = int(context.extra.get("norm", UNIT_LENGTH))
        wanted = context.body.get("dimensions")
        self._dimensions = None if wanted is None else int(wanted)
        """The first so many numbers are kept, and what is left is normalised, as OpenAI shortens vectors."""
        self.vectors: list[msgspec.Raw | None] = [None] * context.n
        self._usage = UsageSum(context.n)

    def feed(self, event: OutputEvent) -> None:
        match event:
            case Vectors():
                vector = array("f")
                vector.frombytes(event.vectors[0])
                self.vectors[event.choice] = self._encoded(normalised(vector[: self._dimensions], self._normalise))
            case Finish():
                self._usage.add(event)

    def body(self) -> Any:
        n_tokens = self._usage.total.prompt_tokens
        return {
            "object": "list",
            "model": self._context.model,
            "data": [
                {"object": "embedding", "index": index, "embedding": vector}
                for index, vector in enumerate(self.vectors)
            ],
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }

    def _encoded(self, vector: array[float]) -> msgspec.Raw:
        if self._base64:
            return msgspec.Raw(msgspec.json.encode(base64.b64encode(vector.tobytes()).decode()))
        return msgspec.Raw(msgspec.json.encode(vector.tolist()))
