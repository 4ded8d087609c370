"""openai-agents on its default Responses model and on its Chat model: a tool, a handoff, a session, streaming."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import agents
import openai
import pytest
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, RunConfig, Runner, function_tool, handoff
from imp_server.engine.client.scripted import text_ids

from tests.api.live_server import LiveServer
from tests.live.toy_server import TOOLS_CHATML, call_text, prompt_of, toy_server

agents.set_tracing_disabled(True)
QUIET = RunConfig(tracing_disabled=True)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(TOOLS_CHATML) as live:
        yield live


@function_tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def model_of(kind: str, server: LiveServer) -> Any:
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0)
    made = OpenAIResponsesModel if kind == "responses" else OpenAIChatCompletionsModel
    return made(model="toy", openai_client=client)


@pytest.mark.parametrize("kind", ["responses", "chat"])
@pytest.mark.parametrize("streamed", [False, True])
def test_an_agent_uses_its_tool(server: LiveServer, kind: str, streamed: bool) -> None:
    server.engine.play(text_ids(call_text("weather", city="Köln")))
    server.engine.play(text_ids("It is sunny."))
    agent = Agent(name="a", instructions="be brief", tools=[weather], model=model_of(kind, server))

    async def run() -> str:
        if not streamed:
            return str((await Runner.run(agent, "Weather?", run_config=QUIET)).final_output)
        result = Runner.run_streamed(agent, "Weather?", run_config=QUIET)
        async for _ in result.stream_events():
            pass
        return str(result.final_output)

    assert asyncio.run(run()) == "It is sunny."
    assert "sunny in Köln" in prompt_of(server)


@pytest.mark.parametrize("kind", ["responses", "chat"])
def test_an_agent_hands_over(server: LiveServer, kind: str) -> None:
    expert = Agent(name="expert", instructions="you know", model=model_of(kind, server))
    front = Agent(name="front", handoffs=[handoff(expert)], model=model_of(kind, server))
    server.engine.play(text_ids(call_text("transfer_to_expert")))
    server.engine.play(text_ids("I know."))
    result = asyncio.run(Runner.run(front, "Who knows?", run_config=QUIET))
    assert result.final_output == "I know." and result.last_agent.name == "expert"


def test_previous_response_id_carries_the_conversation(server: LiveServer) -> None:
    agent = Agent(name="a", model=model_of("responses", server))

    async def run() -> None:
        server.engine.play(text_ids("One."))
        first = await Runner.run(agent, "a", run_config=QUIET)
        server.engine.play(text_ids("Two."))
        second = await Runner.run(agent, "b", previous_response_id=first.last_response_id, run_config=QUIET)
        assert second.final_output == "Two." and "One.<|im_end|>" in prompt_of(server)

    asyncio.run(run())
