"""The backend contract: what is wanted, blocks in and out, refusals with words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from imp_server.backends.base import (
    WANT_HIDDEN,
    WANT_LOGITS,
    WANT_NOTHING,
    WANT_POOLED,
    WANT_PROMPT_LOGITS,
    WANT_SAMPLE,
    KvSpec,
    StepRow,
    TableChanges,
)
from imp_server.backends.cpu.backend import CpuBackend
from imp_server.backends.cpu.errors import KernelError
from imp_server.backends.cpu.twin_model import TwinModel
from imp_server.core import ConfigError, EngineFaulted, SamplingParams, UnsupportedModel
from imp_server.decode.state import SamplerState
from imp_server.models.feed_forwards import Experts
from imp_server.models.mixers import CachedPart, CacheKind, Mixer, Shapes

from tests.backends.array_source import altered
from tests.backends.cpu.running import logits_in_chunks, open_backend, step_of, table_of
from tests.backends.cpu.synthetic_models import VARIANTS, SyntheticSource
from tests.backends.driver import logits_of

LLAMA = VARIANTS[0]
IDS = np.random.default_rng(0).integers(0, 331, 50)


@pytest.fixture(scope="module")
def source() -> SyntheticSource:
    return SyntheticSource(LLAMA.architecture, LLAMA.types)


@pytest.fixture
def backend(source: SyntheticSource) -> Iterator[CpuBackend]:
    backend = open_backend(source)
    yield backend
    backend.close()


def sampler(**params: Any) -> SamplerState:
    return SamplerState(SamplingParams(**params), 0, IDS.astype(np.int32), 200)


def test_each_row_gets_what_it_wants_and_nothing_else(backend: CpuBackend, source: SyntheticSource) -> None:
    logits = logits_in_chunks(backend, IDS, 50, row=5)
    wants = [
        WANT_NOTHING,
        WANT_SAMPLE,
        WANT_LOGITS,
        WANT_HIDDEN | WANT_POOLED,
        WANT_PROMPT_LOGITS | WANT_SAMPLE,
        WANT_LOGITS | WANT_SAMPLE,
    ]
    rows = [StepRow(w, sampler=sampler(temperature=0.0)) for w in wants]
    rows[2].logit_ids = np.array([7, 3], dtype=np.int32)
    results = backend.run(step_of([(IDS, 0, table_of(i, 50), row) for i, row in enumerate(rows)])).rows
    best = int(logits[-1].argmax())
    assert not len(results[0].tokens) and results[0].logits is None
    assert results[1].tokens.tolist() == [best] and results[1].logits is None
    np.testing.assert_array_equal(results[2].logits, logits[-1][[7, 3]])
    np.testing.assert_array_equal(results[3].hidden, TwinModel(source).hidden(IDS)[-1])
    np.testing.assert_array_equal(results[3].pooled, results[3].hidden)
    np.testing.assert_array_equal(results[4].logits, logits)
    assert results[4].tokens.tolist() == [best]
    np.testing.assert_array_equal(results[5].logits, logits[-1])


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 0.9, "top_k": 20, "repetition_penalty": 1.2}])
def test_drafts_never_change_the_ids(backend: CpuBackend, params: dict[str, Any]) -> None:
    """Token by token, and in steps that carry right and wrong drafts."""
    ids = IDS.tolist()
    state, tables = sampler(**params), table_of(0, 120)
    backend.run(step_of([(ids[:-1], 0, tables, StepRow(WANT_NOTHING))]))
    plain: list[int] = []
    for _ in range(30):
        last = [*ids, *plain][-1]
        row = StepRow(WANT_SAMPLE, sampler=state)
        token = int(backend.run(step_of([([last], len(ids) + len(plain) - 1, tables, row)])).rows[0].tokens[0])
        plain.append(token)
        state.append([token])

    state, step = sampler(**params), 0
    drafted: list[int] = []
    while len(drafted) < 30:
        drafts = plain[len(drafted) : len(drafted) + 4]
        if step % 2 and len(drafts) == 4:
            drafts[2] = (drafts[2] + 1) % 331
        chunk = [[*ids, *drafted][-1], *drafts]
        row = StepRow(WANT_SAMPLE, n_drafts=len(drafts), sampler=state)
        result = backend.run(step_of([(chunk, len(ids) + len(drafted) - 1, tables, row)])).rows[0]
        assert result.n_accepted == (2 if step % 2 and len(drafts) == 4 else len(drafts))
        drafted += result.tokens.tolist()
        state.append(result.tokens.tolist())
        step += 1
    assert drafted[:30] == plain


def test_blocks_are_copied_and_come_back_bit_for_bit(backend: CpuBackend) -> None:
    want = logits_in_chunks(backend, IDS, 50, row=0)
    tables = table_of(0, 50)
    backend.copy_blocks(0, np.stack([tables[0], tables[0] + 20], axis=1).astype(np.int32))
    data = backend.read_blocks(0, tables[0])
    assert len(data) == len(tables[0]) * backend.block_bytes("bf16")[0]
    backend.write_blocks(0, tables[0] + 40, data)
    for shift in (20, 40):
        moved = [tables[0] + np.int32(shift)]
        row = backend.run(step_of([(IDS[-1:], 49, moved, StepRow(WANT_PROMPT_LOGITS))])).rows[0]
        np.testing.assert_array_equal(logits_of(row)[0], want[-1])


def changed(block: int) -> TableChanges:
    columns = np.arange(4, dtype=np.int32)
    return TableChanges(np.zeros(4, dtype=np.int32), columns, np.full(4, block, dtype=np.int32))


def test_steps_that_contradict_themselves_are_refused_whole(backend: CpuBackend) -> None:
    good = step_of([(IDS, 0, table_of(0, 50), StepRow(WANT_NOTHING))])
    changes: list[tuple[dict[str, Any], KernelError]] = [
        ({"ids": np.full(50, 331, dtype=np.int32)}, KernelError.wrong_id),
        ({"positions": np.zeros(50, dtype=np.int32)}, KernelError.wrong_positions),
        ({"table_changes": (changed(-1),)}, KernelError.wrong_block_table),
        ({"table_changes": (changed(10_000),)}, KernelError.wrong_block_table),
        ({"row_starts": np.array([0, 49], dtype=np.int32)}, KernelError.wrong_rows),
        ({"rows": [replace(good.rows[0], slot=-1)]}, KernelError.wrong_slot),
    ]
    for change, error in changes:
        with pytest.raises(EngineFaulted, match=rf"\({error.name}\)$"):
            backend.run(replace(good, **change))


def test_unknown_cache_types_are_refused(source: SyntheticSource) -> None:
    backend = CpuBackend(source)
    assert backend.block_bytes("auto") == backend.block_bytes("bf16")
    assert backend.block_bytes("int8") < backend.block_bytes("bf16")
    with pytest.raises(ConfigError, match="bf16 and int8"):
        backend.allocate(KvSpec((4,), "fp8"))


class Unknown(Mixer):
    """A kind that no table has."""

    @property
    def cache(self) -> tuple[CacheKind, int]:
        return "full", 0

    def cached(self) -> tuple[CachedPart, ...]:
        return ()

    def tensors(self, width: int) -> Shapes:
        return {}


@pytest.mark.parametrize(
    "change, words",
    [
        ({"mixer": Unknown()}, "Unknown layers"),
        ({"feed_forward": Experts(4, 2, 24)}, "experts of 24"),
        ({"gated": True}, "gated"),
        ({"head_size": 24, "value_head_size": 24}, "heads of 24"),
        ({"value_head_size": 64}, "value heads"),
        ({"causal": False}, "causal"),
        ({"parallel": True, "post_norm": True}, "side by side"),
    ],
)
def test_what_cannot_be_lowered_is_refused_by_name(source: SyntheticSource, change: dict[str, Any], words: str) -> None:
    a = LLAMA.architecture
    layers = (a.layers[0], altered(a.layers[1], **change))
    changed = SyntheticSource(a, LLAMA.types)
    changed.architecture = replace(a, layers=layers)
    with pytest.raises(UnsupportedModel, match=words):
        CpuBackend(changed)


def test_positions_beyond_the_first_rope_table(source: SyntheticSource) -> None:
    """The table holds 2,048 positions at first and grows."""
    ids = np.random.default_rng(4).integers(0, 331, 2060)
    backend = open_backend(source, n_blocks=130)
    backend.run(step_of([(ids[:2040], 0, table_of(0, 2060), StepRow(WANT_NOTHING))]))
    got = backend.run(step_of([(ids[2040:], 2040, table_of(0, 2060), StepRow(WANT_PROMPT_LOGITS))])).rows[0]
    whole = open_backend(source, n_blocks=130)
    want = whole.run(step_of([(ids, 0, table_of(0, 2060), StepRow(WANT_PROMPT_LOGITS))])).rows[0]
    np.testing.assert_array_equal(logits_of(got), logits_of(want)[2040:])
