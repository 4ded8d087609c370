"""What becomes of a full context, by the server's knobs and by the request's fields."""

from __future__ import annotations

import pytest
from imp_server.config import Config
from imp_server.core import ContextShift, GenerationOptions, PromptRequest

from tests.asked import made
from tests.toy import byte_model


@pytest.mark.parametrize(
    ("keep", "asked", "kept"), [(0, None, 0), (3, None, 3), (-1, None, 5), (3, 1, 1), (3, -1, 5), (3, 0, 0)]
)
def test_what_is_kept(keep: int, asked: int | None, kept: int) -> None:
    config = Config.of({"model.context_shift": True, "model.keep_tokens": keep})
    options = GenerationOptions(n_keep=asked, n_discard=2)
    request = byte_model(config=config).prepare_prompt(made(PromptRequest, ("hello",), options=options), 1).request
    assert request.shift == ContextShift(kept, 2)


def test_a_server_without_it_ends_answers_there() -> None:
    options = GenerationOptions(n_keep=3)
    assert byte_model().prepare_prompt(made(PromptRequest, ("hello",), options=options), 1).request.shift is None
