"""Prefixes are shared within a scope (core.CacheMarks) only, and the scopes that clients choose take no memory."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
from imp_server.core import CacheMarks
from imp_server.decode.drafter import DraftedRow
from imp_server.engine.client.inline import InlineEngine
from imp_server.schedule.cache import PrefixCache
from imp_server.schedule.tiers.record import DIGEST_BYTES, is_lasting, reuse_group_of, scoped_group
from imp_server.schedule.tree import _MOST_EMPTY_ROOTS, PrefixTree

from tests.engine.test_drafter_choice import Guess
from tests.engine.tiny_engine import Tiny, ask, request, with_engine

IDS = np.random.default_rng(2).integers(0, 94, 200).tolist()
PINNING = partial(PrefixCache, pin_budget=0.5)


def test_a_prompt_is_found_in_its_own_scope_alone() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        replies = []
        for scope in ("", "a", "b", "a", ""):
            wanted = request(engine, IDS[:60], 6, cache=CacheMarks(scope=scope))
            (answer,) = await ask(engine, wanted)
            assert answer.finish is not None
            replies.append((scope, answer.finish.usage.cached_tokens, answer.ids))
        assert [(scope, bool(cached)) for scope, cached, _ in replies] == [
            ("", False),
            ("a", False),
            ("b", False),
            ("a", True),
            ("", True),
        ]
        assert len({tuple(ids) for _, _, ids in replies}) == 1, "the answer is the same wherever it comes from"

    with_engine(body, make_index=PINNING)


def test_drafters_keep_scopes_apart_too() -> None:
    """What a draft model remembers of a prompt would tell of it by its speed."""
    started: list[int] = []

    class Notes(Guess):
        def start(self, row: DraftedRow) -> Any:
            started.append(row.reuse_group)
            return super().start(row)

    async def body(engine: InlineEngine, _: Tiny) -> None:
        for scope in ("", "a", "b", "a"):
            await ask(engine, request(engine, IDS[:20], 6, cache=CacheMarks(scope=scope)))

    with_engine(body, drafters=[Notes("notes")])
    assert started == [scoped_group(0, scope) for scope in ("", "a", "b", "a")] and len(set(started)) == 3


def test_scopes_of_groups_are_kept_apart_and_last_as_long_as_they() -> None:
    lasting = reuse_group_of(bytes(range(DIGEST_BYTES - 1)))
    groups = [scoped_group(group, scope) for group in (0, 1, 2, lasting) for scope in ("", "a", "b")]
    assert len(set(groups)) == len(groups) and max(groups) < 1 << 8 * DIGEST_BYTES
    assert [is_lasting(group) for group in groups] == [True] * 3 + [False] * 6 + [True] * 3
    assert groups == [scoped_group(group, scope) for group in (0, 1, 2, lasting) for scope in ("", "a", "b")]


def test_thousands_of_scopes_take_no_memory() -> None:
    """Salts are the clients' to choose: what is known of none is forgotten, what is in use or known is not."""
    tree = PrefixTree()
    known, used = tree.root(1), tree.root(2)
    tree.insert(known, b"\0" * 64, [1])
    for group in range(3, 5 * _MOST_EMPTY_ROOTS):
        tree.match(b"\0" * 64, -group, 16)
        tree.forget_empty_roots({used})
        tree.root(group)
    assert len(tree._roots) <= _MOST_EMPTY_ROOTS + 2
    assert tree.root(1) is known and tree.root(2) is used and Counter(tree.nodes()).total() == 1
