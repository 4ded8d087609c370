"""The tokenizer of a model, from whatever its header says it has."""

from __future__ import annotations

from imp_server.core import ModelFileMissing
from imp_server.vocab.from_gguf import tokenizer_of_gguf
from imp_server.vocab.from_json import tokenizer_of_json
from imp_server.vocab.tokenizer import Tokenizer
from imp_server.weights.header import ModelHeader


def tokenizer_of(header: ModelHeader) -> Tokenizer:
    """Raises ModelFileMissing, InvalidModel, UnsupportedModel."""
    if header.format == "gguf":
        return tokenizer_of_gguf(header.tokenizer, header.architecture)
    if header.tokenizer_json is None:
        raise ModelFileMissing(f"{header.path} has no tokenizer.json; save the model's fast tokenizer there")
    rows = header.hyperparameters.get("vocab_size", 0)
    return tokenizer_of_json(
        header.tokenizer_json,
        header.tokenizer,
        vocab_size=rows if isinstance(rows, int) else 0,
        eos_ids=_eos_ids(header),
    )


def _eos_ids(header: ModelHeader) -> tuple[int, ...]:
    value = header.generation.get("eos_token_id", header.hyperparameters.get("eos_token_id"))
    ids = value if isinstance(value, list) else [value]
    return tuple(i for i in ids if type(i) is int and i >= 0)
