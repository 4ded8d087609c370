"""The store of responses: chains, hiding, time to live, caps, restart."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.api.responses_store import ResponsesStore


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make(path: str = ":memory:", **caps: Any) -> ResponsesStore:
    return ResponsesStore(path, **({"ttl_s": 60, "max_entries": 100, "max_bytes": 10**6} | caps))


def answer(name: str, parent: str | None = None, text: str = "a") -> dict[str, Any]:
    output = [{"type": "message", "id": f"msg_{name}", "content": [{"type": "output_text", "text": text}]}]
    return {"id": name, "object": "response", "previous_response_id": parent, "output": output}


def asked(name: str) -> list[dict[str, Any]]:
    return [{"type": "message", "id": f"in_{name}", "role": "user", "content": "q"}]


def put(store: ResponsesStore, name: str, parent: str | None = None, text: str = "a") -> bool:
    return store.put(answer(name, parent, text), asked(name))


def ids(items: list[dict[str, Any]] | None) -> list[str] | None:
    return None if items is None else [item["id"] for item in items]


def test_a_chain_is_input_and_output_in_order() -> None:
    store = make()
    put(store, "r1")
    put(store, "r2", "r1")
    assert ids(store.conversation("r2", with_output=True)) == ["in_r1", "msg_r1", "in_r2", "msg_r2"]
    assert ids(store.conversation("r2", with_output=False)) == ["in_r1", "msg_r1", "in_r2"]
    assert store.conversation("r3", with_output=True) is None


def test_a_response_comes_back_as_it_was() -> None:
    store = make()
    put(store, "r1")
    assert store.resource("r1") == answer("r1")


def test_it_works_after_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "home" / "responses.sqlite")
    first = make(path)
    put(first, "r1")
    first.close()
    second = make(path)
    assert second.resource("r1") == answer("r1") and second.item("msg_r1") is not None
    assert [p.name for p in (tmp_path / "home").iterdir()] == ["responses.sqlite"]


def test_a_deleted_parent_is_gone_but_its_items_live_in_the_chain() -> None:
    store = make()
    put(store, "r1")
    put(store, "r2", "r1")
    assert store.delete("r1") and not store.delete("r1")
    assert store.resource("r1") is None and store.conversation("r1", with_output=True) is None
    assert ids(store.conversation("r2", with_output=False)) == ["in_r1", "msg_r1", "in_r2"]
    assert store.item("msg_r1") is None
    assert store.delete("r2") and store.totals() == (0, 0)


def test_time_to_live_counts_from_the_creation() -> None:
    clock = Clock()
    store = make(now=clock)
    put(store, "r1")
    clock.now += 59
    assert store.resource("r1")
    clock.now += 1
    assert store.resource("r1") is None and store.totals() == (0, 0) and store.counts.expired == 1


def test_a_conversation_outlives_its_first_turn() -> None:
    clock = Clock()
    store = make(now=clock)
    put(store, "r1")
    clock.now += 40
    put(store, "r2", "r1")
    clock.now += 40
    assert store.resource("r1") is None
    assert ids(store.conversation("r2", with_output=True)) == ["in_r1", "msg_r1", "in_r2", "msg_r2"]


def test_the_least_recently_used_goes_first() -> None:
    store = make(max_entries=2)
    put(store, "r1")
    put(store, "r2")
    store.resource("r1")
    put(store, "r3")
    assert store.resource("r2") is None and store.resource("r1") and store.resource("r3")
    assert store.counts.evicted == 1


def test_what_is_larger_than_the_cap_is_not_kept_and_costs_nobody_a_place() -> None:
    store = make(max_bytes=1000)
    put(store, "r1")
    assert not put(store, "r2", text="x" * 2000)
    assert store.resource("r2") is None and store.resource("r1")


def test_items_are_found_by_their_id() -> None:
    store = make()
    put(store, "r1")
    found = store.item("in_r1")
    assert found and found["content"] == "q" and store.item("in_r9") is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["root", "chain", "delete", "wait"])), max_size=25))
def test_caps_hold_and_chains_stay_whole(steps: list[tuple[int, str]]) -> None:
    clock, parents = Clock(), dict[str, str | None]()
    store = make(max_entries=5, max_bytes=3000, now=clock)
    for number, (which, what) in enumerate(steps):
        known = list(parents)
        parent = known[which % len(known)] if known and what == "chain" else None
        if what in ("root", "chain"):
            if parent and store.resource(parent) is None:
                continue
            parents[name := f"r{number}"] = parent
            put(store, name, parent)
        elif what == "delete" and known:
            store.delete(known[which % len(known)])
        elif what == "wait":
            clock.now += 20
        n_entries, n_bytes = store.totals()
        assert n_entries <= 5 and n_bytes <= 3000
        for name in parents:
            found = ids(store.conversation(name, with_output=True))
            if found is not None:
                assert found == lineage(name, parents)


def lineage(name: str, parents: dict[str, str | None]) -> list[str]:
    above = parents[name]
    return [*(lineage(above, parents) if above else []), f"in_{name}", f"msg_{name}"]


def test_an_unusable_file_is_an_error_for_the_caller(tmp_path: Path) -> None:
    (tmp_path / "s.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(sqlite3.DatabaseError):
        put(make(str(tmp_path / "s.sqlite")), "r1")
