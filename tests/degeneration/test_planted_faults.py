"""Faults planted into a good server: each is found by exactly its category, and a good server passes all."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from imp_server.degeneration.asker import ProbeAsker
from imp_server.degeneration.client import Client
from imp_server.degeneration.findings import CATEGORIES, Finding
from imp_server.degeneration.run import run

from tests.degeneration.fake_server import Rule, Said, fake_server, last_text, sensible


def findings(url: str) -> list[Finding]:
    return list(run(ProbeAsker(Client(url, timeout_s=10), "fake", quick=True), CATEGORIES, []))


def failing(found: list[Finding]) -> set[str]:
    return {f.category for f in found if f.verdict == "fail"}


def leaked_tag(body: dict[str, Any]) -> Said:
    said = sensible(body)
    return replace(said, content="<think>" + said.content) if "leaves" in last_text(body) else said


def repeated_token(body: dict[str, Any]) -> Said:
    said = sensible(body)
    return replace(said, content=said.content + " so" * 30) if "lighthouse" in last_text(body) else said


def control_token(body: dict[str, Any]) -> Said:
    said = sensible(body)
    return replace(said, content=said.content + "<|im_end|>") if "violin" in last_text(body) else said


def forgets(body: dict[str, Any]) -> Said:
    return Said("I don't know.") if "lucky number?" in last_text(body) else sensible(body)


def loses_the_needle(body: dict[str, Any]) -> Said:
    return Said("There is no code.") if "ZEBRA" in last_text(body) else sensible(body)


def unbound(body: dict[str, Any]) -> Said:
    return Said('{"level": "huge"}') if "response_format" in body else sensible(body)


def uncalled(body: dict[str, Any]) -> Said:
    return Said("I will remind you.") if body.get("tools") and "tool_choice" in body else sensible(body)


def off_topic(body: dict[str, Any]) -> Said:
    return Said("I like trains.") if "17 + 25" in last_text(body) else sensible(body)


def shows_thoughts(body: dict[str, Any]) -> Said:
    return replace(sensible(body), reasoning="A question about leaves.") if "seed" not in body else sensible(body)


def mixed_rows(body: dict[str, Any]) -> Said:
    said = sensible(body)
    return Said("marble") if "falcon" in last_text(body) else said


def swapped_seeds() -> Rule:
    """The fifth to the eighth answer about the sea are those of the neighbour's seed."""
    asked = itertools.count()

    def rule(body: dict[str, Any]) -> Said:
        if "sentence about the sea" in last_text(body) and next(asked) >= 4:
            return sensible(body | {"seed": body["seed"] ^ 1})
        return sensible(body)

    return rule


RULES: dict[str, tuple[Rule, str]] = {
    "leaked tag": (leaked_tag, "think-leak"),
    "repeated token": (repeated_token, "repetition"),
    "control token": (control_token, "special-tokens"),
    "forgets": (forgets, "multi-turn"),
    "loses the needle": (loses_the_needle, "long-context"),
    "unbound": (unbound, "constrained"),
    "uncalled": (uncalled, "constrained"),
    "off topic": (off_topic, "adherence"),
    "shows thoughts": (shows_thoughts, "anthropic-thinking"),
    "mixed rows": (mixed_rows, "isolation"),
    "swapped seeds": (swapped_seeds(), "isolation"),
}


def test_a_good_server_passes() -> None:
    with fake_server() as url:
        found = findings(url)
    assert failing(found) == set(), [f for f in found if f.verdict == "fail"]
    assert {f.category for f in found if f.verdict == "pass"} >= set(CATEGORIES) - {
        "kv-growth",
        "multilingual",
        "format",
    }


@pytest.mark.parametrize("fault", RULES)
def test_a_planted_fault_is_found_by_its_category(fault: str) -> None:
    rule, category = RULES[fault]
    extra = {"think-leak": {"anthropic-thinking"}, "anthropic-thinking": {"think-leak"}}.get(category, set())
    with fake_server(rule) as url:
        found = failing(findings(url))
    assert category in found and found <= {category} | extra


def dropped_chunk(frames: list[bytes]) -> list[bytes]:
    return [*frames[:2], *frames[3:]] if any(b"two," in frame for frame in frames) else frames


def no_end(frames: list[bytes]) -> list[bytes]:
    return frames[:-1]


def broken_json(frames: list[bytes]) -> list[bytes]:
    return [*frames[:-2], b"data: {oops\n\n", frames[-1]]


@pytest.mark.parametrize("breaking", [dropped_chunk, no_end, broken_json], ids=lambda f: f.__name__)
def test_a_broken_stream_is_found(breaking: Callable[[list[bytes]], list[bytes]]) -> None:
    with fake_server(break_stream=breaking) as url:
        found = failing(findings(url))
    assert "stream" in found and found <= {"stream", "isolation"}  # isolation streams, too


def test_no_server_is_told() -> None:
    found = findings("http://127.0.0.1:9")
    assert found and {f.verdict for f in found} == {"fail"}
    assert all("/v1/" in f.detail or "/health" in f.detail for f in found), json.dumps([f.detail for f in found])
