"""The hidden state of a row with drafts is that of its last accepted one, whatever was drafted behind it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from imp_server.backends.base import WANT_HIDDEN, WANT_SAMPLE, StepRow
from imp_server.backends.cpu.twin_model import TwinModel
from imp_server.core import SamplingParams
from imp_server.decode.state import SamplerState

from tests.backends.cpu.running import Ids, logits_in_chunks, open_backend, step_of, table_of
from tests.backends.cpu.synthetic_models import VARIANTS, SyntheticSource

IDS = np.random.default_rng(4).integers(0, 331, 20)


@pytest.mark.parametrize("n_right", [0, 1, 3])
def test_the_state_is_that_of_the_last_accepted_draft(n_right: int) -> None:
    variant = VARIANTS[0]
    source = SyntheticSource(variant.architecture, variant.types)
    backend = open_backend(source)
    known = IDS.tolist()
    for _ in range(3):
        known.append(int(logits_in_chunks(backend, known, 64, capacity=40)[-1].argmax()))
    drafts = [known[20 + i] if i < n_right else (known[20 + i] + 1) % 331 for i in range(3)]
    state = SamplerState(SamplingParams(temperature=0.0), 0, IDS.astype(np.int32), 40)
    wanted = StepRow(WANT_SAMPLE | WANT_HIDDEN, n_drafts=3, sampler=state)
    other = StepRow(WANT_HIDDEN)
    chunks: list[tuple[Ids, int, list[npt.NDArray[np.int32]], StepRow]]
    chunks = [(IDS[:5], 0, table_of(3, 40), other), ([*IDS, *drafts], 0, table_of(0, 40), wanted)]
    first, result = backend.run(step_of(chunks)).rows
    assert result.n_accepted == n_right
    twin = TwinModel(source)
    np.testing.assert_array_equal(result.hidden, twin.hidden(known[: 20 + n_right])[-1])
    np.testing.assert_array_equal(first.hidden, twin.hidden(IDS[:5])[-1])
    backend.close()
