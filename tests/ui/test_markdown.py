"""Markdown becomes nodes of the allow-list and nothing else, whatever it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from imp_server.ui.allowed import ELEMENTS, allowed, is_safe_link
from imp_server.ui.markdown import DEEPEST, LANGUAGES, plain, rendered

from tests.ui.hostile_texts import HOSTILE


def elements(nodes: list[Any]) -> Iterator[list[Any]]:
    for node in nodes:
        if not isinstance(node, str):
            yield node
            yield from elements(node[2:])


def text_of(nodes: list[Any]) -> str:
    return "".join(node if isinstance(node, str) else text_of(node[2:]) for node in nodes)


def check(nodes: list[Any]) -> None:
    for name, attributes, *_ in elements(nodes):
        rules = ELEMENTS[name]
        for key, value in attributes.items():
            assert rules[key].fullmatch(value), (name, key, value)
        assert name != "a" or is_safe_link(attributes["href"])


def test_hostile_texts() -> None:
    assert len(HOSTILE) >= 200
    for text in HOSTILE:
        check(rendered(text))
        check(rendered(f"[{text}]({text})\n\n![{text}]({text})\n\n```{text}\n{text}\n```\n\n|{text}|\n|-|\n|{text}|"))


@given(st.text("[]()<>!`*_~#|-\n \\\"'&;:ajsx1./", max_size=200))
def test_any_text(text: str) -> None:
    check(rendered(text))


def test_what_people_write() -> None:
    def first(text: str) -> Any:
        return rendered(text)[0]

    assert first("# a") == ["h1", {}, "a"]
    assert first("3. a\n4. b") == ["ol", {"start": "3"}, ["li", {}, "a"], ["li", {}, "b"]]
    assert first("~~a~~ **b** `c`") == ["p", {}, ["s", {}, "a"], " ", ["strong", {}, "b"], " ", ["code", {}, "c"]]
    assert first("> a")[0] == "blockquote"
    table = first("|a|b|\n|:-:|-:|\n|1|2|")
    assert table[2][2][2] == ["th", {"class": "align-center"}, "a"]
    assert first("```x\n1\n```") == ["pre", {}, ["code", {"class": "language-x"}, "1\n"]]
    assert first("<b>a</b>") == ["p", {}, "<b>a</b>"]


def test_links() -> None:
    rights = {"rel": "noopener noreferrer", "target": "_blank"}
    (_, _, link) = rendered("[a](https://b.example/c)")[0]
    assert link == ["a", {"href": "https://b.example/c", **rights}, "a"]
    (_, _, bare, rest) = rendered("https://b.example/(c), d")[0]
    assert bare[1]["href"] == "https://b.example/(c" and rest.startswith(")")
    assert rendered("![a](https://b.example/c.png)")[0][2][0] == "a", "a picture would be fetched"
    for address in ("javascript:alert(1)", "JaVaScRiPt:x", "data:text/html,x", "//b.example", "/admin", "vbscript:x"):
        assert not is_safe_link(address) and rendered(f"[a](<{address}>)") == [["p", {}, "a"]]
    assert not is_safe_link("java\nscript:x") and not is_safe_link(" https://a") and not is_safe_link("http://[")


def test_every_language_keeps_the_text() -> None:
    code = "x = \"a\" # <b>\n  if (1) { return 'c' } /* d */\n"
    for language in LANGUAGES:
        nodes = rendered(f"```{language}\n{code}```")
        check(nodes)
        assert text_of(nodes) == code, language


def test_too_deep_is_plain() -> None:
    deep = ">" * (2 * DEEPEST) + " a"
    assert rendered(deep) == plain(deep)
    lists = "".join("  " * i + "- a\n" for i in range(200))
    assert text_of(rendered(lists)).count("a") == 200, "nothing is lost"


def test_what_isnt_on_the_list_keeps_its_text() -> None:
    script = ["script", {"src": "x"}, "a", ["p", {"onclick": "b", "class": "c"}, "d"]]
    assert allowed([script, ["a", {"href": "javascript:e"}, "f"]]) == ["a", ["p", {}, "d"], "f"]
