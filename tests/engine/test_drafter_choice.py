"""Who drafts: the first in the configured order with an idea, for dense models unless told otherwise, per request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from imp_server.config import Config
from imp_server.core import SamplingParams
from imp_server.decode.drafter import ANY_ROWS, Draft, DraftedRow, Float32s, RowDrafter
from imp_server.engine.client.inline import InlineEngine
from imp_server.engine.drafting.drafters import make_speculation
from imp_server.engine.drafting.speculation import Speculation
from imp_server.models.architecture import Architecture
from imp_server.models.feed_forwards import Experts
from imp_server.models.opening import open_model
from imp_server.schedule.cost import CostTable
from imp_server.vocab.load import tokenizer_of

from tests.backends.array_source import tiny
from tests.engine.tiny_engine import Tiny, ask, request, with_engine
from tests.models.tiny_gguf import write_tiny_llama


class Guess:
    """Proposes one token over and over, at every `every`th chance."""

    confidence = 0.8
    wants_hidden = False
    most_rows: int = ANY_ROWS

    silent_until = 0

    def __init__(self, name: str, every: int = 1) -> None:
        self.name = name
        self.n_asked = 0
        self._every = every

    def start(self, row: DraftedRow) -> RowDrafter:
        return self

    def propose(self, limit: int) -> Draft:
        self.n_asked += 1
        return Draft(np.full(min(limit, 2) if self.n_asked % self._every == 0 else 0, 1, dtype=np.int32))

    def settle(self, n_drafted: int, n_accepted: int) -> None:
        return None

    def take_hidden(self, position: int, hidden: Float32s) -> None:
        return None

    def close(self) -> None:
        return None


@pytest.mark.parametrize(("every", "n_second"), [(1, 0), (2, 15)])
def test_the_first_with_an_idea_wins(every: int, n_second: int) -> None:
    first, second = Guess("first", every), Guess("second")

    async def body(engine: InlineEngine, _: Tiny) -> None:
        (answer,) = await ask(engine, request(engine, [3, 4], 40))
        counters, _rows = await engine.stats()
        assert answer.finish and answer.finish.usage.verify_steps > 20
        assert second.n_asked == first.n_asked - first.n_asked // every >= n_second
        assert counters["spec_second_verify_steps_total"] == second.n_asked
        assert counters["spec_first_verify_steps_total"] == first.n_asked // every

    with_engine(body, drafters=[first, second])


def test_the_configured_order_is_that_of_the_drafters(tmp_path: Path) -> None:
    for names in (("forced", "ngram"), ("ngram", "forced"), ("ngram",), ()):
        assert [each.name for each in made(tmp_path, tiny(), {"speculative.drafters": names})._drafters] == list(names)
    assert [each.name for each in made(tmp_path, tiny(), {"speculative.ngram": False})._drafters] == [
        "forced",
        "recall",
    ]


def test_who_guesses_wildly_is_not_asked_where_many_rows_decode() -> None:
    """Positions cost there."""
    guess = Guess("always")
    guess.most_rows = 2

    async def body(engine: InlineEngine, _: Tiny) -> None:
        await ask(engine, request(engine, [3, 4], 12, n=2))
        n_few, guess.n_asked = guess.n_asked, 0
        await ask(engine, request(engine, [3, 4], 12, n=3))
        assert n_few >= 20 and guess.n_asked <= 3, "but for steps at the ends, where not all three run"

    with_engine(body, drafters=[guess])


@pytest.mark.parametrize(("min_tokens", "asks"), [(0, True), (12, False)])
def test_nobody_drafts_while_an_end_may_not_come(min_tokens: int, asks: bool) -> None:
    """What is banned then isn't behind it, and a step has one list of bans for all its positions."""
    guess = Guess("always")

    async def body(engine: InlineEngine, _: Tiny) -> None:
        sampling = SamplingParams(temperature=0.0, min_tokens=min_tokens, held_ids=(1,) if min_tokens else ())
        (answer,) = await ask(engine, request(engine, [3, 4], 12, sampling=sampling))
        assert answer.finish and (guess.n_asked > 0) is asks
        assert not min_tokens or 1 not in answer.ids

    with_engine(body, drafters=[guess])


def test_a_strangers_tokenizer_cuts_nothing_on_the_loop(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(open_model(str(write_tiny_llama(tmp_path / "tiny.gguf", n_layers=1))).header)
    tokenizer.is_foreign = True
    assert [
        each.name for each in make_speculation(Config().for_engine(), tiny(), tokenizer, CostTable())._drafters
    ] == ["ngram", "recall"]


def made(folder: Path, architecture: Architecture, settings: dict[str, Any]) -> Speculation:
    path = folder / "tiny.gguf"
    if not path.exists():
        write_tiny_llama(path, n_layers=1)
    return make_speculation(
        Config.of(settings).for_engine(), architecture, tokenizer_of(open_model(str(path)).header), CostTable()
    )


def sparse() -> Architecture:
    """Its second layer is a mixture of experts."""
    dense = tiny()
    experts = Experts(count=4, top_k=2, hidden=32)
    return replace(dense, layers=(dense.layers[0], replace(dense.layers[1], feed_forward=experts)))


@pytest.mark.parametrize(
    ("wanted", "on_dense", "on_sparse"), [("auto", True, False), ("on", True, True), ("off", False, False)]
)
def test_on_for_dense_models_and_off_for_mixtures(tmp_path: Path, wanted: str, on_dense: bool, on_sparse: bool) -> None:
    for architecture, expected in ((tiny(), on_dense), (sparse(), on_sparse)):
        speculation = made(tmp_path, architecture, {"speculative.enabled": wanted})
        assert (speculation.is_on and speculation._on_by_default) == expected


@pytest.mark.parametrize("default", [True, False])
@pytest.mark.parametrize("wish", [None, True, False])
def test_a_request_decides_for_itself(default: bool, wish: bool | None) -> None:
    async def body(engine: InlineEngine, setup: Tiny) -> None:
        assert setup.loop
        setup.loop.parts.speculation = Speculation([Guess("always")], on_by_default=default)
        (answer,) = await ask(engine, request(engine, [3, 4], 12, speculative=wish))
        assert answer.finish
        assert (answer.finish.usage.drafted_tokens > 0) == (default if wish is None else wish)

    with_engine(body)
