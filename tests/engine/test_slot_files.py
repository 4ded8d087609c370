"""What slots held, in files: saved and found again by another engine, whose, and what a file may be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from imp_server.core import GenerationOptions
from imp_server.engine.client.inline import InlineEngine
from imp_server.engine.messages import SlotAction, SlotDone

from tests.engine.hash_model import HashModel
from tests.engine.tiny_engine import IDS, Tiny, ask, request, with_engine

MIB = 1 << 20
PROMPT = IDS[:40]


def action(verb: Any, slot: int, path: Path | str = "", owner: str = "", most: int = MIB) -> SlotAction:
    return SlotAction(0, verb, slot, str(path), owner, most)


def in_slot(engine: InlineEngine, slot: int, prompt: list[int] = PROMPT, n: int = 10, **fields: Any) -> Any:
    return request(engine, prompt, n, options=GenerationOptions(row_preference=slot), **fields)


def run(test: Any, faults: list[str] | None = None, **fields: Any) -> None:
    models: list[HashModel] = []

    def wrap(backend: Any) -> HashModel:
        models.append(HashModel(backend.architecture))
        return models[-1]

    with_engine(test, keeps_slots=True, wrap=wrap, **fields)
    assert models[0].faults == (faults or [])


async def n_cached(engine: InlineEngine, prompt: list[int]) -> int:
    (answer,) = await ask(engine, in_slot(engine, 3, prompt, 1))
    assert answer.finish is not None
    return answer.finish.usage.cached_tokens


def test_another_engine_finds_what_one_has_saved(tmp_path: Path) -> None:
    path, told = tmp_path / "owner" / "a.bin", list[list[int]]()

    async def save(engine: InlineEngine, _: Tiny) -> None:
        (answer,) = await ask(engine, in_slot(engine, 2))
        told.append(answer.ids)
        done = await engine.slot_action(action("save", 2, path))
        assert (done.problem, done.n_tokens) == ("", 49) and done.n_bytes == path.stat().st_size > 0

    async def restore(engine: InlineEngine, _: Tiny) -> None:
        assert await n_cached(engine, IDS[100:150]) == 0
        done = await engine.slot_action(action("restore", 0, path))
        assert (done.problem, done.n_tokens, done.n_bytes) == ("", 49, path.stat().st_size)
        assert await n_cached(engine, [*PROMPT, *told[0]]) == 49
        again = await engine.slot_action(action("save", 0, tmp_path / "b.bin"))
        assert (again.problem, again.n_tokens) == ("", 49)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["b.bin", "owner"], "no part is left over"

    run(save)
    run(restore)


def test_erasing_forgets_what_no_other_text_begins_with() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        await ask(engine, in_slot(engine, 1))
        assert await n_cached(engine, PROMPT) == 39
        await ask(engine, in_slot(engine, 1))
        done = await engine.slot_action(action("erase", 1))
        assert done.problem == "" and done.n_tokens > 0
        assert await n_cached(engine, PROMPT) == 0
        assert (await engine.slot_action(action("erase", 1))).problem == "nothing"
        await ask(engine, in_slot(engine, 0, PROMPT[:32] + IDS[200:230]))
        await ask(engine, in_slot(engine, 1))
        await engine.slot_action(action("erase", 1))
        assert await n_cached(engine, PROMPT) == 32, "the other slot's text begins with these"

    run(body)


def test_a_text_is_its_owners(tmp_path: Path) -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        await ask(engine, in_slot(engine, 1, owner="one"))
        for owner, problem in (("two", "nothing"), ("one", ""), ("", "")):
            assert (await engine.slot_action(action("save", 1, tmp_path / "x", owner))).problem == problem
        assert (await engine.slot_action(action("erase", 1, owner="two"))).problem == "nothing"

    run(body)


def test_a_busy_slot_says_so(tmp_path: Path) -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        running = await engine.submit(in_slot(engine, 1, n=150))
        await anext(aiter(running))
        assert (await engine.slot_action(action("save", 1, tmp_path / "x"))).problem == "busy"
        running.cancel()

    run(body)


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "flipped", "a folder", "a link"])
def test_a_file_that_is_none(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.bin"

    async def body(engine: InlineEngine, _: Tiny) -> None:
        await ask(engine, in_slot(engine, 1))
        await engine.slot_action(action("save", 1, path))
        await engine.slot_action(action("erase", 1))
        data = path.read_bytes()
        path.unlink()
        if damage == "empty":
            path.touch()
        elif damage == "cut":
            path.write_bytes(data[: len(data) // 2])
        elif damage == "flipped":
            path.write_bytes(data[:4000] + bytes([data[4000] ^ 1]) + data[4001:-9] + b"x" * 9)
        elif damage == "a folder":
            path.mkdir()
        elif damage == "a link":
            (tmp_path / "real").write_bytes(data)
            path.symlink_to(tmp_path / "real")
        done: SlotDone = await engine.slot_action(action("restore", 1, path))
        assert done.problem == ("" if damage == "cut" and done.n_tokens else "unusable") and done.n_tokens < 49
        assert (await ask(engine, in_slot(engine, 1)))[0].finish is not None

    run(body)


def test_what_is_too_large_leaves_no_file(tmp_path: Path) -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        await ask(engine, in_slot(engine, 1))
        assert (await engine.slot_action(action("save", 1, tmp_path / "x", most=5000))).problem == "full"
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "file").touch()
        assert (await engine.slot_action(action("save", 1, tmp_path / "file" / "x"))).problem == "fault"

    run(body)


def test_restoring_into_a_pool_that_is_too_small_keeps_a_beginning(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"

    async def save(engine: InlineEngine, _: Tiny) -> None:
        await ask(engine, in_slot(engine, 1, IDS[:160]))
        assert (await engine.slot_action(action("save", 1, path))).n_tokens == 169

    async def restore(engine: InlineEngine, _: Tiny) -> None:
        done = await engine.slot_action(action("restore", 1, path))
        assert 0 < done.n_tokens < 169
        assert await n_cached(engine, IDS[:60]) > 0

    run(save)
    run(restore, n_blocks=6, context=96)


def test_all_files_of_a_folder_share_the_room_and_old_parts_go(tmp_path: Path) -> None:
    folder = tmp_path / "owner"

    async def body(engine: InlineEngine, _: Tiny) -> None:
        await ask(engine, in_slot(engine, 2))
        first = await engine.slot_action(action("save", 2, folder / "a.bin"))
        assert first.problem == ""
        left = folder / ".b.bin.7.part"
        left.write_bytes(b"x" * 4096)
        os.utime(left, (0, 0))
        most = first.n_bytes + first.n_bytes // 2
        assert (await engine.slot_action(action("save", 2, folder / "b.bin", most=most))).problem == "full"
        assert (await engine.slot_action(action("save", 2, folder / "a.bin", most=most))).problem == ""
        assert [p.name for p in folder.iterdir()] == ["a.bin"]

    run(body)
