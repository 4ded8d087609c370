"""One operation over HTTP: key, body, contract, handler, reply; every error in the dialect's shape."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec
from blacksheep import Content, Request, Response, StreamedContent

from imp_server.api import sse
from imp_server.api.admission.body_memory import Charge, charging
from imp_server.api.big_json import encode_in_pieces
from imp_server.api.body import (
    BodyLimits,
    ClientGone,
    check_json_size,
    check_media_type,
    decode_json,
    inflated,
    read_body,
)
from imp_server.api.content_codings import codings_of
from imp_server.api.contract import Operation
from imp_server.api.disconnect import DisconnectWatch
from imp_server.api.driver import StreamRun, acceptance, encoded, fold_reply, silence_s
from imp_server.api.entrance import enter
from imp_server.api.errors import error_headers, error_status, shape_module, shape_of
from imp_server.api.generations import Generations, Terms
from imp_server.api.headers import MOST_POINTERS, PAGE_HEADERS, listed, request_id_of
from imp_server.api.model_host import ModelHost
from imp_server.api.parameters import ParameterReader
from imp_server.api.predictions import IS_INSIDE, formats, replies_to
from imp_server.api.preparing import Preparing, check_vectors
from imp_server.api.resumable import Resumable, relayed
from imp_server.api.resumable.opening import Chunks
from imp_server.api.resumable.session import StreamKey
from imp_server.api.router.leases import leasing
from imp_server.api.services import ServerServices, owned
from imp_server.api.text_side import check_for_any_model
from imp_server.api.visit import Visit, visit_of
from imp_server.core import ChatRequest, Draining, ImpError, InternalError, NotSupported, PromptRequest
from imp_server.core.errand import Errand, NotWanted, running
from imp_server.core.owner import acting_for, current_owner
from imp_server.dialects.base import SseFrame
from imp_server.dialects.handler import (
    INLINE_BYTES,
    BytesReply,
    Call,
    Generate,
    Handler,
    JsonReply,
    RelayReply,
    Reply,
    SubRequests,
)
from imp_server.dialects.openai_responses.turns import turn_of
from imp_server.text.session import Prepared

_log = logging.getLogger(__name__)
_DETACHED = Response(499)
"""Answer to a client that has gone; nobody receives it."""

STREAM_NAME = "x-conversation-id"
"""Names the stream that is to survive its client, on the operations whose document has it."""
_FEW = 8
"""Replies to more prompts than that, vectors perhaps, are long."""
Responder = Callable[[Request], Awaitable[Response]]


def lower_headers(request: Request) -> dict[str, str]:
    """Lower-case names; of repeated headers the last."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in request.headers}


class Endpoint:
    """An operation bound to its handler. Immutable."""

    def __init__(self, services: ServerServices, operation: Operation, handler: Handler) -> None:
        self.operation = operation
        self._services = services
        self._handler = handler
        self._parameters = ParameterReader(operation.parameters)
        self._media = tuple(operation.body_pointers)
        self._only_streams = ("200", "application/json") not in operation.response_pointers
        self._is_resumable = any(parameter.name.lower() == STREAM_NAME for parameter in operation.parameters)
        self._takes_any_name = services.config.server.model_names == "any" and any(
            "model" in services.contract.resolve(pointer).get("properties", {})
            for pointer in operation.body_pointers.values()
        )
        server = services.config.server
        self._limits = BodyLimits(server.max_body_mib * 2**20, server.body_timeout_s, server.min_body_kib_s * 1024)

    async def answer(self, request: Request) -> Response:
        headers = lower_headers(request)
        request_id = request_id_of(headers)
        visit = visit_of(request.scope)
        visit.path, visit.is_probe = self.operation.path, self.operation.is_probe
        try:
            response = await self._answer(request, headers, request_id, visit)
        except (ClientGone, NotWanted):
            response = _DETACHED
        except ImpError as error:
            response = self._failed(error, request, headers, request_id)
        except Exception:
            _log.exception("%s %s failed", self.operation.method, self.operation.path)
            fault = InternalError("internal error; the server's log has the details")
            response = self._failed(fault, request, headers, request_id)
        if headers.get("x-request-id") or not self.operation.public:
            add_ids(response, request_id)
        changes = self.operation.changes_server
        origin, method = headers.get("origin", ""), self.operation.method
        add_headers(response, self._services.cors.headers(origin, method, "", listed_only=changes))
        return response

    async def _answer(self, request: Request, headers: dict[str, str], request_id: str, visit: Visit) -> Response:
        caller = enter(self._services, request.scope, headers, visit.client, self.operation)
        with acting_for(caller.owner, is_admin=caller.is_admin), leasing(visit.leases), charging(visit.charge):
            return await self._owned_answer(request, headers, request_id, visit)

    async def _owned_answer(self, request: Request, headers: dict[str, str], request_id: str, visit: Visit) -> Response:
        body: dict[str, Any] = {}
        ignored: list[str] = []
        n_bytes = 0
        data = await self._data(request, headers, visit) if self._media else bytearray()
        is_inside = IS_INSIDE in request.scope
        if self._services.draining and not (self.operation.public or is_inside):  # since the head came
            raise Draining("the server is shutting down", retry_after_s=5.0)
        if self.operation.is_inference:
            visit.take_place()
        if self._media:
            n_bytes = len(data)
            if n_bytes > INLINE_BYTES:
                body, ignored = await self._services.pool.run(self._parsed, data, visit.charge)
            elif data or self.operation.body_required:
                body, ignored = self._parsed(data, visit.charge)
            del data
            visit.charge.give_back(n_bytes)
        if self._takes_any_name:
            body = {**body, "model": self._services.state().model or body.get("model") or "none"}
        call = Call(
            body=body,
            path=self._parameters.path(request.route_values or {}),
            query=self._parameters.query(request.url.query or b""),
            headers=headers,
            request_id=request_id,
            services=self._services,
            n_bytes=n_bytes,
            turn=turn_of(request.scope),
            client=client_of(request),
        )
        self._parameters.check_headers(headers)
        watch = DisconnectWatch(getattr(request.content, "receive", None) if self._media else None)
        try:
            with self._named_stream(call, watch) as resumable:
                reply = await self._handled(call, watch if resumable is None else resumable.watch)
                if isinstance(reply, Generate):
                    with self._unattended(call, reply, watch) as background:
                        return await self._generate(request, reply, ignored, visit, watch, background or resumable)
            if isinstance(reply, SubRequests):
                reply = JsonReply(await self._asked(request, reply, watch))
            watch.close()
            if isinstance(reply, RelayReply):
                return self._relayed(request, reply)
            return await self._plain(reply, is_big=n_bytes > INLINE_BYTES)
        except BaseException as error:
            watch.close()
            # the contract's own errors have the right names
            if isinstance(error, ImpError) and error.param is not None:
                error.param = self.operation.field_names.get(error.param, error.param)
            raise

    async def _asked(self, request: Request, reply: SubRequests, watch: DisconnectWatch) -> Any:
        services = self._services
        assert services.front is not None
        prefix = services.config.server.api_prefix.strip("/")
        known = formats(services.contract.operations)
        scope: Any = request.scope
        with services.predictions.one():
            return await replies_to(services.front, scope, reply, known, f"/{prefix}" if prefix else "", watch)

    async def _handled(self, call: Call, watch: DisconnectWatch) -> Any:
        """What the handler gives to threads ends once the client has left. Raises ClientGone."""
        errand = Errand()
        watch.when_gone(errand.end)
        with running(errand):
            return await self._handler(call)

    async def _data(self, request: Request, headers: Mapping[str, str], visit: Visit) -> bytearray:
        if self.operation.body_required or headers.get("content-length", "0") != "0":
            check_media_type(headers, self._media)
        codings = codings_of(headers.get("content-encoding", ""))
        data = await read_body(request, headers, self._limits, visit.charge)
        if not codings or not data:
            return data
        return await self._services.pool.run(inflated, data, codings, self._limits.max_bytes, visit.charge)

    def _parsed(self, data: bytearray, charge: Charge) -> tuple[dict[str, Any], list[str]]:
        """The body, and JSON pointers of what has no effect in it."""
        check_json_size(data, self._services.config.server, charge)
        value = decode_json(data, self._services.config.server.max_json_depth)
        pointer = next(iter(self.operation.body_pointers.values()))
        body: dict[str, Any] = self._services.validators.check_request(pointer, value, is_big=len(data) > INLINE_BYTES)
        return body, self._services.validators.ignored_fields(pointer, body, MOST_POINTERS + 1)

    # --- replies --------------------------------------------------------------------------------

    async def _plain(self, reply: Reply, *, is_big: bool) -> Response:
        if isinstance(reply, JsonReply):
            if self._services.check_replies:
                self._check(reply.status, "application/json", reply.body)
            if is_big:
                return await self._big_response(reply.status, reply.body, reply.headers)
            return json_response(reply.status, reply.body, reply.headers)
        assert isinstance(reply, BytesReply)
        if self._services.check_replies:
            self._check(reply.status, reply.content_type.partition(";")[0], reply.content)
        content = Content(reply.content_type.encode(), reply.content) if reply.content_type else None
        own = PAGE_HEADERS if reply.content_type.startswith("text/html") else {}
        return Response(reply.status, _raw({**own, **reply.headers}), content)

    def _named_stream(self, call: Call, watch: DisconnectWatch) -> AbstractContextManager[Resumable | None]:
        """What a streamed POST that names its stream has reserved; it is given up behind the block."""
        name = call.headers.get(STREAM_NAME) if self._is_resumable and call.turn is None else None
        if name is None or not call.body.get("stream", self._only_streams):
            return nullcontext()
        key = StreamKey(current_owner(), name)
        return Resumable(self._services.sessions, key, watch, shape_of(self.operation, call.headers))

    def _unattended(
        self, call: Call, reply: Generate, watch: DisconnectWatch
    ) -> AbstractContextManager[Resumable | None]:
        """The same of a reply that is made without its client."""
        if reply.background is None:
            return nullcontext()
        key = StreamKey(current_owner(), reply.context.id, "events" if reply.streamed else "nothing")
        return Resumable(self._services.sessions, key, watch, shape_of(self.operation, call.headers))

    async def _generate(
        self,
        request: Request,
        reply: Generate,
        unread: Sequence[str],
        visit: Visit,
        client: DisconnectWatch,
        resumable: Resumable | None,
    ) -> Response:
        """Closes the watch of the client, or has the stream close it."""
        watch = client if resumable is None else resumable.watch
        generations, prepared = await self._accepted(request, reply, visit, watch, resumable)
        try:
            if resumable is not None:
                resumable.detach()
            more = _reply_headers(request, reply, prepared, unread)
            at_once = await reply.background() if reply.background else None
            if reply.streamed or at_once is not None:
                silence = silence_s(reply.context.body, self._services.config.streams.keep_alive_s)
                run = StreamRun(reply, generations, watch, silence)
                chunks: Chunks = partial(encoded, self._checked(run.frames()))
                if resumable is not None:
                    chunks = resumable.begin(chunks, run.failed, visit.hand_over)
                if reply.streamed:
                    return Response(200, _raw(sse.HEADERS | more), StreamedContent(sse.MEDIA_TYPE, chunks))
            body = await fold_reply(reply, generations, watch) if at_once is None else at_once
        except BaseException:
            generations.end()
            raise
        client.close()
        if body is None:
            raise ClientGone
        if self._services.check_replies:
            self._check(200, "application/json", body)
        if len(prepared) > _FEW or prepared[0].request.pooling == "none":
            return await self._big_response(200, body, more)
        return json_response(200, body, more)

    async def _accepted(
        self, request: Request, reply: Generate, visit: Visit, watch: DisconnectWatch, resumable: Resumable | None
    ) -> tuple[Generations, list[Prepared]]:
        """What the engine has accepted; it ends when the watch says that nobody wants it."""
        requests = [owned(one) for one in reply.requests]
        for one in requests:
            check_for_any_model(one)
        if self._services.config.server.only_embeddings and _generates(requests[0]):
            raise NotSupported("this server makes embeddings only (server.only_embeddings, --embedding)")
        errand = Errand()
        watch.when_gone(errand.end)
        with running(errand):
            host = await self._services.awake(requests[0].model)
        limit_s = host.config.server.request_timeout_s or None
        if resumable is not None:
            await resumable.loaded(host, limit_s)
        visit.leases.read(host)
        requests = [host.adapters.applied(one) for one in requests]
        prepared = await self._prepared(host, requests, watch, client_of(request))
        called = "input" if "input" in reply.context.body else "content"
        check_vectors(prepared, host.card().width or 0, self._services.config.server.max_vector_mib, called)
        visit.report = self._services.reports.begin(
            self.operation.path, host.id, visit.began_s, reply.context.id, streamed=reply.streamed
        )
        if prepared[0].request.task == "generate":
            self._services.reports.take_prompts([prompt.prompt_text for prompt in prepared])
        terms = Terms(
            names=frozenset((reply.context.id, reply.context.request_id)),
            sender=client_of(request),
            outranks=self._services.keys.may_outrank(),
            reasoning_control=reply.context.body.get("reasoning_control", True) is not False,
            deadline_s=limit_s,
            report=visit.report,
        )
        generations = Generations(
            host.client,
            prepared,
            terms,
            counters=host.counters,
            checks=self._services.checks,
            queued=self._services.admission.queued,
        )
        host.replies.add(generations)
        visit.model, visit.generations = host.id, generations
        await generations.accept(watch)
        reply.context.accepted = acceptance(generations, prepared)
        if "context_length" in reply.context.extra:  # not known to a handler whose model wasn't loaded
            reply.context.extra["context_length"] = host.card().context_length
        return generations, prepared

    async def _prepared(
        self, host: ModelHost, requests: Sequence[ChatRequest | PromptRequest], watch: DisconnectWatch, owner: str
    ) -> list[Prepared]:
        """Raises ClientGone once the client has left: nothing goes on for nobody."""
        services = self._services
        preparing = Preparing(
            services.pool_of(host, renders=isinstance(requests[0], ChatRequest)),
            services.checks,
            owner,
            host.config.server.request_timeout_s or None,
        )
        watch.when_gone(preparing.stop)
        prepared = await preparing.run(host.ready_text(), requests)
        if prepared is None:
            raise ClientGone
        return prepared

    async def _big_response(self, status: int, body: Any, headers: Mapping[str, str]) -> Response:
        """Encoded in the pool, and given to the socket in pieces."""
        data = await self._services.pool.run(encode_in_pieces, body)
        if len(data) <= INLINE_BYTES:
            return Response(status, _raw(headers), Content(b"application/json", data))
        return Response(status, _raw(headers), StreamedContent(b"application/json", partial(_pieces, data)))

    def _relayed(self, request: Request, reply: RelayReply) -> Response:
        if request.method == "HEAD":
            return Response(200, _raw(sse.HEADERS), Content(sse.MEDIA_TYPE, b""))
        chunks = partial(relayed, reply.reader, DisconnectWatch(getattr(request.content, "receive", None)))
        return Response(200, _raw(sse.HEADERS), StreamedContent(sse.MEDIA_TYPE, chunks))

    async def _checked(self, frames: AsyncGenerator[SseFrame | None, None]) -> AsyncGenerator[SseFrame | None, None]:
        async with aclosing(frames):
            async for frame in frames:
                if frame is not None and self._services.check_replies:
                    event: dict[str, Any] = {"data": _decoded(frame.data)}
                    if frame.event is not None:
                        event["event"] = frame.event
                    self._services.validators.check_event(self.operation, event)
                yield frame

    def _check(self, status: int, media: str, body: Any) -> None:
        if media == "application/json":
            body = msgspec.json.decode(msgspec.json.encode(body))
        self._services.validators.check_reply(self.operation, status, media, body)

    # --- errors ---------------------------------------------------------------------------------

    def _failed(self, error: ImpError, request: Request, headers: Mapping[str, str], request_id: str) -> Response:
        shape = shape_of(self.operation, headers)
        response = error_response(shape, error, request_id)
        note_refusal(request, error)
        if self._services.check_replies and error.code != "contract_violation":
            try:
                body = shape_module(shape).error_body(error, request_id)
                self._check(response.status, "application/json", body)
            except ImpError as violation:
                return self._failed(violation, request, headers, request_id)
        return response


def _generates(request: ChatRequest | PromptRequest) -> bool:
    return isinstance(request, ChatRequest) or request.task == "generate"


def client_of(request: Request) -> str:
    """Whose work it is, for fairness: the key's, without keys the connection's."""
    return current_owner() or str(request.scope.get("client"))


def _reply_headers(
    request: Request, reply: Generate, prepared: Sequence[Prepared], unread: Sequence[str]
) -> dict[str, str]:
    """Without an id of the client's, a generation goes by the id of its reply. `unread`: what had no effect."""
    own = {} if request.headers.contains(b"x-request-id") else {"x-request-id": reply.context.id}
    ignored = dict.fromkeys(quote(pointer, safe="/~") for prompt in prepared for pointer in prompt.ignored)
    if ignored:
        own["x-imp-ignored"] = ", ".join(f"#{pointer}" for pointer in ignored)
    opened = dict.fromkeys(quote(param, safe="/~[].") for prompt in prepared for param in prompt.opened)
    if opened:
        own["x-imp-extra-properties"] = ", ".join(opened)
    if unread:
        own["x-imp-ignored-fields"] = listed(unread)
    return own | dict(reply.headers)


async def _pieces(data: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(data), INLINE_BYTES):
        yield data[start : start + INLINE_BYTES]


def _decoded(data: bytes) -> Any:
    return msgspec.json.decode(data) if data[:1] in (b"{", b"[") and data != b"[DONE]" else data.decode()


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


def json_response(status: int, body: Any, headers: Mapping[str, str]) -> Response:
    return Response(status, _raw(headers), Content(b"application/json", msgspec.json.encode(body)))


def error_response(shape: str, error: ImpError, request_id: str) -> Response:
    body = shape_module(shape).error_body(error, request_id)
    return json_response(error_status(shape, error), body, error_headers(error))


def add_ids(response: Response, request_id: str) -> None:
    """OpenAI's and Anthropic's name of the same id, on every route."""
    value = request_id.encode("latin-1")
    for name in (b"x-request-id", b"request-id"):
        if not response.headers.contains(name):
            response.headers.add(name, value)


def add_headers(response: Response, headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        response.headers.set(name.encode("latin-1"), value.encode("latin-1"))


def note_refusal(request: Request, error: ImpError) -> None:
    """For the log's one line about a request that was refused or failed. Messages may quote what the client sent."""
    visit_of(request.scope).code = error.code
