"""What is told below an answer of `imp chat`."""

from __future__ import annotations

from imp_server.cli._chat_answer import ChatAnswer


def told(tokens: int, first_s: float, total_s: float) -> str:
    return ChatAnswer(tokens=tokens, first_s=first_s, total_s=total_s).line()


def test_the_speed_is_that_after_what_came_first() -> None:
    assert told(9, 1.0, 3.0) == "9 tokens · 4.0 tokens/s · first token after 1.00 s"
    burst = ChatAnswer(tokens=12, first_tokens=4, first_s=1.0, total_s=3.0)
    assert burst.tokens_per_s == 4.0, "what came with the first token took the prompt's time"


def test_a_short_answer_has_no_speed() -> None:
    """A busy reader gets it in one or two pieces: five tokens in a millisecond are no 4,000 tokens/s."""
    assert told(5, 1.0, 1.001) == "5 tokens · first token after 1.00 s"
    assert told(4, 1.0, 2.0) == "4 tokens · first token after 1.00 s"
    assert told(500, 1.0, 1.0) == "500 tokens · first token after 1.00 s"
    assert told(1, 1.0, 1.0) == "1 token · first token after 1.00 s"
