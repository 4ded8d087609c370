"""What a server may do wrong in what it tells of its prefix cache and of sessions."""

from __future__ import annotations

from typing import Any

from tests.conformance.bending import (
    in_json,
)

MESSAGES, NATIVE, SESSIONS = "/v1/messages", "/completion", "/v1/sessions/*"


def _whole_prompt_counted(reply: Any) -> None:
    reply["timings"]["prompt_n"] = reply["tokens_evaluated"]


def _nothing_cached(reply: Any) -> None:
    usage = reply["usage"]
    usage["input_tokens"] += usage["cache_read_input_tokens"]
    usage["cache_read_input_tokens"] = 0


CACHE_FAULTS = [
    in_json("completion: prompt_n counts cached tokens", NATIVE, _whole_prompt_counted),
    in_json("messages: nothing is ever cached", MESSAGES, _nothing_cached),
    in_json("sessions: closed again and again", SESSIONS, lambda r: r.update(released_blocks=3)),
    in_json("sessions: closing releases nothing", SESSIONS, lambda r: r.update(released_blocks=0)),
]
