"""The golden set: greedy continuations by transformers in float32 (conformance/golden/make_golden.py)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from imp_server.backends.base import WANT_PROMPT_LOGITS, Backend, StepRow

from tests.backends.driver import Driver

FILE = Path(__file__).resolve().parents[2] / "conformance" / "golden" / "smollm2.json"
MARGIN = 1e-3
"""Below this distance of the two best logits any of them may be taken."""


@dataclass(frozen=True)
class Golden:
    """`top[i]`: (id, logit) of the eight best at the position that ids[i] was sampled from."""

    name: str
    prompt_ids: list[int]
    ids: list[int]
    top: list[list[tuple[int, float]]]
    messages: list[dict[str, str]] | None = None
    text: str | None = None

    def is_sure(self, position: int) -> bool:
        return self.top[position][0][1] - self.top[position][1][1] > MARGIN

    @property
    def n_sure(self) -> int:
        """Ids that a correct greedy run must repeat: up to the first position that is a toss-up."""
        return next((i for i in range(len(self.ids)) if not self.is_sure(i)), len(self.ids))


@lru_cache
def golden_document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return document


@lru_cache
def golden_cases() -> tuple[Golden, ...]:
    return tuple(Golden(**case) for case in golden_document()["cases"])


def teacher_forced(backend: Backend, cases: list[Golden]) -> list[np.ndarray[Any, Any]]:
    """Raw logits at every golden position [n_new, vocab], the golden prefix given; all cases in one batch."""
    n_blocks = sum((len(c.prompt_ids) + len(c.ids)) // 16 + 1 for c in cases)
    driver = Driver(backend, n_blocks=n_blocks)
    lanes = [driver.sequence(len(c.prompt_ids) + len(c.ids)) for c in cases]
    first = [(lane, c.prompt_ids[:-1]) for lane, c in zip(lanes, cases) if len(c.prompt_ids) > 1]
    driver.run(first, [StepRow() for _ in first])
    rest = [(lane, [c.prompt_ids[-1], *c.ids[:-1]]) for lane, c in zip(lanes, cases)]
    results = driver.run(rest, [StepRow(wants=WANT_PROMPT_LOGITS) for _ in rest])
    return [result.logits for result in results if result.logits is not None]


def check_teacher_forced(backend: Backend, cases: list[Golden], tolerance: float) -> None:
    """Same id wherever the margin is clear; logits within `tolerance` of the largest one at the position."""
    for case, logits in zip(cases, teacher_forced(backend, cases), strict=True):
        for position, top in enumerate(case.top):
            ids = [i for i, _ in top]
            wanted = np.array([v for _, v in top])
            error = np.abs(logits[position, ids] - wanted).max() / np.abs(wanted).max()
            assert error <= tolerance, f"{case.name}, position {position}: logits differ by {error:.1e}"
            if case.is_sure(position):
                assert int(logits[position].argmax()) == case.ids[position], f"{case.name}, position {position}"
