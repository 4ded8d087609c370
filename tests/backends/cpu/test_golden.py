"""The two links of parity on the default model: native = twin of its arithmetic; twin within bounds of float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from imp_server.backends.base import WANT_PROMPT_LOGITS, KvSpec, StepRow
from imp_server.backends.cpu.backend import CpuBackend
from imp_server.backends.cpu.twin_model import TwinModel
from imp_server.models.opening import open_model
from imp_server.models.source import ModelSource

from tests.backends.cpu.prose import MAX_TOKENS, Ids, Logits, Seen, by_the_reference, kept, seen, texts
from tests.backends.cpu.running import step_of, table_of
from tests.backends.driver import logits_of
from tests.backends.golden import Golden, golden_cases
from tests.real_model import smollm2

SHORT = [case for case in golden_cases() if len(case.prompt_ids) < 100]
PERPLEXITY_BOUND = {"bf16": 0.005, "int8": 0.01}
MARGIN = 0.75
"""Between the oracle's two best logits: beyond it no id may differ."""


@pytest.fixture(scope="module")
def source() -> ModelSource:
    return open_model(smollm2())


def sequences(cases: Sequence[Golden]) -> list[Ids]:
    return [np.array([*case.prompt_ids, *case.ids[:-1]], dtype=np.int32) for case in cases]


def native_logits(source: ModelSource, kv: str, ids: Sequence[Ids], isa: str | None = None) -> list[Logits]:
    """Logits at every position of every sequence, all in one batch."""
    backend = CpuBackend(source, isa=isa)
    backend.allocate(KvSpec((len(ids) * MAX_TOKENS // 16,), kv))
    rows = [(one, 0, table_of(i, MAX_TOKENS), StepRow(WANT_PROMPT_LOGITS)) for i, one in enumerate(ids)]
    results = backend.run(step_of(rows)).rows
    backend.close()
    return [logits_of(row) for row in results]


def check_against_the_twin(source: ModelSource, kv: str, cases: Sequence[Golden]) -> None:
    ids = sequences(cases)
    twin = TwinModel(source, kv).logits_of_many(ids)
    for case, got, want in zip(cases, native_logits(source, kv, ids), twin):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max(), err_msg=case.name)
        np.testing.assert_array_equal(got.argmax(1), want.argmax(1), err_msg=case.name)


@pytest.mark.slow
def test_first_link_on_a_short_prompt(source: ModelSource) -> None:
    check_against_the_twin(source, "bf16", [case for case in SHORT if case.name == "single_token"])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_first_link_on_all_short_prompts(source: ModelSource, kv: str) -> None:
    check_against_the_twin(source, kv, SHORT)


class Comparison:
    """Teacher-forced over some sequences: agreement, the margins of all flips, perplexities."""

    def __init__(self, ids: Sequence[Ids], ours: Sequence[Logits], oracle: Sequence[Seen]) -> None:
        agree, flips, losses = 0, [0.0], np.zeros(2)
        for got, want in zip(map(seen, ours, ids), oracle, strict=True):
            differs = want.best != got.best
            agree += int((~differs).sum())
            flips += want.margin[differs].tolist()
            losses += [got.loss, want.loss]
        self.n_tokens = sum(map(len, ids))
        self.agreement = agree / self.n_tokens
        self.widest_flip = max(flips)
        perplexities = np.exp(losses / (self.n_tokens - len(ids)))
        self.change = float(perplexities[0] / perplexities[1] - 1)

    def __str__(self) -> str:
        return (
            f"{self.agreement:.1%} of {self.n_tokens} agree, perplexity {self.change:+.2%}, "
            f"widest flip {self.widest_flip:.3f}"
        )


@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_second_link_on_prose(source: ModelSource, kv: str) -> None:
    ids = texts(source)
    compared = Comparison(ids, native_logits(source, kv, ids), kept())
    print(f"{kv}: {compared}")
    assert compared.agreement >= 0.95
    assert abs(compared.change) <= PERPLEXITY_BOUND[kv]
    assert compared.widest_flip <= MARGIN


@pytest.mark.slow
def test_the_kept_oracle_is_what_float32_says(source: ModelSource) -> None:
    for ours, now in zip(kept(), by_the_reference(source, texts(source)), strict=True):
        sure = now.margin > 1e-3
        np.testing.assert_array_equal(ours.best[sure], now.best[sure])
        np.testing.assert_allclose(ours.margin, now.margin, atol=1e-3)
        assert ours.loss == pytest.approx(now.loss, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_second_link_on_the_golden_prompts(source: ModelSource, kv: str) -> None:
    ids = sequences(SHORT)
    compared = Comparison(ids, native_logits(source, kv, ids), by_the_reference(source, ids))
    print(f"{kv}: {compared}")
    assert compared.agreement >= 0.95
    assert compared.widest_flip <= MARGIN
