"""A backend that searches its head by the upper bits gives the ids of one that doesn't (cpu.head_plane)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from imp_server.backends.base import WANT_NOTHING, WANT_SAMPLE, StepRow
from imp_server.backends.cpu.backend import CpuBackend
from imp_server.backends.cpu.layouts import SPLIT
from imp_server.backends.cpu.lowering import head_name
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
    assert variant.architecture.vocab_size % 16 and is_split(backend)
    ids = np.random.default_rng(2).integers(0, 331, 60).tolist()
    best = logits_in_chunks(backend, ids, 64).argmax(1)
    for n in range(1, 60, 7):
        assert greedy(backend, ids[:n], 1)[0] == [best[n - 1]]
    backend.close()


def is_split(backend: CpuBackend) -> bool:
    return backend.weights.shapes[head_name(backend.architecture)].type == SPLIT


def test_only_heads_that_it_fits_are_split() -> None:
    """8-bit ones whose product is the logit. No copy of anything is kept; a greedy step reads the upper bits alone."""
    split = {}
    for variant in VARIANTS:
        source = SyntheticSource(variant.architecture, variant.types)
        backend, bare = CpuBackend(source), CpuBackend(source, with_head_plane=False)
        split[variant.name] = is_split(backend)
        assert not is_split(bare) and bare.greedy_step_bytes == bare.step_bytes == backend.step_bytes
        assert backend.info.weight_bytes == bare.info.weight_bytes
        head = backend.weights.shapes[head_name(variant.architecture)]
        lower = head.n_panels * head.n_blocks * 192 if split[variant.name] else 0
        assert backend.greedy_step_bytes == backend.step_bytes - lower
    assert split["llama"] and not split["gemma"] and not split["qwen3"]


def test_a_step_reads_the_chosen_experts_and_no_embedding_beside_a_head() -> None:
    """Of 7 experts 3, of which a prefill may need all."""
    variant = next(v for v in VARIANTS if v.name == "experts with biases")
    backend = CpuBackend(SyntheticSource(variant.architecture, variant.types))
    shapes = backend.weights.shapes
    experts = sum(shape.nbytes for name, shape in shapes.items() if ".experts_" in name)
    whole = backend.weights.nbytes - (0 if backend.architecture.tied_head else shapes["embedding"].nbytes)
    assert abs(backend.step_bytes - (whole - experts + experts * 3 / 7)) < len(shapes)
