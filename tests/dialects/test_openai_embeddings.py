"""Embeddings: order, formats, norms, usage."""

from __future__ import annotations

import base64
import math
import struct
from array import array
from typing import Any

import msgspec
import pytest
from imp_server.core import Finish, InvalidRequest, Usage, Vectors
from imp_server.dialects.base import ReplyContext
from imp_server.dialects.handler import ModelCard
from imp_server.dialects.llamacpp.handlers import NativeEmbeddingFold, TokenEmbeddingFold
from imp_server.dialects.openai.embeddings import EmbeddingFold, check_embeds, normalised


def reply(vectors: list[list[float]], **body: Any) -> dict[str, Any]:
    fold = EmbeddingFold(ReplyContext("embd-1", "m", 7, "r", body, len(vectors)))
    for index in reversed(range(len(vectors))):
        fold.feed(Vectors(index, (struct.pack(f"<{len(vectors[index])}f", *vectors[index]),)))
        fold.feed(Finish(index, "stop", Usage(prompt_tokens=2)))
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(fold.body()))
    return found


def test_order_and_unit_length() -> None:
    body = reply([[3.0, 4.0], [0.0, 2.0]])
    assert [entry["index"] for entry in body["data"]] == [0, 1]
    assert body["data"][0]["embedding"] == pytest.approx([0.6, 0.8])
    assert body["data"][1]["embedding"] == [0.0, 1.0]
    assert body["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


def test_a_shortened_vector_is_its_beginning_at_unit_length() -> None:
    assert reply([[3.0, 4.0, 12.0]], dimensions=2)["data"][0]["embedding"] == pytest.approx([0.6, 0.8])
    assert reply([[3.0, 4.0, 12.0]], dimensions=3)["data"][0]["embedding"] == pytest.approx([3 / 13, 4 / 13, 12 / 13])


def test_base64_is_the_same_vector() -> None:
    vectors = [[1.0, -2.0, 3.5]]
    floats = reply(vectors)["data"][0]["embedding"]
    data = base64.b64decode(reply(vectors, encoding_format="base64")["data"][0]["embedding"])
    assert list(struct.unpack("<3f", data)) == floats


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(-1, [3.0, -4.0]), (0, [24570.0, -32760.0]), (1, [3 / 7, -4 / 7]), (2, [0.6, -0.8]),
     (3, [3 / 91 ** (1 / 3), -4 / 91 ** (1 / 3)]), (1000, [0.75, -1.0])],
)  # fmt: skip
def test_norms(kind: int, expected: list[float]) -> None:
    assert list(normalised(array("f", [3.0, -4.0]), kind)) == pytest.approx(expected)


def test_a_zero_vector_stays() -> None:
    assert all(list(normalised(array("f", [0.0, 0.0]), kind)) == [0.0, 0.0] for kind in (0, 1, 2, 3))
    assert not math.isnan(reply([[0.0, 0.0]])["data"][0]["embedding"][0])


def test_what_a_model_cant_do() -> None:
    card = ModelCard("m", 0, True, 100, width=8, tasks=("generate",))
    with pytest.raises(InvalidRequest) as caught:
        check_embeds(card, None)
    assert caught.value.code == "embeddings_unsupported"
    card = card._replace(tasks=("generate", "embed"))
    check_embeds(card, 8)
    check_embeds(card, 3)
    with pytest.raises(InvalidRequest) as caught:
        check_embeds(card, 9)
    assert caught.value.code == "dimensions_unsupported"


def test_a_number_of_dimensions_may_be_spelled_with_a_point() -> None:
    assert reply([[3.0, -4.0, 12.0]], dimensions=2.0)["data"][0]["embedding"] == pytest.approx([0.6, -0.8])


def test_a_vector_for_each_token_comes_as_the_model_made_it() -> None:
    fold = TokenEmbeddingFold(ReplyContext("embd-1", "m", 7, "r", {"embd_normalize": 2}, 2))
    fold.feed(Vectors(1, (struct.pack("<2f", 5.0, 6.0),)))
    fold.feed(Vectors(0, (struct.pack("<2f", 3.0, -4.0), struct.pack("<2f", 1.0, 2.0))))
    fold.feed(Vectors(0, (struct.pack("<2f", 7.0, 8.0),)))
    told = msgspec.json.decode(msgspec.json.encode(fold.body()))
    assert [entry["embedding"] for entry in told] == [[[3.0, -4.0], [1.0, 2.0], [7.0, 8.0]], [[5.0, 6.0]]]


def test_llamacpps_list_holds_whole_vectors_in_numbers() -> None:
    body = {"encoding_format": "base64", "dimensions": 1}
    fold = NativeEmbeddingFold(ReplyContext("embd-1", "m", 7, "r", body, 1))
    fold.feed(Vectors(0, (struct.pack("<2f", 3.0, -4.0),)))
    (entry,) = msgspec.json.decode(msgspec.json.encode(fold.body()))
    assert entry["embedding"] == [pytest.approx([0.6, -0.8])]
