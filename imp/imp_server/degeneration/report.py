"""A run in words and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from imp_server.degeneration.findings import CATEGORIES, Finding

FAULTS = ("fail", "degenerated")


def as_text(findings: list[Finding]) -> str:
    """A line per category, then each check that didn't pass."""
    lines = []
    for category in CATEGORIES:
        of_it = [f for f in findings if f.category == category]
        if of_it:
            counts = Counter(f.verdict for f in of_it)
            told = ", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items(), key=lambda item: -item[1]))
            lines.append(f"{category:20} {told}")
    lines += [""] if any(f.verdict != "pass" for f in findings) else []
    for finding in findings:
        if finding.verdict != "pass":
            sign = finding.verdict.upper() if finding.verdict in FAULTS else finding.verdict
            lines.append(f"{sign}: {finding.check}: {finding.detail}")
    counts = Counter(f.verdict for f in findings)
    lines.append("")
    lines.append(f"{len(findings)} checks: " + ", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items())))
    return "\n".join(lines)


def as_json(findings: list[Finding], url: str, model: str, reasons: bool) -> str:
    counts: dict[str, int] = dict(Counter(f.verdict for f in findings))
    rows: list[dict[str, Any]] = [
        {"category": f.category, "check": f.check, "verdict": f.verdict, "detail": f.detail} for f in findings
    ]
    body = {"url": url, "model": model, "reasons": reasons, "counts": counts, "checks": rows}
    return json.dumps(body, indent=1, ensure_ascii=False)


def failed(findings: list[Finding]) -> bool:
    return any(f.verdict in FAULTS for f in findings)
