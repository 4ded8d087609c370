"""The same run of a reference engine on the same weights: it tells a weak model from a degenerated server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from imp_server.degeneration.findings import Finding

VERSION = 1


class BaselineError(Exception):
    """A baseline that can't be read, or that imp itself made."""


def write_baseline(path: Path, findings: list[Finding], engine: str, model: str) -> None:
    """A file that is there is added to: what failed in one run of a reference engine is the model's weakness.

    Engines that round otherwise answer otherwise where a model is undecided, and so does one engine with another cache.
    """
    kept = {f.check: str(f.verdict) for f in findings}
    if path.exists():
        earlier = _read(path)
        kept = {check: _worse(verdict, kept.get(check)) for check, verdict in {**kept, **earlier["checks"]}.items()}
        engine = f"{earlier['engine']}; {engine}"
    body = {"version": VERSION, "engine": engine, "model": model, "checks": kept}
    path.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _worse(verdict: str, other: str | None) -> str:
    return "fail" if "fail" in (verdict, other) else verdict


def read_baseline(path: Path) -> dict[str, str]:
    """Check -> the reference's verdict. Raises BaselineError."""
    return {str(check): str(verdict) for check, verdict in _read(path)["checks"].items()}


def _read(path: Path) -> dict[str, Any]:
    try:
        body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version, engine, checks = body["version"], str(body["engine"]), body["checks"]
    except (OSError, ValueError, KeyError, TypeError) as wrong:
        raise BaselineError(f"{path}: no baseline ({type(wrong).__name__}: {wrong})") from None
    if version != VERSION or not isinstance(checks, dict):
        raise BaselineError(f"{path}: a baseline of version {version}; make it again")
    if any(name.split()[:1] in (["imp"], ["imp-server"]) for name in engine.casefold().split(";")):
        raise BaselineError(f"{path}: made by {engine}: a server can't be its own reference")
    return body


def compare(findings: list[Finding], reference: dict[str, str]) -> None:
    """A failure becomes `weak model` where the reference fails too, `degenerated` where it passes."""
    for finding in findings:
        if finding.verdict == "fail":
            theirs = reference.get(finding.check)
            if theirs == "fail":
                finding.verdict = "weak model"
            elif theirs == "pass":
                finding.verdict = "degenerated"
