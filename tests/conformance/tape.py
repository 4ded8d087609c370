"""The exchanges of one clean run, kept raw, and played back through a fault."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from imp_server.conformance.exchange import Reply, Target, read_reply


@dataclass(frozen=True)
class Exchange:
    """One request and the reply's bytes as they came."""

    request: tuple[str, str, bytes | None, tuple[tuple[str, str], ...], bool, int]
    status: int
    headers: dict[str, str]
    content: bytes
    took_s: float

    @property
    def method(self) -> str:
        return self.request[0]

    @property
    def path(self) -> str:
        return self.request[1]

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    def asked(self, name: str) -> Any:
        """A field of the request's JSON body; None if it has none."""
        try:
            return json.loads(self.request[2] or b"").get(name)
        except (ValueError, AttributeError):
            return None


def _request(
    method: str, path: str, body: bytes | None, headers: dict[str, str], auth: bool, hang_up_after: int
) -> tuple[str, str, bytes | None, tuple[tuple[str, str], ...], bool, int]:
    return method, path, body, tuple(sorted(headers.items())), auth, hang_up_after


@dataclass
class Recorder:
    """Owner of the tape of one case: sends to the target and keeps what comes back."""

    target: Target
    tape: list[Exchange] = field(default_factory=list)

    def send(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None,
        headers: dict[str, str],
        auth: bool = True,
        hang_up_after: int = -1,
    ) -> Reply:
        reply = self.target.send(method, path, body=body, headers=headers, auth=auth, hang_up_after=hang_up_after)
        request = _request(method, path, body, headers, auth, hang_up_after)
        self.tape.append(Exchange(request, reply.status, reply.headers, reply.content, reply.took_s))
        return reply


class DivergedError(Exception):
    """The case went on to ask something that the clean run had not asked: from here its verdict means nothing."""


@dataclass
class Player:
    """Plays one case's tape, each exchange bent by `fault`. A different request is no evidence: DivergedError."""

    tape: list[Exchange]
    fault: Callable[[Exchange], Exchange]
    at: int = 0

    def send(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None,
        headers: dict[str, str],
        auth: bool = True,
        hang_up_after: int = -1,
    ) -> Reply:
        if self.at >= len(self.tape):
            raise DivergedError
        kept = self.tape[self.at]
        self.at += 1
        if kept.request != _request(method, path, body, headers, auth, hang_up_after):
            raise DivergedError
        bent = self.fault(kept)
        reply = read_reply(bent.status, bent.headers, io.BytesIO(bent.content))
        reply.took_s = bent.took_s
        return reply


def untouched(exchange: Exchange) -> Exchange:
    return exchange


__all__ = ["DivergedError", "Exchange", "Player", "Recorder", "replace", "untouched"]
