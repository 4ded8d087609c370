"""Chat Completions: what OpenAI documents."""

from __future__ import annotations

from tests.live.toy_server import call_text
from tests.live.unusual.pieces import CALL, CITY, NUMBERED, USER, Ask, Json, texts

WEATHER: Json = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
CLOCK: Json = {"type": "function", "function": {"name": "clock"}}
PATCH: Json = {"type": "custom", "custom": {"name": "patch", "description": "d"}}
NAMED: Json = {"type": "function", "function": {"name": "weather"}}
IMAGE: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def called(call_id: str, name: str, arguments: str) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


BERLIN, NOON = called("call_1", "weather", '{"city":"Berlin"}'), called("call_2", "clock", "{}")
FREE: Json = {"id": "call_3", "type": "custom", "custom": {"name": "patch", "input": "abc"}}


def said(content: object = None, **more: object) -> Json:
    return {"role": "assistant", "content": content, **more}


def result(content: object, call_id: str = "call_1") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def turns(*messages: Json, **more: object) -> Json:
    return {"messages": [USER, *messages], **more}


def allowed(mode: str) -> Json:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [NAMED]}}


def schema(**more: object) -> Json:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", **more}}}


ASKS = [
    Ask("developer", {"messages": [{"role": "developer", "content": "d"}, USER]}, shows="system\nd"),
    Ask("developer parts", {"messages": [{"role": "developer", "content": texts("d", "e")}, USER]}, shows="d\ne"),
    Ask("systems anywhere", turns({"role": "system", "content": "a"}, USER),
        shows="system\na<|im_end|>\n<|im_start|>user"),
    Ask("system only", {"messages": [{"role": "system", "content": "a"}]}),
    Ask("text parts", {"messages": [{"role": "user", "content": texts("one", "two")}]}, shows="one\ntwo"),
    Ask("breakpoint", {"messages": [{"role": "user", "content": [
        {"type": "text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}}]}]},
        ignored="/messages/0/content/0/prompt_cache_breakpoint"),
    Ask("refusal part", turns(said([{"type": "refusal", "refusal": "I won't"}]), USER), shows="assistant\nI won't"),
    Ask("refusal", turns(said(refusal="I won't"), USER), shows="assistant\nI won't"),
    Ask("no refusal", turns(said("", refusal=None), USER)),
    Ask("earlier audio", turns({"role": "assistant", "audio": {"id": "audio_1"}}, USER), ignored="/messages/1/audio"),
    Ask("oldest calls", turns(said(function_call={"name": "weather", "arguments": '{"city":"B"}'}),
        {"role": "function", "name": "weather", "content": "sun"}, tools=[WEATHER]),
        shows='"arguments": {"city": "B"}'),
    Ask("last turn of the assistant", turns(said("Well"))),
    Ask("empty user", {"messages": [{"role": "user", "content": ""}]}),
    Ask("names", {"messages": [{**USER, "name": "bob"}, said("x", name="al"), {**USER, "name": "eve"}]}),
    Ask("assistant first", {"messages": [said("hello"), USER]}, shows="assistant\nhello"),
    Ask("two users", turns(USER)),
    Ask("result", turns(said(tool_calls=[BERLIN]), result("sun"), tools=[WEATHER]), shows="tool\nsun"),
    Ask("result in parts", turns(said(tool_calls=[BERLIN]), result(texts("a", "b")), tools=[WEATHER]), shows="a\nb"),
    Ask("empty result", turns(said(tool_calls=[BERLIN]), result(""), tools=[WEATHER])),
    Ask("image in a result", turns(said(tool_calls=[BERLIN]), result([IMAGE]), tools=[WEATHER]), 400),
    Ask("results in another order", turns(said("both", tool_calls=[BERLIN, NOON]), result("12", "call_2"),
        result("sun"), tools=[WEATHER, CLOCK]), shows="tool\n12"),
    Ask("free-form history", turns(said(tool_calls=[FREE]), result("ok", "call_3"), tools=[PATCH]), shows="abc"),
    Ask("calls without tools", turns(said(tool_calls=[BERLIN]), result("sun"))),
    Ask("arguments that aren't JSON", turns(said(tool_calls=[called("c", "weather", "{bad")]), result("x", "c"))),
    Ask("no arguments", turns(said(tool_calls=[called("c", "clock", "")]), result("x", "c"), tools=[CLOCK])),
    Ask("no calls", turns(said("x", tool_calls=[]), USER)),
    Ask("image", {"messages": [{"role": "user", "content": [IMAGE]}]}, 400),
    Ask("audio", {"messages": [{"role": "user", "content": [
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}]}]}, 400),
    Ask("file", {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]}, 400),
    Ask("parallel calls", {"tools": [WEATHER, CLOCK]}, text=CALL + call_text("clock")),
    Ask("one call at a time", {"tools": [WEATHER, CLOCK], "parallel_tool_calls": False}, text=CALL),
    Ask("choice none", {"tools": [WEATHER], "tool_choice": "none"}),
    Ask("choice auto", {"tools": [WEATHER], "tool_choice": "auto"}, text=CALL),
    Ask("choice required", {"tools": [WEATHER], "tool_choice": "required"}, text=CALL),
    Ask("choice by name", {"tools": [WEATHER, CLOCK], "tool_choice": NAMED}, text=CALL),
    Ask("choice among some", {"tools": [WEATHER, CLOCK], "tool_choice": allowed("auto")}, text=CALL),
    Ask("choice required among some", {"tools": [WEATHER, CLOCK], "tool_choice": allowed("required")}, text=CALL),
    Ask("choice none without tools", {"tool_choice": "none"}),
    Ask("choice auto without tools", {"tool_choice": "auto"}),
    Ask("choice of an unknown", {"tools": [CLOCK], "tool_choice": NAMED}, 400),
    Ask("strict without parameters", {"tools": [{"type": "function", "function": {"name": "a", "strict": True}}]}),
    Ask("nulls in a tool", {"tools": [{"type": "function", "function": {
        "name": "a", "description": None, "parameters": None, "strict": None}}]}),
    Ask("no tools", {"tools": []}),
    Ask("functions", {"functions": [{"name": "weather", "parameters": CITY}]}, 400),
    Ask("function_call", {"function_call": "none"}, ignored="/function_call"),
    Ask("format text", {"response_format": {"type": "text"}}),
    Ask("format json_object", {"response_format": {"type": "json_object"}}, text='{"a":1}'),
    Ask("format json_schema", schema(schema=NUMBERED, strict=True), text='{"a":1}'),
    Ask("format without a schema", schema(), 400),
    Ask("format of anything", schema(strict=None, description="d", schema={}), text="[1]"),
    Ask("format unknown", {"response_format": {"type": "python"}}, 400),
    Ask("store", {"store": True, "metadata": {"k": "v"}}),
    Ask("tiers", {"service_tier": "flex", "verbosity": "low", "modalities": ["text"], "safety_identifier": "s"}),
    Ask("audio out", {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}, 400),
    Ask("cache", {"prompt_cache_key": "k", "user": "u"}, ignored="/prompt_cache_key"),
    Ask("web search", {"web_search_options": {}}, ignored="/web_search_options"),
    Ask("prediction", {"prediction": {"type": "content", "content": "hello"}}),
    Ask("prediction in parts", {"prediction": {"type": "content", "content": texts("hello")}}),
    Ask("effort", {"reasoning_effort": "xhigh"}),
    Ask("no effort", {"reasoning_effort": "none"}),
    Ask("stop null", {"stop": None}),
    Ask("stop strings", {"stop": ["a", "b", "c", "d"]}),
    Ask("no stop strings", {"stop": []}),
    Ask("choices", {"n": 2}),
    Ask("logprobs", {"logprobs": True, "top_logprobs": 3}),
    Ask("top_logprobs alone", {"top_logprobs": 3}),
    Ask("bias", {"logit_bias": {"5": -100}}),
    Ask("both limits", {"max_tokens": 5, "max_completion_tokens": 3}),
    Ask("edges", {"seed": -5, "temperature": 0, "top_p": 0, "presence_penalty": -2, "frequency_penalty": 2}),
]  # fmt: skip
