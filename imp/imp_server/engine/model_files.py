"""A model and its tokenizer, opened together and held against each other."""

from __future__ import annotations

import os

from imp_server.models.named_rows import named_rows
from imp_server.models.opening import open_model
from imp_server.models.source import ModelSource
from imp_server.vocab.load import tokenizer_of
from imp_server.vocab.tokenizer import Tokenizer


def open_with_tokenizer(path: str | os.PathLike[str], served_context: int = 0) -> tuple[ModelSource, Tokenizer]:
    """The model with as many rows of embedding and head as its tokenizer has ids. `served_context`: see ModelHeader.

    Raises ModelFileMissing, InvalidModel, UnsupportedModel.
    """
    source = open_model(path, served_context)
    tokenizer = tokenizer_of(source.header)
    return named_rows(source, tokenizer.vocabulary.size), tokenizer
