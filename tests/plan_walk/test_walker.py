"""The walk over an OutputPlan against an obviously right twin that sees the whole text at once."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.core import OutputPlan, Segment, pack_ids, special
from imp_server.plan_walk import Piece, PlanWalker

THINK, END_THINK, EOS, TOOL = 256, 257, 258, 259
TABLE = [bytes([i]) for i in range(256)] + [
    special("<think>"),
    special("</think>"),
    special("<|end|>"),
    special("<tool>"),
    b"<call>",
    b"</call>",
    b"</ca",
    b"ll>X",
    b"EN",
    b"D and",
]


def thinker(**changes: object) -> OutputPlan:
    fields: dict[str, object] = {
        "segments": (
            Segment(
                "think",
                openers=(special("<think>"),),
                closers=(special("</think>"), b"</thought>"),
                opens_from=(1,),
                closes_to=1,
            ),
            Segment("answer"),
            Segment(
                "call", openers=(b"<call>", special("<tool>")), closers=(b"</call>",), opens_from=(1,), closes_to=1
            ),
        ),
        "start": 1,
        "end_ids": (EOS,),
        "max_tokens": 1000,
    }
    return OutputPlan(**(fields | changes))  # type: ignore[arg-type]


def walk(plan: OutputPlan, ids: list[int]) -> tuple[list[Piece], PlanWalker]:
    walker = PlanWalker(plan, TABLE)
    pieces: list[Piece] = []
    for token_id in ids:
        pieces += walker.push(token_id)
        if walker.end:
            return pieces, walker
    return pieces + walker.finish(), walker


def texts(pieces: list[Piece]) -> list[tuple[int, bytes]]:
    """Runs of text per segment visit."""
    runs: list[tuple[tuple[int, int], bytes]] = []
    for piece in pieces:
        if piece.kind != "text":
            continue
        key = (piece.segment, piece.visit)
        if runs and runs[-1][0] == key:
            runs[-1] = (key, runs[-1][1] + piece.data)
        else:
            runs.append((key, piece.data))
    return [(key[0], data) for key, data in runs]


def test_think_then_answer_then_call() -> None:
    pieces, walker = walk(thinker(), [THINK, *b"hm", END_THINK, *b"ok", 260, *b"{}", 262, 263, *b"Y", EOS])
    assert texts(pieces) == [(0, b"hm"), (1, b"ok"), (2, b"{}"), (1, b"XY")]
    assert walker.end is not None
    assert (walker.end.reason, walker.end.end_id) == ("stop", EOS)
    assert walker.n_think_tokens == 3


def test_text_never_spells_a_special_token() -> None:
    pieces, _ = walk(thinker(), list(b"<think>a</think>"))
    assert texts(pieces) == [(1, b"<think>a</think>")]


def test_stop_string_does_not_match_inside_a_special_token() -> None:
    plan = thinker(stop=(b"tool",), segments=(Segment("answer"),), start=0)
    pieces, walker = walk(plan, [*b"a", TOOL, *b"b"])
    assert walker.end is None
    assert walker.visible(b"".join(p.data for p in pieces)) == b"ab"


def test_shown_special_tokens_appear_as_their_text() -> None:
    plan = OutputPlan(shown_ids=(TOOL,), max_tokens=10)
    pieces, walker = walk(plan, [TOOL, THINK, *b"x"])
    assert walker.visible(b"".join(p.data for p in pieces)) == b"<tool>x"


def test_stop_applies_to_the_answer_only() -> None:
    pieces, walker = walk(thinker(stop=(b"END",)), [THINK, *b"END", END_THINK, *b"a", 264, 265])
    assert texts(pieces) == [(0, b"END"), (1, b"a")]
    assert walker.end is not None
    assert walker.end.stop_string == b"END"


def test_only_a_true_prefix_is_held_back() -> None:
    walker = PlanWalker(OutputPlan(stop=(b"END",), max_tokens=100), TABLE)
    emitted = [b"".join(p.data for p in walker.push(b)) for b in b"xEExEN!"]
    assert emitted == [b"x", b"", b"E", b"Ex", b"", b"", b"EN!"]


def test_max_tokens_ends_with_length_and_an_end_token_wins() -> None:
    pieces, walker = walk(thinker(max_tokens=3, stop=(b"cd",)), list(b"abc"))
    assert walker.end is not None
    assert walker.end.reason == "length"
    assert texts(pieces) == [(1, b"abc")]
    _, walker = walk(thinker(max_tokens=3), [*b"ab", EOS])
    assert walker.end is not None
    assert walker.end.reason == "stop"


def test_budget_asks_for_the_closer() -> None:
    plan = thinker(think_budget=3, think_closer=pack_ids([END_THINK]))
    walker = PlanWalker(plan, TABLE)
    for token_id in [THINK, *b"ab"]:
        assert not walker.must_close_thinking
        walker.push(token_id)
    walker.push(ord("c"))
    assert walker.must_close_thinking
    walker.push(END_THINK)
    assert not walker.must_close_thinking
    assert walker.kind == "answer"


def test_openers_are_scanned_for_only_as_long_as_asked() -> None:
    answer, call = Segment("answer"), Segment("call", openers=(b"<c>",), opens_from=(0,), closes_to=0, scan_tokens=4)
    plan = OutputPlan(segments=(answer, call), max_tokens=100)
    assert texts(walk(plan, list(b"a<c>b"))[0]) == [(0, b"a"), (1, b"b")]
    assert texts(walk(plan, list(b"aa<c>b"))[0]) == [(0, b"aa<c>b")]


def test_visits_are_limited() -> None:
    answer = Segment("answer")
    call = Segment("call", openers=(b"<c>",), closers=(b"</c>",), opens_from=(0,), closes_to=0, max_visits=1)
    pieces, _ = walk(OutputPlan(segments=(answer, call), max_tokens=100), list(b"<c>1</c><c>2</c>"))
    assert texts(pieces) == [(1, b"1"), (0, b"<c>2</c>")]


def test_a_closer_may_end_the_completion() -> None:
    call = Segment("call", openers=(b"<c>",), closers=(b"</c>",), opens_from=(0,))
    pieces, walker = walk(OutputPlan(segments=(Segment("answer"), call), max_tokens=100), list(b"<c>1</c>junk"))
    assert texts(pieces) == [(1, b"1")]
    assert walker.end is not None
    assert walker.end.reason == "stop"


def test_kept_markers_are_text() -> None:
    think = Segment("think", openers=(b"<t>",), closers=(b"</t>",), opens_from=(1,), closes_to=1, keep_markers=True)
    pieces, _ = walk(OutputPlan(segments=(think, Segment("answer")), start=1, max_tokens=100), list(b"<t>a</t>b"))
    assert b"".join(p.data for p in pieces if p.kind == "text") == b"<t>a</t>b"


def test_a_token_after_the_end_is_a_bug() -> None:
    walker = PlanWalker(OutputPlan(max_tokens=1), TABLE)
    walker.push(65)
    with pytest.raises(RuntimeError):
        walker.push(65)


def twin(text: bytes) -> list[tuple[int, bytes]]:
    """The same plan over plain text, by scanning every position for the first complete pattern."""
    segment, start, runs, visits = 1, 0, [], 0
    patterns = {1: [(b"<call>", 2), (b"STOP", -1)], 2: [(b"</call>", 1)]}
    for end in range(1, len(text) + 1):
        hits = [(len(p), p, to) for p, to in patterns[segment] if text[start:end].endswith(p)]
        if not hits:
            continue
        size, _, target = max(hits)
        runs.append((segment, visits, text[start : end - size]))
        start, visits = end, visits + 1
        if target < 0:
            return [(s, data) for s, _, data in runs if data]
        segment = target
    runs.append((segment, visits, text[start:]))
    return [(s, data) for s, _, data in runs if data]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([b"<call>", b"</call>", b"<ca", b"STO", b"STOP", b"a", b"<", b"P", b"</"]), max_size=12),
    st.data(),
)
def test_the_cut_into_tokens_does_not_matter(parts: list[bytes], data: st.DataObject) -> None:
    text = b"".join(parts)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)) | {0, len(text)})
    table = [text[a:b] for a, b in itertools.pairwise(cuts)]
    plan = OutputPlan(
        segments=(
            Segment("think"),
            Segment("answer"),
            Segment("call", openers=(b"<call>",), closers=(b"</call>",), opens_from=(1,), closes_to=1),
        ),
        start=1,
        stop=(b"STOP",),
        max_tokens=10_000,
    )
    walker = PlanWalker(plan, table)
    pieces: list[Piece] = []
    for token_id in range(len(table)):
        pieces += walker.push(token_id)
        if walker.end:
            break
    else:
        pieces += walker.finish()
    assert texts(pieces) == twin(text)


def test_markers_inside_json_strings_do_not_count() -> None:
    call = Segment("call", openers=(b"<c>",), closers=(b"</c>",), opens_from=(0,), closes_to=0, json_body=True)
    pieces, _ = walk(OutputPlan(segments=(Segment("answer"), call), max_tokens=100), list(b'<c>{"a":"\\"</c>"}</c>ok'))
    assert texts(pieces) == [(1, b'{"a":"\\"</c>"}'), (0, b"ok")]


def test_openers_at_the_start_only() -> None:
    call = Segment("call", openers=(b'{"name": "f"',), opens_from=(0,), at_start=True)
    plan = OutputPlan(segments=(Segment("answer"), call), max_tokens=100)
    assert texts(walk(plan, list(b'\n {"name": "f", 1'))[0]) == [(0, b"\n "), (1, b", 1")]
    assert texts(walk(plan, list(b'x {"name": "f"'))[0]) == [(0, b'x {"name": "f"')]
    assert texts(walk(plan, list(b'{"name": "g"}'))[0]) == [(0, b'{"name": "g"}')]


def test_a_marker_that_a_special_token_began_and_the_end_cut_is_no_text() -> None:
    opener = special("<|channel|>") + b"analysis" + special("<|message|>")
    plan = OutputPlan(segments=(Segment("answer"), Segment("think", (opener,), opens_from=(0,))), max_tokens=3)
    table = [special("<|channel|>"), b"ana", b"x", b"<|channel"]
    cut = PlanWalker(plan, table)
    assert [p for i in (0, 1) for p in cut.push(i)] + cut.finish() == []
    broken = PlanWalker(plan, table)
    pieces = [p for i in (0, 1, 2) for p in broken.push(i)]
    assert b"".join(broken.visible(p.data) for p in pieces) == b"anax", "what turned out to be no marker is text"
    spelled = PlanWalker(plan, table)
    assert b"".join(p.data for p in spelled.push(3) + spelled.finish()) == b"<|channel", "text alone begins no special"
