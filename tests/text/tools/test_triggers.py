"""In free text the grammar binds exactly where the reply's reader opens a call, whatever stands around it."""

from __future__ import annotations

import json
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.config import Config
from imp_server.config.generating import ReasoningSettings
from imp_server.core import CallArgs, OutputPlan, ReasoningIntent, Tool, ToolChoice, Usage, pack_ids, special
from imp_server.grammar.engine import GrammarSpace, Matcher, State
from imp_server.plan_walk import PlanWalker
from imp_server.text.model import TextModel
from imp_server.text.tools.formats import all_formats
from imp_server.text.tools.spelling import BoundTool

from tests.text.tools.spelled import (
    FORMATS,
    HARMONY_TOKENS,
    TEACHING,
    call_text,
    calls_in,
    chat,
    ids_of,
    text_in,
)
from tests.text.tools.spelled import model_of as spelled_model
from tests.toy import CHATML, CONTROL_TOKENS, OPEN_THINKING_CHATML, byte_model

TOOLS = [Tool("first", parameters={"type": "object", "properties": {"x": {"type": "integer"}}}), Tool("second")]
N_EARLY = 40
"""Tokens in which the models of these tests may open thinking by themselves."""
THINKING = ["none", "unasked", "prompt"]
"""No tags at all; thinking is off, but the template mentions the tags; the prompt opens it."""


def tags_of(form: str) -> tuple[str, ...]:
    """The tags that some vocabularies have as special tokens."""
    found: dict[str, None] = {}

    def tag(text: str) -> bytes:
        found[text] = None
        return text.encode()

    for template in (TEACHING[form], "[ARGS]"):
        all_formats()[form.partition(",")[0]].sections([BoundTool("first", {"type": "object"})], tag, template, True)
    return tuple(t for t in found if t not in HARMONY_TOKENS)


@lru_cache
def model_of(form: str, thinking: str, as_tokens: bool) -> TextModel:
    """`as_tokens`: the vocabulary has the tags as special tokens."""
    mentioned = TEACHING[form] + ("<think></think>" if thinking != "none" and form != "harmony" else "")
    base = CHATML if thinking != "prompt" else OPEN_THINKING_CHATML
    if form == "harmony" and thinking == "prompt":
        base = CHATML.replace("assistant\n{% endif %}", "assistant<|channel|>analysis<|message|>{% endif %}")
    shown = "{% for tool in tools or [] %}{{ tool | tojson }}{{ '" + mentioned + "' }}{% endfor %}{% for message"
    control = CONTROL_TOKENS + (HARMONY_TOKENS if form == "harmony" else ())
    if as_tokens:
        control += tags_of(form) + (("<think>", "</think>") if form != "harmony" else ())
    config = Config(reasoning=ReasoningSettings(agent_scan_tokens=N_EARLY))
    return byte_model(base.replace("{% for message", shown, 1), control=control, config=config, context_length=200_000)


@lru_cache
def space_of(form: str, thinking: str, as_tokens: bool) -> GrammarSpace:
    return GrammarSpace(model_of(form, thinking, as_tokens).vocabulary)


@lru_cache
def plan_of(form: str, thinking: str, as_tokens: bool, many: bool) -> OutputPlan:
    on = True if thinking == "prompt" else None
    request = chat(TOOLS, ToolChoice(parallel=many), reasoning=ReasoningIntent(enabled=on))
    return model_of(form, thinking, as_tokens).prepare_chat(request, 1).request.plan


@lru_cache
def whole_call(form: str, thinking: str, as_tokens: bool) -> bytes:
    request = chat(TOOLS, ToolChoice("required", ("first",), named=True), reasoning=ReasoningIntent(enabled=False))
    plan = model_of(form, "none", as_tokens).prepare_chat(request, 1).request.plan
    assert plan.grammar is not None
    m = space_of(form, "none", as_tokens).matcher(plan.grammar)
    return m.way_out(m.start)


def can_be_written(model: TextModel, text: bytes) -> bool:
    """No special token in it that the vocabulary lacks."""
    return b"\xff" not in bytes(i for i in ids_of(model, text) if i < 256)


def markers(model: TextModel, plan: OutputPlan) -> list[bytes]:
    """Every opener and closer, calls first, and what isn't quite one."""
    ordered = sorted(plan.segments, key=lambda s: s.kind != "call")
    whole = [tag for s in ordered for tag in (*s.openers, *s.closers) if can_be_written(model, tag)]
    return [*whole, *(tag[:-1] for tag in whole if not tag.endswith(b"\xfe"))]


WORDS = "Zorro went over the long bridge by night, and nobody saw him; the rest is known."
PLAIN = [b"Well, ", b"so", b"\n", b" ", b"\n\n", b"```\n", b"<", b"{", b'{"name": "', b'"', b"first", b"\xc3\xbc"]


def follows(m: Matcher, state: State, byte: bytes) -> bool:
    return m.advance_bytes(state, byte) is not None


class Both:
    """One reply, read by the walker and the grammar at the same time."""

    def __init__(self, model: TextModel, plan: OutputPlan, m: Matcher) -> None:
        self.walker = PlanWalker(plan, model.vocabulary.token_bytes)
        self.plan, self.m, self.state = plan, m, m.start
        self.n_bound = 0

    def read(self, token_id: int) -> bool:
        """False: the reply can't go on so."""
        before = self.walker.kind
        after = self.m.advance(self.state, token_id)
        if after is None:
            over = self.m.is_done(self.state) and not follows(self.m, self.state, b"~")
            assert before == "call" or over or token_id > 255, "the grammar binds where no call is open"
            return False
        opened = any(p.kind == "open" and self.kind(p.segment) == "call" for p in self.walker.push(token_id))
        self.state = after if self.walker.n_tokens != self.plan.n_early else self.m.past_early(after)
        plain = [follows(self.m, self.state, byte) for byte in (b"~", b"\n", b"q")]
        if opened:
            self.n_bound += 1
            assert not all(plain), "a call has begun, and the grammar doesn't bind"
        elif self.walker.kind != "call" and any(plain):
            assert all(plain), "the grammar binds where no call is open"
        elif self.walker.kind != "call":
            assert self.m.is_done(self.state), "the grammar binds where no call is open"
        return self.walker.end is None

    def kind(self, segment: int) -> str:
        return self.plan.segments[segment].kind


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_the_grammar_binds_if_and_only_if_a_call_opens(form: str, data: st.DataObject) -> None:
    check_a_random_text(form, data)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_the_grammar_binds_if_and_only_if_a_call_opens_in_many_texts(form: str, data: st.DataObject) -> None:
    check_a_random_text(form, data)


def check_a_random_text(form: str, data: st.DataObject) -> None:
    thinking, as_tokens, many = data.draw(st.sampled_from(THINKING)), data.draw(st.booleans()), data.draw(st.booleans())
    plan, model = plan_of(form, thinking, as_tokens, many), model_of(form, thinking, as_tokens)
    call = whole_call(form, thinking, as_tokens)
    piece = st.sampled_from(PLAIN) | st.sampled_from(markers(model, plan)) | st.just(call)
    text = b"".join(data.draw(st.lists(piece, min_size=1, max_size=8)))
    assert plan.grammar is not None
    both = Both(model, plan, space_of(form, thinking, as_tokens).matcher(plan.grammar))
    for token_id in ids_of(model, text):
        if not both.read(token_id):
            break


PLACES = {
    "start": b"%s",
    "behind text": b"I will. %s",
    "on a line of its own": b"I will.\n\n%s",
    "inside a fence": b"Like so:\n```json\n%s",
    "behind a beginning of itself": b"<%s",
}


@pytest.mark.parametrize("as_tokens", [False, True])
@pytest.mark.parametrize("form", FORMATS)
def test_every_opener_at_every_place(form: str, as_tokens: bool) -> None:
    """Those of bare JSON count at the start alone, all others everywhere, thinking excepted."""
    for thinking in THINKING:
        plan, model = plan_of(form, thinking, as_tokens, True), model_of(form, thinking, as_tokens)
        assert plan.grammar is not None
        m = space_of(form, thinking, as_tokens).matcher(plan.grammar)
        closer = plan.segments[1].closers[-1 if as_tokens else 0] if thinking == "prompt" else b""
        for segment in (s for s in plan.segments if s.kind == "call"):
            for opener in (o for o in segment.openers if can_be_written(model, o)):
                for name, place in PLACES.items():
                    both = Both(model, plan, m)
                    text = closer + place.replace(b"%s", opener)
                    assert all(both.read(token_id) for token_id in ids_of(model, text)), text
                    assert both.n_bound == (name == "start" or not segment.at_start), text
                    inside = Both(model, plan, m)
                    if closer and all(inside.read(i) for i in ids_of(model, place.replace(b"%s", opener))):
                        assert inside.n_bound == 0


@pytest.mark.parametrize("form", FORMATS)
def test_from_every_opener_the_way_out_is_a_call_that_reads_back(form: str) -> None:
    """So near max_tokens a call that has begun is steered to an end that parses."""
    for as_tokens in (False, True):
        plan, model = plan_of(form, "none", as_tokens, True), model_of(form, "none", as_tokens)
        assert plan.grammar is not None
        m = space_of(form, "none", as_tokens).matcher(plan.grammar)
        request = chat(TOOLS, ToolChoice())
        for segment in (s for s in plan.segments if s.kind == "call"):
            for opener in (o for o in segment.openers if can_be_written(model, o)):
                text = (b"" if segment.at_start else b"So: ") + opener
                state: State | None = m.start
                for token_id in ids_of(model, text):
                    state = m.advance(state, token_id) if state is not None else None
                assert state is not None and not m.is_done(state), text
                whole = [*ids_of(model, text), *m.route(state)]
                assert len(whole) > len(ids_of(model, text))
                session = model.prepare_chat(request, 1).session
                events = session.push(0, pack_ids(whole)) + session.finish(0, "stop", Usage())
                [(name, arguments)] = calls_in(events)
                assert name in ("first", "second") and json.loads(arguments) == {}, text
                assert text_in(events).strip() == ("" if segment.at_start else "So:")


def test_arguments_stream_while_they_are_written() -> None:
    """A long text is told nearly as it comes; a tag's beginning is all that may be held back."""
    tool = Tool("first", parameters={"type": "object", "properties": {"t": {"const": WORDS}}, "required": ["t"]})
    loose = Tool("first", parameters={"type": "object", "properties": {"t": {"type": "string"}}, "required": ["t"]})
    for form in FORMATS:
        model = spelled_model(form)
        text = call_text(form, tool)
        session = model.prepare_chat(chat([loose]), 1).session
        written, n_behind, told = b"", 0, ""
        for token_id in ids_of(model, text):
            events = session.push(0, pack_ids([token_id]))
            told += "".join(e.text for e in events if isinstance(e, CallArgs))
            written += model.vocabulary.token_bytes[token_id]
            n_written = max((n for n in range(len(WORDS) + 1) if written.endswith(WORDS[:n].encode())), default=0)
            if n_written:
                n_behind = max(n_behind, n_written - len(told.partition(WORDS[:1])[2]) - 1)
        assert WORDS in told, form
        assert n_behind <= 2, form


@pytest.mark.parametrize("n_before", [0, N_EARLY - 8, N_EARLY - 7, N_EARLY + 5])
def test_thinking_that_opens_too_late_is_text_for_both(n_before: int) -> None:
    plan, model = plan_of("hermes", "unasked", False, True), model_of("hermes", "unasked", False)
    assert plan.grammar is not None and plan.n_early == N_EARLY
    both = Both(model, plan, space_of("hermes", "unasked", False).matcher(plan.grammar))
    for token_id in ids_of(model, b"." * n_before + b"<think> or <tool_call>"):
        assert both.read(token_id)
    assert both.n_bound == (n_before + len("<think>") > N_EARLY)


def test_a_special_token_is_no_opener_by_its_text_nor_the_other_way_round() -> None:
    plan, model = plan_of("hermes", "none", True, True), model_of("hermes", "none", True)
    assert plan.grammar is not None
    m = space_of("hermes", "none", True).matcher(plan.grammar)
    for text in (special("<tool_call>"), b"<tool_call>"):
        both = Both(model, plan, m)
        assert all(both.read(i) for i in ids_of(model, text)) and both.n_bound == 1
