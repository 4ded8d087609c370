"""While masks are being filled a narrow step leaves their thread a core: else it gets one when the step is over."""

from __future__ import annotations

import numpy as np
import pytest
from imp_server.backends.base import WANT_SAMPLE, StepRow
from imp_server.backends.cpu.thread_choice import ThreadChoice
from imp_server.core import SamplingParams
from imp_server.decode.state import SamplerState

from tests.backends.cpu.running import open_backend, step_of, table_of
from tests.backends.cpu.synthetic_models import VARIANTS, SyntheticSource, architecture

N_WORDS = -(-331 // 32)
IDS = np.arange(20, dtype=np.int32)


@pytest.mark.parametrize(
    ("n_ids", "flag", "cores", "n_used"),
    [
        (1, 0, {0, 1}, 1),
        (8, 0, {0, 1}, 1),
        (9, 0, {0, 1}, 2),
        (1, 1, {0, 1}, 2),
        (1, 0, {0, 1, 2, 3}, 2),
        (1, 0, {0}, 1),
    ],
)
def test_a_narrow_step_leaves_a_core_to_the_mask_thread(
    monkeypatch: pytest.MonkeyPatch, n_ids: int, flag: int, cores: set[int], n_used: int
) -> None:
    used: list[int] = []
    monkeypatch.setattr(ThreadChoice, "observe", lambda self, n_tokens, n_threads, *rest: used.append(n_threads))
    monkeypatch.setattr("imp_server.backends.cpu.backend.affinity", lambda: cores)
    backend = open_backend(SyntheticSource(architecture(), VARIANTS[0].types), n_threads=min(2, len(cores)))
    state = SamplerState(SamplingParams(temperature=0.0), 0, IDS[:n_ids], 64)
    row = StepRow(WANT_SAMPLE, 0, state, 0)
    step = step_of([(IDS[:n_ids], 0, table_of(0, 64), row)], masks=np.full((1, N_WORDS), 0x55555555, dtype=np.uint32))
    step.mask_flags = np.array([flag], dtype=np.uint32)
    result = backend.run(step).rows[0]
    assert used == [n_used]
    assert result.mask_late == (not flag)
    backend.close()
