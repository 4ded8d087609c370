"""The reference backend against transformers in float32, on the default model."""

from __future__ import annotations

import hashlib

import pytest
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.models.opening import open_model
from imp_server.vocab.load import tokenizer_of
from imp_server.weights.header import read_header

from tests.backends.golden import check_teacher_forced, golden_cases, golden_document
from tests.real_model import smollm2

TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def backend() -> ReferenceBackend:
    return ReferenceBackend(open_model(smollm2()))


def test_the_set_is_what_it_claims() -> None:
    cases = golden_cases()
    assert len(cases) >= 24 and len({c.name for c in cases}) == len(cases)
    assert any(len(c.prompt_ids) == 1 for c in cases) and any(len(c.prompt_ids) >= 2000 for c in cases)
    assert all(len(c.ids) == len(c.top) > 0 and c.ids[i] == c.top[i][0][0] for c in cases for i in range(len(c.ids)))


def test_it_was_made_from_this_file() -> None:
    assert hashlib.sha256(smollm2().read_bytes()).hexdigest() == golden_document()["sha256"]


def test_our_tokenizer_makes_the_same_ids() -> None:
    tokenizer = tokenizer_of(read_header(smollm2()))
    for case in golden_cases():
        if case.text is not None:
            assert list(tokenizer.encode(case.text)) == case.prompt_ids, case.name


def test_some_prompts(backend: ReferenceBackend) -> None:
    names = {"capital", "turns", "chinese", "emoji", "code", "single_token"}
    check_teacher_forced(backend, [c for c in golden_cases() if c.name in names], TOLERANCE)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_prompts(backend: ReferenceBackend) -> None:
    check_teacher_forced(backend, list(golden_cases()), TOLERANCE)
