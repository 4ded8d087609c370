"""What a JSON text makes is told before it is made: never less than it takes."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from imp_server.api.json_size import json_size, memory_of

WIDE, WIDEST = "\u4e00", "\U0001f600"
VALUES: dict[str, Any] = {
    "wide": ["x" * 300_000 + WIDE],
    "widest": ["x" * 300_000 + WIDEST],
    "small": [[{"a": ""}] * 3000, [[]] * 3000],
    "quotes": ['"\\' * 40_000 + WIDE],
    "plain": ["x" * 300_000],
}


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("name", VALUES)
def test_nothing_takes_more_than_was_told(name: str, ascii_only: bool) -> None:
    text = json.dumps(VALUES[name], ensure_ascii=ascii_only)
    told = memory_of(text)
    tracemalloc.start()
    value = json.loads(text)
    took, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert value and took <= told < 12 * took


def test_an_escape_counts_wherever_the_text_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps(["xx" + WIDEST]).encode()
    for piece in range(1, len(text) + 1):
        monkeypatch.setattr("imp_server.api.json_size._PIECE", piece)
        assert json_size(text).n_text_bytes == 4 * len(text), piece
