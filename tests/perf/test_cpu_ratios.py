"""Speed as ratios within one run, never as times: what would fail here is a lost order of magnitude."""

from __future__ import annotations

import time

import numpy as np
import pytest
from imp_server.backends.base import WANT_SAMPLE, StepRow
from imp_server.backends.cpu.twin import Arithmetic, TwinMatrix
from imp_server.core import SamplingParams
from imp_server.decode.state import SamplerState
from imp_server.native import usable_isas

from tests.backends.cpu.running import open_backend, step_of, table_of
from tests.backends.cpu.synthetic_models import SyntheticSource, architecture, random_tensor
from tests.kernels.test_cpu_matmul import Packed

IDS = np.arange(1, 9, dtype=np.int32)


def fastest(function, n: int = 5) -> float:
    times = []
    for _ in range(n):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


@pytest.mark.parametrize("type_name", ["Q4_1", "Q8_0"])
def test_native_products_leave_the_naive_twin_far_behind(type_name):
    rng = np.random.default_rng(0)
    raw = random_tensor(type_name, (512, 512), rng)
    packed, twin = Packed(raw, usable_isas()[0]), TwinMatrix(raw)
    x = rng.standard_normal((8, 512)).astype(np.float32)
    rules = Arithmetic()
    assert fastest(lambda: twin.multiply(x, rules)) > 5 * fastest(lambda: packed.multiply(x))


@pytest.fixture(scope="module")
def backend():
    a = architecture(width=512, n_layers=4, ffn_hidden=1536, n_heads=8, n_kv_heads=2, head_size=64, vocab_size=4096)
    backend = open_backend(SyntheticSource(a, {"": "Q4_1", "embedding": "Q8_0"}))
    yield backend
    backend.close()


def row() -> StepRow:
    return StepRow(WANT_SAMPLE, sampler=SamplerState(SamplingParams(temperature=0.0), 0, IDS, 64))


def test_eight_rows_cost_far_less_than_eight_steps(backend):
    one = step_of([(IDS[:1], 0, table_of(0, 16), row())])
    eight = step_of([(IDS[:1], 0, table_of(i, 16), row()) for i in range(8)])
    assert fastest(lambda: backend.run(eight)) < 5 * fastest(lambda: backend.run(one))


def test_a_prefill_is_several_times_faster_than_its_tokens_one_by_one(backend):
    ids = np.arange(64, dtype=np.int32)
    whole = step_of([(ids, 0, table_of(0, 64), row())])
    one = step_of([(ids[:1], 63, table_of(0, 64), row())])
    assert fastest(lambda: backend.run(whole)) < 64 / 2.5 * fastest(lambda: backend.run(one))
