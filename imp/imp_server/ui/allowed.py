"""The one allow-list of what an answer may become on a page: elements, attributes, schemes.

A node is a text, or [element, attributes, *nodes]. What isn't allowed loses its element and keeps its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

Node = Any
"""str | [str, dict[str, str], Node, ...]"""

_NONE: Mapping[str, re.Pattern[str]] = {}
_ALIGNED = {"class": re.compile(r"align-(left|center|right)")}
ELEMENTS: Mapping[str, Mapping[str, re.Pattern[str]]] = {
    **dict.fromkeys(("p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "li", "blockquote", "pre", "hr", "br"), _NONE),
    **dict.fromkeys(("em", "strong", "s", "table", "thead", "tbody", "tr"), _NONE),
    "ol": {"start": re.compile(r"\d{1,9}")},
    "code": {"class": re.compile(r"language-[\w+#.-]{1,32}")},
    "span": {"class": re.compile(r"tok-[a-z0-9]{1,4}")},
    "th": _ALIGNED,
    "td": _ALIGNED,
    "a": {
        "href": re.compile(r"(?is)(https?://|mailto:)\S+"),
        "rel": re.compile(r"noopener noreferrer"),
        "target": re.compile(r"_blank"),
    },
}
"""Element -> its attributes -> what their whole values match."""
SCHEMES = frozenset(("http", "https", "mailto"))
_CONTROLS = re.compile(r"[\x00-\x20\x7f]")


def is_safe_link(address: str) -> bool:
    """An absolute address of an allowed scheme. Browsers drop blanks and controls within a scheme, so none may be."""
    if _CONTROLS.search(address):
        return False
    try:
        return urlsplit(address).scheme.lower() in SCHEMES
    except ValueError:
        return False


def allowed(nodes: Iterable[Node]) -> list[Node]:
    """The same without whatever isn't on the list."""
    return [one for node in nodes for one in _passed(node)]


def _passed(node: Node) -> Iterator[Node]:
    if isinstance(node, str):
        yield node
        return
    name, attributes, *children = node
    inner = allowed(children)
    rules = ELEMENTS.get(name)
    if rules is None:
        yield from inner
        return
    kept = {key: value for key, value in attributes.items() if key in rules and rules[key].fullmatch(value)}
    if name == "a" and not is_safe_link(kept.get("href", "")):
        yield from inner
        return
    yield [name, kept, *inner]
