"""Where a mask allows few ids only their panels of the head are multiplied: with the results of the whole head."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from imp_server.backends.base import WANT_LOGITS, WANT_SAMPLE, RowResult, StepRow
from imp_server.backends.cpu.backend import CpuBackend
from imp_server.core import SamplingParams
from imp_server.decode.state import SamplerState

from tests.backends.cpu.running import Ids, open_backend, step_of, table_of
from tests.backends.cpu.synthetic_models import VARIANTS, SyntheticSource, architecture

IDS = np.random.default_rng(1).integers(0, 331, 12).astype(np.int32)
N_WORDS = -(-331 // 32)
Mask = npt.NDArray[np.uint32]


@pytest.fixture(scope="module", params=[VARIANTS[0], VARIANTS[3]], ids=lambda v: v.name)
def source(request: pytest.FixtureRequest) -> SyntheticSource:
    return SyntheticSource(request.param.architecture, request.param.types)


def mask_of(*ids: int) -> Mask:
    mask = np.zeros(N_WORDS, dtype=np.uint32)
    for token_id in ids:
        mask[token_id >> 5] |= np.uint32(1 << (token_id & 31))
    return mask


FEW, ONE, LAST = mask_of(3, 4, 200), mask_of(117), mask_of(330, 0)
MANY = np.full(N_WORDS, 0x55555555, dtype=np.uint32)


def run(
    backend: CpuBackend,
    wants: int,
    masks: list[Mask],
    drafts: list[int],
    flags: Mask | None = None,
    n_logprobs: int = 3,
    **params: Any,
) -> list[RowResult]:
    """A constrained row with drafts, one without, and one that is free."""
    states = [SamplerState(SamplingParams(seed=i, **params), 0, IDS, 64) for i in range(3)]
    rows = [
        StepRow(wants, len(drafts), states[0], 0, n_logprobs),
        StepRow(wants, 0, states[1], 1 + len(drafts), n_logprobs),
        StepRow(wants, 0, states[2], -1, n_logprobs),
    ]
    chunks: list[tuple[Ids, int, list[npt.NDArray[np.int32]], StepRow]] = [
        ([*IDS, *drafts] if i == 0 else IDS, 0, table_of(i, 64, len(backend.architecture.cache_groups)), row)
        for i, row in enumerate(rows)
    ]
    step = step_of(chunks, masks=np.stack(masks))
    step.mask_flags = flags
    return backend.run(step).rows


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize(
    "params", [{"temperature": 0.0}, {"temperature": 1.1, "repetition_penalty": 1.3}], ids=["0", "1.1"]
)
def test_few_panels_give_what_the_whole_head_gives(source: SyntheticSource, n_threads: int, params: Any) -> None:
    backend = open_backend(source, n_threads=n_threads)
    for masks in ([FEW, ONE, LAST], [ONE, FEW, MANY], [MANY, FEW, ONE], [LAST, LAST, LAST]):
        first = run(backend, WANT_SAMPLE, [masks[0], masks[2]], [], **params)[0].tokens
        drafts = [int(first[0])]
        few = run(backend, WANT_SAMPLE, masks, drafts, **params)
        assert backend.masked_panels == sum(len({i >> 4 for i in bits(m)}) for m in masks if m is not MANY)
        whole = run(backend, WANT_SAMPLE | WANT_LOGITS, masks, drafts, **params)
        assert backend.masked_panels == 0
        assert few[0].n_accepted == 1
        for ours, wanted in zip(few, whole, strict=True):
            np.testing.assert_array_equal(ours.tokens, wanted.tokens)
            for name in ("token", "rank", "top_ids", "top"):
                np.testing.assert_array_equal(getattr(ours.logprobs, name), getattr(wanted.logprobs, name))
    backend.close()


def bits(mask: Mask) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def test_a_mask_that_isnt_filled_yet_narrows_nothing() -> None:
    source = SyntheticSource(architecture(), VARIANTS[0].types)
    backend = open_backend(source)
    flags = np.array([1, 0], dtype=np.uint32)
    rows = run(backend, WANT_SAMPLE, [ONE, ONE], [], flags, temperature=0.0)
    assert rows[0].tokens.tolist() == [117]
    assert rows[1].mask_late
    assert backend.masked_panels == 1
    backend.close()
