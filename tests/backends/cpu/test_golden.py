"""The two links of parity on the default model: native = twin of its arithmetic; twin within bounds of float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from imp_server.backends.base import WANT_PROMPT_LOGITS, KvSpec, StepRow
from imp_server.backends.cpu.backend import CpuBackend
from imp_server.backends.cpu.twin_model import TwinModel
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.models.opening import open_model
from imp_server.vocab.load import tokenizer_of

from tests.backends.cpu.running import step_of, table_of
from tests.backends.golden import golden_cases
from tests.real_model import smollm2

SHORT = [case for case in golden_cases() if len(case.prompt_ids) < 100]
MAX_TOKENS = 640
PERPLEXITY_BOUND = {"bf16": 0.005, "int8": 0.01}
MARGIN = 0.75
"""Between the oracle's two best logits: beyond it no id may differ."""


@pytest.fixture(scope="module")
def source():
    return open_model(smollm2())


def sequences(cases) -> list[np.ndarray]:
    return [np.array([*case.prompt_ids, *case.ids[:-1]], dtype=np.int32) for case in cases]


def native_logits(source, kv, ids, isa=None) -> list[np.ndarray]:
    """Logits at every position of every sequence, all in one batch."""
    backend = CpuBackend(source, isa=isa)
    backend.allocate(KvSpec((len(ids) * MAX_TOKENS // 16,), kv))
    rows = [(one, 0, table_of(i, MAX_TOKENS), StepRow(WANT_PROMPT_LOGITS)) for i, one in enumerate(ids)]
    results = backend.run(step_of(rows)).rows
    backend.close()
    return [row.logits for row in results]


def check_against_the_twin(source, kv, cases) -> None:
    ids = sequences(cases)
    twin = TwinModel(source, kv).logits_of_many(ids)
    for case, got, want in zip(cases, native_logits(source, kv, ids), twin):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max(), err_msg=case.name)
        np.testing.assert_array_equal(got.argmax(1), want.argmax(1), err_msg=case.name)


@pytest.mark.slow
def test_first_link_on_a_short_prompt(source):
    check_against_the_twin(source, "bf16", [case for case in SHORT if case.name == "single_token"])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_first_link_on_all_short_prompts(source, kv):
    check_against_the_twin(source, kv, SHORT)


def oracle_logits(source, ids) -> list[np.ndarray]:
    backend = ReferenceBackend(source)
    backend.allocate(KvSpec((len(ids) * MAX_TOKENS // 16,), "f32"))
    rows = [(one, 0, table_of(i, MAX_TOKENS), StepRow(WANT_PROMPT_LOGITS)) for i, one in enumerate(ids)]
    logits = [row.logits for row in backend.run(step_of(rows)).rows]
    backend.close()
    return logits


class Comparison:
    """Teacher-forced over some sequences: agreement, the margins of all flips, perplexities."""

    def __init__(self, ids, ours, oracle) -> None:
        agree, flips, losses = 0, [0.0], np.zeros(2)
        for one, got, want in zip(ids, ours, oracle):
            two = np.partition(want, -2, axis=1)[:, -2:]
            differs = want.argmax(1) != got.argmax(1)
            agree += int((~differs).sum())
            flips += (two[:, 1] - two[:, 0])[differs].tolist()
            losses += [loss(got, one), loss(want, one)]
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


@pytest.fixture(scope="module")
def prose(source):
    """Novels, code and plain explanations, and what float32 makes of them.

    Not the golden prompts: their chat template repeats the same thirty tokens, whose noise doesn't average out.
    """
    encode = tokenizer_of(source.header).encode
    texts = (Path(__file__).parent / "prose.txt").read_text(encoding="utf-8").split("----\n")
    ids = [np.array(list(encode(text.strip())), dtype=np.int32) for text in texts]
    return ids, oracle_logits(source, ids)


@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_second_link_on_prose(source, prose, kv):
    ids, oracle = prose
    compared = Comparison(ids, native_logits(source, kv, ids), oracle)
    print(f"{kv}: {compared}")
    assert compared.agreement >= 0.95
    assert abs(compared.change) <= PERPLEXITY_BOUND[kv]
    assert compared.widest_flip <= MARGIN


@pytest.mark.slow
@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_second_link_on_the_golden_prompts(source, kv):
    ids = sequences(SHORT)
    compared = Comparison(ids, native_logits(source, kv, ids), oracle_logits(source, ids))
    print(f"{kv}: {compared}")
    assert compared.agreement >= 0.95
    assert compared.widest_flip <= MARGIN


def loss(logits: np.ndarray, ids: np.ndarray) -> float:
    """Summed negative log-likelihood of ids[1:]."""
    wide = logits[:-1].astype(np.float64)
    top = wide.max(1)
    log_sums = top + np.log(np.exp(wide - top[:, None]).sum(1))
    return float((log_sums - wide[np.arange(len(ids) - 1), ids[1:]]).sum())
