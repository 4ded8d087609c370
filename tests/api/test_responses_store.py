"""The store of responses: chains, hiding, time to live, caps, restart."""

from __future__ import annotations

import json
import os
import sqlite3
import time
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.api import store_file
from imp_server.api.responses_store import ResponsesStore
from imp_server.core.owner import NOBODY, Owner


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


A, B = Owner("a"), Owner("b")


def make(path: str = ":memory:", **caps: Any) -> ResponsesStore:
    return ResponsesStore(path, **({"ttl_s": 60, "max_entries": 100, "max_bytes": 10**6} | caps))


def answer(name: str, parent: str | None = None, text: str = "a") -> dict[str, Any]:
    output = [{"type": "message", "id": f"msg_{name}", "content": [{"type": "output_text", "text": text}]}]
    return {"id": name, "object": "response", "previous_response_id": parent, "output": output}


def asked(name: str) -> list[dict[str, Any]]:
    return [{"type": "message", "id": f"in_{name}", "role": "user", "content": "q"}]


def put(store: ResponsesStore, name: str, parent: str | None = None, text: str = "a", owner: Owner = A) -> bool:
    return store.put(owner, answer(name, parent, text), asked(name))


def ids(items: list[dict[str, Any]] | None) -> list[str] | None:
    return None if items is None else [item["id"] for item in items]


def test_a_chain_is_input_and_output_in_order() -> None:
    store = make()
    put(store, "r1")
    put(store, "r2", "r1")
    assert ids(store.conversation(A, "r2", with_output=True)) == ["in_r1", "msg_r1", "in_r2", "msg_r2"]
    assert ids(store.conversation(A, "r2", with_output=False)) == ["in_r1", "msg_r1", "in_r2"]
    assert store.conversation(A, "r3", with_output=True) is None


def test_a_response_comes_back_as_it_was() -> None:
    store = make()
    put(store, "r1")
    assert store.resource(A, "r1") == answer("r1")


def test_it_works_after_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "home" / "responses.sqlite")
    first = make(path)
    put(first, "r1")
    first.close()
    second = make(path)
    assert second.resource(A, "r1") == answer("r1") and second.item(A, "msg_r1") is not None
    second.close()
    assert [p.name for p in (tmp_path / "home").iterdir()] == ["responses.sqlite"]


def test_a_deleted_parent_is_gone_but_its_items_live_in_the_chain() -> None:
    store = make()
    put(store, "r1")
    put(store, "r2", "r1")
    assert store.delete(A, "r1") and not store.delete(A, "r1")
    assert store.resource(A, "r1") is None and store.conversation(A, "r1", with_output=True) is None
    assert ids(store.conversation(A, "r2", with_output=False)) == ["in_r1", "msg_r1", "in_r2"]
    assert store.item(A, "msg_r1") is None
    assert store.delete(A, "r2") and store.totals() == (0, 0)


def test_time_to_live_counts_from_the_creation() -> None:
    clock = Clock()
    store = make(now=clock)
    put(store, "r1")
    clock.now += 59
    assert store.resource(A, "r1")
    clock.now += 1
    assert store.resource(A, "r1") is None and store.totals() == (0, 0) and store.counts.expired == 1


def test_a_conversation_outlives_its_first_turn() -> None:
    clock = Clock()
    store = make(now=clock)
    put(store, "r1")
    clock.now += 40
    put(store, "r2", "r1")
    clock.now += 40
    assert store.resource(A, "r1") is None
    assert ids(store.conversation(A, "r2", with_output=True)) == ["in_r1", "msg_r1", "in_r2", "msg_r2"]


def test_the_least_recently_used_goes_first() -> None:
    store = make(max_entries=2)
    put(store, "r1")
    put(store, "r2")
    store.resource(A, "r1")
    put(store, "r3")
    assert store.resource(A, "r2") is None and store.resource(A, "r1") and store.resource(A, "r3")
    assert store.counts.evicted == 1


@pytest.mark.parametrize("caps", [{"max_entries": 6}, {"max_bytes": 1600}])
def test_who_holds_most_makes_room_for_the_others(caps: dict[str, Any]) -> None:
    store = make(**caps)
    for i in range(3):
        put(store, f"a{i}")
    for i in range(40):
        put(store, f"b{i}", owner=B)
    kept = [name for name in ("a0", "a1", "a2") if store.resource(A, name)]
    assert len(kept) >= 2 and store.resource(B, "b39") and store.resource(B, "b0") is None
    for i in range(3, 40):
        put(store, f"a{i}")
    assert store.resource(B, "b38"), "nor does the other one push it out"
    assert store.resource(A, "a39") and store.resource(A, "a3") is None


def test_what_a_conversation_will_take_in_memory_is_known_before_it_is_read(tmp_path: Path) -> None:
    store = make(str(tmp_path / "r.sqlite"), max_bytes=10**7)
    parts = [{"type": "input_text", "text": ""}] * 10_000
    made = answer("r1")
    assert store.put(A, made, [asked("r1")[0] | {"content": parts}])
    put(store, "r2", "r1", text="\u4e00" * 100_000)
    store.finish(A, answer("r2", "r1", text="\U0001f600" * 1000))
    n_bytes = store.history_bytes(A, "r2")
    tracemalloc.start()
    found = store.conversation(A, "r2", with_output=True)
    took, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found and 2_000_000 < took <= n_bytes < 10 * took
    assert store.item_bytes(A, "in_r1") <= n_bytes and store.item_bytes(A, "in_r1") > 1_000_000
    assert store.history_bytes(B, "r2") == store.history_bytes(A, "r3") == store.item_bytes(B, "in_r1") == 0


def test_what_was_stored_before_anybody_counted_counts_by_its_text(tmp_path: Path) -> None:
    path = str(tmp_path / "r.sqlite")
    first = make(path)
    put(first, "r1")
    first.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("ALTER TABLE responses DROP COLUMN memory")
    store = make(path)
    assert store.history_bytes(A, "r1") == 10 * store.totals()[1] > 1000
    store.finish(A, answer("r1"))
    assert store.history_bytes(A, "r1") == 10 * store.totals()[1] > 1000
    store.close()


def test_what_is_larger_than_the_cap_is_not_kept_and_costs_nobody_a_place() -> None:
    store = make(max_bytes=1000)
    put(store, "r1")
    assert not put(store, "r2", text="x" * 2000)
    assert store.resource(A, "r2") is None and store.resource(A, "r1")


def test_items_are_found_by_their_id() -> None:
    store = make()
    put(store, "r1")
    found = store.item(A, "in_r1")
    assert found and found["content"] == "q" and store.item(A, "in_r9") is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["root", "chain", "delete", "wait"])), max_size=25))
def test_caps_hold_and_chains_stay_whole(steps: list[tuple[int, str]]) -> None:
    clock, parents = Clock(), dict[str, str | None]()
    store = make(max_entries=5, max_bytes=3000, now=clock)
    for number, (which, what) in enumerate(steps):
        known = list(parents)
        parent = known[which % len(known)] if known and what == "chain" else None
        if what in ("root", "chain"):
            if parent and store.resource(A, parent) is None:
                continue
            parents[name := f"r{number}"] = parent
            put(store, name, parent)
        elif what == "delete" and known:
            store.delete(A, known[which % len(known)])
        elif what == "wait":
            clock.now += 20
        n_entries, n_bytes = store.totals()
        assert n_entries <= 5 and n_bytes <= 3000
        for name in parents:
            found = ids(store.conversation(A, name, with_output=True))
            if found is not None:
                assert found == lineage(name, parents)


def lineage(name: str, parents: dict[str, str | None]) -> list[str]:
    above = parents[name]
    return [*(lineage(above, parents) if above else []), f"in_{name}", f"msg_{name}"]


def test_nobody_finds_what_is_anothers() -> None:
    store = make()
    put(store, "r1")
    assert store.put(B, answer("r2"), [{"type": "message", "id": "in_r1", "role": "user", "content": "mine"}])
    assert store.resource(B, "r1") is None and store.conversation(B, "r1", with_output=True) is None
    assert store.item(B, "msg_r1") is None and not store.delete(B, "r1")
    mine, others = store.item(B, "in_r1"), store.item(A, "in_r1")
    assert mine and others and (mine["content"], others["content"]) == ("mine", "q"), "ids of items are the clients'"
    assert store.resource(A, "r1") == answer("r1")


# --- what becomes of the file -----------------------------------------------------------------------


def one_bit(data: bytes) -> bytes:
    """In the first page's tree of tables."""
    changed = bytearray(data)
    changed[100] ^= 0x0F
    return bytes(changed)


def other_database(_: bytes) -> bytes:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE responses (id TEXT, flavour TEXT)")
        db.commit()
        return db.serialize()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "zeros": lambda data: bytes(len(data)),
    "text": lambda _: b"not a database" * 100,
    "first page": lambda data: bytes(4096) + data[4096:],
    "all but the first page": lambda data: data[:4096] + bytes(len(data) - 4096),
    "pages of nonsense": lambda data: data[:4096] + b"\xa5" * (len(data) - 4096),
    "cut": lambda data: data[:5000],
    "one bit": one_bit,
    "another database": other_database,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_set_aside_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "responses.sqlite"
    store = make(str(path))
    put(store, "r1")
    store.close()
    path.write_bytes(damage(path.read_bytes()))
    store = make(str(path))
    assert store.resource(A, "r1") is None
    assert put(store, "r2") and store.resource(A, "r2") == answer("r2")
    (line,) = caplog.records
    assert "set aside as" in line.getMessage()
    aside = [each.name for each in tmp_path.iterdir() if ".damaged-" in each.name]
    assert "responses.sqlite.damaged-" in aside[0] and line.getMessage().endswith(min(aside))
    store.close()


def test_an_answer_that_is_no_json_any_more_is_not_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(tmp_path / "responses.sqlite")
    store = make(path)
    for name in ("r1", "r2", "r3"):
        put(store, name)
    store.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE responses SET resource = CAST(X'7bff' AS TEXT) WHERE id = 'r1'")
        db.execute("UPDATE responses SET input = '7' WHERE id = 'r2'")
        db.commit()
    store = make(path)
    assert store.resource(A, "r1") is None and store.conversation(A, "r2", with_output=True) is None
    assert store.resource(A, "r3") == answer("r3")
    assert [record.getMessage().split()[3] for record in caplog.records] == ["r1", "r2"]
    store.close()


@pytest.mark.parametrize("mask", [0o000, 0o022])
def test_only_its_user_may_read_it(tmp_path: Path, mask: int) -> None:
    path = tmp_path / "responses.sqlite"
    before = os.umask(mask)
    try:
        store = make(str(path))
        put(store, "r1")
        files = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()}
        assert files == {f"responses.sqlite{side}": 0o600 for side in ("", "-wal", "-shm")}
        store.close()
        path.chmod(0o644)
        second = make(str(path))
        assert second.resource(A, "r1")
        assert path.stat().st_mode & 0o777 == 0o600
        second.close()
    finally:
        os.umask(before)


def test_a_store_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    path = str(tmp_path / "responses.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.executescript("""
            CREATE TABLE responses (
                id TEXT NOT NULL UNIQUE, parent TEXT, created REAL NOT NULL, used INTEGER NOT NULL,
                hidden INTEGER NOT NULL DEFAULT 0, size INTEGER NOT NULL, resource TEXT NOT NULL, input TEXT NOT NULL);
            CREATE TABLE items (id TEXT PRIMARY KEY, response TEXT NOT NULL) WITHOUT ROWID;
            INSERT INTO items VALUES ('msg_r1', 'r1');
        """)
        values = ("r1", None, time.time(), 1, 100, json.dumps(answer("r1")), json.dumps(asked("r1")))
        db.execute(
            "INSERT INTO responses (id, parent, created, used, size, resource, input) VALUES (?,?,?,?,?,?,?)", values
        )
        db.commit()
    store = make(path)
    assert store.resource(NOBODY, "r1") == answer("r1") and store.item(NOBODY, "msg_r1")
    assert store.resource(A, "r1") is None
    store.close()


def test_a_file_that_cannot_be_had_is_an_error_for_the_caller(tmp_path: Path) -> None:
    """Nothing is damaged there, so nothing is set aside."""
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OSError, match="file"):
        put(make(str(tmp_path / "file" / "responses.sqlite")), "r1")
    path = str(tmp_path / "responses.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as other, pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_file, "_BUSY_S", 0.05)
        put(make(path), "r0")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            put(make(path), "r1")
        other.execute("COMMIT")
    assert not [each for each in tmp_path.iterdir() if "damaged" in each.name]
