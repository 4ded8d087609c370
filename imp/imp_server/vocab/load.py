"""The tokenizer of a model, from whatever its header says it has."""

from __future__ import annotations

from typing import Any

from imp_server.core import ModelFileMissing
from imp_server.vocab.encoder import LibraryEncoder, MakeEncoder
from imp_server.vocab.from_gguf import tokenizer_of_gguf
from imp_server.vocab.from_json import tokenizer_of_json
from imp_server.vocab.tokenizer import Tokenizer
from imp_server.weights.header import ModelHeader


def tokenizer_of(header: ModelHeader, foreign: MakeEncoder = LibraryEncoder.of_json) -> Tokenizer:
    """`foreign`: as in `tokenizer_of_json`. Raises ModelFileMissing, InvalidModel, UnsupportedModel."""
    if header.format == "gguf":
        return tokenizer_of_gguf(header.tokenizer, header.architecture, foreign)
    if header.tokenizer_json is None:
        raise ModelFileMissing(f"{header.path} has no tokenizer.json; save the model's fast tokenizer there")
    generation = header.generation
    return tokenizer_of_json(
        header.tokenizer_json,
        header.tokenizer,
        eos_ids=_ids(generation.get("eos_token_id", header.hyperparameters.get("eos_token_id"))),
        suppressed=_ids(generation.get("suppress_tokens")),
        foreign=foreign,
    )


def _ids(value: Any) -> tuple[int, ...]:
    """One id or a list of them."""
    ids = value if isinstance(value, list) else [value]
    return tuple(i for i in ids if type(i) is int and i >= 0)
