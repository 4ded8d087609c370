"""No grammar may lead a completion into a dead end or cost too much: every test asserts the counters to be 0."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest


@contextmanager
def none_allowed() -> Iterator[None]:
    """Over the engines of this process."""
    from imp_server.engine.row_life import RowLife

    counted, fail = RowLife.dead_end, RowLife.grammar_failed
    found: list[object] = []

    def count(self: RowLife, live: object) -> None:
        before = self.counters["grammar_dead_ends_total"]
        counted(self, live)  # type: ignore[arg-type]
        if self.counters["grammar_dead_ends_total"] != before:
            found.append(live)

    def count_costly(self: RowLife, live: object, error: BaseException | None) -> None:
        before = self.counters["grammar_blown_caps_total"]
        fail(self, live, error)  # type: ignore[arg-type]
        if self.counters["grammar_blown_caps_total"] != before:
            found.append(live)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowLife, "grammar_failed", count_costly)
        patch.setattr(RowLife, "dead_end", count)
        yield
    assert not found, f"{len(found)} completions ended where their grammar allows no token, or takes too much work"


def assert_none_at(url: str, key: str = "") -> None:
    """Over a server in another process, before it is stopped."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    reply = httpx.get(f"{url}/metrics", headers=headers, timeout=20)
    counts = re.findall(r"^imp_grammar_(?:dead_ends|blown_caps)_total\S* (\S+)$", reply.text, re.MULTILINE)
    assert counts and not any(map(float, counts)), "a grammar led a completion into a dead end, or cost too much"
