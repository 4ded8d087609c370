"""Rows and tokens of steps, and rates over the last ten seconds."""

from __future__ import annotations

import numpy as np
import pytest
from imp_server.core import SamplingParams
from imp_server.decode.state import SamplerState
from imp_server.engine.step_meter import StepMeter
from imp_server.schedule.rows import Chunk, Row


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def row(n_prompt: int) -> Row:
    return Row(0, 0, SamplerState(SamplingParams(), 0, np.zeros(n_prompt, dtype=np.int32), n_prompt + 50, []))


def test_prompts_and_answers_are_told_apart() -> None:
    clock = Clock()
    meter = StepMeter(clock)
    prompt, answer, drafted = row(30), row(10), row(5)
    meter.note([Chunk(prompt, 0, 20)], [0], 100.0)
    meter.note([Chunk(prompt, 20, 10)], [1], 50.0)
    meter.note([Chunk(answer, 12, 1), Chunk(drafted, 8, 1, 3), Chunk(prompt, 16, 5)], [1, 3, 0], 100.0)
    found = meter.counters()
    assert {name: found[f"decode_batch_{name}"] for name in ("steps_total", "rows_total", "max", "last_rows")} == {
        "steps_total": 1,
        "rows_total": 2,
        "max": 2,
        "last_rows": 2,
    }
    assert found["mixed_decode_steps_total"] == 1 and found["longest_row_tokens"] == 30
    assert found["recent_prompt_tokens_per_s"] == pytest.approx(35 / 0.2)
    assert found["recent_written_tokens_per_s"] == pytest.approx(4 / 0.05)
    assert found["recent_rows_per_step"] == pytest.approx(5 / 3)
    assert meter.counters() == found, "a question changes nothing"


def test_the_window_slides() -> None:
    clock = Clock()
    meter = StepMeter(clock)
    for second in range(30):
        clock.now_s = 1000.0 + second
        meter.note([Chunk(row(4), 4, 1)], [1], 100.0 if second < 15 else 10.0)
    assert meter.counters()["recent_written_tokens_per_s"] == pytest.approx(100.0)
    clock.now_s += 9.9
    assert meter.counters()["recent_written_tokens_per_s"] == pytest.approx(100.0)
    clock.now_s += 10
    assert meter.counters()["recent_written_tokens_per_s"] == 0.0
    assert meter.counters()["decode_batch_steps_total"] == 30
    assert len(meter._seconds) == 0
