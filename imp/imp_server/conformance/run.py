"""Runs cases against a target: probe capabilities, run, judge. Knows HTTP and nothing of imp."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from imp_server.conformance.boxes import unbox
from imp_server.conformance.capabilities import Capabilities
from imp_server.conformance.case import Case, CaseStep
from imp_server.conformance.exchange import Reply, Sender, Target
from imp_server.conformance.expressions import evaluate
from imp_server.conformance.vocabulary import FUNCTIONS, reply_names
from imp_server.core import ConfigError

Verdict = Literal["passed", "failed", "not claimed", "not applicable", "known failure"]
_INSIDE = re.compile(r"\$\{([^}]+)\}")
_SILENT_CASES = 3
"""So many cases in a row without an answer, and the target is asked whether it is there at all."""


@dataclass(slots=True)
class Outcome:
    case: Case
    verdict: Verdict
    detail: str = ""
    """Which expectation failed and what was there instead."""
    took_s: float = 0.0


@dataclass(slots=True)
class Scorecard:
    """What one run found, case by case."""

    target: str
    model: str
    capabilities: Capabilities
    outcomes: list[Outcome] = field(default_factory=list)

    def count(self, verdict: Verdict, level: str | None = None, dialect: str | None = None) -> int:
        return sum(
            o.verdict == verdict and level in (None, o.case.level) and dialect in (None, o.case.dialect)
            for o in self.outcomes
        )

    @property
    def dialects(self) -> list[str]:
        return sorted({o.case.dialect for o in self.outcomes})

    @property
    def passed(self) -> bool:
        """No MUST failed."""
        return self.count("failed", "MUST") == 0


class _NotApplicable(Exception):
    pass


class _Failed(Exception):
    pass


def run_cases(
    target: Target,
    cases: Iterable[Case],
    capabilities: Capabilities,
    *,
    known_failures: Mapping[str, str] | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> Scorecard:
    """Run `cases` one after the other. Once the target is gone, the rest fails without being sent."""
    card = Scorecard(target.url, capabilities.model, capabilities)
    n_silent, is_gone = 0, False
    for case in cases:
        if is_gone:
            outcome = Outcome(case, "failed", "not run: the target has stopped answering")
        else:
            outcome = run_case(target, case, capabilities, known_failures)
            n_silent = n_silent + 1 if ": no answer: " in outcome.detail else 0
            is_gone = n_silent >= _SILENT_CASES and target.send("GET", "/v1/models", body=None, headers={}).status == 0
        card.outcomes.append(outcome)
        if on_outcome:
            on_outcome(outcome)
    return card


def run_case(
    target: Sender, case: Case, capabilities: Capabilities, known_failures: Mapping[str, str] | None = None
) -> Outcome:
    """One case, judged."""
    lacking = [n for n in case.needs if n not in capabilities.claimed]
    if lacking:
        return Outcome(case, "not claimed", f"the target doesn't offer {', '.join(lacking)}")
    start = time.monotonic()
    names: dict[str, Any] = {**FUNCTIONS, "model": capabilities.model, "context": capabilities.context_length}
    try:
        for step in case.steps:
            _run_step(target, step, names)
    except _NotApplicable as reason:
        return Outcome(case, "not applicable", str(reason), time.monotonic() - start)
    except _Failed as failure:
        if known_failures and case.id in known_failures:
            return Outcome(case, "known failure", f"{known_failures[case.id]}: {failure}", time.monotonic() - start)
        return Outcome(case, "failed", str(failure), time.monotonic() - start)
    return Outcome(case, "passed", "", time.monotonic() - start)


def _run_step(target: Sender, step: CaseStep, names: dict[str, Any]) -> None:
    reply: Reply | None = None
    if step.request is not None:
        reply = _exchange(target, step, names)
        names.update(reply_names(reply))
        if step.save:
            names[step.save] = SavedReply(reply_names(reply))
    for name, expression in step.set.items():
        names[name] = _value(expression, names, reply)
    if step.skip_unless and not _value(step.skip_unless, names, reply):
        raise _NotApplicable(f"needs {step.skip_unless}")
    for expression in step.expect:
        if not _value(expression, names, reply):
            raise _Failed(f"expected {expression}; {_shown(reply)}")


class SavedReply:
    """The names of an earlier reply as attributes."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.__dict__.update(names)


def _value(expression: str, names: dict[str, Any], reply: Reply | None) -> Any:
    try:
        return evaluate(expression, names)
    except ConfigError:
        raise
    except Exception as error:
        raise _Failed(f"{expression}: {type(error).__name__}: {error}; {_shown(reply)}") from None


def _exchange(target: Sender, step: CaseStep, names: dict[str, Any]) -> Reply:
    assert step.request is not None
    method, path = step.request
    body, headers = None, {k: str(_filled(v, names)) for k, v in step.headers.items()}
    if step.raw is not None:
        body = step.raw.encode(step.encoding)
        headers.setdefault("content-type", "application/json")
    elif step.body is not None:
        body = json.dumps(_filled(step.body, names)).encode()
        headers.setdefault("content-type", "application/json")
    reply = target.send(
        method, str(_filled(path, names)), body=body, headers=headers, auth=step.auth, hang_up_after=step.hang_up_after
    )
    if reply.broken:
        raise _Failed(f"{method} {path}: {_shown(reply)}")
    return reply


def _filled(template: Any, names: Mapping[str, Any]) -> Any:
    """`fill`, where an earlier reply without what the next request needs is the target's fault."""
    try:
        return fill(template, names)
    except ConfigError:
        raise
    except Exception as error:
        raise _Failed(f"the next request can't be made of the last reply: {type(error).__name__}: {error}") from None


def fill(template: Any, names: Mapping[str, Any]) -> Any:
    """`template` with `$expr` (a whole string) and `${expr}` (inside text) replaced by values."""
    if isinstance(template, dict):
        return {k: fill(v, names) for k, v in template.items()}
    if isinstance(template, list):
        return [fill(v, names) for v in template]
    if not isinstance(template, str):
        return template
    if template.startswith("$$"):
        return template[1:]
    if template.startswith("$") and not template.startswith("${"):
        return unbox(evaluate(template[1:], names))
    return _INSIDE.sub(lambda m: str(unbox(evaluate(m.group(1), names))), template)


def _shown(reply: Reply | None) -> str:
    """The reply in short, for a report."""
    if reply is None:
        return "(no reply in this step)"
    if reply.status == 0:
        return reply.broken
    text = reply.content[:600].decode("utf-8", "replace").strip()
    broken = f" broken off ({reply.broken})" if reply.broken else ""
    return f"got status {reply.status}{broken}: {text}{'...' if len(reply.content) > 600 else ''}"
