"""Responses: what OpenAI documents."""

from __future__ import annotations

from tests.live.toy_server import call_text
from tests.live.unusual.pieces import CALL, CITY, NUMBERED, THOUGHT, USER, Ask, Json, texts

WEATHER: Json = {"type": "function", "name": "weather", "parameters": CITY, "strict": True}
BERLIN: Json = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city":"B"}'}
IMAGE: Json = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "auto"}
SAID: Json = {"role": "assistant", "content": "x"}
HOSTED: list[Json] = [
    {"type": "web_search"}, {"type": "web_search_preview"}, {"type": "file_search", "vector_store_ids": ["v"]},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "mcp", "server_label": "x", "server_url": "https://x"}, {"type": "image_generation"},
    {"type": "local_shell"}, {"type": "shell"}, {"type": "apply_patch"}, {"type": "computer"},
]  # fmt: skip


def result(output: object, **more: object) -> Json:
    return {"type": "function_call_output", "call_id": "call_1", "output": output, **more}


def words(*parts: str) -> list[Json]:
    return texts(*parts, kind="input_text")


def items(*more: Json, **fields: object) -> Json:
    return {"input": [USER, *more], **fields}


def hi(**fields: object) -> Json:
    return {"input": "hi", **fields}


def echoed(*parts: Json) -> Json:
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": list(parts)}


def reasoning(**more: object) -> Json:
    return {"type": "reasoning", "id": "rs_1", "summary": [], **more}


ASKS = [
    Ask("roles", {"input": [{"role": "developer", "content": "d"}, {"role": "system", "content": words("s")},
        {"role": "user", "content": words("a", "b")}]}, shows="a\nb"),
    Ask("instructions", hi(instructions="be nice"), shows="system\nbe nice"),
    Ask("assistant", items(SAID, USER), shows="assistant\nx"),
    Ask("phase", items({**SAID, "phase": "commentary"}, USER)),
    Ask("echo", items(echoed({"type": "output_text", "text": "x", "annotations": [], "logprobs": []}), USER)),
    Ask("refusal", items(echoed({"type": "refusal", "refusal": "no"}), USER), shows="assistant\nno"),
    Ask("result", items(BERLIN, result("sun"), tools=[WEATHER]), shows="tool\nsun"),
    Ask("result in parts", items(BERLIN, result(words("a", "b")), tools=[WEATHER]), shows="a\nb"),
    Ask("image in a result", items(BERLIN, result([IMAGE]), tools=[WEATHER]), 400),
    Ask("nulls in a result", items({**BERLIN, "id": "fc_1", "status": "completed"}, result("x", id=None, status=None))),
    Ask("empty result", items(BERLIN, result(""), tools=[WEATHER])),
    Ask("empty content", {"input": [{"role": "user", "content": ""}]}),
    Ask("empty input", {"input": ""}),
    Ask("parallel", items(BERLIN, {**BERLIN, "call_id": "c2"}, result("a"), result("b", call_id="c2"),
        tools=[WEATHER])),
    Ask("reasoning", items(reasoning(summary=texts("hm", kind="summary_text")), SAID, USER), shows="<think>hm</think>"),
    Ask("encrypted", items(reasoning(encrypted_content="gAAA"), SAID, USER, include=["reasoning.encrypted_content"],
        store=False), shows="assistant\nx"),
    Ask("nulls in reasoning", items(reasoning(content=None, encrypted_content=None, status=None), USER)),
    Ask("unknown item", items({"type": "item_reference", "id": "msg_x"}), 404),
    Ask("free-form history", items({"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "abc"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"}, tools=[{"type": "custom",
        "name": "patch"}]),
        shows="abc"),
    Ask("web search ran", items({"type": "web_search_call", "id": "ws_1", "status": "completed",
        "action": {"type": "search", "query": "q"}}, SAID, USER), ignored="/input/1"),
    Ask("file search ran", items({"type": "file_search_call", "id": "fs", "status": "completed", "queries": ["a"],
        "results": None}, USER), ignored="/input/1"),
    Ask("mcp ran", items({"type": "mcp_list_tools", "id": "m", "server_label": "x", "tools": []},
        {"type": "mcp_call", "id": "mc", "server_label": "x", "name": "n", "arguments": "{}", "output": "o"}, USER),
        ignored="/input/1, /input/2"),
    Ask("shell ran", items({"type": "local_shell_call", "id": "l", "call_id": "c", "status": "completed",
        "action": {"type": "exec", "command": ["ls"], "env": {}}},
        {"type": "local_shell_call_output", "id": "l2", "output": "x"}, USER), ignored="/input/1, /input/2"),
    Ask("code ran", items({"type": "code_interpreter_call", "id": "ci", "status": "completed", "code": "1",
        "container_id": "c", "outputs": None}, USER), ignored="/input/1"),
    Ask("computer ran", items({"type": "computer_call", "id": "c", "call_id": "cc", "status": "completed",
        "action": {"type": "click", "x": 1, "y": 1, "button": "left"}, "pending_safety_checks": []},
        {"type": "computer_call_output", "call_id": "cc", "output": {"type": "computer_screenshot", "image_url": "x"}},
        USER), ignored="/input/1, /input/2"),
    Ask("image was made", items({"type": "image_generation_call", "id": "ig", "status": "completed", "result": None}),
        ignored="/input/1"),
    Ask("image", {"input": [{"role": "user", "content": [IMAGE]}]}, 400),
    Ask("file", {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, 400),
    Ask("hosted tools", hi(tools=[WEATHER, *HOSTED]), ignored=", ".join(f"/tools/{i}" for i in range(1, 11))),
    Ask("nulls in a tool", hi(tools=[{"type": "function", "name": "a", "parameters": None, "strict": None}])),
    Ask("deferred tool", hi(tools=[{**WEATHER, "defer_loading": True, "output_schema": {}}, {"type": "tool_search"}]),
        ignored="/tools/0/defer_loading, /tools/0/output_schema, /tools/1"),
    Ask("namespace", hi(tools=[{"type": "namespace", "name": "ns", "description": "d", "tools": [WEATHER]}])),
    Ask("choice none", hi(tools=[WEATHER], tool_choice="none")),
    Ask("choice required", hi(tools=[WEATHER], tool_choice="required"), text=CALL),
    Ask("choice by name", hi(tools=[WEATHER], tool_choice={"type": "function", "name": "weather"}), text=CALL),
    Ask("choice among some", hi(tools=[WEATHER], tool_choice={"type": "allowed_tools", "mode": "required",
        "tools": [{"type": "function", "name": "weather"}]}), text=CALL),
    Ask("choice of a hosted tool", hi(tools=[WEATHER, *HOSTED], tool_choice={"type": "web_search_preview"}), 400),
    Ask("choice of an mcp server", hi(tools=HOSTED, tool_choice={"type": "mcp", "server_label": "x"}), 400),
    Ask("choice of a free-form tool", hi(tools=[{"type": "custom", "name": "patch"}],
        tool_choice={"type": "custom", "name": "patch"}), text=call_text("patch", input="x")),
    Ask("format text", hi(text={"format": {"type": "text"}, "verbosity": "low"})),
    Ask("format json_object", hi(text={"format": {"type": "json_object"}}), text="{}"),
    Ask("format json_schema", hi(text={"format": {"type": "json_schema", "name": "x", "schema": NUMBERED,
        "strict": True}}), text='{"a":1}'),
    Ask("include", hi(include=["file_search_call.results", "web_search_call.action.sources",
        "message.output_text.logprobs", "reasoning.encrypted_content"], top_logprobs=2)),
    Ask("truncation", hi(truncation="auto")),
    Ask("no truncation", hi(truncation="disabled", store=False, metadata=None)),
    Ask("unknown response", hi(previous_response_id="resp_x"), 404),
    Ask("background without a store", hi(background=True, store=False), 400),
    Ask("unknown conversation", hi(conversation="conv_1"), 404),
    Ask("context management", hi(context_management=[{"type": "compaction", "compact_threshold": 100000}]),
        ignored="/context_management"),
    Ask("limits", hi(max_tool_calls=3, service_tier="priority", metadata={"a": "b"})),
    Ask("thinks", hi(reasoning={"effort": "high", "summary": "auto", "generate_summary": "detailed"}), text=THOUGHT,
        ignored="/reasoning/generate_summary"),
    Ask("stream options", hi(stream_options={"include_obfuscation": False})),
    Ask("cache", hi(prompt_cache_key="k", prompt_cache_retention="24h", safety_identifier="x", user="u")),
    Ask("last turn of the assistant", items(SAID)),
    Ask("status", {"input": [{"type": "message", "role": "user", "status": "completed", "content": words("x")}]}),
    Ask("breakpoint", {"input": [{"role": "user", "content": [
        {"type": "input_text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}}]}]}),
]  # fmt: skip
