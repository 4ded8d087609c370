"""No grammar may lead a completion into a dead end: every test asserts the engine's counter to be 0."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest


@contextmanager
def none_allowed() -> Iterator[None]:
    """Over the engines of this process."""
    from imp_server.engine.loop import EngineLoop

    counted = EngineLoop._dead_end
    found: list[object] = []

    def count(self: EngineLoop, live: object) -> None:
        before = self._counters["grammar_dead_ends_total"]
        counted(self, live)  # type: ignore[arg-type]
        if self._counters["grammar_dead_ends_total"] != before:
            found.append(live)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineLoop, "_dead_end", count)
        yield
    assert not found, f"{len(found)} completions ended where their grammar allows no token"


def assert_none_at(url: str, key: str = "") -> None:
    """Over a server in another process, before it is stopped."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    reply = httpx.get(f"{url}/metrics", headers=headers, timeout=20)
    counts = re.findall(r"^imp_grammar_dead_ends_total\S* (\S+)$", reply.text, re.MULTILINE)
    assert counts and not any(map(float, counts)), "a grammar led a completion into a dead end"
