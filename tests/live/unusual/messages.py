"""Messages: what Anthropic documents."""

from __future__ import annotations

from tests.live.toy_server import call_text
from tests.live.unusual.pieces import CALL, CITY, NUMBERED, THOUGHT, USER, Ask, Json, texts

WEATHER: Json = {"name": "weather", "description": "d", "input_schema": CITY}
CLOCK: Json = {"name": "clock", "input_schema": {"type": "object"}}
BERLIN: Json = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "B"}}
NOON: Json = {"type": "tool_use", "id": "toolu_2", "name": "clock", "input": {}}
IMAGE: Json = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
NOTE: Json = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "inside"}}
FOUND: Json = {"type": "search_result", "source": "u", "title": "t", "content": texts("inside")}
MARK: Json = {"type": "ephemeral", "ttl": "1h", "scope": "x"}
SERVER_TOOLS: list[Json] = [
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
    {"type": "bash_20250124", "name": "bash"},
    {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
    {"type": "code_execution_20250825", "name": "code_execution"},
    {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"},
    {"type": "memory_20250818", "name": "memory"},
]


def said(*blocks: Json) -> Json:
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks: Json) -> Json:
    return {"role": "user", "content": list(blocks)}


def result(content: object = None, use: str = "toolu_1", **more: object) -> Json:
    return {"type": "tool_result", "tool_use_id": use, **({} if content is None else {"content": content}), **more}


def turns(*messages: Json, **more: object) -> Json:
    return {"messages": [USER, *messages], **more}


def after(block: Json) -> Json:
    """A conversation that ends with this result."""
    return turns(said(BERLIN), user(block), tools=[WEATHER])


def hosted(name: str, content: object, kind: str = "web_search_tool_result") -> Json:
    """A conversation in which a server tool has run."""
    use = {"type": "server_tool_use", "id": "srvtoolu_1", "name": name, "input": {"query": "q"}}
    return turns(said(use, {"type": kind, "tool_use_id": "srvtoolu_1", "content": content}, *texts("done")), USER)


def thinks(**thinking: object) -> Json:
    return {"thinking": thinking, "max_tokens": 2048}


ASKS = [
    Ask("system", {"system": "s"}, shows="system\ns"),
    Ask("system blocks", {"system": [*texts("a"), {"type": "text", "text": "b", "cache_control": MARK}]}, shows="a\nb",
        ignored="/system/1/cache_control/scope"),
    Ask("no system blocks", {"system": []}),
    Ask("system in messages", turns({"role": "system", "content": "nice"}, USER), shows="system\nnice"),
    Ask("system blocks in messages", turns(said(*texts("x")), {"role": "system", "content": texts("nice")}, USER)),
    Ask("two users", turns(USER)),
    Ask("assistant first", {"messages": [said(*texts("a")), USER]}),
    Ask("prefill", turns({"role": "assistant", "content": "Well "}), shows="assistant\nWell "),
    Ask("prefill blocks", turns(said(*texts("Well"))), shows="assistant\nWell"),
    Ask("empty assistant", turns({"role": "assistant", "content": ""}, USER)),
    Ask("no blocks", turns(said(), USER)),
    Ask("empty text", {"messages": [user(*texts(""))]}),
    Ask("result without content", after(result())),
    Ask("result", after(result("sun")), shows="tool\nsun"),
    Ask("result in blocks", after(result(texts("a", "b"))), shows="tool\na\nb"),
    Ask("failed", after(result("boom", is_error=True)), shows="tool\nboom"),
    Ask("failed silently", after(result(is_error=True)), shows="tool\nError"),
    Ask("empty result", after(result([]))),
    Ask("image in a result", after(result([IMAGE])), 400),
    Ask("document in a result", after(result([NOTE])), shows="inside",
        ignored="/messages/2/content/0/content/0/source/media_type"),
    Ask("search in a result", after(result([FOUND])), shows="inside"),
    Ask("reference in a result", after(result([{"type": "tool_reference", "tool_name": "weather"}]))),
    Ask("marked result", after(result("x", cache_control={"type": "ephemeral"}))),
    Ask("result, then text", turns(said(BERLIN), user(result("x"), *texts("and?")), tools=[WEATHER]), shows="and?"),
    Ask("results in another order", turns(said(*texts("ok"), BERLIN, NOON), user(result("12", "toolu_2"),
        result("sun")),
        tools=[WEATHER, CLOCK]), shows="tool\n12"),
    Ask("no result", turns(said(BERLIN), USER, tools=[WEATHER])),
    Ask("calls without tools", turns(said(BERLIN), user(result("x")))),
    Ask("caller", turns(said({**BERLIN, "caller": {"type": "direct"}}), user(result("x")), tools=[WEATHER]),
        ignored="/messages/1/content/0/caller"),
    Ask("web search ran", hosted("web_search", [{"type": "web_search_result", "title": "t", "url": "u",
        "encrypted_content": "e", "page_age": None}]), shows="assistant\ndone",
        ignored="/messages/1/content/0, /messages/1/content/1"),
    Ask("web search failed", hosted("web_search", {"type": "web_search_tool_result_error",
        "error_code": "unavailable"}), ignored="/messages/1/content/0, /messages/1/content/1"),
    Ask("code ran", hosted("code_execution", {"type": "code_execution_result", "stdout": "1", "stderr": "",
        "return_code": 0, "content": []}, "code_execution_tool_result"), shows="assistant\ndone",
        ignored="/messages/1/content/0, /messages/1/content/1"),
    Ask("upload", {"messages": [user({"type": "container_upload", "file_id": "f"})]}, 400),
    Ask("another server's signature", turns(said({"type": "thinking", "thinking": "hm", "signature": "Eq"},
        *texts("a")), USER), shows="assistant\na"),
    Ask("no signature", turns(said({"type": "thinking", "thinking": "hm", "signature": ""}, *texts("a")), USER),
        shows="<think>hm</think>a"),
    Ask("redacted", turns(said({"type": "redacted_thinking", "data": "abc"}, *texts("a")), USER), shows="assistant\na"),
    Ask("thinking of a user", turns(user({"type": "thinking", "thinking": "hm", "signature": "x"})), 400),
    Ask("thinks", thinks(type="enabled", budget_tokens=1024), text=THOUGHT),
    Ask("thinks in summary", thinks(type="enabled", budget_tokens=1024, display="summarized"), text=THOUGHT),
    Ask("thinks unseen", thinks(type="adaptive", display="omitted"), text=THOUGHT),
    Ask("doesn't think", thinks(type="disabled")),
    Ask("thinks between tools", thinks(type="between_tools")),
    Ask("choice auto", {"tools": [WEATHER], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        text=CALL),
    Ask("choice any", {"tools": [WEATHER], "tool_choice": {"type": "any"}}, text=CALL),
    Ask("choice by name", {"tools": [WEATHER, CLOCK], "tool_choice": {"type": "tool", "name": "weather"}}, text=CALL),
    Ask("choice none", {"tools": [WEATHER], "tool_choice": {"type": "none"}}),
    Ask("choice none without tools", {"tool_choice": {"type": "none"}}),
    Ask("choice auto without tools", {"tool_choice": {"type": "auto"}}),
    Ask("choice of an unknown", {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "clock"}}, 400),
    Ask("parallel calls", {"tools": [WEATHER, CLOCK]}, text=CALL + call_text("clock")),
    Ask("extras of a tool", {"tools": [{**WEATHER, "type": "custom", "cache_control": {"type": "ephemeral"},
        "strict": True, "defer_loading": True, "eager_input_streaming": True, "allowed_callers": ["direct"],
        "input_examples": [{"city": "x"}]}]},
        ignored="/tools/0/defer_loading, /tools/0/eager_input_streaming, /tools/0/allowed_callers, "
        "/tools/0/input_examples"),
    Ask("nulls in a tool", {"tools": [{**WEATHER, "type": None}]}),
    Ask("server tools", {"tools": [WEATHER, *SERVER_TOOLS]},
        ignored="/tools/1, /tools/2, /tools/3, /tools/4, /tools/5, /tools/6"),
    Ask("mcp servers", {"extra_body": {"mcp_servers": [{"type": "url", "url": "https://x", "name": "x"}]}},
        ignored="/mcp_servers"),
    Ask("container", {"container": "container_1"}, ignored="/container"),
    Ask("skills", {"container": {"skills": []}}, ignored="/container"),
    Ask("context management", {"extra_body": {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}},
        ignored="/context_management"),
    Ask("metadata", {"metadata": {"user_id": "u"}, "service_tier": "auto", "stop_sequences": ["x", "\n\nHuman:"]}),
    Ask("no stop sequences", {"stop_sequences": []}),
    Ask("effort", {"output_config": {"effort": "max"}}),
    Ask("format", {"output_config": {"format": {"type": "json_schema", "schema": NUMBERED}}}, text='{"a":1}'),
    Ask("diagnostics", {"diagnostics": {"previous_message_id": None}}, ignored="/diagnostics"),
    Ask("speed", {"speed": "fast"}, ignored="/speed"),
    Ask("place", {"inference_geo": "us"}, ignored="/inference_geo"),
    Ask("cache", {"cache_control": {"type": "ephemeral"}}),
    Ask("document", {"messages": [user({**NOTE, "title": "t", "context": "c", "citations": {"enabled": True}})]},
        shows="t\ninside",
        ignored="/messages/0/content/0/source/media_type, /messages/0/content/0/context, "
        "/messages/0/content/0/citations"),
    Ask("document of blocks", {"messages": [user({"type": "document", "source": {
        "type": "content", "content": texts("inside")}})]}, shows="inside"),
    Ask("document of text", {"messages": [user({"type": "document", "source": {
        "type": "content", "content": "inside"}})]}, shows="inside"),
    Ask("pdf", {"messages": [user({"type": "document", "source": {
        "type": "base64", "media_type": "application/pdf", "data": "AA"}})]}, 400),
    Ask("search result", {"messages": [user({**FOUND, "citations": {"enabled": True}})]}, shows="inside",
        ignored="/messages/0/content/0/citations"),
    Ask("image", {"messages": [user(IMAGE)]}, 400),
    Ask("nulls in a block", {"messages": [user({"type": "text", "text": "x", "citations": None,
        "cache_control": None})]}),
    Ask("cited", turns(said({"type": "text", "text": "x", "citations": [{"type": "char_location", "cited_text": "a",
        "document_index": 0, "document_title": None, "start_char_index": 0, "end_char_index": 1}]}), USER)),
]  # fmt: skip
