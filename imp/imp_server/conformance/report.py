"""A scorecard as terminal text, JSON, JUnit XML and one self-contained HTML page."""

# ruff: noqa: E501  (markup and style sheet)

from __future__ import annotations

import html
import json
from typing import Any
from xml.sax.saxutils import quoteattr

from imp_server.conformance.run import Outcome, Scorecard

_WORDS = ("passed", "failed", "known failure", "not claimed", "not applicable")
_ORDER = {"failed": 0, "known failure": 1, "not applicable": 2, "not claimed": 3, "passed": 4}


def summary_rows(card: Scorecard) -> list[dict[str, Any]]:
    """One row per dialect: counts by verdict and the share of claimed MUST and SHOULD cases that passed."""
    rows = []
    for dialect in card.dialects:
        row: dict[str, Any] = {"dialect": dialect}
        for level in ("MUST", "SHOULD"):
            passed = card.count("passed", level, dialect)
            judged = passed + card.count("failed", level, dialect) + card.count("known failure", level, dialect)
            row[level] = {"passed": passed, "judged": judged}
        for word in _WORDS:
            row[word] = card.count(word, None, dialect)  # type: ignore[arg-type]
        rows.append(row)
    return rows


def as_text(card: Scorecard) -> str:
    """Fits 80 columns."""
    lines = [f"{'dialect':<22}{'MUST':>11}{'SHOULD':>11}{'failed':>8}{'not claimed':>13}{'n/a':>6}"]
    for row in summary_rows(card):
        must, should = (f"{row[lv]['passed']}/{row[lv]['judged']}" for lv in ("MUST", "SHOULD"))
        lines.append(
            f"{row['dialect']:<22}{must:>11}{should:>11}{row['failed']:>8}{row['not claimed']:>13}{row['not applicable']:>6}"
        )
    lines.extend(
        f"\n{o.case.level} {o.case.id}: {o.case.requires}\n    {o.detail}"
        for o in card.outcomes
        if o.verdict == "failed"
    )
    return "\n".join(lines)


def as_json(card: Scorecard) -> str:
    return json.dumps(
        {
            "target": card.target,
            "model": card.model,
            "capabilities": sorted(card.capabilities.claimed),
            "summary": summary_rows(card),
            "cases": [_outcome(o) for o in card.outcomes],
        },
        ensure_ascii=False,
        indent=1,
    )


def _outcome(outcome: Outcome) -> dict[str, Any]:
    case = outcome.case
    return {
        "id": case.id, "level": case.level, "verdict": outcome.verdict, "requires": case.requires,
        "source": case.source, "detail": outcome.detail, "seconds": round(outcome.took_s, 3),
    }  # fmt: skip


def as_junit(card: Scorecard) -> str:
    """Failed SHOULDs are skipped with their detail: only a MUST fails a build."""
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuite name="conformance" tests="{len(card.outcomes)}" failures="{card.count("failed", "MUST")}">',
    ]
    for outcome in card.outcomes:
        case = outcome.case
        lines.append(
            f'<testcase classname={quoteattr(case.dialect)} name={quoteattr(case.id)} time="{outcome.took_s:.3f}">'
        )
        if outcome.verdict == "failed" and case.level == "MUST":
            lines.append(
                f"<failure message={quoteattr(case.requires)}>{html.escape(_printable(outcome.detail))}</failure>"
            )
        elif outcome.verdict != "passed":
            lines.append(f"<skipped message={quoteattr(_printable(f'{outcome.verdict}: {outcome.detail}'))}/>")
        lines.append("</testcase>")
    return "\n".join([*lines, "</testsuite>"])


def _printable(text: str) -> str:
    return "".join(c if c in "\t\n\r" or c >= " " else "?" for c in text)


_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#1c2430;background:#fbfbfa}
h1{font-size:1.5rem;margin:0}.sub{color:#667;margin:.2rem 0 1.5rem}table{border-collapse:collapse;width:100%;margin:1rem 0}
th,td{text-align:left;padding:.35rem .6rem;border-bottom:1px solid #e3e3df;vertical-align:top}th{font-weight:600;color:#556}
.bar{display:flex;height:.6rem;border-radius:.3rem;overflow:hidden;background:#e9e9e5;min-width:8rem}
.bar i{display:block}.passed{background:#3a8f5c}.failed{background:#c8443c}.known-failure{background:#d79a2b}
.not-claimed,.not-applicable{background:#c9ccd1}.v{color:#fff;border-radius:.25rem;padding:0 .4rem;font-size:.8rem;white-space:nowrap}
.v.not-claimed,.v.not-applicable{color:#333}code{font-size:.85rem}details{margin:.2rem 0}pre{white-space:pre-wrap;font-size:.8rem;
background:#f1f1ee;padding:.6rem;border-radius:.3rem;margin:.3rem 0;overflow-wrap:anywhere}.src{color:#778;font-size:.85rem}
@media(prefers-color-scheme:dark){body{background:#15181c;color:#dde2e8}th,td{border-color:#2b3036}pre{background:#1e2329}.bar{background:#2b3036}}
"""


def as_html(card: Scorecard) -> str:
    """One page without outside assets: a bar per dialect, failures first, every case with its requirement and source."""
    n_must = card.count("passed", "MUST"), card.count("passed", "MUST") + card.count("failed", "MUST")
    head = (
        f"<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'><title>Conformance</title>"
        f"<style>{_STYLE}</style><h1>Conformance of {_e(card.target)}</h1>"
        f"<p class=sub>model {_e(card.model)} &middot; {n_must[0]} of {n_must[1]} claimed MUST cases passed &middot; "
        f"{card.count('not claimed')} not claimed</p>"
    )
    return head + _summary_table(card) + "".join(_dialect_section(card, d) for d in card.dialects)


def _summary_table(card: Scorecard) -> str:
    rows = []
    for row in summary_rows(card):
        total = sum(row[w] for w in _WORDS) or 1
        bar = "".join(
            f"<i class='{_css(w)}' style='width:{100 * row[w] / total:.1f}%' title='{row[w]} {w}'></i>" for w in _WORDS
        )
        must, should = (f"{row[lv]['passed']} / {row[lv]['judged']}" for lv in ("MUST", "SHOULD"))
        rows.append(
            f"<tr><td><a href='#{_e(row['dialect'])}'>{_e(row['dialect'])}</a><td>{must}<td>{should}"
            f"<td>{row['not claimed']}<td><div class=bar>{bar}</div>"
        )
    return f"<table><tr><th>dialect<th>MUST<th>SHOULD<th>not claimed<th>{''.join(rows)}</table>"


def _dialect_section(card: Scorecard, dialect: str) -> str:
    outcomes = sorted((o for o in card.outcomes if o.case.dialect == dialect), key=lambda o: _ORDER[o.verdict])
    rows = []
    for outcome in outcomes:
        case = outcome.case
        detail = (
            f"<pre>{_e(_printable(outcome.detail))}</pre>" if outcome.detail and outcome.verdict != "passed" else ""
        )
        rows.append(
            f"<tr><td><span class='v {_css(outcome.verdict)}'>{outcome.verdict}</span><td><code>{_e(case.id)}</code>"
            f"<td>{case.level}<td>{_e(case.requires)}<div class=src>{_e(case.source)}</div>{detail}"
        )
    return f"<h2 id='{_e(dialect)}'>{_e(dialect)}</h2><table>{''.join(rows)}</table>"


def _css(verdict: str) -> str:
    return verdict.replace(" ", "-")


def _e(text: str) -> str:
    return html.escape(text, quote=True)
