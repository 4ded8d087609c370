"""Resumable streams under a storm: clients leave at every stage, and what is read again is right to the byte."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import httpx
import pytest
from imp_server.core.owner import NOBODY

from tests.api import raw_http
from tests.api.live_server import LiveServer
from tests.faults.storm import (
    KINDS,
    LIMIT_S,
    N_BLOCKS,
    Ask,
    asks,
    engine_of,
    left,
    storm_server,
    truths,
    until_peace,
    wait_ready,
)
from tests.faults.watched import taken

pytestmark = pytest.mark.timeout(600)
STREAMED = tuple(name for name, kind in KINDS.items() if kind.streamed)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with storm_server(tmp_path_factory.mktemp("model")) as live:
        yield live


class Sent(NamedTuple):
    name: str
    ask: Ask
    status: int
    seen: bytes
    """Of the stream, before the client left."""


def leave(live: LiveServer, name: str, ask: Ask, chance: random.Random) -> Sent:
    """Sends the request and goes away after some bytes of the answer: none, some of the head, some of the stream."""
    data = raw_http.posted(ask.body(), f"x-conversation-id: {name}", "connection: close", path=KINDS[ask.kind].path)
    n_bytes = chance.choice((0, 1, 40, 600, 2000, 1 << 30))
    with raw_http.connect(live.url, LIMIT_S) as sock:
        sock.sendall(data)
        got = b""
        while len(got) < n_bytes and (part := sock.recv(min(4096, n_bytes - len(got)))):
            got += part
    head, _, body = got.partition(b"\r\n\r\n")
    status = int(head.split()[1]) if len(head) > 12 else 0
    return Sent(name, ask, status, unchunked(body))


def unchunked(data: bytes) -> bytes:
    """As far as the chunks came."""
    found = b""
    while b"\r\n" in data:
        size, _, data = data.partition(b"\r\n")
        n_bytes = int(size or b"0", 16)
        found += data[:n_bytes]
        data = data[n_bytes + 2 :]
    return found


class Replay(NamedTuple):
    sent: Sent
    whole: bytes
    faults: list[str]


def replayed(http: httpx.Client, sent: Sent, right: str, chance: random.Random) -> Replay | None:
    """Reads the stream to its end, and again from some places; tells what is wrong with it.

    None: it was refused before its client could read so, and has to be sent again.
    """
    where, faults = f"/v1/stream/{sent.name}", []
    end, missing_s = time.monotonic() + LIMIT_S, time.monotonic() + 2
    if sent.status >= 400:
        return Replay(sent, b"", [])  # its client was told so
    while (reply := http.get(where)).status_code == 503 or (reply.status_code == 404 and sent.status == 0):
        now = time.monotonic()
        if now > (missing_s if reply.status_code == 404 else end):
            return None
        time.sleep(0.05)
    whole = reply.content
    if reply.status_code != 200:
        return Replay(sent, b"", [f"{sent.name}: {reply.status_code} {reply.text[:200]}"])
    if not whole.startswith(sent.seen):
        faults.append(f"{sent.name}: its client saw other bytes")
    for _ in range(3):
        offset = chance.randrange(len(whole) + 1)
        if http.get(where, params={"from": offset}).content != whole[offset:]:
            faults.append(f"{sent.name}: other bytes from {offset}")
    text, is_whole, error = read_stream(sent.ask, whole)
    if error is None and (not is_whole or text != right):
        faults.append(f"{sent.name}: {text!r} instead of {right!r}")
    if error is not None and not right.startswith(text.rstrip("\ufffd")):
        faults.append(f"{sent.name}: {text!r} is no beginning of {right!r}")
    return Replay(sent, whole, faults)


def read_stream(ask: Ask, data: bytes) -> tuple[str, bool, Any]:
    """(text, whether it came to its good end, its error)."""
    kind, text, is_whole, error = KINDS[ask.kind], "", False, None
    assert data.endswith(b"\n\n")
    for line in data.decode().splitlines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        item = json.loads(line[6:])
        if "error" in item or item.get("type") in ("error", "response.failed"):
            error = item
            continue
        text += kind.text_of(item)
        is_whole |= kind.last(item)
    return text, is_whole, error


def storm_of_leavers(
    live: LiveServer, wanted: list[Ask], right: dict[Ask, str], seed: int, n_clients: int
) -> list[Replay]:
    """Clients begin streams and leave them; others read them, each to its end, while all of it goes on."""
    waiting = [(f"s{seed}-{i}", ask) for i, ask in enumerate(wanted)]
    found: list[Replay] = []
    lock = threading.Lock()

    def client(number: int) -> None:
        chance = random.Random(f"{seed} {number}")
        with httpx.Client(base_url=live.url, timeout=LIMIT_S) as http:
            while True:
                with lock:
                    if not waiting:
                        return
                    name, ask = waiting.pop()
                one = None
                for _ in range(100):  # who is told to come again does so
                    sent = leave(live, name, ask, chance)
                    if sent.status not in (429, 503) and (one := replayed(http, sent, right[ask], chance)):
                        break
                    time.sleep(0.05)
                with lock:
                    found.append(one or Replay(sent, b"", [f"{name}: it was never taken"]))

    threads = [threading.Thread(target=client, args=(i,), daemon=True) for i in range(n_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(500)
    assert not any(thread.is_alive() for thread in threads), "a client waits for ever"
    return found


def forget(live: LiveServer) -> None:
    """All streams."""
    names = [session.key.name for session in live.on_loop(lambda: live.services.sessions.owned(NOBODY))]
    for name in names:
        assert httpx.delete(f"{live.url}/v1/stream/{name}").status_code == 204
    assert live.on_loop(lambda: (len(live.services.sessions), live.services.sessions.n_bytes)) == (0, 0)


@pytest.mark.parametrize(("n_streams", "n_clients"), [(30, 6), pytest.param(500, 32, marks=pytest.mark.slow)])
def test_streams_whose_clients_leave_are_read_again_right_to_the_byte(
    live: LiveServer, n_streams: int, n_clients: int
) -> None:
    wanted = asks(5, n_streams, kinds=STREAMED)
    right = truths(live.url, wanted)
    storm_of_leavers(live, wanted[: n_streams // 4], right, 0, n_clients)
    forget(live)
    before, mib = until_peace(live, left(live)), taken(os.getpid()).api_mib
    began = time.monotonic()
    found = storm_of_leavers(live, wanted, right, 1, n_clients)
    took_s = time.monotonic() - began
    assert [fault for one in found for fault in one.faults] == [] and len(found) == n_streams
    assert all(read_stream(one.sent.ask, one.whole)[1] for one in found), "nothing failed, so each came to its end"
    n_bytes = live.on_loop(lambda: live.services.sessions.n_bytes)
    assert n_bytes == sum(len(one.whole) for one in found)
    after = until_peace(live, before)
    print(f"\n{n_streams} streams of {n_clients} clients: {took_s:.1f} s, {n_bytes >> 10} KiB kept; {after}")
    print(f"MiB: process {mib:.0f} -> {taken(os.getpid()).api_mib:.0f}")
    forget(live)
    counters, _ = live.wait(live.services.stats())
    assert counters["blocks_free"] + counters["blocks_cached"] == N_BLOCKS


@pytest.mark.parametrize(
    ("seed", "n_kills", "n_streams", "n_clients"), [(1, 2, 24, 6), pytest.param(2, 20, 300, 24, marks=pytest.mark.slow)]
)
def test_an_engine_that_is_killed_falsifies_no_replay(
    live: LiveServer, seed: int, n_kills: int, n_streams: int, n_clients: int
) -> None:
    wanted = asks(seed, n_streams, kinds=STREAMED)
    right = truths(live.url, wanted)
    before = until_peace(live, left(live))
    over = threading.Event()

    def kill() -> None:
        chance = random.Random(seed)
        for _ in range(n_kills):
            if over.wait(chance.uniform(0.1, 1.2)):
                return
            pid = engine_of(live).pid
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    found = storm_of_leavers(live, wanted, right, seed, n_clients)
    over.set()
    killer.join()
    wait_ready(live)
    assert [fault for one in found for fault in one.faults] == [] and len(found) == n_streams
    n_cut = sum(read_stream(one.sent.ask, one.whole)[2] is not None for one in found if one.whole)
    n_refused = sum(one.sent.status >= 400 for one in found)
    print(f"\n{n_streams} streams, {n_kills} kills, seed {seed}: {n_cut} cut by an error event, {n_refused} refused")
    until_peace(live, before)
    forget(live)


def test_deleting_at_any_stage_leaves_nothing(live: LiveServer) -> None:
    wanted = asks(7, 60, kinds=STREAMED, most_tokens=200)
    before = until_peace(live, left(live))
    chance, stopped = random.Random(7), []
    http = httpx.Client(base_url=live.url, timeout=LIMIT_S, limits=httpx.Limits(max_connections=None))

    def begin_and_stop(number: int) -> None:
        ask, name = wanted[number], f"gone-{number}"
        fields = (f"x-conversation-id: {name}", "connection: close")
        data = raw_http.posted(ask.body(), *fields, path=KINDS[ask.kind].path)
        with raw_http.connect(live.url, LIMIT_S) as sock:
            sock.sendall(data)
            time.sleep(chance.choice((0, 0.005, 0.05, 0.2)))
            assert http.delete(f"/v1/stream/{name}").status_code == 204
            status = sock.recv(12)[-3:]
            assert status in (b"200", b"400")
            assert http.delete(f"/v1/stream/{name}").status_code == 204  # the first may have come before the request
            while sock.recv(1 << 16):
                pass
        assert http.get(f"/v1/stream/{name}").status_code == 404
        stopped.append(status)

    threads = [threading.Thread(target=begin_and_stop, args=(i,), daemon=True) for i in range(len(wanted))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    http.close()
    assert len(stopped) == len(wanted)
    assert live.on_loop(lambda: (len(live.services.sessions), live.services.sessions.n_bytes)) == (0, 0)
    until_peace(live, before)


def test_background_responses_of_many_clients_end_and_leave_nothing(live: LiveServer) -> None:
    before = until_peace(live, left(live))
    chance, made = random.Random(3), []
    with httpx.Client(base_url=live.url, timeout=LIMIT_S) as http:
        for i in range(40):
            body = {
                "model": "tiny",
                "input": f"{i}",
                "background": True,
                "max_output_tokens": chance.choice((2, 20, 60)),
            }
            reply = http.post("/v1/responses", json=body | {"ignore_eos": True, "stream": False})
            assert reply.status_code == 200, reply.text
            made.append(reply.json()["id"])
            if chance.random() < 0.3:
                http.post(f"/v1/responses/{chance.choice(made)}/cancel")
        end = time.monotonic() + LIMIT_S
        while True:
            states = [http.get(f"/v1/responses/{name}").json()["status"] for name in made]
            if not {"queued", "in_progress"} & set(states):
                break
            assert time.monotonic() < end, states
            time.sleep(0.1)
        assert set(states) <= {"incomplete", "completed", "cancelled"} and "incomplete" in states
    until_peace(live, before)
    assert live.on_loop(lambda: (len(live.services.sessions), live.services.sessions.n_bytes)) == (0, 0)
