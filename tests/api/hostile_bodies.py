"""Hypothesis strategies of request bodies that are meant to hurt: deep, long, numerous, compressed over and over.

Each draw is a `HostileBody`: the bytes, its headers and the path it is for. The sizes go up to what the limits of a
body let through, so one draw may take tens of megabytes: draw few of them.
"""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hypothesis import strategies as st

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
COMPLETIONS, COMPLETION, GENERATE = "/v1/completions", "/completion", "/generate"
USER = {"role": "user", "content": "hi"}


@dataclass(frozen=True, slots=True)
class HostileBody:
    kind: str
    """What hurts in it."""
    path: str
    data: bytes
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    inflated: int = 0
    """Bytes of a compressed body once it is read."""

    def __repr__(self) -> str:
        return f"HostileBody({self.kind}, {self.path}, {len(self.data)} bytes: {self.data[:80]!r}...)"


def _as_json(kind: str, path: str, **fields: Any) -> HostileBody:
    plains: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [USER]},
        MESSAGES: {"messages": [USER], "max_tokens": 1},
        RESPONSES: {"input": "hi"},
        COMPLETIONS: {"prompt": "hi"},
        COMPLETION: {"prompt": "hi", "n_predict": 1},
        GENERATE: {"inputs": "hi"},
    }
    body: dict[str, Any] = {"model": "m", "max_tokens": 1, **plains[path], **fields}
    return HostileBody(kind, path, json.dumps(body).encode())


def _spliced(kind: str, path: str, name: str, raw: bytes) -> HostileBody:
    """A body whose field `name` holds JSON that no encoder would write."""
    data = _as_json(kind, path, **{name: "@"}).data
    return HostileBody(kind, path, data.replace(b'"@"', raw, 1))


def sized(smallest: int, largest: int) -> st.SearchStrategy[int]:
    """Mostly at the ends, which are where limits are."""
    return st.one_of(st.sampled_from([smallest, largest]), st.integers(smallest, largest))


def many_messages(largest: int = 100_000) -> st.SearchStrategy[HostileBody]:
    def made(n: int, path: str, words: str) -> HostileBody:
        messages = [{"role": ("user", "assistant")[i % 2], "content": words} for i in range(n)]
        field_name = "input" if path == RESPONSES else "messages"
        return _as_json("many messages", path, **{field_name: messages})

    return st.builds(made, sized(9_000, largest), st.sampled_from([CHAT, MESSAGES, RESPONSES]), st.text(max_size=20))


def many_parts(largest: int = 1_000_000) -> st.SearchStrategy[HostileBody]:
    """The million content parts, and neighbours of theirs: parts without text, parts that are nothing."""

    def made(n: int, path: str, part: Any) -> HostileBody:
        content = json.dumps(part).encode()
        raw = b"[" + b",".join([content] * n) + b"]"
        message = b'[{"role":"user","content":' + raw + b"}]"
        return _spliced("many parts", path, "input" if path == RESPONSES else "messages", message)

    parts: st.SearchStrategy[Any] = st.sampled_from(
        [{"type": "text", "text": "x"}, {"type": "input_text", "text": ""}, {}, [], None, 0, "x", {"type": "nothing"}]
    )
    return st.builds(made, sized(1_000, largest), st.sampled_from([CHAT, MESSAGES, RESPONSES]), parts)


def nested(largest: int = 100_000) -> st.SearchStrategy[HostileBody]:
    """Around the limit of depth, far beyond it, and deep containers that are each large."""

    def made(depth: int, path: str, pair: tuple[bytes, bytes], padding: int, name: str) -> HostileBody:
        middle = b'"' + b"x" * padding + b'"'
        return _spliced("nested", path, name, pair[0] * depth + middle + pair[1] * depth)

    pairs = st.sampled_from([(b"[", b"]"), (b'{"a":', b"}"), (b'[{"items":', b"}]")])
    depths = st.one_of(st.integers(1, 80), sized(60, largest))
    names = st.sampled_from(["messages", "tools", "metadata", "junk", "response_format", "stop"])
    return st.builds(made, depths, st.sampled_from([CHAT, MESSAGES, RESPONSES]), pairs, sized(0, 3_000_000), names)


def long_numbers(largest: int = 1_000_000) -> st.SearchStrategy[HostileBody]:
    def made(n: int, path: str, name: str, form: str) -> HostileBody:
        digits = b"9" * n
        raw = {
            "whole": digits,
            "minus": b"-" + digits,
            "fraction": b"0." + digits,
            "exponent": b"1e" + digits,
            "mixed": digits + b"." + digits + b"e-" + digits,
            "listed": b"[" + digits + b",1]",
        }[form]
        return _spliced("long numbers", path, name, raw)

    forms = st.sampled_from(["whole", "minus", "fraction", "exponent", "mixed", "listed"])
    names = st.sampled_from(["temperature", "seed", "max_tokens", "junk", "logit_bias", "stop"])
    return st.builds(made, sized(20, largest), st.sampled_from([CHAT, COMPLETIONS, COMPLETION]), names, forms)


def long_lists(largest: int = 100_000) -> st.SearchStrategy[HostileBody]:
    """Of enum, stop, logit_bias, tools, choices, ids: as the contract wants them, and one element wrong."""

    def made(n: int, which: str, wrong: bool, path: str) -> HostileBody:
        strings: list[str | int] = [*(f"s{i}" for i in range(n)), *[7] * wrong]
        schema = {"type": "object", "properties": {"a": {"enum": strings}}, "required": ["a"]}
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        fields: dict[str, dict[str, Any]] = {
            "stop": {"stop": strings},
            "logit_bias": {"logit_bias": {str(i): 1 for i in range(n)} | ({"x": 1} if wrong else {})},
            "pairs": {"logit_bias": [[i, 1] for i in range(n)] + ([["x"]] if wrong else [])},
            "stop_token_ids": {"stop_token_ids": [*range(n), *(["x"] if wrong else [])]},
            "enum": {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}},
            "tool": {"tools": [tool]},
            "tools": {"tools": [tool | {"function": {"name": f"f{i}"}} for i in range(n)]},
            "choice": {"guided_choice": strings},
            "metadata": {"metadata": {f"k{i}": "v" for i in range(n)}},
            "junk": {f"junk{i}": i for i in range(n)},
        }
        return _as_json(f"long list of {which}", path, **fields[which])

    kinds = ["stop", "logit_bias", "pairs", "stop_token_ids", "enum", "tool", "tools", "choice", "metadata", "junk"]
    return st.builds(
        made, sized(100, largest), st.sampled_from(kinds), st.booleans(), st.sampled_from([CHAT, COMPLETIONS])
    )


def long_texts(largest: int = 25_000_000) -> st.SearchStrategy[HostileBody]:
    """Prompts, predictions, stop strings, names: megabytes of one letter, of wide ones, of escapes."""

    def made(n: int, which: str, letter: str) -> HostileBody:
        text = letter * max(1, n // len(letter.encode()))
        fields: dict[str, dict[str, Any]] = {
            "content": {"messages": [{"role": "user", "content": text}]},
            "prediction": {"prediction": {"type": "content", "content": text}},
            "prediction parts": {"prediction": {"type": "content", "content": [{"type": "text", "text": text}] * 2}},
            "stop": {"stop": [text]},
            "model": {"model": text},
            "key": {text: 1},
            "grammar": {"grammar": f'root ::= "{text}"'},
            "regex": {"guided_regex": text},
            "description": {
                "tools": [{"type": "function", "function": {"name": "f", "description": text, "parameters": {}}}]
            },
        }
        return _as_json(f"long {which}", CHAT, **fields[which])

    kinds = ["content", "prediction", "prediction parts", "stop", "model", "key", "grammar", "regex", "description"]
    letters = st.sampled_from(["x", "é", "\U0001f600", '"', "\\", "\0", "a b ", "\n", "<|im_start|>", "<tool_call>"])
    return st.builds(made, sized(1_000, largest), st.sampled_from(kinds), letters)


_ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": partial(gzip.compress, mtime=0),  # the same each time
    "deflate": zlib.compress,
    "zstd": zstd.compress,
    "br": lambda data: data,
}


def stacked_codings(largest: int = 50_000_000) -> st.SearchStrategy[HostileBody]:
    """Bombs, bombs in bombs, codings that aren't there, and broken ends."""

    def made(n: int, codings: list[str], cut: int, told: bool) -> HostileBody:
        data = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * n}]}).encode()
        inflated = len(data)
        for coding in codings:
            data = _ENCODERS[coding](data)
        data = data[: len(data) - cut] if cut else data
        headers = {"content-type": "application/json", "content-encoding": ", ".join(codings if told else ["gzip"])}
        return HostileBody(f"codings {codings}", CHAT, data, headers, inflated)

    codings = st.lists(st.sampled_from(sorted(_ENCODERS)), min_size=1, max_size=6)
    return st.builds(made, sized(10, largest), codings, st.sampled_from([0, 0, 1, 100]), st.booleans())


def malformed() -> st.SearchStrategy[HostileBody]:
    """Bytes that begin like JSON, and JSON whose texts and numbers are none."""

    def made(path: str, head: bytes, tail: bytes, n: int) -> HostileBody:
        return HostileBody("malformed", path, head + tail * n)

    heads = st.sampled_from([b"", b"{", b'{"model":"m","messages":', b'{"a":"', b"[", b"\xef\xbb\xbf{}", b"\xff\xfe"])
    tails = st.sampled_from([b"[", b"{", b'{"a":', b'"', b"\\", b"\\u", b"\\ud800", b"1e9", b",", b"\xff", b"\0", b" "])
    return st.builds(made, st.sampled_from([CHAT, MESSAGES, RESPONSES, GENERATE]), heads, tails, sized(1, 1_000_000))


def hostile_bodies(scale: float = 1.0) -> st.SearchStrategy[HostileBody]:
    """Any of them; `scale` makes the largest sizes smaller or larger."""

    def at(largest: int) -> int:
        return max(10_000, int(largest * scale))

    return st.one_of(
        many_messages(at(100_000)),
        many_parts(at(1_000_000)),
        nested(at(100_000)),
        long_numbers(at(1_000_000)),
        long_lists(at(100_000)),
        long_texts(at(25_000_000)),
        stacked_codings(at(50_000_000)),
        malformed(),
    )
