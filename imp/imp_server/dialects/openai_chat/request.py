"""A Chat Completions body as a ChatRequest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

from imp_server.core import (
    ChatRequest,
    GenerationOptions,
    InvalidRequest,
    MediaPart,
    Message,
    OutputIntent,
    Part,
    ReasoningIntent,
    Role,
    TextPart,
    Tool,
    ToolCall,
    ToolChoice,
)
from imp_server.dialects.free_form import free_form_tool, wrapped
from imp_server.dialects.handler import Call
from imp_server.dialects.llamacpp.fields import choices_of
from imp_server.dialects.openai.sampling import (
    adapters_of,
    budget_tokens_of,
    cache_of,
    keep_of,
    limit_of,
    predict_s_of,
    prediction_of,
    row_of,
    sampling_of,
    speculative_of,
    stop_of,
    whole,
)
from imp_server.dialects.response_formats import response_format_of
from imp_server.dialects.sampler_names import with_samplers

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_LIMITS = ("max_completion_tokens", "max_tokens", "n_predict")
_FORMATS: dict[str | None, Literal["deepseek", "deepseek-legacy", "none"]] = {
    "deepseek": "deepseek",
    "deepseek-legacy": "deepseek-legacy",
    "none": "none",
}
"""Of reasoning_format; `auto` is the server's own."""


class ChatHabits(NamedTuple):
    """What a server does that this dialect leaves open."""

    prefills: bool = False
    """An assistant message at the end is gone on with, where the request doesn't say."""
    takes_tools: bool = True

    @classmethod
    def of(cls, call: Call) -> Self:
        server = call.services.config.server
        return cls(server.prefill_assistant, server.tools)


USUAL = ChatHabits()


def chat_request(body: Mapping[str, Any], ways: ChatHabits = USUAL) -> ChatRequest:
    """`body` satisfies the contract. Raises InvalidRequest for a tool_choice that names no tool."""
    if body.get("tools") and not ways.takes_tools:
        message = "this server takes no tools (server.tools, --jinja of llama-server): leave them out"
        raise InvalidRequest(message, param="tools", code="unsupported_value")
    if ways.prefills and "continue_final_message" not in body:
        body = _prefilled(body)
    if body.get("add_generation_prompt") and body.get("continue_final_message"):
        raise InvalidRequest(
            "the last message is continued or a new one is begun: send one of the two fields",
            param="add_generation_prompt",
            code="unsupported_value",
        )
    tools = tools_of(body.get("tools") or ())
    # Timings of a stream count tokens as it goes, and one piece of text may be of many.
    counted = 0 if body.get("stream") and body.get("timings_per_token") else None
    logprobs = whole(body.get("top_logprobs", 0)) if body.get("logprobs") else counted
    return ChatRequest(
        messages=tuple(_message(m, f"messages[{i}]") for i, m in enumerate(body["messages"])),
        model=body["model"],
        tools=tools,
        tool_choice=tool_choice_of(body.get("tool_choice"), tools, parallel=body.get("parallel_tool_calls", True)),
        reasoning=reasoning_of(body),
        output=OutputIntent(
            response_format_of(body),
            limit_of(body, _LIMITS),
            stop_of(body.get("stop")),
            length_steering=body.get("length_steering", True),
        ),
        sampling=sampling_of(with_samplers(body)),
        cache=cache_of(body),
        options=GenerationOptions(
            n=choices_of(body),
            logprobs=logprobs,
            predict_s=predict_s_of(body),
            speculative=speculative_of(body.get("speculative")),
            adapters=adapters_of(body),
            priority=int(body.get("priority", 0)),
            row_preference=row_of(body.get("id_slot")),
            **keep_of(body),
        ),
        prediction=prediction_of(body.get("prediction")),
        template_kwargs=body.get("chat_template_kwargs", {}),
        add_generation_prompt=body.get("add_generation_prompt", True),
        continue_final_message=bool(body.get("continue_final_message", False)),
        streamed=bool(body.get("stream")),
    )


def _prefilled(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """As llama-server has it: the parts of such a message stand a blank line apart."""
    messages = body["messages"]
    if not messages or messages[-1]["role"] != "assistant" or messages[-1].get("tool_calls"):
        return body
    if len(messages) > 1 and messages[-2]["role"] == "assistant":
        message = "two assistant messages at the end can't be gone on with: send one"
        raise InvalidRequest(message, param="messages", code="invalid_history")
    last = dict(messages[-1])
    if isinstance(content := last.get("content"), list):
        last["content"] = "\n\n".join(part.get("text", part.get("refusal", "")) for part in content)
    more = {"add_generation_prompt": False, "continue_final_message": True}
    return {**body, "messages": [*messages[:-1], last], **more}


def _message(message: Mapping[str, Any], path: str) -> Message:
    calls = tuple(_tool_call(call) for call in message.get("tool_calls") or ())
    call_id = message.get("tool_call_id")
    if message["role"] == "function":
        call_id = _function_call_id(message["name"])
    if function := message.get("function_call"):
        calls += (ToolCall(_function_call_id(function["name"]), function["name"], function["arguments"] or "{}"),)
    content = message.get("content")
    if not content and message.get("refusal"):
        content = message["refusal"]
    return Message(
        role=_ROLES[message["role"]],
        parts=parts_of(content, f"{path}.content"),
        reasoning=message.get("reasoning_content") or message.get("reasoning") or None,
        tool_calls=calls,
        tool_call_id=call_id,
        name=message.get("name"),
    )


def _function_call_id(name: str) -> str:
    """Of OpenAI's oldest calls, which had no ids: their results name the function."""
    return f"function_{name}"


def parts_of(content: Any, path: str) -> tuple[Part, ...]:
    """A refusal that is sent back is text the model once wrote."""
    if content is None:
        return ()
    if isinstance(content, str):
        return (TextPart(content),)
    return tuple(_part(part, f"{path}[{i}]") for i, part in enumerate(content))


def _part(part: Mapping[str, Any], path: str) -> Part:
    if part["type"] == "text":
        return TextPart(part["text"])
    if part["type"] == "refusal":
        return TextPart(part["refusal"])
    return MediaPart(part["type"], path)


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    call_id = call.get("id", "")
    if call["type"] == "custom":
        return ToolCall(call_id, call["custom"]["name"], wrapped(call["custom"]["input"]))
    function = call["function"]
    return ToolCall(call_id, function["name"], function.get("arguments") or "{}")


def tools_of(entries: Sequence[Mapping[str, Any]]) -> tuple[Tool, ...]:
    return tuple(_tool(entry, f"tools[{i}]") for i, entry in enumerate(entries))


def _tool(entry: Mapping[str, Any], path: str) -> Tool:
    if entry["type"] == "custom":
        return free_form_tool(entry["custom"]["name"], entry["custom"], f"{path}.custom")
    function = entry["function"]
    return Tool(
        name=function["name"],
        description=function.get("description", ""),
        parameters=function.get("parameters", {}),
        strict=function.get("strict", False),
    )


def _named(reference: Mapping[str, Any]) -> str:
    """Of a tool in tool_choice."""
    name: str = reference[reference["type"]]["name"]
    return name


def tool_choice_of(value: Any, tools: Sequence[Tool], *, parallel: bool) -> ToolChoice:
    mode: Literal["auto", "required"]
    if value is None:
        return ToolChoice(parallel=parallel)
    if isinstance(value, str):
        if value == "required" and not tools:
            raise InvalidRequest(
                '"tool_choice" is "required" but there are no "tools"', param="tool_choice", code="unknown_tool"
            )
        return ToolChoice(mode=value, parallel=parallel)  # type: ignore[arg-type]
    if value["type"] in {"function", "custom"}:
        named, mode, path = True, "required", f"tool_choice.{value['type']}.name"
        names = [_named(value)]
    else:
        named, mode, path = False, value["allowed_tools"]["mode"], "tool_choice.allowed_tools"
        names = [_named(tool) for tool in value["allowed_tools"]["tools"]]
    known = {tool.name for tool in tools}
    for name in names:
        if name not in known:
            raise InvalidRequest(f'"{path}": there is no tool {name!r} in "tools"', param=path, code="unknown_tool")
    return ToolChoice(mode=mode, names=tuple(names), parallel=parallel, named=named)


def reasoning_of(body: Mapping[str, Any]) -> ReasoningIntent:
    enabled = body.get("enable_thinking")
    if enabled is None:
        asked = body.get("chat_template_kwargs", {}).get("enable_thinking")
        enabled = asked if isinstance(asked, bool) else None
    effort = body.get("reasoning_effort")
    fraction = body.get("think_budget")
    if effort == "none" or fraction == 0:
        enabled = False
    return ReasoningIntent(
        enabled=enabled,
        effort=effort,
        budget_tokens=budget_tokens_of(body),
        budget_fraction=None if fraction is None else float(fraction),
        budget_message=body.get("reasoning_budget_message"),
        format=_FORMATS.get(body.get("reasoning_format")),
    )
