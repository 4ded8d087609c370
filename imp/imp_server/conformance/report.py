"""A scorecard as terminal text, JSON, JUnit XML and one self-contained HTML page."""

# ruff: noqa: E501  (markup and style sheet)

from __future__ import annotations

import html
import json
from typing import Any
from xml.sax.saxutils import quoteattr

from imp_server.conformance.run import Outcome, Scorecard

_WORDS = ("passed", "failed", "known failure", "not claimed", "not applicable")


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
:root{color-scheme:light dark;--ink:#1c2430;--soft:#667;--line:#e3e3df;--bg:#fbfbfa;--box:#f1f1ee}
@media(prefers-color-scheme:dark){:root{--ink:#dde2e8;--soft:#9aa3ad;--line:#2b3036;--bg:#15181c;--box:#1e2329}}
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:64rem;padding:0 1rem;color:var(--ink);background:var(--bg)}
h1{font-size:1.5rem;margin:0;overflow-wrap:anywhere}h2{font-size:1.15rem;margin:2rem 0 .3rem}a{color:inherit}
.sub,.src{color:var(--soft)}.src{font-size:.85rem}.big{font-size:1.2rem;margin:.8rem 0}
table{border-collapse:collapse;width:100%;margin:.6rem 0}th,td{text-align:left;padding:.35rem .6rem;border-bottom:1px solid var(--line);vertical-align:middle}
th{font-weight:600;color:var(--soft);font-size:.85rem}.n{white-space:nowrap;font-variant-numeric:tabular-nums}
.bar{display:flex;height:.6rem;border-radius:.3rem;overflow:hidden;background:var(--line);min-width:10rem}.bar i{display:block}
.passed{background:#3a8f5c}.failed{background:#c8443c}.known-failure{background:#d79a2b}.not-claimed,.not-applicable{background:#c9ccd1}
.key span{display:inline-block;width:.7rem;height:.7rem;border-radius:.2rem;margin:0 .3rem 0 1rem}.key span:first-child{margin-left:0}
.case{padding:.5rem 0;border-bottom:1px solid var(--line)}.case b{font-weight:600}.v{color:#fff;border-radius:.25rem;padding:0 .4rem;font-size:.8rem;margin-right:.5rem;white-space:nowrap}
.v.not-claimed,.v.not-applicable{color:#333}code{font-size:.85rem;white-space:nowrap}summary{cursor:pointer;padding:.35rem 0}
pre{white-space:pre-wrap;font-size:.8rem;background:var(--box);padding:.6rem;border-radius:.3rem;margin:.4rem 0;overflow-wrap:anywhere}
"""


def as_html(card: Scorecard) -> str:
    """One page without outside assets: a bar per dialect, what failed, then all else folded away."""
    n_passed, n_failed = card.count("passed", "MUST"), card.count("failed", "MUST")
    verdict = "Every claimed MUST holds." if not n_failed else f"{n_failed} of {n_passed + n_failed} claimed MUST fail."
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Conformance of {_e(card.target)}</title><style>{_STYLE}</style>"
        f"<h1>Conformance of {_e(card.target)}</h1><div class=sub>model {_e(card.model)} &middot; {len(card.outcomes)} cases</div>"
        f"<div class=big>{verdict}</div>"
        f"{_summary_table(card)}{_key()}{''.join(_dialect_section(card, d) for d in card.dialects)}</html>"
    )


def _key() -> str:
    return f"<div class='key sub'>{''.join(f'<span class={_css(w)}></span>{w}' for w in _WORDS)}</div>"


def _summary_table(card: Scorecard) -> str:
    rows = []
    for row in summary_rows(card):
        total = sum(row[w] for w in _WORDS) or 1
        bar = "".join(
            f"<i class='{_css(w)}' style='width:{100 * row[w] / total:.1f}%' title='{row[w]} {w}'></i>" for w in _WORDS
        )
        must, should = (_share(row[level]) for level in ("MUST", "SHOULD"))
        rows.append(
            f"<tr><td><a href='#{_e(row['dialect'])}'>{_e(row['dialect'])}</a><td class=n>{must}<td class=n>{should}"
            f"<td class=n>{row['not claimed'] or ''}<td><div class=bar>{bar}</div>"
        )
    return f"<table><tr><th>dialect<th>MUST<th>SHOULD<th>not claimed<th>{''.join(rows)}</table>"


def _share(counts: dict[str, int]) -> str:
    return f"{counts['passed']} of {counts['judged']}" if counts["judged"] else "&ndash;"


def _dialect_section(card: Scorecard, dialect: str) -> str:
    """What failed in full; every other verdict is one line that opens."""
    outcomes = [o for o in card.outcomes if o.case.dialect == dialect]
    parts = [_case(o) for o in outcomes if o.verdict == "failed"]
    for verdict in ("known failure", "not applicable", "not claimed", "passed"):
        alike = [o for o in outcomes if o.verdict == verdict]
        if alike:
            cases = "".join(_case(o) for o in alike)
            parts.append(f"<details><summary>{len(alike)} {verdict}</summary>{cases}</details>")
    return f"<h2 id='{_e(dialect)}'>{_e(dialect)}</h2>{''.join(parts)}"


def _case(outcome: Outcome) -> str:
    case = outcome.case
    detail = f"<pre>{_e(_printable(outcome.detail))}</pre>" if outcome.detail and outcome.verdict != "passed" else ""
    return (
        f"<div class=case><span class='v {_css(outcome.verdict)}'>{case.level}</span>{_e(case.requires)}"
        f"<div class=src><code>{_e(case.id)}</code> &middot; {_e(case.source)}</div>{detail}</div>"
    )


def _css(verdict: str) -> str:
    return verdict.replace(" ", "-")


def _e(text: str) -> str:
    return html.escape(text, quote=True)
