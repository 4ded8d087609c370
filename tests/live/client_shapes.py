"""Request bodies in the shape and size that Codex and Claude Code send, with invented text."""

from __future__ import annotations

from typing import Any

_PROSE = "The quick brown fox jumps over the lazy dog. I'm sure they've said: it's 2024, isn't it? "


def prose(n_bytes: int) -> str:
    return (_PROSE * (n_bytes // len(_PROSE) + 1))[:n_bytes]


def schema(*names: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": "string", "description": prose(120)} for name in names},
        "required": list(names[:1]),
        "additionalProperties": False,
    }


# --- Codex ------------------------------------------------------------------------------------------

CODEX_HEADERS = {
    "accept": "text/event-stream",
    "accept-encoding": "zstd,gzip",
    "session-id": "0199-session",
    "thread-id": "0199-thread",
    "x-client-request-id": "0199-request",
    "x-codex-turn-metadata": '{"turn":1}',
    "originator": "codex_exec",
    "user-agent": "codex_exec/0.171.0",
}


def codex_function(name: str, *fields: str) -> dict[str, Any]:
    return {"type": "function", "name": name, "description": prose(900), "strict": False, "parameters": schema(*fields)}


def codex_body(*later: dict[str, Any]) -> dict[str, Any]:
    def message(role: str, *texts: str) -> dict[str, Any]:
        return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text} for text in texts]}

    space = {
        "type": "namespace",
        "name": "multi_agent",
        "description": prose(300),
        "tools": [codex_function("spawn", "task"), codex_function("wait", "id")],
    }
    return {
        "model": "toy",
        "instructions": prose(17000),
        "input": [
            message("developer", prose(6000)),
            message("developer", prose(2500), prose(500)),
            message("user", prose(1500)),
            message("user", "List the files."),
            *later,
        ],
        "tools": [
            codex_function("exec_command", "cmd", "workdir"),
            codex_function("write_stdin", "session_id", "chars"),
            codex_function("update_plan", "plan"),
            codex_function("request_user_input", "question"),
            codex_function("apply_patch", "patch"),
            codex_function("view_image", "path"),
            codex_function("list_skills", "query"),
            space,
            {"type": "web_search", "external_web_access": False},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199-thread",
        "client_metadata": {"x-codex-installation-id": "0199"},
    }


# --- Claude Code ------------------------------------------------------------------------------------

CLAUDE_HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,x-2099-01-01",
    "anthropic-dangerous-direct-browser-access": "true",
    "x-app": "cli",
    "authorization": "Bearer anything",
    "user-agent": "claude-cli/2.1.332 (external, cli)",
}
EPHEMERAL = {"type": "ephemeral", "scope": "global"}


def claude_tool(name: str, *fields: str, n_bytes: int = 1200) -> dict[str, Any]:
    return {"name": name, "description": prose(n_bytes), "input_schema": schema(*fields)}


def claude_body(*later: dict[str, Any]) -> dict[str, Any]:
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.332; cc_entrypoint=cli; cch=a1b2c;"},
        {"type": "text", "text": prose(60), "cache_control": EPHEMERAL},
        {"type": "text", "text": prose(12000), "cache_control": EPHEMERAL},
    ]
    first = [
        {"type": "text", "text": f"<system-reminder>\n{prose(1500)}\n</system-reminder>"},
        {"type": "text", "text": "List the files.", "cache_control": {"type": "ephemeral"}},
    ]
    return {
        "model": "toy",
        "max_tokens": 8000,
        "system": system,
        "messages": [
            {"role": "user", "content": first},
            {"role": "system", "content": "The date is 2026-11-29."},
            *later,
        ],
        "tools": [
            claude_tool("Bash", "command", "description", n_bytes=6000),
            claude_tool("Read", "file_path", "limit"),
            claude_tool("Edit", "file_path", "old_string", "new_string"),
            claude_tool("Task", "prompt", n_bytes=4000),
        ],
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "medium"},
        "metadata": {"user_id": '{"device_id":"x","session_id":"y"}'},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "diagnostics": {"previous_message_id": None},
        "speed": "standard",
        "stream": True,
    }
