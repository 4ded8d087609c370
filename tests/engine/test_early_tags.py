"""Openers of thinking that count in a reply's first tokens only: a row's grammar forgets them when the walker does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from imp_server.config import Config
from imp_server.config.generating import ReasoningSettings
from imp_server.core import ChatRequest, Message, OutputPlan, TextPart, Tool
from imp_server.engine.constrained.grammar_row import GrammarRow
from imp_server.engine.constrained.grammars import Grammars
from imp_server.engine.constrained.masking import MaskThread
from imp_server.plan_walk import PlanWalker
from imp_server.text.model import TextModel

from tests.toy import THINKING_CHATML, byte_model

N_EARLY = 30
TEMPLATE = THINKING_CHATML.replace(
    "{% for message", "{% for tool in tools or [] %}{{ tool | tojson }}<tool_call>{% endfor %}{% for message", 1
)
OPENER = b"<think>"


@pytest.fixture
def row() -> Iterator[tuple[GrammarRow, OutputPlan, TextModel]]:
    model = byte_model(TEMPLATE, config=Config(reasoning=ReasoningSettings(agent_scan_tokens=N_EARLY)))
    chat = ChatRequest((Message("user", (TextPart("hi"),)),), tools=(Tool("f"),))
    plan = model.prepare_chat(chat, 1).request.plan
    assert plan.grammar is not None and plan.n_early == N_EARLY
    grammars = Grammars(model.vocabulary)
    masks = MaskThread(model.vocabulary.size, grammars)
    yield GrammarRow(grammars(plan.grammar), plan.end_ids, masks, 500, n_early=plan.n_early), plan, model
    masks.stop()


@pytest.mark.parametrize("n_before", [0, N_EARLY - len(OPENER), N_EARLY - len(OPENER) + 1, N_EARLY - 3, N_EARLY, 60])
def test_a_row_binds_a_call_where_the_walker_reads_one(
    row: tuple[GrammarRow, OutputPlan, TextModel], n_before: int
) -> None:
    grammar, plan, model = row
    walker = PlanWalker(plan, model.vocabulary.token_bytes)
    text = b"." * n_before + OPENER + b" or <tool_call>"
    grammar.walk(text[:40])  # drafts come to the same places
    for byte in text:
        assert grammar.advance(byte)
        walker.push(byte)
    assert (walker.kind == "call") == (n_before + len(OPENER) > N_EARLY)
    assert grammar.advance(ord("~")) == (walker.kind != "call")
