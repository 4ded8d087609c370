"""Templates nobody wrote in good faith end soon, in little memory, in the sandbox alone."""

from __future__ import annotations

import resource
import time

import jinja2
import pytest
from hypothesis import HealthCheck, given, settings
from imp_server.core import InvalidModel, TemplateRefused
from imp_server.text.template import ChatTemplate

from tests.text.hostile_templates import ALL, SHARED, hostile_templates, shared

MESSAGES = [{"role": "user", "content": "xxx"}]
MOST_CPU_S = 8.0
"""On a slow machine; the worst take 1.5 s where nothing else runs."""


def rendered(source: str) -> str | None:
    """None if it is refused. Fails if that takes long."""
    began = time.process_time()
    try:
        return ChatTemplate(source).render(MESSAGES)
    except (TemplateRefused, InvalidModel):
        return None
    finally:
        assert time.process_time() - began < MOST_CPU_S, source


@pytest.mark.parametrize("source", ALL, ids=range(len(ALL)))
def test_each_kind_is_refused_at_once(source: str) -> None:
    text = rendered(source)
    assert text is None or len(text) < 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize("use", SHARED)
def test_what_holds_itself_twice_is_looked_at_for_a_price(use: str) -> None:
    assert rendered(shared(use)) is None


def test_what_is_compared_says_what_it_says() -> None:
    uses = ("1 < 2 < 3", "[1, [2]] == [1, [2]]", "[1] != [1]", "'b' in 'abc' and 'z' not in ['y', 'x'*2]",
            "(1, 2) in {(1, 2): 0}",
            "[3, 1] | sort == [1, 3]", "1 is eq 1 and 2 is in [2]", "{'a': 1}.items() == {'a': 1}.items()", "x == y",
            "x in [1] or 'a' is lower", "{'k': {'v': 1}} == {'k': {'v': 1}}", "messages[0] in messages")  # fmt: skip
    source = "|".join(f"{{{{ {use} }}}}" for use in uses)
    expected = jinja2.Environment().from_string(source).render(messages=MESSAGES)
    assert rendered(source) == expected and expected.count("True") == 11


def test_looking_for_a_key_costs_nothing_of_what_is_below_it() -> None:
    """Templates ask each level of a tool's schema for its keywords."""
    schema = {f"k{i}": {"properties": {f"p{j}": {"type": "string"} for j in range(100)}} for i in range(100)}
    asked = "'k1' in tools[0] and 'k2' in tools[0].keys() and 'x' not in tools"
    source = f"{{% for _ in range(500) %}}{{% if {asked} %}}y{{% endif %}}{{% endfor %}}"
    assert ChatTemplate(source).render(MESSAGES, tools=[schema]) == "y" * 500


def test_memory_stays_bounded() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for source in ALL[::4]:
        rendered(source)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(hostile_templates())
def test_any_of_them_ends(source: str) -> None:
    rendered(source)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))
@given(hostile_templates())
def test_many_of_them_end(source: str) -> None:
    rendered(source)


def test_what_nests_too_deeply_is_an_invalid_model() -> None:
    for source in (
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% if x %}" * 500 + "{% endif %}" * 500,
        "x" * 2**21,
    ):
        with pytest.raises(InvalidModel):
            ChatTemplate(source)


def test_what_good_templates_do_costs_nothing_new() -> None:
    source = (
        "{%- for m in messages[::-1] -%}{{ m.content.split('|')[-1].strip() ~ '/' ~ loop.index }}{%- endfor -%}"
        "{{ ['a', 'b'] | join(', ') }}{{ '%5.2f|%-3d' | format(1.5, 7) }}"
        "{{ {'a': [1, {'b': none}]} | tojson(indent=2) }}"
        "{{ 'x' * 3 + 'y' }}{{ 'a\\nb' | indent(2) }}{{ '{:>4}'.format('z') }}{{ [3, 1, 2] | sort | join }}"
        "{{ messages | map(attribute='role') | join(',') }}{{ [[1], [2]] | sum(start=[]) | tojson }}{{ 2 ** 10 }}"
        "{{ ('aXbX'.replace('X', '-')) }}{{ 'ab' | center(6) }}|{{ 7 // 2 }}{{ 7 % 4 }}{{ 'n' ~ none ~ 1.5 ~ [1] }}"
    )
    messages = [{"role": "user", "content": "a|b "}, {"role": "tool", "content": "c"}]
    assert ChatTemplate(source).render(messages) == (
        'c/1b/2a, b 1.50|7  {\n  "a": [\n    1,\n    {\n      "b": null\n    }\n  ]\n}xxxya\n  b   z123user,tool'
        "[1, 2]1024"
        "a-b-  ab  |33nNone1.5[1]"
    )


def test_ten_thousand_messages_are_no_bomb() -> None:
    source = "{% for m in messages %}{{ m.role.upper().strip() }}{{ m.content | trim | replace('a', 'b') }}{% endfor %}"
    text = ChatTemplate(source).render([{"role": "user", "content": "a" * 80}] * 10_000)
    assert len(text) == 10_000 * 84
