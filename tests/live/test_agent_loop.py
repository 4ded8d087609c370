"""openai-agents runs a task of two tools in a 256k context: parallel calls, then one that builds on their results."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import agents
import pytest
from agents import Agent, ModelSettings, RunConfig, Runner, function_tool
from imp_server.engine.client.scripted import text_ids

from tests.api.live_server import LiveServer
from tests.live.test_openai_agents import model_of
from tests.live.toy_server import TOOLS_CHATML, call_text, prompt_of, toy_server

agents.set_tracing_disabled(True)
QUIET = RunConfig(tracing_disabled=True)
CONTEXT = 262_144
MANUAL = "The manual of the thermometer. " * 6000
"""186,000 tokens of the byte model."""


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(TOOLS_CHATML, context_length=CONTEXT) as live:
        yield live


measured: list[str] = []


@function_tool
def measure(city: str) -> str:
    """The temperature of a city in degrees Celsius."""
    measured.append(city)
    return {"Köln": "21", "Bonn": "19"}[city]


@function_tool
def average(values: list[float]) -> str:
    """The mean of some numbers."""
    return str(sum(values) / len(values))


@pytest.mark.parametrize("kind", ["responses", "chat"])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_task_of_two_tools(server: LiveServer, kind: str, streamed: bool) -> None:
    measured.clear()
    both = call_text("measure", city="Köln") + "\n" + call_text("measure", city="Bonn")
    server.engine.play(text_ids("<think>First measure.</think>I'll measure." + both))
    server.engine.play(text_ids("<think>Now the mean.</think>" + call_text("average", values=[21, 19])))
    server.engine.play(text_ids("It is 20.0 degrees on average."))
    agent = Agent(
        name="a",
        instructions=MANUAL,
        tools=[measure, average],
        model=model_of(kind, server),
        model_settings=ModelSettings(parallel_tool_calls=True, extra_body={"enable_thinking": True}),
    )

    async def run() -> Any:
        if not streamed:
            return (await Runner.run(agent, "How warm is it on average?", run_config=QUIET)).final_output
        result = Runner.run_streamed(agent, "How warm is it on average?", run_config=QUIET)
        async for _ in result.stream_events():
            pass
        return result.final_output

    assert asyncio.run(run()) == "It is 20.0 degrees on average."
    assert sorted(measured) == ["Bonn", "Köln"]
    prompt = prompt_of(server)
    assert len(server.engine.requests_seen[-1].ids) // 4 > 180_000
    assert prompt.count("<tool_call>{") == 3 and "20.0" in prompt
