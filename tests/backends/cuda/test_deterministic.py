"""engine.deterministic: bit by bit, what a row gets depends neither on its company nor on how its prompt was cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from imp_server.backends.cuda.rectangles import cut, cut_alike

from tests.backends.array_source import ArraySource, tiny
from tests.backends.cuda.running import PlainCuda
from tests.backends.cuda.test_engine import MODELS
from tests.backends.cuda.test_forward import IDS
from tests.backends.driver import Driver


def logits_of(texts: list[list[int]], chunks: list[int], model: Any = None, **options: Any) -> list[Any]:
    """Of rows that share their steps, each in chunks of its own length."""
    driver = Driver(PlainCuda(ArraySource(model or tiny()), kv="bf16", deterministic=True, **options))
    lanes, done = [driver.sequence(len(text)) for text in texts], [0] * len(texts)
    while any(n < len(text) for n, text in zip(done, texts, strict=True)):
        parts = []
        for r, (text, chunk) in enumerate(zip(texts, chunks, strict=True)):
            part = text[done[r] : done[r] + chunk]
            done[r] += len(part)
            parts += [(lanes[r], part)] if part else []
        driver.run(parts)
    return [np.concatenate(lane.logits) for lane in lanes]


@pytest.mark.parametrize("model", ["full", "windows", "experts", "latents"])
def test_rows_are_independent_bit_by_bit(model: str) -> None:
    texts = [IDS[:70], IDS[100:133], IDS[200:209]]
    together = logits_of(texts, [23, 1, 4], MODELS[model])
    for text, found in zip(texts, together, strict=True):
        assert np.array_equal(logits_of([text], [len(text)], MODELS[model])[0], found)


def test_the_pieces_of_a_chunk_lie_within_blocks() -> None:
    driver = Driver(PlainCuda(ArraySource(tiny()), deterministic=True))
    seen: list[Any] = []
    runner = driver.backend._ready()  # type: ignore[attr-defined]

    def noted(step: Any) -> Any:
        seen.append((step, cut_alike(step)))
        return seen[-1][1]

    runner._cut = noted
    lane = driver.sequence(80)
    driver.run([(lane, IDS[:5])])
    driver.run([(lane, IDS[5:40])])
    step, rectangles = seen[-1]
    assert [(r.n_rows, r.width, r.columns) for r in rectangles] == [(1, 16, 4)] * 3
    assert [(p.begin, p.end) for r in rectangles for p in r.pieces] == [(0, 11), (11, 27), (27, 35)]
    assert len(cut(step)) == 1
