"""Hand-offs merge while nobody reads, and lose nothing."""

from __future__ import annotations

import socket
import threading
import time

from hypothesis import given
from hypothesis import strategies as st
from imp_server.core import TokenLogprob, Usage, pack_ids, unpack_ids
from imp_server.engine.merge import merge_steps
from imp_server.engine.messages import (
    FromEngine,
    Heartbeat,
    RequestFailed,
    RowDelta,
    RowFinish,
    StepDone,
    decode_from_engine,
)
from imp_server.engine.outbox import Outbox


def step(number: int, n_ids: int = 1, **fields: object) -> StepDone:
    row = RowDelta(1, 0, pack_ids([number] * n_ids), n_prefilled=number, **fields)  # type: ignore[arg-type]
    return StepDone((row,), {"n": float(number)})


def read_all(sock: socket.socket) -> list[FromEngine]:
    data = b""
    while part := sock.recv(1 << 20):
        data += part
    messages = []
    while data:
        size = int.from_bytes(data[:4], "little")
        messages.append(decode_from_engine(data[4 : 4 + size]))
        data = data[4 + size :]
    return messages


def test_a_stalled_reader_gets_everything_in_few_messages() -> None:
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    outbox = Outbox(theirs)
    for number in range(500):
        outbox.put(step(number, n_ids=100))
        if number % 100 == 99:
            time.sleep(0.01)
    outbox.put(RequestFailed(7, 500, "x", "y"))
    for number in range(500, 600):
        outbox.put(step(number, n_ids=100))
    ours.settimeout(10)

    def close() -> None:
        outbox.close()
        theirs.close()

    closing = threading.Thread(target=close)
    closing.start()
    messages = read_all(ours)
    closing.join()
    assert len(messages) < 60
    at = next(i for i, m in enumerate(messages) if isinstance(m, RequestFailed))
    before, after = (_ids(part) for part in (messages[:at], messages[at + 1 :]))
    assert before == [n for n in range(500) for _ in range(100)]
    assert after == [n for n in range(500, 600) for _ in range(100)]


def _ids(messages: list[FromEngine]) -> list[int]:
    return [i for m in messages if isinstance(m, StepDone) for row in m.rows for i in unpack_ids(row.ids)]


def test_heartbeats_do_not_pile_up() -> None:
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    outbox = Outbox(theirs)
    outbox.put(step(1, n_ids=200_000))  # blocks the sender
    time.sleep(0.05)
    for number in range(1000):
        outbox.put(Heartbeat(number, True))
    assert len(outbox._waiting) == 1
    ours.close()
    outbox.close()
    theirs.close()


deltas = st.builds(
    RowDelta,
    key=st.integers(1, 2),
    choice=st.integers(0, 1),
    ids=st.lists(st.integers(0, 99), max_size=3).map(pack_ids),
    logprobs=st.lists(st.builds(TokenLogprob, st.integers(0, 9), st.floats(-9, 0)), max_size=2).map(tuple),
    n_prefilled=st.integers(-1, 5),
)


@given(st.lists(st.lists(deltas, max_size=3), min_size=1, max_size=5))
def test_merging_concatenates_per_choice(steps: list[list[RowDelta]]) -> None:
    merged = StepDone(())
    for rows in steps:
        for row in rows:
            merged = merge_steps(merged, StepDone((row,)))
    flat = [row for rows in steps for row in rows]
    assert {(r.key, r.choice) for r in merged.rows} == {(r.key, r.choice) for r in flat}
    for row in merged.rows:
        own = [r for r in flat if (r.key, r.choice) == (row.key, row.choice)]
        assert row.ids == b"".join(r.ids for r in own)
        assert row.logprobs == tuple(lp for r in own for lp in r.logprobs)
        assert row.n_prefilled == max(r.n_prefilled for r in own)


def test_the_finish_survives() -> None:
    finish = RowFinish("stop", Usage(completion_tokens=3))
    merged = merge_steps(step(1), step(2, finish=finish))
    assert merged.rows[0].finish == finish and merged.gauges == {"n": 2.0}
