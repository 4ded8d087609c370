"""predict_s: a choice that has written a newline ends a while after its first token. The clock is the test's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from imp_server.backends.base import Backend, Pending, Step
from imp_server.core import SamplingParams
from imp_server.engine.client.inline import InlineEngine
from imp_server.vocab.table import Vocabulary

from tests.engine.tiny_engine import END, IDS, Answer, Tiny, ask, request, with_engine

FREE = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=7, banned_ids=(94, 95, 96))


class Ticking:
    """A clock that goes on by one second with each step of a backend."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def wrap(self, backend: Backend) -> Backend:
        launch = backend.launch

        def ticking(step: Step) -> Pending:
            self.now_s += 1.0
            return launch(step)

        backend.launch = ticking  # type: ignore[method-assign]
        return backend


def words(newlines: Sequence[int]) -> Vocabulary:
    """Of the ids that aren't special those of `newlines` write one, the others a letter."""
    pieces: list[bytes | None] = [b"\n" if i in newlines else b"x" for i in range(94)]
    return Vocabulary([*pieces, None, None, None], {94: "</think>", 95: "<think>", 96: "<end>"}, end_ids=(END,))


def answers(newlines: Sequence[int], **fields: Any) -> list[Answer]:
    clock, found = Ticking(), []

    async def body(engine: InlineEngine, _: Tiny) -> None:
        found.extend(await ask(engine, request(engine, max_tokens=20, sampling=FREE, **fields)))

    with_engine(body, clock=clock, wrap=clock.wrap, words=words(newlines), prefill_chunk=64)
    return found


@pytest.mark.parametrize(("newlines", "n_ids"), [(range(94), 5), ((), 20)])
@pytest.mark.parametrize("n_prompt", [8, 200])
def test_seconds_count_from_the_first_token(newlines: Sequence[int], n_ids: int, n_prompt: int) -> None:
    for answer in answers(newlines, prompt=IDS[:n_prompt], n=2, predict_s=3.5):
        assert answer.finish and answer.finish.reason == "length"
        assert len(answer.ids) == answer.finish.usage.completion_tokens == n_ids
        assert answer.finish.detail == ("timed_out" if newlines else None)
    (free,) = answers(newlines, prompt=IDS[:n_prompt])
    assert len(free.ids) == 20


def test_a_newline_that_comes_late_ends_it_at_once() -> None:
    (free,) = answers((), prompt=IDS[:8])
    at = next(n for n in range(6, 20) if free.ids[n] not in free.ids[:n])
    (cut,) = answers([free.ids[at]], prompt=IDS[:8], predict_s=2.5)
    assert cut.ids == free.ids[: at + 1]
