"""Conformance cases as data: conformance/cases/<dialect>.yaml.

A file is a list of cases. A case:

    id: openai-chat/streaming/3        stable; never reused
    requires: one sentence             the requirement
    source: where it comes from        contract, SDK type, or a known fault of other servers
    level: MUST | SHOULD
    needs: [chat, tools]               capabilities (capabilities.py); lacking one = not claimed
    steps:
      - post: /v1/chat/completions     or get / delete / head / options / put
        body: {...}                    JSON; `$name` alone is a saved or built-in value, `${name}` inside text
        raw: "..."                     instead of body, with `headers`
        save: first                    later steps see `first.json`, `first.frames` ...
        set: {stop: first.text[3:6]}   values computed from what is saved
        skip_unless: expression        the case is not applicable (e.g. the model's text is too short)
        expect: [expression, ...]      each must be true (expressions.py)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from imp_server.core import ConfigError
from imp_server.resources import data_folder

METHODS = ("get", "post", "put", "delete", "head", "options")
_ID = re.compile(r"[a-z0-9-]+/[a-z0-9-]+/[0-9]+")


class CaseStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One exchange of a case: one method with its path, what is sent, what must hold of the reply."""

    get: str | None = None
    post: str | None = None
    put: str | None = None
    delete: str | None = None
    head: str | None = None
    options: str | None = None
    headers: dict[str, str] = {}
    body: Any = None
    raw: str | None = None
    encoding: str = "utf-8"
    """Of `raw`; latin-1 spells any bytes."""
    save: str = ""
    set: dict[str, str] = {}
    skip_unless: str = ""
    expect: tuple[str, ...] = ()
    auth: bool = True
    """False: send no key."""
    hang_up_after: int = -1
    """Close the connection after this many stream frames; -1 = read to the end."""

    @property
    def request(self) -> tuple[str, str] | None:
        """(METHOD, path template), or None for a step that only computes or checks."""
        for method in METHODS:
            path = getattr(self, method)
            if path is not None:
                return method.upper(), path
        return None


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    requires: str
    source: str
    steps: tuple[CaseStep, ...]
    level: Literal["MUST", "SHOULD"] = "MUST"
    needs: tuple[str, ...] = ()

    @property
    def dialect(self) -> str:
        return self.id.partition("/")[0]


def load_cases(folder: Path | None = None) -> list[Case]:
    """All cases in file and id order. Raises ConfigError for a malformed file or a repeated id."""
    cases = [
        case for path in sorted((folder or data_folder("conformance") / "cases").glob("*.yaml")) for case in _read(path)
    ]
    seen: set[str] = set()
    for case in cases:
        if not _ID.fullmatch(case.id) or case.id in seen:
            raise ConfigError(f"conformance case id '{case.id}' is malformed or repeated")
        seen.add(case.id)
    return cases


def _read(path: Path) -> Iterator[Case]:
    try:
        yield from msgspec.convert(yaml.load(path.read_text(), yaml.CSafeLoader), list[Case])
    except (msgspec.ValidationError, yaml.YAMLError) as error:
        raise ConfigError(f"{path.name}: {error}") from None


class KnownFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A target's failure that is known and accepted, kept apart from the cases."""

    id: str
    reason: str


def load_known_failures(path: Path) -> dict[str, str]:
    """id -> reason. Raises ConfigError for a malformed file."""
    try:
        entries = msgspec.convert(yaml.load(path.read_text(), yaml.CSafeLoader) or [], list[KnownFailure])
    except (OSError, msgspec.ValidationError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from None
    return {entry.id: entry.reason for entry in entries}
