"""Routes of which it is configured where they are, or whether they are there at all."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TypeVar

from imp_server.api.contract import Contract, Operation
from imp_server.api.paths import Paths
from imp_server.config.serving import ServerSettings
from imp_server.core import ConfigError
from imp_server.core.json_pointer import escaped

K = TypeVar("K")
_PREDICT = "/predict"


def has_pages(server: ServerSettings) -> bool:
    """Whether / and /docs are there."""
    return server.ui or server.habits == "imp"


def with_own_routes(contract: Contract, server: ServerSettings) -> Contract:
    """The contract with those routes of which it is configured where they are, or whether they are there at all."""
    paths = contract.document["paths"]
    moved = {_PREDICT: server.predict_route}
    taken = {served for path in paths.keys() - moved for served in Paths(paths).served(path)}
    if not has_pages(server):
        moved |= {"/docs": ""}
        del paths["/"]["get"]
    if further := further_health(server):
        _check_route("server.health_route", further, taken)
        paths[further] = paths["/health"]
        taken.add(further)
    _check_route("server.predict_route", server.predict_route, taken)
    for path, route in moved.items():
        item = paths.pop(path)
        if route:
            paths[route] = item
    operations = [_moved(one, moved[one.path]) if one.path in moved else one for one in contract.operations]
    return replace(contract, operations=tuple(operations))


def further_health(server: ServerSettings) -> str:
    """Path; "" for none that isn't there already."""
    return "" if server.health_route in ("/health", "/v1/health") else server.health_route


def _check_route(knob: str, route: str, taken: Container[str]) -> None:
    """`taken`: the paths of others. Raises ConfigError."""
    if route in taken:
        raise ConfigError(f"{knob} {route} is another route of this server")
    segments = route.split("/")[1:]
    if route and not (route[0] == "/" and all(re.fullmatch(r"[\w.~-][\w.~:-]*", one, re.ASCII) for one in segments)):
        raise ConfigError(f"{knob} {route}: use letters, digits and - . _ ~ : between slashes, like /predict")


def _moved(operation: Operation, route: str) -> Operation:
    """Where its schemas are follows its path. `route` "": it is nowhere."""
    old, new = (f"/paths/{escaped(path)}/" for path in (operation.path, route))

    def places(pointers: Mapping[K, str]) -> dict[K, str]:
        return {key: pointer.replace(old, new, 1) for key, pointer in pointers.items()} if route else {}

    return replace(
        operation,
        path=route,
        body_pointers=places(operation.body_pointers),
        response_pointers=places(operation.response_pointers),
    )
