"""Checks by name, as a record of the corpus lists them: what is wrong with an answer, or None."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from imp_server.degeneration import detectors
from imp_server.degeneration.client import Answer

Check = Callable[[Answer, Any], "str | None"]
"""(answer, the check's argument) -> what is wrong."""


def not_empty(answer: Answer, _: Any) -> str | None:
    """A thought that its budget cut off is no fault; a finished answer that sits in the reasoning is."""
    if answer.content.strip() or answer.tool_calls:
        return None
    if not answer.reasoning.strip():
        return f"empty answer (finish {answer.finish})"
    if answer.finish in ("length", "max_tokens"):
        return None
    return f"the answer sits in the reasoning: {answer.reasoning[-100:]!r} (finish {answer.finish})"


def no_loop(answer: Answer, limit: Any) -> str | None:
    """`limit`: the longest run of one word that may be (6 unless a number is given)."""
    for text in (answer.content, answer.reasoning):
        most = limit if isinstance(limit, int) and not isinstance(limit, bool) else detectors.MAX_WORD_RUN
        if (run := detectors.longest_run(text)) > most:
            return f"one word {run} times in a row"
        if (piece := detectors.ngram_loop(text)) is not None:
            return f"over and over: {piece!r}"
        if (piece := detectors.character_loop(text)) is not None:
            return f"over and over: {piece!r}"
    return None


def vocab_div(answer: Answer, least: Any) -> str | None:
    wanted = least if isinstance(least, float) else detectors.MIN_UNIQUE
    ratio = detectors.unique_ratio(answer.content)
    return None if ratio > wanted else f"only {ratio:.2f} of its words are different ones (more than {wanted} wanted)"


def no_markers(answer: Answer, _: Any) -> str | None:
    found = detectors.raw_markers(answer.content)
    return f"control tokens as text: {' '.join(map(repr, found))}" if found else None


def no_think_tags(answer: Answer, _: Any) -> str | None:
    found = detectors.think_tags(answer.content)
    return f"thinking tags in the answer: {' '.join(found)}" if found else None


def no_reasoning_opener(answer: Answer, _: Any) -> str | None:
    opener = detectors.reasoning_opener(answer.content)
    return f"the answer begins as a thought: {opener!r}" if opener else None


def not_garbled(answer: Answer, _: Any) -> str | None:
    return detectors.garbled(answer.content)


def finish_set(answer: Answer, _: Any) -> str | None:
    known = ("stop", "length", "tool_calls", "end_turn", "max_tokens", "stop_sequence", "tool_use")
    return None if answer.finish in known else f"finish is {answer.finish!r}"


def contains(answer: Answer, wanted: Any) -> str | None:
    """One of the given words, whatever its case; `needle` is the same for what a long prompt hides."""
    words = wanted if isinstance(wanted, list) else [wanted]
    if any(str(word).casefold() in answer.content.casefold() for word in words):
        return None
    if not answer.content.strip() and answer.finish in ("length", "max_tokens"):
        return None
    return f"none of {words} in {answer.content[:100]!r}"


def max_words(answer: Answer, limit: Any) -> str | None:
    n_words = len(detectors.units(answer.content))
    return None if n_words <= int(limit) else f"{n_words} words, {limit} wanted at most"


def json_parse(answer: Answer, _: Any) -> str | None:
    """The answer, or the first fenced block in it, is JSON."""
    fenced = re.search(r"```(?:json)?\s*\n(.*?)```", answer.content, re.S)
    try:
        json.loads(fenced[1] if fenced else answer.content)
    except ValueError as wrong:
        return f"no JSON ({wrong}): {answer.content[:80]!r}"
    return None


def script(answer: Answer, name: Any) -> str | None:
    """Most letters are of the given script (a Unicode name's first word: LATIN, CYRILLIC, CJK, HANGUL ...)."""
    wanted = {"CJK": ("CJK", "HIRAGANA", "KATAKANA", "IDEOGRAPHIC")}.get(str(name), (str(name),))
    letters = [c for c in answer.content if c.isalpha()]
    if len(letters) < 8:
        return None
    n_right = sum(1 for c in letters if detectors.character_name(c).startswith(wanted))
    return None if 2 * n_right >= len(letters) else f"{n_right} of {len(letters)} letters are {name}"


_ALL = (
    not_empty, no_loop, vocab_div, no_markers, no_think_tags, no_reasoning_opener, not_garbled, finish_set, contains,
    max_words, json_parse, script,
)  # fmt: skip
CHECKS: Mapping[str, Check] = {check.__name__: check for check in _ALL} | {"needle": contains}
NEEDS_SECOND = ("stream_eq",)
"""Checks that ask a second time; the runner makes them."""


def fault_of(name: str, answer: Answer, argument: Any) -> str | None:
    """What check `name` finds wrong. A refused request fails each check of it."""
    if not answer.ok:
        return f"HTTP {answer.status}: {answer.error[:120]}"
    return CHECKS[name](answer, argument)
