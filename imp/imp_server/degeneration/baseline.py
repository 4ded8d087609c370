"""The same run of a reference engine on the same weights: it tells a weak model from a degenerated server."""

from __future__ import annotations

import json
from pathlib import Path

from imp_server.degeneration.findings import Finding

VERSION = 1


class BaselineError(Exception):
    """A baseline that can't be read, or that imp itself made."""


def write_baseline(path: Path, findings: list[Finding], engine: str, model: str) -> None:
    kept = {f.check: f.verdict for f in findings}
    body = {"version": VERSION, "engine": engine, "model": model, "checks": kept}
    path.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_baseline(path: Path) -> dict[str, str]:
    """Check -> the reference's verdict. Raises BaselineError."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        version, engine, checks = body["version"], str(body["engine"]), body["checks"]
    except (OSError, ValueError, KeyError, TypeError) as wrong:
        raise BaselineError(f"{path}: no baseline ({type(wrong).__name__}: {wrong})") from None
    if version != VERSION or not isinstance(checks, dict):
        raise BaselineError(f"{path}: a baseline of version {version}; make it again")
    if engine.partition(" ")[0].casefold() in ("imp", "imp-server"):
        raise BaselineError(f"{path}: made by {engine}: a server can't be its own reference")
    return {str(check): str(verdict) for check, verdict in checks.items()}


def compare(findings: list[Finding], reference: dict[str, str]) -> None:
    """A failure becomes `weak model` where the reference fails too, `degenerated` where it passes."""
    for finding in findings:
        if finding.verdict == "fail":
            theirs = reference.get(finding.check)
            if theirs == "fail":
                finding.verdict = "weak model"
            elif theirs == "pass":
                finding.verdict = "degenerated"
