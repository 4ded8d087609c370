"""Compiled validators of request bodies and replies, made from the contract."""

from __future__ import annotations

from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote

import jsonschema_rs

from imp_server.api.contract import DOCUMENT, Contract, Operation
from imp_server.api.ignored_fields import KnownFields
from imp_server.api.narrowing import narrowed, thinned
from imp_server.api.nulls import NullStripper
from imp_server.api.violation import explain, json_path, too_long
from imp_server.core import InternalError, InvalidRequest


class ContractViolation(InternalError):
    """A reply of ours breaks the contract. Raised in tests and with server.check_replies only."""

    default_code = "contract_violation"


class Validators:
    """Owner of the compiled schemas of one contract. Compiling is done once, when the server starts."""

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._compiled: dict[str, Any] = {}
        self._events: dict[str, Any] = {}
        self._strippers: dict[str, NullStripper] = {}
        self._known: dict[str, KnownFields] = {}

    @cached_property
    def _registry(self) -> Any:
        return jsonschema_rs.Registry([(DOCUMENT, self._contract.document)], draft=jsonschema_rs.Draft202012)

    @cached_property
    def _event_registry(self) -> Any:
        return jsonschema_rs.Registry(
            [(DOCUMENT, _content_inlined(self._contract.document))], draft=jsonschema_rs.Draft202012
        )

    def compile_requests(self) -> None:
        for operation in self._contract.operations:
            for pointer in operation.body_pointers.values():
                self._validator(pointer)
                self._stripper(pointer)

    def check_request(self, pointer: str, body: Any, *, is_big: bool = False) -> Any:
        """`body` without the nulls that mean absent. Raises InvalidRequest naming the JSON path at fault."""
        validator = self._validator(pointer)
        if not validator.is_valid(thinned(body) if is_big else body):
            raise self._explained(validator, body)
        return self._stripper(pointer).strip(body)

    def _explained(self, validator: Any, body: Any) -> InvalidRequest:
        """Every element at fault is an error of its own, so long lists are cut down first."""
        found = narrowed(body, validator.is_valid, self._lengths)
        if found is None:
            return InvalidRequest("the request body isn't valid somewhere in a list or an object that is too long")
        if found.too_long is not None:
            path, limit = found.too_long
            return too_long(json_path(body, path), limit)
        return explain(found.body, list(validator.iter_errors(found.body)), self._schema_at, found.starts)

    @cached_property
    def _lengths(self) -> list[int]:
        """Every maxItems of the contract."""
        return sorted(_numbers_of(self._contract.document, "maxItems"))

    def ignored_fields(self, pointer: str, body: dict[str, Any], limit: int) -> list[str]:
        """JSON pointers of what has no effect in a valid request."""
        known = self._known.get(pointer)
        if known is None:
            known = self._known[pointer] = KnownFields(self._contract, {"$ref": f"#{pointer}"})
        return known.ignored(body, limit)

    def check_reply(self, operation: Operation, status: int, media: str, body: Any) -> None:
        """`body`: the decoded JSON, or bytes for other media. Raises ContractViolation."""
        documented = operation.response_pointers
        pointer = documented.get((str(status), media))
        if pointer is None:
            raise ContractViolation(f"{operation.id}: status {status} with {media or 'no body'} isn't in the contract")
        if pointer and (media == "application/json" or media.endswith("+json")):
            self._complain(self._validator(pointer), body, f"{operation.id} {status}")

    def check_event(self, operation: Operation, event: dict[str, Any]) -> None:
        """One streamed event, `data` decoded where it is JSON. Raises ContractViolation."""
        pointer = operation.response_pointers.get(("200", "text/event-stream"))
        if pointer is None:
            raise ContractViolation(f"{operation.id}: the contract has no event stream")
        validator = self._events.get(pointer)
        if validator is None:
            schema = {"$ref": f"{DOCUMENT}#{quote(pointer)}"}
            validator = jsonschema_rs.Draft202012Validator(schema, registry=self._event_registry)
            self._events[pointer] = validator
        self._complain(validator, event, f"{operation.id} event")

    def _complain(self, validator: Any, body: Any, what: str) -> None:
        if not validator.is_valid(body):
            error = explain(body, list(validator.iter_errors(body)), self._schema_at)
            raise ContractViolation(f"{what} breaks the contract: {error.message} in {str(body)[:600]}")

    def _schema_at(self, location: str) -> dict[str, Any]:
        """The schema that holds the keyword at this absolute location; {} if it isn't in the contract."""
        pointer = unquote(location.partition("#")[2]).rpartition("/")[0]
        try:
            found = self._contract.resolve(pointer)
        except (KeyError, IndexError, ValueError, TypeError):
            return {}
        return found if isinstance(found, dict) else {}

    def _validator(self, pointer: str) -> Any:
        validator = self._compiled.get(pointer)
        if validator is None:
            schema = {"$ref": f"{DOCUMENT}#{quote(pointer)}"}
            validator = jsonschema_rs.Draft202012Validator(
                schema, registry=self._registry, pattern_options=jsonschema_rs.RegexOptions()
            )
            self._compiled[pointer] = validator
        return validator

    def _stripper(self, pointer: str) -> NullStripper:
        stripper = self._strippers.get(pointer)
        if stripper is None:
            stripper = NullStripper(self._contract, self._contract.resolve(pointer))
            self._strippers[pointer] = stripper
        return stripper


def _numbers_of(node: Any, keyword: str) -> set[int]:
    if isinstance(node, list):
        return set().union(*(_numbers_of(item, keyword) for item in node))
    if not isinstance(node, dict):
        return set()
    found = set().union(*(_numbers_of(item, keyword) for item in node.values()))
    return found | {node[keyword]} if isinstance(node.get(keyword), int) else found


def _content_inlined(node: Any) -> Any:
    """The document with every `contentSchema` in place of the string it describes: events are checked decoded."""
    if isinstance(node, list):
        return [_content_inlined(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "contentSchema" in node:
        return _content_inlined(node["contentSchema"])
    return {key: _content_inlined(value) for key, value in node.items()}
