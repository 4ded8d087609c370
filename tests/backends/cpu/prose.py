"""What float32 makes of some prose, kept: python -m tests.backends.cpu.prose writes it anew (prose_oracle.npz)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from imp_server.backends.base import WANT_PROMPT_LOGITS, KvSpec, StepRow
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.models.opening import open_model
from imp_server.models.source import ModelSource
from imp_server.vocab.load import tokenizer_of

from tests.backends.cpu.running import step_of, table_of
from tests.backends.driver import logits_of
from tests.real_model import smollm2

Ids = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]
FILE = Path(__file__).with_name("prose_oracle.npz")
MAX_TOKENS = 640


class Seen(NamedTuple):
    """Of logits at every position of a text, what a comparison needs."""

    best: npt.NDArray[np.int32]
    margin: npt.NDArray[np.float32]
    """Of the best over the second."""
    loss: float
    """Summed negative log-likelihood of ids[1:]."""


def seen(logits: Logits, ids: Ids) -> Seen:
    two = np.partition(logits, -2, axis=1)[:, -2:]
    wide = logits[:-1].astype(np.float64)
    top = wide.max(1)
    log_sums = top + np.log(np.exp(wide - top[:, None]).sum(1))
    loss = float((log_sums - wide[np.arange(len(ids) - 1), ids[1:]]).sum())
    return Seen(logits.argmax(1).astype(np.int32), two[:, 1] - two[:, 0], loss)


def texts(source: ModelSource) -> list[Ids]:
    """Novels, code and plain explanations.

    Not the golden prompts: their chat template repeats the same thirty tokens, whose noise doesn't average out.
    """
    encode = tokenizer_of(source.header).encode
    parts = (Path(__file__).parent / "prose.txt").read_text(encoding="utf-8").split("----\n")
    return [np.array(list(encode(part.strip())), dtype=np.int32) for part in parts]


def by_the_reference(source: ModelSource, ids: Sequence[Ids]) -> list[Seen]:
    backend = ReferenceBackend(source)
    backend.allocate(KvSpec((len(ids) * MAX_TOKENS // 16,), "f32"))
    rows = [(one, 0, table_of(i, MAX_TOKENS), StepRow(WANT_PROMPT_LOGITS)) for i, one in enumerate(ids)]
    logits = [logits_of(row) for row in backend.run(step_of(rows)).rows]
    backend.close()
    return [seen(got, one) for got, one in zip(logits, ids, strict=True)]


def kept() -> list[Seen]:
    with np.load(FILE) as file:
        ends = np.cumsum(file["lengths"])[:-1]
        parts = zip(np.split(file["best"], ends), np.split(file["margin"], ends), file["loss"], strict=True)
        return [Seen(best, margin, float(loss)) for best, margin, loss in parts]


def keep(found: Sequence[Seen]) -> None:
    np.savez_compressed(
        FILE,
        lengths=np.array([len(one.best) for one in found], dtype=np.int32),
        best=np.concatenate([one.best for one in found]),
        margin=np.concatenate([one.margin for one in found]),
        loss=np.array([one.loss for one in found]),
    )


if __name__ == "__main__":
    model = open_model(smollm2())
    keep(by_the_reference(model, texts(model)))
