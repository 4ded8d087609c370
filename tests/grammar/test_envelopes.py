"""Envelopes: tags, free text, raw parameters, one of several functions; regex, choices."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from imp_server.core import GrammarRefused, GrammarUnsatisfiable, special
from imp_server.grammar.check import check_choices, check_envelope, check_regex
from imp_server.grammar.languages.envelope import Alt, Branch, End, Free, Lit, Node, Parts, Raw, Ref, Repeat, Seq, Value
from imp_server.grammar.plain import Told, plain_envelope

from tests.grammar.judging import byte_space, plan_accepts, reads

WEATHER = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
TIME = {"type": "object", "properties": {"zone": {"type": "integer"}}, "required": ["zone"]}


def call(name: str, schema: object) -> Node:
    return Seq((Lit(b'{"name": "' + name.encode() + b'", "arguments": '), Value(schema), Lit(b"}")))


CALL = Seq((Alt((call("weather", WEATHER), call("when", TIME))), Lit(b"\n</tool_call>")))


def test_one_of_several_functions_with_its_own_schema() -> None:
    plan = check_envelope(Seq((Lit(b"<tool_call>\n"), CALL)))
    good = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
    assert plan_accepts(plan, good % ("weather", '{"city": "Oslo"}'))
    assert plan_accepts(plan, good % ("when", '{"zone": 3}'))
    assert not plan_accepts(plan, good % ("when", '{"city": "Oslo"}'))
    assert not plan_accepts(plan, good % ("weather", '{"city": "Bern"}'))
    assert not plan_accepts(plan, good % ("weathers", '{"city": "Rome"}'))


def test_free_text_then_calls_in_any_number() -> None:
    plan = check_envelope(Parts((Free((Branch(b"<tool_call>\n", Seq((CALL, Ref(0)))),), may_end=True),)))
    one = '<tool_call>\n{"name": "when", "arguments": {"zone": 1}}\n</tool_call>'
    assert plan_accepts(plan, "just text, even <tool_cal or é")
    assert plan_accepts(plan, f"first {one} then {one} and text")
    assert not plan_accepts(plan, f"first {one[:-3]}")
    assert not plan_accepts(plan, '<tool_call>\n{"name": "nope"')


def test_a_special_token_is_matched_by_id_alone() -> None:
    plan = check_envelope(Free((Branch(special("<call>"), Seq((Value(TIME), End()))),)))
    assert plan_accepts(plan, b"text " + special("<call>") + b'{"zone":1}')
    assert not plan_accepts(plan, b'text <call>{"zone":1}')
    assert not plan_accepts(plan, b"text " + special("<other>"))
    assert not plan_accepts(plan, b"text " + special("<call2>"))


def test_thinking_comes_before_a_bound_answer() -> None:
    plan = check_envelope(Free((Branch(b"</think>", Seq((Lit(b"\n"), Value({"type": "integer"})))),)))
    assert plan_accepts(plan, "so {it is} <thi</think>\n42")
    assert not plan_accepts(plan, "so</think>\nforty")
    m = byte_space().matcher(plan)
    assert m.way_out(m.start) == b"</think>\n0"


PARAMETER = Seq((Lit(b"<parameter=code>\n"), Raw(b"\n</parameter>\n"), Lit(b"</function>")))


def test_raw_text_keeps_everything_but_its_closer() -> None:
    plan = check_envelope(PARAMETER)
    body = 'if a < b and "c":\n\treturn </param> \\n é\n</para\n'
    assert plan_accepts(plan, f"<parameter=code>\n{body}\n</parameter>\n</function>")
    assert not plan_accepts(plan, "<parameter=code>\nx\n</parameter1>\n</parameter>\n</function>")
    assert not plan_accepts(plan, "<parameter=code>\nx\n</parameter>\ny")


FOLLOWED = Raw(b"</p>", follow=(b"\n<p>", b"\n</f>"), never=(b"</f>.",))


def test_a_closer_counts_where_something_follows_it() -> None:
    part = Seq((Lit(b"\n<p>"), FOLLOWED))
    plan = check_envelope(Seq((Lit(b"<f>"), Repeat(part, 1, 2), Lit(b"\n</f>."))))
    one, two = "<f>\n<p>%s</p>\n</f>.", "<f>\n<p>%s</p>\n<p>%s</p>\n</f>."
    for text in ("", "x", "</p>", "</p>\n<q>", "</p1>", "</p>\n", "a</p> b\n</f>"):
        assert plan_accepts(plan, one % text)
        assert plan_accepts(plan, two % (text, text))
    assert not plan_accepts(plan, one % "a</f>.")
    third = "<f>\n<p>a</p>\n<p>b</p>\n<p>c"
    assert not plan_accepts(plan, third), "nothing of that kind may follow, so it can't be written"
    m = byte_space().matcher(plan)
    for begun in (b"<f>\n<p>x", b"<f>\n<p>x</p>", b"<f>\n<p>x</p>\n<", b"<f>\n<p>x</p>\n<p>y</p>\n</"):
        state = m.advance_bytes(m.start, begun)
        assert state is not None
        assert plan_accepts(plan, begun + m.way_out(state))


def test_the_way_out_of_a_repeat_does_not_go_round() -> None:
    """Where a further pass begins with fewer bytes than what comes after the last."""
    plan = check_envelope(Seq((Repeat(Lit(b"ab\n"), 1), Lit(b"a long end"))))
    m = byte_space().matcher(plan)
    assert m.way_out(m.start) == b"ab\na long end"


def test_raw_text_under_a_schema() -> None:
    plan = check_envelope(Seq((Raw(b"</p>", {"enum": ["on", "off", "a<b"]}), Lit(b"."))))
    for text in ("on", "off", "a<b"):
        assert plan_accepts(plan, f"{text}</p>.")
    assert not plan_accepts(plan, "of</p>.")
    long = check_envelope(Raw(b"</p>", {"type": "string", "minLength": 3, "pattern": "^[a-c<]+$"}))
    assert plan_accepts(long, "ab<c</p>")
    assert not plan_accepts(long, "ab</p>")
    with pytest.raises(GrammarUnsatisfiable):
        check_envelope(Raw(b"</p>", {"type": "string", "maxLength": 1, "minLength": 2}))


def test_repeats_are_counted() -> None:
    plan = check_envelope(Seq((Lit(b"["), Repeat(Value({"type": "integer"}), 1, 3, between=b", "), Lit(b"]"))))
    assert [plan_accepts(plan, f"[{', '.join('1' * n)}]") for n in range(5)] == [False, True, True, True, False]
    endless = check_envelope(Repeat(Lit(b"ab"), 2, None))
    assert [plan_accepts(endless, "ab" * n) for n in range(6)] == [False, False, True, True, True, True]


def test_a_schema_inside_an_envelope_is_checked() -> None:
    with pytest.raises(GrammarRefused):
        check_envelope(Value({"$ref": "#/nowhere"}))
    with pytest.raises(GrammarUnsatisfiable):
        check_envelope(Seq((Lit(b"x"), Value({"enum": []}))))


def test_regex_matches_as_a_whole() -> None:
    plan = check_regex(r"[ab]+\d{2}")
    assert plan_accepts(plan, "abba42")
    assert not plan_accepts(plan, "x abba42")
    assert not plan_accepts(plan, "abba4")
    with pytest.raises(GrammarRefused):
        check_regex("(a")
    with pytest.raises(GrammarUnsatisfiable):
        check_regex(r"[^\s\S]")


def test_choices() -> None:
    plan = check_choices(["yes", "no", "not sure", "ü"])
    m = byte_space().matcher(plan)
    assert [reads(m, t) for t in ("yes", "no", "not sure", "ü", "not", "maybe", "")] == [True] * 4 + [False] * 3
    assert m.forced(m.start) == b""
    after = m.advance_bytes(m.start, b"y")
    assert after is not None
    assert m.forced(after) == b"es"
    with pytest.raises(GrammarRefused):
        check_choices([])


def test_forced_text_ends_where_a_choice_begins() -> None:
    plan = check_envelope(Seq((Lit(b"<tool_call>\n"), CALL)))
    m = byte_space().matcher(plan)
    assert m.forced(m.start) == b'<tool_call>\n{"name": "w'
    after = m.advance_bytes(m.start, b'<tool_call>\n{"name": "when')
    assert after is not None
    assert m.forced(after) == b'", "arguments": {'


def test_a_raw_text_whose_every_word_holds_the_closer_has_none() -> None:
    with pytest.raises(GrammarUnsatisfiable, match="no text satisfies"):
        check_envelope(Seq((Lit(b"<p>"), Raw(b"</p>", {"enum": ["</p>"]}))))


DEAD = [
    Raw(b"</p>", {"enum": ["</p>"]}),
    Raw(b"</p>", {"enum": ["a</p>", "b</p>c"]}),
    Raw(b"\n</p>\n", {"enum": ["\n</p>\n"]}),
    Raw(b"</p>", {"type": "string", "pattern": r"^\x3c/p>$"}),
    Raw(b"</p>", {"enum": ["a<x>"]}, never=(b"<x>",)),
]


@pytest.mark.parametrize("number", range(len(DEAD)))
@pytest.mark.parametrize("way", ["option", "repeated", "behind a tag"])
def test_no_reply_comes_to_a_raw_text_without_an_end(number: int, way: str) -> None:
    """It is refused wherever it stands: its mask would be empty."""
    text = DEAD[number]
    nodes: dict[str, Node] = {
        "option": Alt((Seq((Lit(b"p"), text, Lit(b"Z"))), Lit(b"q"))),
        "repeated": Seq((Lit(b"q"), Repeat(Seq((Lit(b"p"), text, Lit(b"Z")))), Lit(b")"))),
        "behind a tag": Free((Branch(b"<t>", Seq((text, Lit(b"Z")))),), may_end=True),
    }
    with pytest.raises(GrammarUnsatisfiable, match="no text satisfies"):
        check_envelope(nodes[way])
    assert plain_envelope(nodes[way], lambda schema: Told(1, 1, 1)) is None


def test_every_step_into_a_raw_text_leads_to_an_end() -> None:
    """Texts, closers, and what follows them, drawn from the same few letters."""
    rng = Random(5)
    n_states = 0

    def text(low: int, high: int) -> str:
        return "".join(rng.choice("<>/ab\n") for _ in range(rng.randint(low, high)))

    for _ in range(60):
        closer, follow = text(1, 4), tuple({text(1, 2).encode() for _ in range(rng.randrange(3))})
        words = [text(0, 5) for _ in range(3)]
        schema = {"enum": [*words, words[0] + closer, closer[:-1], closer][: rng.randint(1, 6)]}
        behind = Alt(tuple(map(Lit, follow))) if follow else Lit(b"Z")
        node = Seq((Lit(b"("), Raw(closer.encode(), schema, follow=follow), behind))
        with suppress(GrammarUnsatisfiable):
            m = byte_space().matcher(check_envelope(node))
            todo = [m.start]
            met = {m.start}
            while todo and len(met) < 40:
                state = todo.pop()
                way = m.way_out(state)
                end = m.advance_bytes(state, way)
                assert end is not None and m.is_done(end)
                n_states += 1
                for byte in b"(<>/ab\nZ":
                    after = m.advance(state, byte) if m.mask(state)[byte >> 5] >> (byte & 31) & 1 else None
                    if after is not None and after not in met:
                        met.add(after)
                        todo.append(after)
    assert n_states > 500
