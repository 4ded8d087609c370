"""The grammar that binds a request's output: the one place of text/ that asks grammar/ for it."""

from __future__ import annotations

from imp_server.core import ChatRequest, GrammarPlan, GrammarRefused
from imp_server.grammar.check import check_json_object, check_schema


def constraint(chat: ChatRequest) -> GrammarPlan | None:
    """None if the request leaves the output free. Raises GrammarRefused, GrammarUnsatisfiable."""
    wanted = chat.response_format
    if wanted.kind == "text":
        return None
    try:
        if wanted.kind == "json_object":
            return check_json_object()
        if wanted.kind == "json_schema":
            return check_schema(wanted.schema)
    except GrammarRefused as refused:
        if refused.param is None:
            refused.param = wanted.param
        raise
    raise GrammarRefused(f"constrained output ({wanted.kind}) isn't available in this build", param=wanted.param)
