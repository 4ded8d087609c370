"""What is told below an answer of `imp chat`."""

from __future__ import annotations

from imp_server.cli._chat_answer import Answer


def told(tokens: int, first_s: float, total_s: float) -> str:
    return Answer(tokens=tokens, first_s=first_s, total_s=total_s).line()


def test_the_speed_is_that_after_the_first_token():
    assert told(5, 1.0, 3.0) == "5 tokens · 2.0 tokens/s · first token after 1.00 s"


def test_tokens_that_came_at_once_have_no_speed():
    """A busy reader gets a short answer in one piece."""
    assert told(3, 1.0, 1.0) == "3 tokens · first token after 1.00 s"
    assert told(1, 1.0, 1.0) == "1 token · first token after 1.00 s"
