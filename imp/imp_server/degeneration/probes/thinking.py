"""Categories think-leak and anthropic-thinking: thoughts stay out of answers, and are shown only where asked for."""

from __future__ import annotations

from collections.abc import Iterator

from imp_server.degeneration.asker import ProbeAsker
from imp_server.degeneration.checks import fault_of
from imp_server.degeneration.client import Answer
from imp_server.degeneration.findings import Finding, judged, skipped

_QUESTION = "Why do the leaves of many trees in France change their colour in autumn?"
_LEAK = "think-leak"
_SHOWN = "anthropic-thinking"


def think_leak(ask: ProbeAsker) -> Iterator[Finding]:
    if not ask.reasons:
        answer = ask.chat(_QUESTION, 120)
        yield judged(_LEAK, "plain", "no_think_tags", fault_of("no_think_tags", answer, True))
        return
    whole = ask.chat(_QUESTION, 800)
    for check in ("no_think_tags", "no_reasoning_opener", "not_empty"):
        yield judged(_LEAK, "whole", check, fault_of(check, whole, True))
    cut = ask.chat(_QUESTION, 24, exact_tokens=True)
    yield judged(_LEAK, "cut", "no_think_tags", fault_of("no_think_tags", cut, True))
    yield judged(_LEAK, "cut", "no_reasoning_opener", fault_of("no_reasoning_opener", cut, True))
    stream = ask.chat(_QUESTION, 800, stream=True)
    yield judged(_LEAK, "stream", "no_think_tags", fault_of("no_think_tags", stream, True))
    yield judged(_LEAK, "stream", "not_empty", fault_of("not_empty", stream, True))
    off = ask.chat(_QUESTION, 800, chat_template_kwargs={"enable_thinking": False})
    yield judged(_LEAK, "off", "no_thought", _thinks_though_off(off))


def _thinks_though_off(answer: Answer) -> str | None:
    if not answer.ok:
        return fault_of("not_empty", answer, True)
    if answer.reasoning.strip():
        return f"thinking was switched off, and yet: {answer.reasoning[:60]!r}"
    return fault_of("no_think_tags", answer, True) or fault_of("not_empty", answer, True)


def anthropic_thinking(ask: ProbeAsker) -> Iterator[Finding]:
    plain = ask.messages(_QUESTION, 120)
    if plain.status in (404, 405, 501):
        yield skipped(_SHOWN, "messages", f"the server has no /v1/messages (HTTP {plain.status})")
        return
    yield judged(_SHOWN, "default", "no_think_tags", fault_of("no_think_tags", plain, True))
    yield judged(_SHOWN, "default", "not_empty", fault_of("not_empty", plain, True))
    yield judged(_SHOWN, "default", "not_asked_for", _shown_unasked(plain))
    if not ask.reasons:
        return
    enabled = {"type": "enabled", "budget_tokens": 1024}
    for name, stream in (("whole", False), ("stream", True)):
        answer = ask.messages(_QUESTION, 2048, thinking=enabled, stream=stream)
        yield judged(_SHOWN, name, "thought_first", _thought_first(answer))
        yield judged(_SHOWN, name, "no_think_tags", fault_of("no_think_tags", answer, True))
        yield judged(_SHOWN, name, "not_empty", fault_of("not_empty", answer, True))
    omitted = ask.messages(_QUESTION, 2048, thinking=enabled | {"display": "omitted"})
    yield judged(_SHOWN, "omitted", "no_text", _omitted(omitted))


def _shown_unasked(answer: Answer) -> str | None:
    return "a thinking block that nobody asked for" if "thinking" in answer.blocks else None


def _thought_first(answer: Answer) -> str | None:
    if not answer.ok:
        return fault_of("not_empty", answer, True)
    if answer.blocks[:1] != ["thinking"] or not answer.reasoning.strip():
        return f"thinking was enabled, the blocks are {answer.blocks}"
    return None


def _omitted(answer: Answer) -> str | None:
    if not answer.ok:
        return fault_of("not_empty", answer, True)
    return f"thinking is omitted, and yet: {answer.reasoning[:60]!r}" if answer.reasoning else None
