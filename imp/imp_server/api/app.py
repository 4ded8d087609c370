"""The HTTP application: one route per operation of the contract, and an answer for everything else."""

from __future__ import annotations

import re

from blacksheep import Application, Request, Response
from blacksheep.server.routing import Router

from imp_server.api.binding import bind, find_handlers
from imp_server.api.contract import Operation
from imp_server.api.endpoint import (
    Endpoint,
    Responder,
    add_headers,
    add_ids,
    error_response,
    lower_headers,
    note_refusal,
)
from imp_server.api.entrance import Anything, enter
from imp_server.api.errors import shape_of
from imp_server.api.headers import request_id_of, sanitised_id
from imp_server.api.own_routes import further_health, has_pages
from imp_server.api.paths import Paths
from imp_server.api.services import ServerServices
from imp_server.api.visit import Front, visit_of
from imp_server.core import ImpError, MethodNotAllowed, UnknownUrl


def build_app(services: ServerServices) -> Application:
    """Raises ConfigError when contract and handlers don't match."""
    app = Application(router=Router(), show_error_details=False)
    paths = Paths([o.path for o in services.contract.operations], services.config.server.api_prefix)
    if paths.prefix:
        services.contract.document["servers"] = [{"url": paths.prefix}]
    fallback = _fallback(app, services, paths)
    literal = frozenset(o.path for o in services.contract.operations if "{" not in o.path)
    for operation, handler in bind(services.contract, find_handlers()):
        if not operation.path or (operation.id == _INDEX and not has_pages(services.config.server)):
            continue
        respond: Responder = Endpoint(services, operation, handler).answer
        if "{" in operation.path:
            respond = _unless_literal(respond, literal, paths, fallback)
        # uvicorn drops the body of an answer to HEAD
        routes = paths.served(_route(operation))
        if operation.path == "/health" and (further := further_health(services.config.server)):
            routes += (paths.prefix + further,)
        for method in ("GET", "HEAD") if operation.method == "GET" else (operation.method,):
            for path in routes:
                app.router.add(method, path, _plain(respond))
    app.router.fallback = fallback
    services.front = Front(app, services.admission, services.reports)
    return app


_INDEX = "imp_native.index"
"""What server.ui switches off beside /docs; its path has another method."""


def _route(operation: Operation) -> str:
    """The contract's path as BlackSheep writes it: a tail parameter takes slashes, too."""
    route = operation.path
    for parameter in operation.parameters:
        if parameter.where == "path":
            new = f"{{path:{parameter.name}}}" if parameter.tail else f"{{{parameter.name}}}"
            route = route.replace(f"{{{parameter.name}}}", new)
    return route


def _pattern(path: str) -> re.Pattern[str]:
    """Matches at least what the contract's path is served at."""
    return re.compile(re.sub(r"\\{\w+\\}", ".+", re.escape(path)))


def _plain(respond: Responder) -> Responder:
    """BlackSheep keeps notes on its handlers, so each route needs a function of its own."""

    async def route(request: Request) -> Response:
        return await respond(request)

    return route


def _unless_literal(respond: Responder, literal: frozenset[str], paths: Paths, fallback: Responder) -> Responder:
    """A path of the contract is never the parameter of another path, whatever the method."""

    async def route(request: Request) -> Response:
        return await (fallback if paths.meant(request.path) in literal else respond)(request)

    return route


def _fallback(app: Application, services: ServerServices, paths: Paths) -> Responder:
    """Unknown paths 404, known paths with another method 405 and Allow, both for those with a key only; OPTIONS 204."""
    changes = [(o.method, _pattern(o.path)) for o in services.contract.operations if o.path and o.changes_server]

    async def respond(request: Request) -> Response:
        headers = lower_headers(request)
        path = paths.meant(request.path)
        is_off = path == "/" and not has_pages(services.config.server) and request.method in ("GET", "HEAD")
        allow = () if is_off else _allowed(app, services, path, request)
        error: ImpError
        if request.method == "OPTIONS":
            response = Response(services.cors.status, [(b"allow", ", ".join(allow or ("OPTIONS",)).encode())])
        else:
            request_id = request_id_of(headers)
            what = _printable(f"{request.method[:16]} {request.path[:128]}")
            if refusal := _refusal(services, path, headers, request):
                error = refusal
            elif allow:
                error = MethodNotAllowed(f"{what} isn't there; this path has {', '.join(allow)}", allow=allow)
            else:
                error = UnknownUrl(f"Unknown endpoint: {what}{paths.advice(request.path)}")
            response = error_response(_shape(services, path, headers), error, request_id)
            add_ids(response, request_id)
            note_refusal(request, error)
        methods = ", ".join(allow) if allow else "GET, POST, DELETE, OPTIONS"
        asked = headers.get("access-control-request-headers", "")
        method = headers.get("access-control-request-method", request.method)
        listed_only = any(method == m and pattern.fullmatch(path) for m, pattern in changes)
        origin = headers.get("origin", "")
        add_headers(response, services.cors.headers(origin, methods, asked, listed_only=listed_only))
        if request.method == "OPTIONS" and "x-request-id" in headers:
            add_ids(response, sanitised_id(headers["x-request-id"]))
        return response

    return respond


def _refusal(services: ServerServices, path: str, headers: dict[str, str], request: Request) -> ImpError | None:
    """Why the request doesn't even hear what isn't there. Another method of a public path is no secret."""
    is_public = any(o.public for o in services.contract.operations if o.path == path)
    try:
        enter(services, request.scope, headers, visit_of(request.scope).client, Anything(public=is_public))
    except ImpError as error:
        return error
    return None


def _allowed(app: Application, services: ServerServices, path: str, request: Request) -> tuple[str, ...]:
    """The methods of the request's path, which is `path` in the contract; () for an unknown one."""
    found = {o.method for o in services.contract.operations if o.path and o.path == path}
    if "GET" in found:
        found.add("HEAD")
    if not found:
        routes = app.router.routes
        found = {method.decode() for method in routes if any(route.match(request) for route in routes[method])}
    return (*sorted(found), "OPTIONS") if found else ()


def _shape(services: ServerServices, path: str, headers: dict[str, str]) -> str:
    operation = next((one for one in services.contract.operations if path and one.path == path), None)
    if operation is not None:
        return shape_of(operation, headers)
    # A client of Anthropic's that went astray reads no other shape.
    return "anthropic" if "anthropic-version" in headers else services.contract.shape_of_path(path)


def _printable(text: str) -> str:
    return "".join(c if " " <= c <= "~" else "." for c in text)
