"""Requests made to hurt, of every strategy there is: what a client can send to a server, drawn by a number.

`drawn(seed, n)` is the same list each time. A request is a body, or a chain of bodies each of which names the reply
before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.api.hostile_bodies import (
    CHAT,
    COMPLETION,
    COMPLETIONS,
    GENERATE,
    MESSAGES,
    RESPONSES,
    HostileBody,
    hostile_bodies,
)
from tests.grammar.hostile import Hostile, Kind, gbnf, lark, regexes, schemas

USER = {"role": "user", "content": "Write."}
CHAIN = "chain"
"""The kind of a body that is sent `n_links` times, each time with the id of the reply before."""
N_TOKENS = 12


def _body(kind: str, path: str, **fields: Any) -> HostileBody:
    return HostileBody(kind, path, json.dumps({"model": "m", **fields}).encode())


def _schema_bodies(schema: Any) -> list[HostileBody]:
    tool = {"name": "f", "description": "d"}
    function = {"type": "function", "function": tool | {"parameters": schema}}
    answer = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    chat = {"messages": [USER], "max_tokens": N_TOKENS}
    return [
        _body("schema", CHAT, **chat, response_format=answer),
        _body("schema, hot", CHAT, **chat, response_format=answer, temperature=1.5, n=3, logprobs=True, top_logprobs=5),
        _body("schema of a tool", CHAT, **chat, tools=[function], tool_choice="required"),
        _body("schema of a tool, free", CHAT, **chat, tools=[function]),
        _body("schema of a tool", MESSAGES, **chat, tools=[tool | {"input_schema": schema}]),
        _body("schema", RESPONSES, input="Write.", max_output_tokens=N_TOKENS, text=text, store=False),
        _body("schema", COMPLETION, prompt="Write", n_predict=N_TOKENS, json_schema=schema),
    ]


def _grammar_bodies(hostile: Hostile) -> list[HostileBody]:
    chat = {"messages": [USER], "max_tokens": N_TOKENS}
    own = {"type": "grammar", "syntax": hostile.kind, "definition": hostile.what}
    ways: dict[str, Callable[[], list[HostileBody]]] = {
        "schema": lambda: _schema_bodies(hostile.what),
        "regex": lambda: [
            _body("regex", CHAT, **chat, structured_outputs={"regex": hostile.what}),
            _body("regex of a tool", RESPONSES, input="Write.", max_output_tokens=N_TOKENS, store=False,
                  tools=[{"type": "custom", "name": "f", "format": own}]),
        ],
        "gbnf": lambda: [
            _body("gbnf", CHAT, **chat, structured_outputs={"grammar": hostile.what}),
            _body("gbnf", COMPLETION, prompt="Write", n_predict=N_TOKENS, grammar=hostile.what),
        ],
        "lark": lambda: [
            _body("lark", CHAT, **chat, structured_outputs={"grammar": hostile.what}),
            _body("lark of a tool", CHAT, **chat, tools=[{"type": "custom", "custom": {"name": "f", "format": {
                "type": "grammar", "grammar": {"syntax": "lark", "definition": hostile.what}}}}]),
            _body("lark of a tool", RESPONSES, input="Write.", max_output_tokens=N_TOKENS, store=False,
                  tools=[{"type": "custom", "name": "f", "format": own}]),
        ],
    }  # fmt: skip
    return ways[hostile.kind]()


@st.composite
def constrained(draw: st.DrawFn) -> HostileBody:
    """Grammars of every kind, in every place that takes one."""
    kind: Kind = draw(st.sampled_from(["schema", "schema", "schema", "regex", "gbnf", "lark"]))
    what = draw({"schema": schemas(), "regex": regexes(), "gbnf": gbnf(), "lark": lark()}[kind])
    return draw(st.sampled_from(_grammar_bodies(Hostile(kind, what))))


@st.composite
def many_choices(draw: st.DrawFn) -> HostileBody:
    """n times logprobs, and lists of prompts times both."""
    n, top = draw(st.sampled_from([1, 8, 20, 128, 1000])), draw(st.sampled_from([0, 5, 20, 100]))
    few = {"max_tokens": draw(st.sampled_from([1, 16])), "temperature": 2.0}
    return draw(
        st.sampled_from(
            [
                _body("n x logprobs", CHAT, messages=[USER], n=n, logprobs=True, top_logprobs=top, **few),
                _body("n x logprobs", COMPLETIONS, prompt=["a"] * min(n, 8), n=8, best_of=8, logprobs=top, echo=True,
                      **few),
                _body("n x logprobs", COMPLETIONS, prompt="a " * 2 * n, logprobs=top, echo=True, prompt_logprobs=top,
                      **few),
                _body("prompts x n", COMPLETIONS, prompt=[f"a {i}" for i in range(min(n, 128))], n=8, **few),
                _body("n x logprobs", COMPLETION, prompt="a", n_predict=4, n_probs=top * n, n_cmpl=n),
                _body("n x logprobs", GENERATE, inputs="a", parameters={"details": True, "best_of": max(2, n),
                      "do_sample": True, "top_n_tokens": top, "max_new_tokens": 4, "decoder_input_details": True}),
            ]
        )
    )  # fmt: skip


@st.composite
def chains(draw: st.DrawFn, longest: int = 1000) -> HostileBody:
    """Responses that hang on each other."""
    n = draw(st.sampled_from([20, longest // 4, longest]))
    auto = draw(st.sampled_from([{}, {"truncation": "auto"}]))
    return _body(CHAIN, RESPONSES, input="a", max_output_tokens=1, store=True, metadata={"n_links": str(n)}, **auto)


@st.composite
def any_request(draw: st.DrawFn, scale: float = 1.0, many: bool = True) -> HostileBody:
    """`scale`: of bodies and chains; `many`: those that ask for many tokens, too, and so for others' rows."""
    which = draw(st.integers(0, 29 if many else 25))
    if which < 20:
        return draw(constrained())
    if which < 26:
        return draw(hostile_bodies(scale))
    return draw(many_choices() if which < 29 else chains(max(80, int(1000 * scale))))


def drawn(number: int, n: int, strategy: st.SearchStrategy[Any]) -> list[Any]:
    """Up to `n` values, the same for the same number."""
    found: list[Any] = []

    @seed(number)
    @settings(
        max_examples=n, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(strategy)
    def draw(value: Any) -> None:
        found.append(value)

    draw()
    return found[:n]
