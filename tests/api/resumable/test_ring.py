"""The ring against a plain string of bytes: what it holds is always the end of what came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from imp_server.api.resumable.ring import Ring

EVENTS = st.lists(st.integers(0, 40).map(lambda n: b"data: " + b"x" * n + b"\n\n"), max_size=30)


@given(EVENTS, st.integers(8, 120), st.integers(0, 60))
def test_it_holds_the_end_of_what_came(events: list[bytes], limit: int, piece: int) -> None:
    ring, whole, borders = Ring(limit), b"", {0}
    for event in events:
        ring.append(event)
        whole += event
        borders.add(len(whole))
        assert len(ring) <= limit and ring.end == len(whole) and ring.end - ring.start == len(ring)
        assert ring.start in borders or len(event) > limit, "only an event that is too large is cut"
        assert len(ring) + len(event) + max(map(len, events)) > min(limit, len(whole)), "no more goes than must"
        for offset in range(ring.start, ring.end):
            read = ring.read(offset, piece)
            assert read and whole.startswith(read, offset)
            assert offset + len(read) in borders
            assert len(read) <= piece or read.count(b"\n\n") <= 1 or offset + 1 in borders


@given(EVENTS, st.integers(0, 200))
def test_what_makes_room_for_others_goes_event_by_event(events: list[bytes], n_bytes: int) -> None:
    ring, whole = Ring(1 << 20), b"".join(events)
    for event in events:
        ring.append(event)
    ring.drop(n_bytes)
    assert ring.start >= min(n_bytes, len(whole))
    assert whole[ring.start :] == (ring.read(ring.start, 1 << 20) if len(ring) else b"")
    ring.clear()
    assert (ring.start, ring.end, len(ring)) == (len(whole), len(whole), 0)
