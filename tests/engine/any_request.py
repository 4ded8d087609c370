"""Requests of every kind that an engine takes, drawn by chance."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from imp_server.core import (
    CacheMarks,
    GenerateRequest,
    GrammarPlan,
    OutputPlan,
    SamplingParams,
    Segment,
    pack_ids,
    special,
)
from imp_server.grammar.check import check_choices, check_envelope, check_regex, check_schema
from imp_server.grammar.languages.envelope import Branch, End, Free, Lit, Seq, Value
from imp_server.vocab.table import Vocabulary
from msgspec.structs import replace

from tests.asked import changed, made

END, THINK, UNTHINK = 96, 95, 94
PIECES = {64: b'":', 62: b'","', 32: b"true", 3: b'{"', 4: b"is_", 5: b"ab", 6: b"abc", 10: b"na", 27: b"irst"}
"""Ids that write more than a character: text can be cut in several ways."""


def words() -> Vocabulary:
    """Ids 0-93 write printable characters, some of them several; the last three are special."""
    pieces: list[bytes | None] = [PIECES.get(i, bytes([32 + i])) for i in range(94)]
    return Vocabulary([*pieces, None, None, None], {94: "</think>", 95: "<think>", 96: "<end>"}, end_ids=(END,))


def encode(text: str) -> list[int]:
    """A character at a time, where a token writes it alone."""
    known = {bytes([32 + i]): i for i in range(94) if i not in PIECES}
    return [known[c.encode()] for c in text if c.encode() in known]


_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "is_confirmed": {"type": "boolean"}},
    "required": ["name", "is_confirmed"],
    "additionalProperties": False,
}
_NOTES = {
    "type": "object",
    "properties": {"words": {"type": "array", "items": {"type": "string"}}, "note": {"enum": ["first", "second"]}},
    "required": ["words", "note"],
    "additionalProperties": False,
}
_FAR = {"type": "array", "minItems": 3, "items": {"enum": ["na", "n" + "z" * 60, "z" * 60, "i" * 60]}}
"""A token may lead so far that there is no way back in time: it is taken back once it was sampled."""
_THINKS = (Segment("think", closers=(special("</think>"),), closes_to=1), Segment("answer"))
_CALLS = (
    Segment("answer"),
    Segment("call", openers=(b"<<",), opens_from=(0,), closers=(b">>",), scan_tokens=9, max_visits=1),
)
_WORDS = {"type": "array", "items": {"enum": ["abc", "is_", "na", "nab"]}}


def _early() -> GrammarPlan:
    then = Seq((Value({"type": "boolean"}), Lit(b">>"), End()))
    return check_envelope(Free((Branch(b"<<", then, early=True),), may_end=True))


def plans() -> list[dict[str, Any]]:
    """Fields of OutputPlan."""
    thinking = check_envelope(Free((Branch(special("</think>"), Value(_PERSON)),)))
    closer = pack_ids([UNTHINK])
    return [
        {},
        {},
        {"end_ids": tuple(range(0, 97, 13))},
        {"stop": (b"ab", b"q", b"7")},
        {"segments": _THINKS, "think_budget": 7, "think_closer": closer},
        {"segments": _THINKS, "think_budget": 3, "think_closer": pack_ids([UNTHINK, 3, 4]), "stop": (b"z", b"k")},
        {"end_ids": (END,), "grammar": check_schema(_PERSON), "steers": True},
        {"end_ids": (END,), "grammar": check_schema(_NOTES)},
        {"end_ids": (END,), "grammar": check_schema(_WORDS), "steers": True},
        *[{"end_ids": (END,), "grammar": check_schema(_FAR), "max_tokens": n, "steers": True} for n in (56, 62)],
        {"end_ids": (END,), "grammar": check_regex("(abc|ab|na){3,9}is_[a-f]*"), "steers": True},
        {"end_ids": (END, 50), "grammar": check_choices(["abcabc", "abcis_na", "true"])},
        {"segments": _THINKS, "think_budget": 6, "think_closer": closer, "end_ids": (END,), "grammar": thinking},
        {"segments": _CALLS, "end_ids": (END,), "grammar": _early()},
    ]


LAWS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.3, "repeat_last_n": 8},
    {"temperature": 0.0, "dry_multiplier": 0.8},
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
    {"temperature": 0.8, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    {"temperature": 2.0, "repetition_penalty": 1.1},
    {"temperature": 1.0, "typical_p": 0.8, "min_p": 0.01},
    {"temperature": 1.0, "mirostat": 2, "mirostat_tau": 3.0},
    {"temperature": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.1},
    {"temperature": 1.0, "dynatemp_range": 0.5, "top_n_sigma": 2.0},
    {"temperature": 0.6, "logit_bias": ((3, 4.0), (28, 6.0), (9, -100.0)), "banned_ids": (11,)},
)


class AnyRequest:
    """Draws requests that share some of their text. Owner of their keys."""

    def __init__(self, chance: Random, *, longest: int, most_tokens: int, n_rows: int) -> None:
        """`longest`: ids of a prompt; `most_tokens`: of a reply."""
        self._chance, self._longest, self._most_tokens, self._n_rows = chance, longest, most_tokens, n_rows
        self._shared = [chance.randrange(94) for _ in range(longest)]
        self._plans = plans()
        self._key = 0

    def draw(self) -> GenerateRequest:
        chance = self._chance
        self._key += 1
        prompt = self._prompt()
        n_tokens = chance.choice((chance.randint(1, self._most_tokens), self._most_tokens))
        plan = OutputPlan(**({"max_tokens": n_tokens} | chance.choice(self._plans)))
        with_logprobs = chance.random() < 0.4
        return made(
            GenerateRequest,
            self._key,
            pack_ids(prompt),
            plan,
            SamplingParams(**chance.choice(LAWS), seed=chance.randrange(99)),
            n=min(self._n_rows, chance.choice((1, 1, 1, 2, 3))),
            priority=chance.choice((0, 0, 0, 1, -1)),
            owner="abc"[self._key % 3],
            cache=CacheMarks(
                chance.choice((0, 0, len(prompt) // 2)), chance.choice((None, None, None, "one", "other"))
            ),
            logprobs=chance.choice((0, 1, 5)) if with_logprobs else None,
            logprobs_as_drawn=chance.random() < 0.3,
            prompt_logprobs=chance.choice((None, None, None, None, 0, 2)),
            row_preference=chance.choice((None, None, None, None, chance.randrange(self._n_rows))),
        )

    def told(self, request: GenerateRequest, answers: Sequence[Any]) -> GenerateRequest:
        """The request, perhaps with a prediction that is mostly right for one of its choices."""
        chance = self._chance
        if chance.random() < 0.6:
            return changed(request, speculative=chance.choice((None, None, None, None, None, False)))
        ids = list(chance.choice(answers).ids)
        for _ in range(chance.randrange(3)):
            ids[chance.randrange(len(ids))] = 3
        return replace(request, prediction=pack_ids(ids))

    def _prompt(self) -> list[int]:
        chance = self._chance
        size = chance.randint(1, self._longest)
        n_shared = chance.choice((0, 0, chance.randint(0, size), size))
        piece = [chance.randrange(94) for _ in range(chance.randint(1, 9))]
        return [*self._shared[:n_shared], *(piece * size)[: size - n_shared]]
