"""A model whose embedding and head end where its vocabulary does.

Files pad both to a round number of rows. Nobody trained the padding, and an id there has no text: a logit that isn't
computed can be neither sampled nor named, whatever the backend and the path.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from imp_server.core import InvalidModel
from imp_server.models.source import ModelSource, RawTensor

_CUT = frozenset({"embedding", "head", "head.bias"})


class NamedRows:
    """`source` with the first `n_ids` rows of its embedding and head."""

    def __init__(self, source: ModelSource, n_ids: int) -> None:
        self.header = source.header
        self.architecture = replace(source.architecture, vocab_size=n_ids)
        self.places = source.places
        self._source = source

    def __contains__(self, name: str) -> bool:
        return name in self._source

    def names(self) -> Collection[str]:
        return self._source.names()

    def raw(self, name: str) -> RawTensor:
        whole = self._source.raw(name)
        if name not in _CUT:
            return whole
        n_rows = self.architecture.vocab_size
        row_bytes = len(whole.data) // whole.shape[0]  # rows are stored one after the other, blocks never cross them
        return RawTensor(whole.type, (n_rows, *whole.shape[1:]), whole.data[: n_rows * row_bytes])

    def array(self, name: str) -> npt.NDArray[np.float32]:
        whole = self._source.array(name)
        return whole[: self.architecture.vocab_size] if name in _CUT else whole


def named_rows(source: ModelSource, n_ids: int) -> ModelSource:
    """`source` for a vocabulary of `n_ids`. Raises InvalidModel if it has more ids than the embedding has rows."""
    n_rows = source.architecture.vocab_size
    if n_ids > n_rows:
        raise InvalidModel(
            f"{source.header.path.name}: the tokenizer has {n_ids} ids, the model's embedding only {n_rows} rows"
        )
    return source if n_ids == n_rows else NamedRows(source, n_ids)
