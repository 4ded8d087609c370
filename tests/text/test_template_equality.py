"""Rendered text equals transformers' on templates as models have them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from imp_server.text.template import ChatTemplate
from imp_server.text.templates import builtin_templates
from imp_server.weights.header import read_header
from transformers.utils.chat_template_utils import render_jinja_template

from tests.real_model import smollm2

# What the templates in use do: whitespace control, namespaces, slices, macros with defaults, tests, filters.
IDIOMS = {
    "blocks": (
        "{% for m in messages %}\n    {% if m.role == 'user' %}\nU {{ m.content }}\n    {% endif %}\n{% endfor %}\n"
    ),
    "tojson": "{{ tools | tojson }} {{ tools | tojson(indent=2) }} {{ messages | tojson }}",
    "namespace": (
        "{% set ns = namespace(last=-1, multi=true) %}{% for m in messages[::-1] %}"
        "{% set index = (messages | length - 1) - loop.index0 %}{% if ns.multi and m.role == 'user' %}"
        "{% set ns.multi = false %}{% set ns.last = index %}{% endif %}{% endfor %}{{ ns.last }}"
    ),
    "macro": (
        "{% macro line(m, end='!') %}{{ m.role | upper }}: {{ m.content | trim }}{{ end }}{% endmacro %}"
        "{% for m in messages %}{{ line(m) }}{{ line(m, end='?') }}{% endfor %}"
    ),
    "filters": (
        "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | join('+') }}"
        "{{ messages | rejectattr('role', 'in', ['system']) | list | length }}{{ messages[0].content | length }}"
        "{{ messages | map(attribute='role') | unique | list }}{{ 'a-b' | replace('-', '_') }}{{ [3, 1, 2] | sort }}"
    ),
    "strings": (
        "{% set c = '<think>a</think>\\nb' %}{{ c.split('</think>')[-1].lstrip('\\n') }}{{ c.startswith('<think>') }}"
        "{{ c.rstrip('b').strip() }}{{ c[1:4] }}{{ 'x' ~ 1 ~ none }}{{ ' a ' | trim }}{{ 'A'.lower() }}"
        "{{ '%s!' | format(c) }}"
    ),
    "loops": (
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}"
        "{% if loop.index > 2 %}{% break %}{% endif %}"
        "{{ loop.index0 }}{{ loop.last }}{{ loop.previtem.role }}{% endfor %}"
    ),
    "tests": (
        "{{ x is defined }}{{ tools is none }}{{ messages is iterable }}{{ messages[0] is mapping }}{{ 1 is number }}"
        "{{ messages[0].content is string }}{{ (1 == 1) is true }}{{ undefined_thing | default('d') }}"
    ),
    "dicts": (
        "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}{{ messages[0].get('nope', 7) }}"
        "{% for k, v in messages[0] | dictsort %}{{ k }}{% endfor %}{{ messages[0].keys() | list }}"
    ),
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "date": "{{ strftime_now('%Y') | length }}",
    "arithmetic": "{{ 7 // 2 }}{{ 7 % 2 == 1 }}{{ 2 ** 3 }}{{ (1, 2)[1] }}{{ 1 if messages else 2 }}{{ [1] + [2] }}",
}
MESSAGES = [
    {"role": "system", "content": ' Be <nice> & "good" é \n'},
    {"role": "user", "content": "Hi\n"},
    {"role": "assistant", "content": "Ünïcode 👍"},
    {"role": "user", "content": ""},
]
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "f", "description": "<é>", "parameters": {"type": "object"}}}
]


def same(source: str, **more: Any) -> None:
    ours = ChatTemplate(source, {"bos_token": "<s>"}, now=lambda: datetime(2026, 1, 2))
    for tools in (None, TOOLS):
        for generate in (True, False):
            mine = ours.render(MESSAGES, tools=tools, add_generation_prompt=generate, extra=more)
            theirs: Any = render_jinja_template(  # a tuple, whatever its annotation says
                [MESSAGES],
                tools=None if tools is None else list(tools),
                chat_template=source,
                add_generation_prompt=generate,
                bos_token="<s>",
                **more,
            )
            assert mine == theirs[0][0]


@pytest.mark.parametrize("name", IDIOMS)
def test_idioms(name: str) -> None:
    same(IDIOMS[name])


@pytest.mark.parametrize("name", sorted(set(builtin_templates()) - {"gemma"}))
def test_table(name: str) -> None:
    same(builtin_templates()[name], eos_token="</s>", special_tokens=())


def test_smollm2() -> None:
    template = read_header(smollm2()).chat_template
    assert template
    same(template)
