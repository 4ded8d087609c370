"""`imp eval`: what lm-eval is told. That its numbers are transformers' is tests/live/test_lm_eval.py's."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from click.testing import CliRunner
from imp_server.cli.eval import chosen, command, lm_eval_arguments
from imp_server.core import UserFault

MODELS: list[dict[str, Any]] = [{"id": "a", "max_model_len": 2048}, {"id": "b"}]


def told(name: str = "", *, limit: int | None = None, chat: bool = False) -> str:
    model = chosen(MODELS, name)
    return " ".join(lm_eval_arguments("http://h:1", model, tasks="arc_easy,boolq", limit=limit, chat=chat, parallel=4))


def test_loglikelihoods_travel_as_the_servers_own_ids() -> None:
    line = told()
    assert line.startswith("--model imp-completions --model_args model=a,base_url=http://h:1/v1/completions,")
    assert "tokenizer_backend=remote" in line and "tokenized_requests=True" in line and "max_length=2048" in line
    assert "--tasks arc_easy,boolq" in line and "--limit" not in line and "--apply_chat_template" not in line


def test_written_answers_are_asked_for_by_chat() -> None:
    line = told("b", limit=3, chat=True)
    assert "local-chat-completions" in line and "base_url=http://h:1/v1/chat/completions" in line
    assert "--apply_chat_template" in line and line.endswith("--limit 3")
    assert "remote" not in line and "max_length" not in line


def test_a_name_that_lm_eval_would_read_as_something_else() -> None:
    for name in ("a,b", "a=b"):
        with pytest.raises(UserFault, match="alias"):
            lm_eval_arguments("http://h:1", {"id": name}, tasks="x", limit=None, chat=False, parallel=1)


def test_a_model_that_is_not_there() -> None:
    with pytest.raises(UserFault, match="no model c; it has a, b"):
        chosen(MODELS, "c")
    with pytest.raises(UserFault, match="lists no model"):
        chosen([], "")


def test_without_lm_eval_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    result = CliRunner().invoke(command, ["--url", "http://h", "--tasks", "boolq"])
    assert isinstance(result.exception, UserFault) and "imp-server[eval]" in str(result.exception)
