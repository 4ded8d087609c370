"""Binds each operation of the contract to its handler by name; one without the other keeps the server from starting."""

from __future__ import annotations

import importlib
import pkgutil

import imp_server.dialects
from imp_server.api.contract import Contract, Operation
from imp_server.core import ConfigError
from imp_server.dialects.handler import Handler, operation_of


def find_handlers() -> dict[str, Handler]:
    """Every function marked as a handler in dialects/, by operationId."""
    found: dict[str, Handler] = {}
    for module_info in pkgutil.walk_packages(imp_server.dialects.__path__, "imp_server.dialects."):
        module = importlib.import_module(module_info.name)
        for thing in vars(module).values():
            operation = operation_of(thing)
            if operation is not None:
                found[operation] = thing
    return found


def bind(contract: Contract, handlers: dict[str, Handler]) -> list[tuple[Operation, Handler]]:
    """Raises ConfigError if an operation has no handler or a handler no operation."""
    documented = {operation.id for operation in contract.operations}
    problems = [f"operation {name} has no handler in dialects/" for name in sorted(documented - set(handlers))]
    problems += [f"handler {name} has no operation in spec/" for name in sorted(set(handlers) - documented)]
    if problems:
        raise ConfigError("the contract and the code differ: " + "; ".join(problems))
    return [(operation, handlers[operation.id]) for operation in contract.operations]
