"""A row's logits are a function of its own ids and positions: the same bits in any company."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from imp_server.backends.base import BLOCK_TOKENS, WANT_NOTHING, WANT_PROMPT_LOGITS, StepRow

from tests.backends.cpu.running import logits_in_chunks, open_backend, step_of, table_of
from tests.backends.cpu.synthetic_models import VARIANTS, SyntheticSource
from tests.backends.driver import logits_of

MODELS = [VARIANTS[0], VARIANTS[3], VARIANTS[4], VARIANTS[9], VARIANTS[-2]]
ALL = StepRow(WANT_PROMPT_LOGITS)


@pytest.fixture(scope="module", params=MODELS, ids=lambda v: v.name)
def source(request: pytest.FixtureRequest) -> SyntheticSource:
    return SyntheticSource(request.param.architecture, request.param.types)


@pytest.fixture(scope="module", params=["bf16", "int8"])
def kv(request: pytest.FixtureRequest) -> str:
    kv: str = request.param
    return kv


def ids_of(source: SyntheticSource, n: int, seed: int = 0) -> npt.NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, source.architecture.vocab_size, n)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_chunks(source: SyntheticSource, kv: str, n_threads: int) -> None:
    ids = ids_of(source, 600)
    backend = open_backend(source, kv=kv, n_threads=n_threads)
    whole = logits_in_chunks(backend, ids, 600)
    for chunk in (1, 16, 100, 512):
        np.testing.assert_array_equal(logits_in_chunks(backend, ids, chunk), whole)
    backend.close()


def test_batches(source: SyntheticSource, kv: str) -> None:
    """The same row alone and among 1, 6, 7, 8 and 32 others of other lengths, on two threads."""
    n_groups = len(source.architecture.cache_groups)
    lone = open_backend(source, kv=kv)
    many = open_backend(source, kv=kv, n_threads=2)
    ids = ids_of(source, 75)
    want = logits_in_chunks(lone, ids, 75)
    for n in (2, 7, 8, 9, 33):
        prompts = [ids if i == n // 2 else ids_of(source, 20 + 3 * i, seed=i) for i in range(n)]
        rows = [(p[:-1], 0, table_of(i, 120, n_groups), ALL) for i, p in enumerate(prompts)]
        first = logits_of(many.run(step_of(rows)).rows[n // 2])
        rows = [(p[-1:], len(p) - 1, table_of(i, 120, n_groups), ALL) for i, p in enumerate(prompts)]
        last = logits_of(many.run(step_of(rows)).rows[n // 2])
        np.testing.assert_array_equal(np.concatenate([first, last]), want)
    lone.close()
    many.close()


def test_prefix_hit(source: SyntheticSource, kv: str) -> None:
    """Half of the blocks were written for somebody else's row."""
    n_groups = len(source.architecture.cache_groups)
    ids = ids_of(source, 96)
    backend = open_backend(source, kv=kv, n_threads=2)
    want = logits_in_chunks(backend, ids, 96)
    other = table_of(1, 96, n_groups)
    backend.run(step_of([(np.append(ids[:48], ids[:3]), 0, other, StepRow(WANT_NOTHING))]))
    mine = [
        np.concatenate([t[: 48 // BLOCK_TOKENS], u[48 // BLOCK_TOKENS :]])
        for t, u in zip(other, table_of(2, 96, n_groups))
    ]
    got = backend.run(step_of([(ids[48:], 48, mine, ALL)])).rows[0].logits
    np.testing.assert_array_equal(got, want[48:])
    backend.close()


def test_one_row_of_a_17_row_verification(source: SyntheticSource, kv: str) -> None:
    n_groups = len(source.architecture.cache_groups)
    ids = ids_of(source, 80)
    backend = open_backend(source, kv=kv)
    want = logits_in_chunks(backend, ids, 1)
    tables = table_of(3, 80, n_groups)
    backend.run(step_of([(ids[:50], 0, tables, StepRow(WANT_NOTHING))]))
    got = backend.run(step_of([(ids[50:67], 50, tables, ALL)])).rows[0].logits
    np.testing.assert_array_equal(got, want[50:67])
    backend.close()


def test_split_attention_of_one_long_row(source: SyntheticSource, kv: str) -> None:
    """On two threads the spans of a lone decode row are computed apart; the bits stay."""
    ids = ids_of(source, 1300)
    one, two = open_backend(source, kv=kv), open_backend(source, kv=kv, n_threads=2)
    want = logits_in_chunks(one, ids, 1300)[-3:]
    n_groups = len(source.architecture.cache_groups)
    tables = table_of(0, 1300, n_groups)
    two.run(step_of([(ids[:-3], 0, tables, StepRow(WANT_NOTHING))]))
    last = [two.run(step_of([(ids[i : i + 1], i, tables, ALL)])).rows[0] for i in range(1297, 1300)]
    got = [logits_of(row)[0] for row in last]
    np.testing.assert_array_equal(np.array(got), want)
    one.close()
    two.close()
