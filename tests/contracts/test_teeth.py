"""The fuzzer fails on a server that breaks its contract: single faults, each of which must be found."""

from __future__ import annotations

from typing import Any

import pytest
from imp_server.api.model_text_side import ModelTextSide
from imp_server.api.services import ServerServices
from imp_server.core import InvalidRequest
from imp_server.dialects import imp_native
from imp_server.engine.client.scripted import ScriptedEngine

from tests.api.live_server import live_server
from tests.contracts import fuzzing
from tests.toy import byte_model


def _extra_key(ids: list[int], _writer: Any) -> Any:
    return {"tokens": ids, "extra": 1}


async def _refuses(self: ServerServices, model: str, ids: list[int]) -> str:
    raise InvalidRequest("no")


async def _breaks(self: ServerServices, model: str, ids: list[int]) -> str:
    raise RuntimeError("kaput")


FAULTS: dict[str, tuple[Any, str, Any, str]] = {
    "a key too many": (imp_native, "_tokens_body", _extra_key, "response_schema_conformance"),
    "valid data refused": (ServerServices, "detokenize", _refuses, "valid_data_accepted"),
    "an exception": (ServerServices, "detokenize", _breaks, "not_a_server_error"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, broken, check = FAULTS[fault]
    monkeypatch.setattr(place, name, broken)
    model = ModelTextSide(byte_model())
    with live_server(
        lambda: ScriptedEngine(model.vocabulary), lambda: model, model=fuzzing.MODEL, check_replies=False
    ) as live:
        found = fuzzing.run(
            live.services.contract, live.services.validators, "imp", live.url, "k", max_examples=3, n_covered=30
        )
    assert any(check in text for text in found), found
