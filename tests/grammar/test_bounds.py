"""The operator's bounds: work of a check, states kept. Their defaults are what the code does without them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import msgspec
import numpy as np
import pytest
from imp_server.config import Config
from imp_server.core import (
    ChatRequest,
    GrammarRefused,
    GrammarTooCostly,
    Message,
    PromptRequest,
    ResponseFormat,
    TextPart,
    Tool,
    ToolChoice,
)
from imp_server.grammar.check import CHECK_WORK, check_envelope, check_schema
from imp_server.grammar.engine import GrammarSpace
from imp_server.grammar.generations import MEMORY, N_GENERATIONS
from imp_server.grammar.languages.envelope import Lit, Seq, Value
from imp_server.vocab.table import Vocabulary

from tests.grammar.judging import accepts
from tests.text.tools.spelled import TEACHING
from tests.toy import byte_model

NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"enum": [{"b": [1, 2]}]}, "minItems": 2}},
    "required": ["a"],
}
FEW = 3


def few() -> Config:
    return msgspec.structs.replace(Config(), grammar=msgspec.structs.replace(Config().grammar, check_work=FEW))


def test_defaults() -> None:
    knobs = Config().grammar
    assert (knobs.check_work, knobs.memory_mib << 20) == (CHECK_WORK, MEMORY)


def test_a_proof_beyond_the_work_allowed_is_a_refusal() -> None:
    node = Seq((Lit(b"<a>"), Value(NESTED)))
    check_schema(NESTED, work=CHECK_WORK)
    check_envelope(node, work=CHECK_WORK)
    with pytest.raises(GrammarRefused, match="too complex"):
        check_schema(NESTED, work=FEW)
    with pytest.raises(GrammarRefused, match="too complex"):
        check_envelope(node, work=FEW)


@pytest.mark.parametrize("what", ["answer", "tools", "prompt"])
def test_the_knob_reaches_every_check(what: str) -> None:
    answer = ResponseFormat("json_schema", schema=NESTED)
    tools = (Tool("f", parameters=NESTED),)
    chat = ChatRequest(model="toy", messages=(Message("user", (TextPart("hi"),)),))
    asked = {"response_format": answer} if what == "answer" else {"tools": tools, "tool_choice": ToolChoice("required")}
    for config, refused in ((Config(), False), (few(), True)):
        model = byte_model(TEACHING["hermes"], config=config)
        with pytest.raises(GrammarRefused, match="too complex") if refused else nullcontext():
            if what == "prompt":
                model.prepare_prompt(PromptRequest(("hi",), response_format=answer), 1)
            else:
                model.prepare_chat(msgspec.structs.replace(chat, **asked), 1)


def test_beyond_the_memory_allowed_a_generation_is_begun() -> None:
    """Rows under way keep their own; what is made anew is the same."""
    vocabulary = Vocabulary([bytes([i]) for i in range(256)], {})
    plan, other = check_schema(NESTED), check_schema({"enum": [1, 2]})
    one = GrammarSpace(vocabulary).n_bytes
    for bound, kept in ((MEMORY, True), (N_GENERATIONS * one, False)):
        shared = GrammarSpace(vocabulary, n_bytes=bound)
        first = shared.matcher(plan)
        state = first.advance_bytes(first.start, b'{"a')
        assert state is not None
        before = first.mask(state).copy()
        space = shared.space
        again = shared.matcher(other)
        assert (shared.space is space) == kept
        fresh = GrammarSpace(vocabulary).matcher(other)
        assert np.array_equal(again.mask(again.start), fresh.mask(fresh.start))
        assert np.array_equal(first.mask(state), before)
        assert first.advance_bytes(state, b'":[') is not None


def test_names_told_apart_by_large_machines_are_found_step_by_step() -> None:
    """Where a product of name patterns is too large to be explored as a whole: in mid-answer nothing may be refused."""
    some = {"type": "object", "minProperties": 1, "patternProperties": {"^.{1,256}$": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"f": {**some, "additionalProperties": False}}}
    assert accepts(schema, '{"f": {"key": 1, "other": 2}}') and accepts(schema, "{}")
    assert not accepts(schema, '{"f": {"": 1}}') and not accepts(schema, '{"f": {}}')
    strange = {"type": "object", "minProperties": 2, "propertyNames": {"pattern": "^.{2,300}$"}, "required": ["ff"]}
    strange |= {"patternProperties": {"^x.{1,290}$": False, "^.{1,280}y$": False}}
    with pytest.raises(GrammarTooCostly):  # a mask of it takes more than a question may
        check_schema(strange)
