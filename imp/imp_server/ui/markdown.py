"""Markdown to nodes (ui/allowed.py), code with the classes of its tokens. No HTML is made on the way, and none is read.

Runs in a worker process: some texts cost more than their length tells.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import msgspec
from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import STANDARD_TYPES

from imp_server.ui.allowed import Node, allowed, is_safe_link
from imp_server.workers.child import set_cpu

LANGUAGES = frozenset(
    (
        *("bash", "c", "cpp", "csharp", "css", "diff", "docker", "go", "html", "ini", "java", "javascript", "json"),
        *("kotlin", "lua", "make", "markdown", "php", "powershell", "python", "ruby", "rust", "scala", "sql", "swift"),
        *("toml", "typescript", "xml", "yaml"),
    )
)
"""Those whose rules are made before the first answer; code in another language has no colours."""
DEEPEST = 60
"""Levels of lists and quotes; a block with more stays as it was written."""
MOST_S, ENOUGH_S = 0.05, 0.025
"""CPU seconds after which the process ends; and after which no further block is begun."""
_ADDRESS = re.compile(r"https?://[^\s<>\"'`]+[^\s<>\"'`.,;:!?)\]}*_~]")
_ALIGN = re.compile(r"text-align:(left|center|right)")


def warm_up() -> None:
    for language in LANGUAGES:
        lexer = _lexer(language)
        if lexer is not None:
            list(lexer.get_tokens("x = 1\n"))
    rendered("# a\n\n* b `c` **d**\n\n| e | f |\n|---|---|\n| 1 | 2 |\n")


def open_renderer(_: bytes) -> Callable[[bytes], bytes]:
    """For workers/lasting.py. Question: the blocks as JSON. Answer: for each its nodes, or null for one not reached."""
    return _answered


def _answered(question: bytes) -> bytes:
    blocks = msgspec.json.decode(question, type=list[str])
    set_cpu(MOST_S)
    begun_s = time.process_time()
    done: list[list[Node] | None] = []
    for block in blocks:
        is_late = bool(done) and time.process_time() - begun_s > ENOUGH_S
        done.append(None if is_late else rendered(block))
    return msgspec.json.encode(done)


def rendered(text: str) -> list[Node]:
    """The nodes of one block of Markdown, or of several."""
    tokens = _parser().parse(text)
    if any(token.level >= DEEPEST for token in tokens):
        return plain(text)
    return allowed(_tree(tokens))


def plain(text: str) -> list[Node]:
    """The text as it was written."""
    return [["p", {}, text]]


@cache
def _parser() -> MarkdownIt:
    """Links are kept or dropped by the allow-list alone, so that none is half a link."""
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 2 * DEEPEST}).enable(["table", "strikethrough"])
    parser.validateLink = _any_link  # type: ignore[method-assign]
    return parser


def _any_link(url: str) -> bool:  # noqa: ARG001
    return True


def _tree(tokens: Sequence[Token]) -> list[Node]:
    root: list[Node] = ["", {}]
    stack = [root]
    for token in tokens:
        if token.nesting > 0:
            if not token.hidden:
                stack.append([token.tag, _attributes(token)])
        elif token.nesting < 0:
            if not token.hidden:
                node = stack.pop()
                stack[-1].append(node)
        else:
            stack[-1].extend(_leaf(token, in_link=any(node[0] == "a" for node in stack)))
    return root[2:]


def _attributes(token: Token) -> dict[str, str]:
    if token.tag == "a":
        address = str(token.attrs.get("href", ""))
        return {"href": address, "rel": "noopener noreferrer", "target": "_blank"}
    if token.tag == "ol" and "start" in token.attrs:
        return {"start": str(token.attrs["start"])}
    if token.tag in ("td", "th") and (found := _ALIGN.search(str(token.attrs.get("style", "")))):
        return {"class": f"align-{found[1]}"}
    return {}


def _leaf(token: Token, *, in_link: bool) -> Iterator[Node]:
    match token.type:
        case "inline":
            yield from _tree(token.children or ())
        case "text":
            yield from (token.content,) if in_link else _with_links(token.content)
        case "softbreak":
            yield "\n"
        case "hardbreak":
            yield ["br", {}]
        case "hr":
            yield ["hr", {}]
        case "code_inline":
            yield ["code", {}, token.content]
        case "fence" | "code_block":
            yield _code(token.content, token.info.strip().split(maxsplit=1)[0] if token.info.strip() else "")
        case "image":
            yield from _picture(token)
        case _:
            yield token.content


def _picture(token: Token) -> Iterator[Node]:
    """As a link: to show it would tell another server that the answer was read."""
    address = str(token.attrs.get("src", ""))
    text = token.content or address
    if is_safe_link(address):
        yield ["a", {"href": address, "rel": "noopener noreferrer", "target": "_blank"}, text]
    else:
        yield text


def _with_links(text: str) -> Iterator[Node]:
    """Bare addresses are links, too."""
    end = 0
    for found in _ADDRESS.finditer(text):
        if found.start() > end:
            yield text[end : found.start()]
        yield ["a", {"href": found[0], "rel": "noopener noreferrer", "target": "_blank"}, found[0]]
        end = found.end()
    if end < len(text):
        yield text[end:]


def _code(text: str, language: str) -> Node:
    attributes = {"class": f"language-{language}"} if language else {}
    lexer = _lexer(language.lower()) if language else None
    return ["pre", {}, ["code", attributes, *(_coloured(lexer, text) if lexer else (text,))]]


def _coloured(lexer: Lexer, text: str) -> Iterator[Node]:
    """Tokens of one kind in a row are one span."""
    kind, run = "", ""
    for token, value in lexer.get_tokens(text):
        found = STANDARD_TYPES.get(token, "")
        if found != kind and run:
            yield _span(kind, run)
            run = ""
        kind = found
        run += value
    if run:
        yield _span(kind, run)


def _span(kind: str, text: str) -> Node:
    return ["span", {"class": f"tok-{kind}"}, text] if kind and kind != "w" else text


_ALIASES = {"js": "javascript", "ts": "typescript", "py": "python", "sh": "bash", "shell": "bash", "yml": "yaml"} | {
    "c++": "cpp", "c#": "csharp", "cs": "csharp", "rs": "rust", "golang": "go", "md": "markdown", "zsh": "bash",
    "dockerfile": "docker", "makefile": "make", "rb": "ruby", "kt": "kotlin", "jsonc": "json", "jsx": "javascript",
    "tsx": "typescript", "patch": "diff", "svg": "xml", "python3": "python", "console": "bash", "ps1": "powershell",
}  # fmt: skip


@cache
def _known(language: str) -> Lexer:
    lexer: Lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    return lexer


def _lexer(language: str) -> Lexer | None:
    name = _ALIASES.get(language, language)
    return _known(name) if name in LANGUAGES else None
