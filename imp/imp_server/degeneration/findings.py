"""What a probe found: one check of one category, its verdict, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["pass", "fail", "weak model", "degenerated", "skip"]
"""`fail` is a failure nobody compared; with a baseline it is the model's (the reference fails, too) or ours."""

CATEGORIES = (
    "repetition", "think-leak", "special-tokens", "adherence", "long-context", "multi-turn", "stream", "constrained",
    "anthropic-thinking", "isolation", "kv-growth", "multilingual", "format",
)  # fmt: skip


@dataclass(slots=True)
class Finding:
    category: str
    check: str
    """Unique in a run: `category/probe/check`."""
    verdict: Verdict
    detail: str = ""
    """Why it failed or was skipped; the piece of text that shows it, cut short."""


def judged(category: str, probe: str, check: str, fault: str | None) -> Finding:
    """A pass, or a failure with what was found."""
    name = f"{category}/{probe}/{check}"
    return Finding(category, name, "pass" if fault is None else "fail", cut(fault or ""))


def skipped(category: str, probe: str, why: str) -> Finding:
    return Finding(category, f"{category}/{probe}", "skip", cut(why))


def cut(text: str, limit: int = 160) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "\u2026"
