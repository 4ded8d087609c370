"""The grammar that binds a request's output: the one place of text/ that asks grammar/ for it."""

from __future__ import annotations

from imp_server.core import ChatRequest, GrammarPlan, GrammarRefused


def constraint(chat: ChatRequest) -> GrammarPlan | None:
    """None if the request leaves the output free. Raises GrammarRefused."""
    if chat.response_format.kind == "text":
        return None
    raise GrammarRefused(
        f"constrained output ({chat.response_format.kind}) isn't available in this build",
        param=chat.response_format.param,
    )
