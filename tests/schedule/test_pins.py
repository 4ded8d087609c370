"""Pins in themselves: however often and by however many they are made, they cost no more than the blocks they hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.backends.base import BLOCK_TOKENS
from imp_server.schedule.pins import Pins
from imp_server.schedule.tree import PrefixTree, TreeNode, key_of

BUDGET = 12


class World:
    """A tree and its pins on a clock of the test's."""

    def __init__(self, budget: int = BUDGET, ttl_s: float = 10.0) -> None:
        self.now_s = 0.0
        self.tree = PrefixTree()
        self.pins = Pins(self.tree, budget, ttl_s, lambda: self.now_s)

    def path(self, *tokens: int) -> list[TreeNode]:
        """Nodes from the root down, one block of equal tokens for each of these."""
        node, found = self.tree.root(0), []
        for token in tokens:
            node, _ = self.tree.insert(node, key_of(np.full(BLOCK_TOKENS, token, dtype=np.int32)), [token])
            found.append(node)
        return found

    def pinned(self) -> set[TreeNode]:
        return {node for node in self.tree.nodes() if node.n_pins}


@pytest.mark.parametrize("session", [False, True])
def test_a_prompt_that_is_pinned_again_and_again_is_pinned_once(session: bool) -> None:
    world = World()
    for turn in range(200):
        world.pins.pin(world.path(*range(3 + turn % 4)), f"s{turn}" if session else None)
    assert len(world.pins) <= BUDGET
    assert world.pinned() == set(world.path(*range(6)))
    for _ in range(len(world.pins)):
        world.pins.release_oldest()
    assert not world.pinned() and world.pins.n_nodes == 0 and not any(world.pins.counters().values())


def test_a_longer_prompt_takes_the_place_of_its_beginning_and_a_session_does_not() -> None:
    world = World()
    world.pins.pin(world.path(1, 2), None)
    world.pins.pin(world.path(1, 2, 3), None)
    assert len(world.pins) == 1
    world.pins.pin(world.path(1, 2, 3, 4), "s")
    assert len(world.pins) == 2
    assert world.pins.release_session("s") == 1
    assert world.pinned() == set(world.path(1, 2, 3))


class Plain:
    """Pins as a list that is gone through: what is held, by order of pinning."""

    def __init__(self, budget: int, ttl_s: float) -> None:
        self._budget, self._ttl_s = budget, ttl_s
        self._list: list[tuple[tuple[TreeNode, ...], str | None, float]] = []

    def held(self) -> set[TreeNode]:
        return {node for nodes, _, _ in self._list for node in nodes}

    def sessions(self) -> set[str]:
        return {session for _, session, _ in self._list if session is not None}

    def session_nodes(self) -> set[TreeNode]:
        return {node for nodes, session, _ in self._list if session is not None for node in nodes}

    def pin(self, nodes: list[TreeNode], session: str | None, now_s: float) -> None:
        self.close(session)
        self._list.append((tuple(nodes[: self._budget]), session, now_s))
        while len(self.sessions()) > self._budget:
            self._list.remove(next(pin for pin in self._list if pin[1] is not None))
        while len(self.held()) > self._budget:
            self._list.pop(0)

    def close(self, session: str | None) -> None:
        self._list = [pin for pin in self._list if session is None or pin[1] != session]

    def expire(self, now_s: float) -> None:
        self._list = [pin for pin in self._list if pin[1] is None or pin[2] + self._ttl_s > now_s]


ACTIONS = st.one_of(
    st.tuples(
        st.just("pin"),
        st.tuples(st.integers(0, 2), st.integers(3, 5), st.integers(6, 8), st.integers(9, 10)),
        st.integers(1, 4),
        st.sampled_from([None, None, *"abcd"]),
    ),
    st.tuples(st.just("close"), st.sampled_from("abcd")),
    st.tuples(st.just("wait"), st.integers(1, 6)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(ACTIONS, max_size=40), st.integers(1, 14))
def test_what_is_held_is_what_a_plain_list_of_pins_holds(actions: list[tuple[object, ...]], budget: int) -> None:
    world, plain = World(budget), Plain(budget, 10.0)
    for action in actions:
        match action:
            case ("pin", tuple(tokens), int(length), session):
                nodes = world.path(*tokens[:length])
                plain.pin(nodes, session, world.now_s)  # type: ignore[arg-type]
                world.pins.pin(nodes, session)  # type: ignore[arg-type]
            case ("close", str(session)):
                plain.close(session)
                world.pins.release_session(session)
            case ("wait", int(seconds)):
                world.now_s += seconds
                plain.expire(world.now_s)
                world.pins.expire()
        assert world.pinned() == plain.held()
        assert world.pins.n_nodes == len(plain.held())
        told = world.pins.counters()
        assert told["kv_session_pinned_blocks"] == len(plain.session_nodes())
        assert told["kv_sessions"] == len(plain.sessions())
        assert len(world.pins) <= 2 * budget
