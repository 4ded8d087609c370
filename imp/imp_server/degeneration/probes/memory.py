"""Categories long-context, multi-turn and kv-growth: what was said stays known, whatever the cache does meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from imp_server.degeneration.asker import ProbeAsker
from imp_server.degeneration.checks import fault_of
from imp_server.degeneration.corpus import prose
from imp_server.degeneration.findings import Finding, judged, skipped

_GROWTH_SENTENCES = 400


def long_context(ask: ProbeAsker) -> Iterator[Finding]:
    text = prose(30 if ask.quick else 120, "The secret code of the warehouse is ZEBRA-9134.", "needle")
    prompt = f"{text}\n\nWhat is the secret code of the warehouse? Answer with the code alone."
    answer = ask.chat(prompt, 60)
    if not answer.ok:
        yield skipped("long-context", "needle", f"HTTP {answer.status}: {answer.error}")
        return
    yield judged("long-context", "needle", "contains", fault_of("contains", answer, "ZEBRA-9134"))


def multi_turn(ask: ProbeAsker) -> Iterator[Finding]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "My lucky number is 271. Please remember it."}]
    for turn in ("Name a fruit that is yellow.", "What is my lucky number? Answer with the number."):
        answer = ask.chat(messages, 80)
        messages += [{"role": "assistant", "content": answer.content or "..."}, {"role": "user", "content": turn}]
        if turn.startswith("What"):
            yield judged("multi-turn", "second", "not_garbled", fault_of("not_garbled", answer, True))
    answer = ask.chat(messages, 80)
    yield judged("multi-turn", "third", "contains", fault_of("contains", answer, "271"))


def kv_growth(ask: ProbeAsker) -> Iterator[Finding]:
    """The same greedy answer before and behind a growth of the cache's pool, where the server says that it grew."""
    before = _blocks(ask)
    if before is None:
        yield skipped("kv-growth", "pool", "/health names no kv_blocks_total and kv_blocks_ceiling")
        return
    total, ceiling = before
    if ceiling <= total:
        yield skipped("kv-growth", "pool", f"the pool can't grow (total {total}, ceiling {ceiling})")
        return
    prompt = "List the months of the year, one on each line."
    first = ask.chat(prompt, 80)
    ask.chat(prose(_GROWTH_SENTENCES, "", "growth") + "\n\nSum it up in one sentence.", 16, exact_tokens=True)
    after = _blocks(ask)
    if after is None or after[0] <= total:
        yield skipped("kv-growth", "pool", "the pool did not grow under a long prompt")
        return
    again = ask.chat(prompt, 80)
    fault = None if again.content == first.content else f"before {first.content[:60]!r}, behind {again.content[:60]!r}"
    yield judged("kv-growth", "pool", "same_answer", fault)


def _blocks(ask: ProbeAsker) -> tuple[int, int] | None:
    health = ask.client.get("/health")
    if not isinstance(health, dict):
        return None
    total, ceiling = health.get("kv_blocks_total"), health.get("kv_blocks_ceiling")
    return (total, ceiling) if isinstance(total, int) and isinstance(ceiling, int) else None
