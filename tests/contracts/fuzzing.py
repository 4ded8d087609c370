"""Runs schemathesis on a live server: all phases, all checks, one of them sharper than the original.

`positive_data_acceptance` is replaced by `valid_data_accepted`: valid data may get a 400 only with a code
of the operation's closed list `x-semantic-errors`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from zlib import crc32

import schemathesis
from imp_server.api.contract import Contract
from imp_server.api.validation import Validators
from schemathesis.config import SchemathesisConfig
from schemathesis.core.failures import Failure
from schemathesis.engine import events, from_schema
from schemathesis.generation.meta import TestPhase

MODEL = "smollm2"
"""The id under which the tested server must serve its model: the documents' examples name it."""
_NOT_FUZZED = ("/admin/suspend", "/models/sse")
"""What would leave nothing to test behind it, and what ends with the server."""
_LARGE = 50_000
"""Bytes of what only the long runs send: lists and texts as long as a document allows take seconds each."""
_contracts: list[tuple[Contract, Validators]] = []
"""The contract of the server that is being tested, for the check below."""


@schemathesis.check
def valid_data_accepted(_ctx: Any, response: Any, case: Any) -> None:
    if case.meta is None or not case.meta.generation.mode.is_positive or response.status_code != 400:
        return
    contract, validators = _contracts[-1]
    operation = next(o for o in contract.operations if (o.method, o.path) == (case.method, case.path))
    body = response.json()
    code = _code_of(body)
    if code in operation.semantic_errors:
        return
    pointer = operation.body_pointers.get("application/json")
    if pointer is not None and not _is_valid(validators, pointer, case.body):
        return  # generated as valid, but an if or a dependency of the schema says otherwise
    raise AssertionError(f"valid data was refused: {code} isn't among the operation's x-semantic-errors: {body}")


def _is_valid(validators: Validators, pointer: str, body: Any) -> bool:
    try:
        validators.check_request(pointer, body)
    except Exception:
        return False
    return True


def _code_of(body: Mapping[str, Any]) -> Any:
    """The code in any of the error shapes."""
    error = body.get("error")
    if not isinstance(error, dict):
        return body.get("code") or body.get("error_type")
    details = error.get("details")
    return details.get("error_code") if isinstance(details, dict) else error.get("code")


def document_of(contract: Contract, name: str, model: str) -> dict[str, Any]:
    """The merged document with the paths of one of its sources, `model` being the one that is loaded.

    Otherwise nearly every valid request would end in 404 and test nothing.
    """
    paths = {
        path: item
        for path, item in contract.document["paths"].items()
        if path not in _NOT_FUZZED and any(isinstance(o, dict) and o.get("x-document") == name for o in item.values())
    }
    document: dict[str, Any] = _named({**contract.document, "paths": paths}, model)
    return document


def _named(node: Any, model: str) -> Any:
    if isinstance(node, list):
        return [_named(item, model) for item in node]
    if not isinstance(node, dict):
        return node
    out = {key: _named(value, model) for key, value in node.items()}
    kind = out["properties"].get("model") if isinstance(out.get("properties"), dict) else None
    if isinstance(kind, dict) and "string" in kind.get("type", ()):
        nullable = isinstance(kind["type"], list) and "null" in kind["type"]
        out["properties"]["model"] = {"enum": [model, None] if nullable else [model]}
    return out


def run(
    contract: Contract,
    validators: Validators,
    name: str,
    url: str,
    key: str,
    *,
    max_examples: int,
    seed: int = 1,
    model: str = MODEL,
    n_covered: int | None = None,
) -> list[str]:
    """What failed, as text to read. `max_examples`: per operation in the fuzzing phase.

    `n_covered`: so many cases of an operation's coverage phase are sent, and of those behind them one in ten, no large
    one among them; all if None.
    """
    config = SchemathesisConfig.from_dict(
        {
            "seed": seed,
            "base-url": url,
            "headers": {"Authorization": f"Bearer {key}"},
            "continue-on-failure": True,
            "request-timeout": 20,
            "generation": {"mode": "all", "max-examples": max_examples, "no-shrink": True},
            "checks": {
                "positive_data_acceptance": {"enabled": False},
                "max_response_time": 10.0,
                # 501 says what this server was started without
                "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", 501]},
            },
            "phases": {"stateful": {"generation": {"max-examples": max(2, max_examples // 5)}}},
        }
    )
    schema = schemathesis.openapi.from_dict(document_of(contract, name, model), config=config)
    if n_covered is not None:
        schema.hook("filter_case")(_sampled(n_covered))
    _contracts.append((contract, validators))
    try:
        found = list(_failures(from_schema(schema).execute()))
    finally:
        _contracts.pop()
    return list(dict.fromkeys(found))


def _sampled(n_whole: int) -> Callable[[Any, Any], bool]:
    """Which cases of the coverage phase are sent: it makes thousands for an operation with many fields."""
    n_seen: Counter[tuple[str, str]] = Counter()

    def filter_case(context: Any, case: Any) -> bool:
        if case.meta is None or case.meta.phase.name != TestPhase.COVERAGE:
            return True
        operation = (case.method, case.path)
        n_seen[operation] += 1
        sent = repr((case.query, case.body)).encode()
        return len(sent) < _LARGE and (n_seen[operation] <= n_whole or crc32(sent) % 10 == 0)

    return filter_case


def _failures(stream: Iterator[events.EngineEvent]) -> Iterator[str]:
    for event in stream:
        if isinstance(event, events.NonFatalError | events.FatalError):
            yield f"error of the run: {getattr(event, 'value', None) or getattr(event, 'exception', event)}"
        if isinstance(event, events.ScenarioFinished):
            for case_id, checks in event.recorder.checks.items():
                for check in checks:
                    failure: Failure | None = check.failure_info.failure if check.failure_info else None
                    if failure is not None:
                        sent = event.recorder.cases[case_id].value
                        yield _told(event, check.name, failure, sent)


def _told(event: events.ScenarioFinished, check: str, failure: Failure, case: Any) -> str:
    what = f"{event.phase.name} {check}: {failure.title}: {failure.message}"
    return f"{case.method} {case.path} {what}\n    query {case.query} body {str(case.body)[:1500]}"
