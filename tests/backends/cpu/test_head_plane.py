"""A backend with a plane of its head's high bits gives the ids of one without."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from imp_server.backends.base import WANT_NOTHING, WANT_SAMPLE, StepRow
from imp_server.backends.cpu import head_plane
from imp_server.backends.cpu.backend import CpuBackend
from imp_server.core import SamplingParams
from imp_server.decode.state import SamplerState
from imp_server.models.opening import open_model

from tests.backends.cpu.running import logits_in_chunks, open_backend, step_of, table_of
from tests.backends.cpu.synthetic_models import VARIANTS, SyntheticSource
from tests.backends.golden import Golden, golden_cases
from tests.real_model import smollm2

CASES = golden_cases()
SHORT = min(CASES, key=lambda case: len(case.prompt_ids))
CAPACITY = 4608


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[CpuBackend, CpuBackend]]:
    """The default model with and without the plane."""
    source = open_model(smollm2())
    backends = [open_backend(source, with_head_plane=wanted, n_threads=2) for wanted in (True, False)]
    yield backends[0], backends[1]
    for backend in backends:
        backend.close()


def greedy(backend: CpuBackend, prompt: list[int], n: int) -> tuple[list[int], list[int]]:
    """n ids one at a time, and the panels of the head that each took by way of the plane (0: none was asked)."""
    state = SamplerState(SamplingParams(temperature=0.0), 0, np.zeros(1, dtype=np.int32), 1)
    table = table_of(0, CAPACITY)
    if len(prompt) > 1:
        backend.run(step_of([(prompt[:-1], 0, table, StepRow(WANT_NOTHING))]))
    ids, panels = [prompt[-1]], []
    for i in range(n):
        row = StepRow(WANT_SAMPLE, sampler=state)
        result = backend.run(step_of([(ids[-1:], len(prompt) - 1 + i, table, row)]))
        ids.append(int(result.rows[0].tokens[0]))
        panels.append(backend.panels_evaluated)
    return ids[1:], panels


def check(pair: tuple[CpuBackend, CpuBackend], case: Golden) -> list[int]:
    (with_plane, panels), (without, none) = (greedy(b, case.prompt_ids, len(case.ids)) for b in pair)
    assert with_plane == without, case.name
    assert not any(none)
    n_panels = pair[0].architecture.vocab_size // 16
    print(f"{case.name}: {np.mean(panels):.0f} of {n_panels} panels of the head on average, {max(panels)} at most")
    return panels


def test_greedy_ids_of_the_default_model(pair: tuple[CpuBackend, CpuBackend]) -> None:
    panels = check(pair, SHORT)
    assert sum(0 < n < 300 for n in panels) > len(panels) // 2  # of 3,072


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_greedy_ids_of_all_golden_prompts(pair: tuple[CpuBackend, CpuBackend], case: Golden) -> None:
    check(pair, case)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_small_model_samples_its_argmax(n_threads: int) -> None:
    """A vocabulary that ends within a panel."""
    variant = VARIANTS[0]
    backend = open_backend(SyntheticSource(variant.architecture, variant.types), n_threads=n_threads)
    assert variant.architecture.vocab_size % 16 and head_plane.NAME in backend.weights.shapes
    ids = np.random.default_rng(2).integers(0, 331, 60).tolist()
    best = logits_in_chunks(backend, ids, 64).argmax(1)
    for n in range(1, 60, 7):
        assert greedy(backend, ids[:n], 1)[0] == [best[n - 1]]
    backend.close()


def test_only_heads_that_it_fits_have_a_plane() -> None:
    """8-bit ones whose product is the logit. It counts as weights held, not as weights read."""
    has_plane = {}
    for variant in VARIANTS:
        backend = CpuBackend(SyntheticSource(variant.architecture, variant.types))
        has_plane[variant.name] = head_plane.NAME in backend.weights.shapes
        plane = backend.weights.shapes[head_plane.NAME].nbytes if has_plane[variant.name] else 0
        assert backend.info.weight_bytes - backend.info.step_bytes == plane
    assert has_plane["llama"] and not has_plane["gemma"] and not has_plane["qwen3"]
    llama = SyntheticSource(VARIANTS[0].architecture, VARIANTS[0].types)
    bare = CpuBackend(llama, with_head_plane=False)
    assert head_plane.NAME not in bare.weights.shapes
    assert bare.greedy_step_bytes == bare.weights.nbytes
    full = CpuBackend(llama)
    assert full.greedy_step_bytes == full.weights.nbytes - full.weights.shapes["embedding"].nbytes
