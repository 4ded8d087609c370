"""Bounds that an engine sets before it accepts a request."""

from __future__ import annotations

import pytest
from imp_server.core import ContextLengthExceeded, GenerateRequest, MessageSpan, OutputPlan, pack_ids
from imp_server.engine.acceptance import Limits, check_request


def request(n_prompt: int, *, spans: tuple[MessageSpan, ...] = (), task: str = "generate") -> GenerateRequest:
    return GenerateRequest(key=1, ids=pack_ids([1] * n_prompt), plan=OutputPlan(max_tokens=1), spans=spans, task=task)  # type: ignore[arg-type]


@pytest.mark.parametrize("task", ["generate", "embed"])
def test_the_longest_prompt_that_the_operator_wants(task: str) -> None:
    limits = Limits(100, 10, max_prompt=20, tasks=("generate", "embed"))
    assert len(check_request(request(20, task=task), limits)) == 20
    with pytest.raises(
        ContextLengthExceeded, match=r"20 tokens \(server.max_input_tokens\), and this one has 21"
    ) as caught:
        check_request(request(21, task=task), limits)
    assert caught.value.param == ("input" if task == "embed" else "prompt")
    with pytest.raises(ContextLengthExceeded) as caught:
        check_request(request(21, spans=(MessageSpan("user", 0, 21),)), limits)
    assert caught.value.param == "messages"


def test_without_it_the_context_is_the_bound() -> None:
    limits = Limits(100, 10)
    assert len(check_request(request(99), limits)) == 99
    with pytest.raises(ContextLengthExceeded, match="maximum context length is 100"):
        check_request(request(100), limits)
