"""Expressions of cases: a subset of Python, and nothing outside it."""

from __future__ import annotations

import pytest
from imp_server.conformance.boxes import MISSING, box, unbox
from imp_server.conformance.case import load_cases
from imp_server.conformance.expressions import compiled, evaluate
from imp_server.conformance.run import fill
from imp_server.conformance.vocabulary import FUNCTIONS
from imp_server.core import ConfigError


@pytest.mark.parametrize(
    "expression",
    [
        "lambda: 1",
        "(x := 1)",
        "json.__class__",
        "json._private",
        "f'{json}'",
        "(lambda: 1)()",
        "[1][0]()",
        "json.system('x')",
        "await x",
        "2 ** 99999999",
        "1 << 99",
        "x = 1",
        "import os",
        "status ==",
    ],
)
def test_what_is_refused(expression: str) -> None:
    with pytest.raises(ConfigError):
        compiled(expression)


@pytest.mark.parametrize("name", ["open", "eval", "exec", "getattr", "type", "__import__", "globals", "print", "input"])
def test_builtins_are_out_of_reach(name: str) -> None:
    with pytest.raises(NameError):
        evaluate(f"{name}('x')", FUNCTIONS)


def test_a_missing_key_is_false_whatever_is_asked_of_it() -> None:
    names = {**FUNCTIONS, "json": box({"a": {"b": None}})}
    for expression in ("json.x", "json.x.y[0].z", "json.a.c == null", "json.x is null", "json.x == json.x"):
        assert not evaluate(expression, names)
    assert evaluate("json.a.b is null and has(json.a, 'b') and not has(json.a, 'c')", names)
    assert unbox(MISSING) is None


def test_every_expression_of_every_case_compiles_and_every_name_is_known() -> None:
    for case in load_cases():
        names = {*FUNCTIONS, "model", "context", *_REPLY}
        for step in case.steps:
            names |= {step.save} | set(step.set)
            for text in (*step.expect, *step.set.values(), *filter(None, [step.skip_unless])):
                code = compiled(text)
                bound = {
                    n for constant in code.co_consts if hasattr(constant, "co_varnames") for n in constant.co_varnames
                }
                used = {n for n in code.co_names if not _is_attribute(text, n)}
                assert used - bound <= names, f"{case.id}: {text}: {used - bound - names}"


_REPLY = {
    "status", "headers", "json", "body", "content", "frames", "events", "event_names", "comments", "took_s", "broken",
}  # fmt: skip


def _is_attribute(text: str, name: str) -> bool:
    return f".{name}" in text


def test_filling_in_values() -> None:
    names = {"model": "m", "n": 3, "first": box({"id": "a", "list": [{"x": 1}]})}
    template = {"model": "$model", "path": "/v1/${first.id}/${n}", "list": "$first.list", "price": "$$5", "n": ["$n"]}
    assert fill(template, names) == {"model": "m", "path": "/v1/a/3", "list": [{"x": 1}], "price": "$5", "n": [3]}
