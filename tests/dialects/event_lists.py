"""OutputEvents as text/ could make them, for hypothesis: well-formed, in every order the plan of a model allows."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st
from imp_server.core import (
    Accepted,
    CallArgs,
    CallEnd,
    CallStart,
    Finish,
    FinishReason,
    LogprobEntry,
    Logprobs,
    OutputEvent,
    Progress,
    ReasoningDelta,
    TextDelta,
    Usage,
)

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)
NAMES = ("weather", "search", "noop")
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
ARGUMENTS = st.dictionaries(st.text(max_size=6), JSON_VALUES, max_size=3)
USAGES = st.builds(
    Usage,
    prompt_tokens=st.integers(60, 99),
    completion_tokens=st.integers(1, 99),
    cached_tokens=st.integers(0, 30),
    cache_write_tokens=st.integers(0, 30),
    reasoning_tokens=st.integers(0, 9),
)


def cut(text: str, at: list[int]) -> list[str]:
    """`text` in pieces, cut at these places (modulo its length)."""
    places = sorted({i % (len(text) + 1) for i in at} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(places)] or [""]


def pieces(draw: Callable[..., Any], text: str) -> list[str]:
    return cut(text, draw(st.lists(st.integers(0, 99), max_size=4)))


def with_logprobs(text: str) -> list[OutputEvent]:
    entry = LogprobEntry(7, text.encode(), -0.5, ((7, text.encode(), -0.5), (8, b"\xf0\x9f", -1.5)))
    return [Logprobs(0, (entry,)), TextDelta(0, text)]


def call_events(draw: Callable[..., Any], index: int, *, truncated: bool) -> list[OutputEvent]:
    name = draw(st.sampled_from(NAMES))
    arguments = json.dumps(draw(ARGUMENTS), ensure_ascii=False)
    if truncated:
        arguments = arguments[: draw(st.integers(0, len(arguments)))]
    events: list[OutputEvent] = [CallStart(0, index, f"call_imp_{index}", name)]
    events += [CallArgs(0, index, piece) for piece in pieces(draw, arguments)]
    return [*events, CallEnd(0, index, truncated)]


@st.composite
def event_lists(draw: Callable[..., Any], *, logprobs: bool = False) -> list[OutputEvent]:
    """Accepted ... Finish of one choice."""
    events: list[OutputEvent] = [Accepted(0, 99, 3), Progress(0, 50, 99)]
    events += [ReasoningDelta(0, draw(TEXT)) for _ in range(draw(st.integers(0, 3)))]
    for _ in range(draw(st.integers(0, 3))):
        text = draw(TEXT)
        events += with_logprobs(text) if logprobs else [TextDelta(0, text)]
    n_calls = draw(st.integers(0, 2))
    for index in range(n_calls):
        events += call_events(draw, index, truncated=False)
    reasons: list[FinishReason] = ["stop", "length"]
    reason: FinishReason = draw(st.sampled_from(["tool_calls", *reasons] if n_calls else reasons))
    is_cut = bool(n_calls) and reason != "tool_calls"
    if is_cut:
        events += call_events(draw, n_calls, truncated=True)
    stop_sequence = draw(st.none() | st.just("END")) if reason == "stop" and not n_calls else None
    return [*events, Finish(0, reason, draw(USAGES), stop_sequence, "call_cut" if is_cut else None)]
