"""Templates as programs: what they may use, the sandbox, bombs, and faults told in their own words."""

from __future__ import annotations

import msgspec
import pytest
from imp_server.core import (
    InvalidModel,
    TemplateRefused,
)
from imp_server.text.template import ChatTemplate
from imp_server.text.template_limits import BoundedEnvironment

from tests.text.asking import HI, chat, message
from tests.toy import CHATML, byte_model


def test_raise_exception_is_a_400_in_its_own_words() -> None:
    model = byte_model("{{ raise_exception('roles must alternate') if messages | length > 1 }}" + CHATML)
    with pytest.raises(TemplateRefused, match="roles must alternate") as caught:
        model.prepare_chat(chat(message("user", "a"), message("user", "b")), 1)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "template", ["{{ 1 / 0 }}", "{{ messages.x.y }}", "{{ messages[99].role.x }}", "{{ ''.__class__.y }}"]
)
def test_a_faulty_template_is_refused(template: str) -> None:
    with pytest.raises(TemplateRefused):
        byte_model(template).prepare_chat(HI, 1)


def test_a_template_that_cannot_be_parsed_is_an_invalid_model() -> None:
    with pytest.raises(InvalidModel, match="line 2"):
        byte_model("a\n{% if %}")


@pytest.mark.parametrize(("fault", "words"), [(MemoryError(), "MemoryError"), (ValueError("too long"), "too long")])
def test_why_a_template_cannot_be_compiled_is_told(
    fault: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(*_: object) -> None:
        raise fault

    monkeypatch.setattr(BoundedEnvironment, "bounded", compiled)
    with pytest.raises(InvalidModel, match=f"can't be compiled: {words}$"):
        ChatTemplate("x")


def test_the_sandbox_holds() -> None:
    messages = [{"role": "user", "content": "x", "parts": [1]}]
    assert ChatTemplate("{{ raise_exception.__globals__ }}").render(messages) == ""
    for source in (
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].parts.pop() }}",
        "{% for list in [messages[0].parts] %}{{ list.append(1) }}{% endfor %}",
        "{% set add = messages[0].parts | attr('app' ~ 'end') %}{{ add(1) }}",
        "{{ messages['po' ~ 'p']() }}",
        "{{ messages['\\x61ppend'](1) }}",
        "{{ messages[0].update({}) }}",
        "{{ [2, 1].sort() }}",
        "{{ raise_exception.__globals__['x'] }}",
        "{{ ''.__class__.mro() }}",
    ):
        with pytest.raises(TemplateRefused):
            ChatTemplate(source).render(messages)
    assert messages == [{"role": "user", "content": "x", "parts": [1]}]


def test_a_template_may_change_a_list_of_its_own() -> None:
    """As Kimi K2's does with the ids of calls."""
    source = (
        "{% set own = [] %}{% for m in messages %}{% set _ = own.append(m.role) %}{% endfor %}{{ own.pop(0) }}{{ own }}"
    )
    assert ChatTemplate(source).render([{"role": "user"}, {"role": "tool"}]) == "user['tool']"


BOMBS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro m() %}{% for b in range(9999) %}{% endfor %}{% endmacro %}{% for a in range(999) %}{{ m() }}{% endfor %}",
    "{{ 'a' * 10 ** 9 }}",
    "{{ 10 ** 999999999 }}",
    "{{ [0] * 999999999 }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% for i in range(999999999) %}{% endfor %}",
]


@pytest.mark.parametrize("source", BOMBS)
def test_bombs_are_refused(source: str) -> None:
    with pytest.raises(TemplateRefused):
        ChatTemplate(source).render([])


def test_what_templates_expect_to_find() -> None:
    source = (
        "{%- macro say(x) -%}[{{ x }}]{%- endmacro -%}{%- set ns = namespace(n=0) -%}"
        "{%- for m in messages -%}{%- if loop.index > 2 %}{% break %}{% endif -%}{%- set ns.n = ns.n + 1 -%}"
        "{{ say(m.get('role')) }}{%- generation -%}{{ m['content'] }}{%- endgeneration -%}{%- endfor -%}"
        "{{ ns.n }}{{ {'a': '<é>'} | tojson }}{{ strftime_now('%Y')|length }}{{ {'b': 1}.items() | list }}"
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ bos_token }}"
    )
    rendered = ChatTemplate(source, {"bos_token": "<s>"}).render([{"role": "user", "content": "x"}] * 3)
    assert rendered == "[user]x[user]x2" + '{"a": "<é>"}4' + "[('b', 1)]3<s>"


def test_template_kwargs_reach_the_template() -> None:
    model = byte_model(CHATML + "{{ mood }}")
    assert model.prepare_chat(msgspec.structs.replace(HI, template_kwargs={"mood": "sad"}), 1).prompt_text.endswith(
        "sad"
    )
