"""One request from its head to the last byte of its answer: what it holds meanwhile, and the line that the log gets."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from imp_server.api.admission import Admission
from imp_server.api.admission.addresses import UNIX, Proxies
from imp_server.api.admission.body_memory import Charge
from imp_server.api.admission.gate import GatePlace
from imp_server.api.admission.rare_log import left_out
from imp_server.api.generations import Generations
from imp_server.api.headers import sanitised_id
from imp_server.api.reports import EndedRequest, Reports
from imp_server.api.reports.reply import ReplyReport
from imp_server.api.reports.traces import TraceContext
from imp_server.api.returned_memory import LARGE_BYTES
from imp_server.api.router.leases import Leases

_log = logging.getLogger(__name__)
KEY = "imp.visit"
"""Where a request's scope has its visit."""
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class VisitCounter(Protocol):
    """A connection, as far as answers concern it."""

    n_answered: int


@dataclass(slots=True, eq=False)
class Visit:
    """Owner of a request's place at the gate, its charge for memory and its leases of models; all end with it."""

    admission: Admission
    reports: Reports
    client: str
    """Address that sent it, or that a trusted proxy names; `unix` for a Unix socket."""
    charge: Charge
    method: str
    path: str = ""
    """Of the contract's operation; "" for a path that it doesn't have."""
    place: GatePlace | None = None
    leases: Leases = field(default_factory=Leases)
    is_probe: bool = False
    model: str = ""
    """The one that served it."""
    code: str = ""
    """Of the error that was the answer. Its message may quote the client, so the log doesn't have it."""
    request_id: str = ""
    generations: Generations | None = None
    report: ReplyReport | None = None
    sent_id: str = ""
    """The client's own name of its request, made fit to be shown."""
    context: TraceContext = field(default_factory=TraceContext)
    """Of the client's trace, if it sent one."""
    status: int = 0
    began_s: float = field(default_factory=time.monotonic)
    _has_ended: bool = False

    def take_place(self) -> None:
        """Raises Overloaded when there is none."""
        self.place = self.admission.gate.take()

    def end(self) -> None:
        """Idempotent."""
        if self._has_ended:
            return
        self._has_ended = True
        self.hand_over()()
        self._tell()
        if not self.is_probe:
            status = self.status or 499
            self.reports.end(
                EndedRequest(
                    self.path,
                    status,
                    self.began_s,
                    self._fields,
                    self.report,
                    self.sent_id,
                    self.code,
                    self.method,
                    self.context,
                )
            )

    def hand_over(self) -> Callable[[], None]:
        """Lets go what the visit holds, when it is called: for what goes on behind the request."""
        place, charge, leases = self.place, self.charge, self.leases
        self.place, self.charge, self.leases = None, self.admission.bodies.charge(), Leases()

        def let_go() -> None:
            if place is not None:
                place.leave()
            leases.close()
            charge.close()
            if charge.most_bytes >= LARGE_BYTES:
                self.admission.returned_memory.want()

        return let_go

    # --- the log --------------------------------------------------------------------------------

    def _tell(self) -> None:
        """One line; of a probe that went well, or came before there was anything to serve, in the debug log only."""
        fields = self._fields()
        if self.status < 400:
            level = logging.DEBUG if self.is_probe else logging.INFO
            what = f"HTTP {self.status or 499} {fields['method']} {fields['path']}"
        else:
            level = logging.DEBUG if self.is_probe and self.status == 503 else logging.WARNING
            what = f"HTTP {self.status} {fields['method']} {fields['path']}: {self.code or 'error'}"
        if not _log.isEnabledFor(level):  # before it is counted: a line that nobody sees must silence no other
            return
        n_silent = self.admission.log.due(f"HTTP {self.status}") if self.status in _OF_FLOODS else 0
        if n_silent is None:
            return
        what += left_out(n_silent)
        shown = [f"{_NAMES.get(name, name)}={value}" for name, value in fields.items() if name not in _LEADING]
        _log.log(level, "%s [%s]", what, " ".join(shown), extra=fields)

    def _fields(self) -> dict[str, Any]:
        ended_s = time.monotonic()
        fields: dict[str, Any] = {
            "method": self.method[:16] if self.method.isalpha() else "?",
            "path": self.path or "?",
            "status": self.status or 499,
            "client": self.client,
        }
        if self.model:
            fields["model"] = self.model
        if self.generations is not None:
            fields |= self.generations.told(self.began_s)
        fields["duration_ms"] = round((ended_s - self.began_s) * 1000, 1)
        if self.request_id:
            fields["request_id"] = self.request_id
        return fields


_OF_FLOODS = (408, 429, 503)
"""A line for each of them would be a flood of its own: one a second."""
_LEADING = ("method", "path", "status")
_NAMES = {
    "first_token_ms": "first",
    "prompt_tokens": "in",
    "cached_tokens": "cached",
    "completion_tokens": "out",
    "tokens_per_s": "tok/s",
    "duration_ms": "ms",
    "request_id": "id",
}
"""In lines for people."""


def visit_of(scope: Any) -> Visit:
    visit = scope[KEY]
    assert isinstance(visit, Visit)
    return visit


def address_of(scope: Scope, proxies: Proxies) -> str:
    """The address that sent it, or that a trusted proxy names; `unix` for a Unix socket."""
    peer = scope["client"][0] if scope.get("client") else UNIX
    forwarded = b",".join(value for name, value in scope["headers"] if name.lower() == b"x-forwarded-for")
    return proxies.client(peer, forwarded.decode("latin-1"))


class Front:
    """The application with a visit around each request."""

    def __init__(self, app: Application, admission: Admission, reports: Reports) -> None:
        self._app = app
        self._admission, self._reports = admission, reports

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        visit = Visit(
            self._admission,
            self._reports,
            address_of(scope, self._admission.proxies),
            self._admission.bodies.charge(),
            scope["method"],
        )
        scope[KEY] = visit
        connection: VisitCounter | None = scope.get("imp.connection")
        sent = [value for name, value in scope["headers"] if name.lower() == b"x-request-id"]
        visit.sent_id = sanitised_id(sent[-1].decode("latin-1")) if sent else ""
        traced = {name: value.decode("latin-1") for name, value in scope["headers"] if name.startswith(b"trace")}
        visit.context = TraceContext(traced.get(b"traceparent", ""), traced.get(b"tracestate", ""))
        names_itself = bool(sent)  # such ids aren't logged

        async def counted(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                visit.status = message["status"]
                for name, value in message.get("headers", ()):
                    if name == b"x-request-id" and not names_itself:
                        visit.request_id = value.decode("latin-1")
            else:
                if connection is not None:
                    connection.n_answered += len(message.get("body", b""))
                if not message.get("more_body"):
                    visit.end()  # before the last byte: whoever has it may send the next request
            await send(message)

        try:
            await self._app(scope, receive, counted)
        finally:
            visit.end()
