"""Big JSON in pieces is the same as in one go: values, refusals, and what a 400 says."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.api import big_json, narrowing
from imp_server.api.big_json import decode_in_pieces, encode_in_pieces
from imp_server.api.violation import explain
from imp_server.core import InvalidRequest

from tests.dialects.contract_check import operation, validators

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text())
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)), max_leaves=40
)
DETOKENIZE, CHAT, COMPLETIONS = "imp_native.detokenize", "openai_chat.create_chat_completion", "llamacpp.completion"


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(big_json, "PIECE_BYTES", 8)
    monkeypatch.setattr(big_json, "PIECE_ITEMS", 3)


@pytest.mark.usefixtures("small_pieces")
@settings(max_examples=300, deadline=None)
@given(value=VALUES, data=st.data())
def test_pieces_equal_the_whole(value: Any, data: st.DataObject) -> None:
    text = msgspec.json.encode(value)
    decoded = msgspec.json.decode(text)
    assert decode_in_pieces(text, 99) == decoded
    assert msgspec.json.decode(encode_in_pieces(decoded)) == decoded
    at = data.draw(st.integers(0, len(text)))
    broken = text[:at] + data.draw(st.sampled_from([b"", b",", b"]", b"[", b"}", b" ", b'"', b"1"])) + text[at + 1 :]
    assert outcome(decode_in_pieces, broken) == outcome(msgspec.json.decode, broken)


def outcome(decode: Any, text: bytes) -> Any:
    try:
        return repr(decode(text, 99) if decode is decode_in_pieces else decode(text))
    except msgspec.DecodeError:
        return "refused"


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("text", [b"[1,2,3,4,5,6,7,]", b"[1,2,3,4,,6,7,8]", b"[,1,2,3,4,5,6]", b"[1 2,3,4,5,6,7]"])
def test_stray_commas(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_in_pieces(text, 9)


def test_depth_is_bounded() -> None:
    with pytest.raises(RecursionError):
        decode_in_pieces(b"[" * 70_000 + b"]" * 70_000, 64)


def refusal(name: str, body: Any) -> tuple[str, str | None]:
    (pointer,) = operation(name).body_pointers.values()
    with pytest.raises(InvalidRequest) as refused:
        validators().check_request(pointer, body, is_big=True)
    return refused.value.message, refused.value.param


USER = {"role": "user", "content": "hi"}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "body", "param"),
    [
        (DETOKENIZE, {"tokens": ["a"] * 300_000}, "tokens[0]"),
        (DETOKENIZE, {"tokens": [1] * 299_999 + ["a"]}, "tokens[299999]"),
        (DETOKENIZE, {"tokens": [1] * 99_999 + [-1]}, "tokens[99999]"),
        (DETOKENIZE, {"tokens": [1] * 1_000_001}, "tokens"),
        (DETOKENIZE, {"tokens": [1] * 70_000 + [True] * 70_000}, "tokens[70000]"),
        (CHAT, {"model": "m", "messages": [USER] * 10_001}, "messages"),
        (CHAT, {"model": "m", "messages": [USER] * 9_000 + [{"role": "nobody", "content": ""}]}, "messages[9000].role"),
        (CHAT, {"messages": [USER] * 9_000}, "model"),
        (
            CHAT,
            {"model": "m", "messages": [USER] * 100 + [{"role": "user", "content": [{"type": "text"}] * 90_000}]},
            "messages[100].content[0].text",
        ),
        (
            CHAT,
            {
                "model": "m",
                "messages": [USER] * 100
                + [{"role": "user", "content": [{"type": "text", "text": ""}] * 700 + [{"type": "text", "text": 1}]}],
            },
            "messages[100].content[700].text",
        ),
        (COMPLETIONS, {"prompt": ["a"] * 4_000}, "prompt"),
    ],
)
def test_a_fault_in_a_long_list_is_told_where_it_is(name: str, body: Any, param: str) -> None:
    message, found = refusal(name, body)
    assert found == param and f'"{param}"' in message


FAULTS = st.sampled_from([1, -1, 2.0, 2.5, "a", "", None, True, [], [1], {}, 2**40, {"type": "text", "text": "x"}])


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from([DETOKENIZE, COMPLETIONS, "openai_embeddings.create_embedding", CHAT]),
    element=FAULTS,
    other=FAULTS,
    lengths=st.tuples(st.integers(0, 200), st.integers(0, 3), st.integers(0, 200)),
)
def test_cut_lists_are_as_valid_as_whole_ones(name: str, element: Any, other: Any, lengths: tuple[int, ...]) -> None:
    values = [element] * lengths[0] + [other] * lengths[1] + [element] * lengths[2]
    bodies: dict[str, Any] = {
        DETOKENIZE: {"tokens": values},
        COMPLETIONS: {"prompt": values},
        CHAT: {"model": "m", "messages": [USER, {"role": "user", "content": values}]},
    }
    body = bodies.get(name, {"model": "m", "input": values})
    (pointer,) = operation(name).body_pointers.values()
    validator = validators()._validator(pointer)
    valid = validator.is_valid(body)
    assert validator.is_valid(narrowing.thinned(body)) == valid
    if valid:
        return
    whole = explain(body, list(validator.iter_errors(body)), validators()._schema_at)
    message, param = refusal(name, body)
    assert param is not None and whole.param is not None
    assert param.partition("[")[0] == whole.param.partition("[")[0], (message, whole.message)


def test_thinned_lists_keep_their_extremes() -> None:
    assert narrowing.thinned({"a": list(range(5, 99)), "b": [[7] * 99], "c": [1, 2.0] * 99}) == {
        "a": [5, 98],
        "b": [[7, 7]],
        "c": [1, 2.0] * 99,
    }


def test_encoding_keeps_what_is_encoded_already() -> None:
    assert json.loads(encode_in_pieces({"a": msgspec.Raw(b"[1]"), "b": [[0.5] * 3000], "c": []})) == {
        "a": [1],
        "b": [[0.5] * 3000],
        "c": [],
    }
