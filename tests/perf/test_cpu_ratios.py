"""Speed as ratios within one run, never as times: what would fail here is a lost multiple, not a lost percent.

Beside each bound what two cores show while six others want them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from imp_server.backends.base import WANT_SAMPLE, RowResult, StepRow
from imp_server.backends.cpu.backend import CpuBackend
from imp_server.backends.cpu.twin import Arithmetic, TwinMatrix
from imp_server.backends.host_sampling import sample_on_host
from imp_server.core import SamplingParams
from imp_server.decode.state import SamplerState
from imp_server.native import usable_isas

from tests.backends.cpu.running import open_backend, step_of, table_of
from tests.backends.cpu.synthetic_models import SyntheticSource, architecture, random_tensor
from tests.kernels.test_cpu_matmul import Packed
from tests.kernels.test_cpu_sampling import native
from tests.perf.races import speedup

IDS = np.arange(1, 9, dtype=np.int32)
VECTORS = pytest.mark.skipif(usable_isas()[0] == "portable", reason="this CPU has no AVX2: nothing to gain by")


@VECTORS
@pytest.mark.parametrize("type_name", ["Q4_1", "Q8_0"])
def test_native_products_leave_the_naive_twin_far_behind(benchmark: Any, type_name: str) -> None:
    rng = np.random.default_rng(0)
    raw = random_tensor(type_name, (512, 512), rng)
    packed, twin = Packed(raw, usable_isas()[0]), TwinMatrix(raw)
    x = rng.standard_normal((8, 512)).astype(np.float32)
    rules = Arithmetic()
    assert speedup(benchmark, lambda: packed.multiply(x), lambda: twin.multiply(x, rules)) > 8  # 27 and 36


@pytest.fixture(scope="module")
def backend() -> Iterator[CpuBackend]:
    a = architecture(width=512, n_layers=4, hidden=1536, n_heads=8, n_kv_heads=2, head_size=64, vocab_size=4096)
    backend = open_backend(SyntheticSource(a, {"": "Q4_1", "embedding": "Q8_0"}))
    yield backend
    backend.close()


def row() -> StepRow:
    return StepRow(WANT_SAMPLE, sampler=SamplerState(SamplingParams(temperature=0.0), 0, IDS, 64))


@VECTORS
def test_eight_rows_cost_far_less_than_eight_steps(benchmark: Any, backend: CpuBackend) -> None:
    ones = [step_of([(IDS[:1], 0, table_of(i, 16), row())]) for i in range(8)]
    eight = step_of([(IDS[:1], 0, table_of(i, 16), row()) for i in range(8)])
    assert speedup(benchmark, lambda: backend.run(eight), lambda: [backend.run(one) for one in ones]) > 1.4  # 2.1


@VECTORS
def test_a_prefill_is_several_times_faster_than_its_tokens_one_by_one(benchmark: Any, backend: CpuBackend) -> None:
    ids = np.arange(64, dtype=np.int32)
    whole = step_of([(ids, 0, table_of(0, 64), row())])
    ones = [step_of([(ids[i : i + 1], i, table_of(0, 64), row())]) for i in range(64)]
    assert speedup(benchmark, lambda: backend.run(whole), lambda: [backend.run(one) for one in ones], 5) > 2  # 4


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repetition_penalty=1.1, seed=1),
        SamplingParams(temperature=1.0, top_p=0.9, seed=1),
        SamplingParams(temperature=1.0, seed=1),
    ],
    ids=["top_k", "top_p", "plain"],
)
def test_sampling_a_large_vocabulary_natively_beats_the_law_that_sorts_it(
    benchmark: Any, params: SamplingParams
) -> None:
    logits = (3 * np.random.default_rng(2).standard_normal((1, 131072))).astype(np.float32)
    state = SamplerState(params, 0, np.arange(500, dtype=np.int32), 600)

    def by_the_law() -> None:
        sample_on_host(StepRow(WANT_SAMPLE, sampler=state), logits, IDS[:0], None, RowResult(tokens=IDS[:0]))

    assert speedup(benchmark, lambda: native(logits, state), by_the_law) > 3  # 10
