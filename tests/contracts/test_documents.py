"""Every document of spec/ against a live server: examples, coverage, fuzzing and stateful, positive and negative."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from imp_server.api.model_text_side import ModelTextSide
from imp_server.core import GenerateRequest
from imp_server.engine.client.scripted import Action, PlayedVectors, ScriptedEngine, text_ids

from tests.api.live_server import KEY, LiveServer, live_server
from tests.contracts import fuzzing
from tests.toy import THINKING_CHATML, byte_model

DOCUMENTS = sorted(
    p.stem for p in (Path(__file__).parents[2] / "spec").glob("*.yaml") if "operationId:" in p.read_text()
)
EXAMPLES = 5
"""Fuzzed cases per operation; `make fuzz` runs more."""
COVERED = 35
"""Cases of the coverage phase per operation that are sent for sure; all of them at length."""


def answer(request: GenerateRequest, choice: int) -> list[Action]:
    """Small and deterministic: depends on the prompt's length alone."""
    if request.task == "embed":
        return [PlayedVectors((struct.pack("<8f", *range(8)),))]
    return [text_ids(f"answer {len(request.ids) % 7}.{choice} é")]


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[LiveServer]:
    model = ModelTextSide(byte_model(THINKING_CHATML))

    def engine() -> ScriptedEngine:
        scripted = ScriptedEngine(model.vocabulary, context_length=16384, n_rows=16)
        scripted.answer_with(answer)
        return scripted

    settings = {"server.api_key": (KEY,), "server.max_tokens": 64, "responses.store_path": ":memory:"}
    with live_server(engine, lambda: model, model=fuzzing.MODEL, settings=settings) as live:
        yield live


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_document(fuzzed: LiveServer, name: str) -> None:
    services = fuzzed.services
    found = fuzzing.run(
        services.contract, services.validators, name, fuzzed.url, KEY, max_examples=EXAMPLES, n_covered=COVERED
    )
    assert not found, "\n\n".join(found[:20])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_document_at_length(fuzzed: LiveServer, name: str, fuzz_seed: int) -> None:
    services = fuzzed.services
    found = fuzzing.run(services.contract, services.validators, name, fuzzed.url, KEY, max_examples=300, seed=fuzz_seed)
    assert not found, "\n\n".join([f"--fuzz-seed {fuzz_seed}", *found[:20]])
