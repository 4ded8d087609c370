"""Whether a grammar accepts a text, byte by byte, with the engine's own objects."""

from __future__ import annotations

from functools import cache
from typing import Any

from imp_server.core import GrammarPlan
from imp_server.grammar.check import check_schema
from imp_server.grammar.engine import GrammarSpace, Matcher
from imp_server.vocab.table import Vocabulary

BYTES = Vocabulary([bytes([i]) for i in range(256)] + [None], {256: "<eos>"}, end_ids=(256,))


@cache
def byte_space() -> GrammarSpace:
    return GrammarSpace(BYTES)


def matcher(schema: Any, **options: Any) -> Matcher:
    return byte_space().matcher(check_schema(schema, **options))


def reads(m: Matcher, text: str | bytes) -> bool:
    """Whether the whole text is accepted and may end there."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    state = m.advance_bytes(m.start, data)
    return state is not None and m.is_done(state)


def accepts(schema: Any, text: str) -> bool:
    return reads(matcher(schema), text)


def plan_accepts(plan: GrammarPlan, text: str | bytes) -> bool:
    return reads(byte_space().matcher(plan), text)
