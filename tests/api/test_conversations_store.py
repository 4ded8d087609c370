"""The store of conversations against a plain list, and what bounds it."""

from __future__ import annotations

import json
import sqlite3
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.api import conversations_store
from imp_server.api.conversations_store import ConversationsStore
from imp_server.api.store_file import StoreFile
from imp_server.core import PayloadTooLarge
from imp_server.core.owner import Owner

A, B = Owner("a"), Owner("b")
Json = dict[str, Any]


def made(path: str = ":memory:", **caps: Any) -> ConversationsStore:
    ticks = iter(range(1000, 10**9))
    options: dict[str, Any] = {"max_entries": 100, "max_bytes": 10**6, "now": lambda: next(ticks)} | caps
    return ConversationsStore(StoreFile(path), **options)


def item(name: str, text: str = "x") -> Json:
    return {"id": name, "type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


NAMES = st.sampled_from(["m1", "m2", "m3", "m4"])
STEPS = st.lists(
    st.tuples(st.just("append"), st.lists(NAMES, max_size=3)) | st.tuples(st.just("delete"), NAMES), max_size=12
)


@given(STEPS, st.integers(1, 4), st.booleans())
@settings(max_examples=60, deadline=None)
def test_it_is_a_list(steps: list[tuple[str, Any]], limit: int, is_ascending: bool) -> None:
    store = made()
    plain: list[Json] = []
    store.create(A, "conv_1", {}, [])
    for what, value in steps:
        if what == "append":
            added = store.append(A, "conv_1", [item(name, f"{name} {len(plain)}") for name in value])
            assert added is not None and [one["content"] for one in added] == [
                item(name, f"{name} {len(plain)}")["content"] for name in value
            ]
            plain += added
        else:
            is_there = any(one["id"] == value for one in plain)
            assert (store.delete_item(A, "conv_1", value) is not None) == is_there
            plain = [one for one in plain if one["id"] != value]
    assert len({one["id"] for one in plain}) == len(plain)
    assert store.history(A, "conv_1") == plain
    for one in plain:
        assert store.item(A, "conv_1", one["id"]) == one == store.item_anywhere(A, one["id"])
    ordered, found, after = plain if is_ascending else plain[::-1], [], None
    while True:
        page = store.page(A, "conv_1", after=after, limit=limit, is_ascending=is_ascending)
        assert page is not None and len(page.items) <= limit
        found += page.items
        if not page.has_more:
            break
        after = page.items[-1]["id"]
    assert found == ordered
    size = store.totals()[1]
    assert size == len("{}") + sum(len(json.dumps(one)) for one in plain)


@pytest.mark.parametrize(
    "call",
    [
        lambda s, o: s.get(o, "conv_1"),
        lambda s, o: s.update(o, "conv_1", {"x": "y"}),
        lambda s, o: s.append(o, "conv_1", [item("m2")]),
        lambda s, o: s.history(o, "conv_1"),
        lambda s, o: s.page(o, "conv_1", after=None, limit=5, is_ascending=True),
        lambda s, o: s.item(o, "conv_1", "m1"),
        lambda s, o: s.item_anywhere(o, "m1"),
        lambda s, o: s.delete_item(o, "conv_1", "m1"),
        lambda s, o: s.delete(o, "conv_1") or None,
    ],
)
def test_what_others_have_is_not_there(call: Callable[[ConversationsStore, Owner], Any]) -> None:
    store = made()
    store.create(A, "conv_1", {"a": "b"}, [item("m1")])
    assert call(store, B) is None
    assert store.get(A, "conv_1") == {
        "id": "conv_1",
        "object": "conversation",
        "created_at": 1000,
        "metadata": {"a": "b"},
    }
    assert store.history(A, "conv_1") == [item("m1")]
    assert call(store, A) is not None


def test_notes_are_replaced() -> None:
    store = made()
    store.create(A, "conv_1", {"a": "b", "c": "d"}, [])
    changed = store.update(A, "conv_1", {"e": "f"})
    assert changed is not None and changed["metadata"] == {"e": "f"} and store.get(A, "conv_1") == changed
    assert store.totals() == (1, len('{"e": "f"}'))


def test_it_outlives_the_process_and_goes_as_a_whole(tmp_path: Any) -> None:
    path = str(tmp_path / "r.sqlite")
    first = made(path)
    first.create(A, "conv_1", {}, [item("m1"), item("m2")])
    first.file.close()
    second = made(path)
    assert second.history(A, "conv_1") == [item("m1"), item("m2")]
    assert second.delete(A, "conv_1") and second.totals() == (0, 0)
    assert second.item_anywhere(A, "m1") is None and second.history(A, "conv_1") is None


def test_the_one_that_was_not_used_for_longest_makes_room() -> None:
    store = made(max_entries=2)
    for name in ("conv_1", "conv_2"):
        store.create(A, name, {}, [item("m1")])
    assert store.get(A, "conv_1")
    store.create(B, "conv_3", {}, [])
    assert store.get(A, "conv_2") is None and store.item_anywhere(A, "m1") and store.get(B, "conv_3")
    by_bytes = made(max_bytes=1000)
    by_bytes.create(A, "conv_1", {}, [item("m1", "x" * 500)])
    by_bytes.create(A, "conv_2", {}, [item("m1", "x" * 500)])
    assert by_bytes.get(A, "conv_1") is None and by_bytes.totals()[1] <= 1000


@pytest.mark.parametrize("caps", [{"max_entries": 6}, {"max_bytes": 1200}])
def test_who_holds_most_makes_room_for_the_others(caps: dict[str, Any]) -> None:
    store = made(**caps)
    for i in range(3):
        store.create(A, f"a{i}", {}, [item("m")])
    for i in range(40):
        store.create(B, f"b{i}", {}, [item("m")])
    assert sum(store.get(A, f"a{i}") is not None for i in range(3)) >= 2
    assert store.get(B, "b39") and store.get(B, "b0") is None
    for i in range(3, 40):
        store.create(A, f"a{i}", {}, [item("m")])
    assert store.get(B, "b38"), "nor does the other one push it out"
    assert store.get(A, "a39") and store.get(A, "a3") is None


def test_what_it_will_take_in_memory_is_known_before_it_is_read(tmp_path: Any) -> None:
    path = str(tmp_path / "r.sqlite")
    store = made(path, max_bytes=10**7)
    small = item("m1") | {"content": [{"type": "input_text", "text": ""}] * 10_000}
    store.create(A, "conv_1", {}, [small])
    store.append(A, "conv_1", [item("m2", "\u4e00" * 100_000)])
    n_bytes = store.history_bytes(A, "conv_1")
    tracemalloc.start()
    found = store.history(A, "conv_1")
    took, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found and 2_000_000 < took <= n_bytes < 10 * took
    store.delete_item(A, "conv_1", "m1")
    assert store.history_bytes(A, "conv_1") < n_bytes - 2_000_000
    assert store.history_bytes(B, "conv_1") == 0
    store.file.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("ALTER TABLE conversations DROP COLUMN memory")
    later = made(path, max_bytes=10**7)
    assert later.history_bytes(A, "conv_1") == 10 * later.totals()[1], "nobody had counted"
    later.append(A, "conv_1", [item("m3")])
    assert later.history_bytes(A, "conv_1") > 10 * (later.totals()[1] - 200)
    later.file.close()


def test_a_conversation_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations_store, "MOST_BYTES", 1000)
    store = made()
    store.create(A, "conv_1", {}, [item("m1", "x" * 500)])
    with pytest.raises(PayloadTooLarge):
        store.append(A, "conv_1", [item("m2"), item("m3", "x" * 500)])
    assert store.history(A, "conv_1") == [item("m1", "x" * 500)], "all of them or none"
    with pytest.raises(PayloadTooLarge):
        store.create(A, "conv_2", {}, [item("m1", "x" * 1000)])
    assert store.get(A, "conv_2") is None


def test_a_file_of_another_kind_is_set_aside(tmp_path: Any) -> None:
    path = tmp_path / "r.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE conversations (id TEXT)")
    store = made(str(path))
    assert store.create(A, "conv_1", {}, [])["id"] == "conv_1"
    assert len(list(tmp_path.glob("*.damaged-*"))) == 1
