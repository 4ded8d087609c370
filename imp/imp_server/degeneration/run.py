"""A run: the probes of each chosen category, then the records of the corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from imp_server.degeneration.asker import ProbeAsker
from imp_server.degeneration.checks import NEEDS_SECOND, fault_of
from imp_server.degeneration.client import Answer, Unreachable
from imp_server.degeneration.corpus import Record
from imp_server.degeneration.findings import Finding, judged, skipped
from imp_server.degeneration.probes import constrained, memory, protocol, texts, thinking

PROBES: dict[str, Callable[[ProbeAsker], Iterator[Finding]]] = {
    "repetition": texts.repetition,
    "think-leak": thinking.think_leak,
    "special-tokens": texts.special_tokens,
    "adherence": texts.adherence,
    "long-context": memory.long_context,
    "multi-turn": memory.multi_turn,
    "stream": protocol.stream,
    "constrained": constrained.constrained,
    "anthropic-thinking": thinking.anthropic_thinking,
    "isolation": protocol.isolation,
    "kv-growth": memory.kv_growth,
}
_REASONER_RECORD_TOKENS = 800


def run(ask: ProbeAsker, categories: Iterable[str], records: Iterable[Record]) -> Iterator[Finding]:
    """Findings as they come. A category whose server went away is one failure, and the run goes on."""
    chosen = list(categories)
    for category in chosen:
        if category in PROBES:
            yield from _guarded(category, "probe", PROBES[category](ask))
    for record in records:
        if record.category in chosen:
            yield from _guarded(record.category, record.id, of_record(ask, record))


def _guarded(category: str, name: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    try:
        yield from findings
    except Unreachable as wrong:
        yield judged(category, name, "answers", str(wrong))


def of_record(ask: ProbeAsker, record: Record) -> Iterator[Finding]:
    """The record's checks, held against the answer to its last turn."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": record.system}] if record.system else []
    fields = {"temperature": record.temperature, "seed": record.seed, **record.extra}
    short = ask.quick and not record.quick
    if short:
        return
    answer = Answer()
    limit = record.max_tokens
    if ask.reasons and record.category != "think-leak":
        limit = max(limit, _REASONER_RECORD_TOKENS)
    for text in record.texts():
        if answer.ok:
            messages.append({"role": "assistant", "content": answer.content or "..."})
        messages.append({"role": "user", "content": text})
        answer = ask.chat(messages, limit, exact_tokens=True, **fields)
        if not answer.ok:
            break
    if answer.status == 400 and record.filler:
        yield skipped(record.category, record.id, f"HTTP 400: {answer.error}")
        return
    for check, argument in record.checks.items():
        if check not in NEEDS_SECOND:
            yield judged(record.category, record.id, check, fault_of(check, answer, argument))
        elif ask.repeatable:
            streamed = ask.chat(messages, limit, exact_tokens=True, stream=True, **fields)
            yield judged(record.category, record.id, check, protocol.different(streamed, answer))
