"""The arms for models that think, against imp with a scripted model: a good one passes, each planted fault is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from imp_server.core import GenerateRequest
from imp_server.degeneration.asker import ProbeAsker, reasons
from imp_server.degeneration.client import Client
from imp_server.degeneration.findings import Finding
from imp_server.degeneration.run import run
from imp_server.engine.client.scripted import Action, text_ids

from tests.api.live_server import LiveServer
from tests.live.toy_server import TOOLS_CHATML, toy_server

ARMS = ("think-leak", "anthropic-thinking")
THOUGHT = "Trees save water in the cold months."
ANSWER = "The green fades first, and yellow and red remain."


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(TOOLS_CHATML) as live:
        yield live


def writes(thought: str, answer: str) -> Callable[[GenerateRequest, int], tuple[Action, ...]]:
    """Thinks unless the prompt has closed the thinking."""

    def play(request: GenerateRequest, _choice: int) -> tuple[Action, ...]:
        prompt = bytes(i for i in memoryview(request.ids).cast("i") if i < 256)
        return (text_ids(answer if prompt.endswith(b"</think>\n\n") else thought + answer),)

    return play


def findings(server: LiveServer) -> list[Finding]:
    client = Client(server.url, timeout_s=20)
    assert reasons(client, "toy")
    return list(run(ProbeAsker(client, "toy", reasons=True), ARMS, []))


def failing(found: list[Finding]) -> set[str]:
    return {f.check for f in found if f.verdict == "fail"}


def test_a_good_thinker_passes(server: LiveServer) -> None:
    server.engine.answer_with(writes(f"<think>{THOUGHT}</think>", ANSWER))
    found = findings(server)
    assert not failing(found), [f for f in found if f.verdict != "pass"]
    assert len(found) >= 15


@pytest.mark.parametrize(
    "thought,answer,wanted",
    [
        (
            f"<think>{THOUGHT}</think>",
            "Okay, so the user asks about leaves. " + ANSWER,
            "think-leak/whole/no_reasoning_opener",
        ),
        (f"<think>{THOUGHT} {ANSWER}", "", "think-leak/whole/not_empty"),
    ],
    ids=["a thought in the answer", "the answer in the thought"],
)
def test_a_planted_fault_is_found(server: LiveServer, thought: str, answer: str, wanted: str) -> None:
    server.engine.answer_with(writes(thought, answer))
    assert wanted in failing(findings(server))
