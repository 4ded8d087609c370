"""The tokenizer of a model, from whatever its header says it has."""

from __future__ import annotations

from imp_server.core import UnsupportedModel
from imp_server.vocab.from_gguf import tokenizer_of_gguf
from imp_server.vocab.tokenizer import Tokenizer
from imp_server.weights.header import ModelHeader


def tokenizer_of(header: ModelHeader) -> Tokenizer:
    """Raises InvalidModel, UnsupportedModel."""
    if header.format == "gguf":
        return tokenizer_of_gguf(header.tokenizer, header.architecture)
    raise UnsupportedModel(f"{header.path.name}: no tokenizer for the format {header.format}")
