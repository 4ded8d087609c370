"""A run as JSON, as a table, as an HTML page; and two runs beside each other."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from imp_server.core import ConfigError

VERSION = 1
_LATENCIES = {
    "first_token_ms": "first token",
    "per_token_ms": "per output token",
    "between_events_ms": "between events",
    "end_to_end_ms": "end to end",
}
_TOTALS = {
    "requests_per_s": "requests/s",
    "output_tokens_per_s": "output tokens/s",
    "goodput_per_s": "goodput, requests/s",
    "cached_share": "prompt tokens from the cache",
    "drafts_accepted": "drafts accepted",
}
_SHARES = ("cached_share", "drafts_accepted")
BETTER_IF_LOWER = frozenset(_LATENCIES)


def latency_rows(of_run: dict[str, Any]) -> list[tuple[str, ...]]:
    """Name, mean, percentiles; milliseconds."""
    rows = []
    for key, name in _LATENCIES.items():
        spread = of_run[key]
        rows.append((name, *(f"{spread[part]:.1f}" for part in ("mean", "p50", "p90", "p99"))))
    return rows


def total_rows(of_run: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("requests", f"{of_run['requests']} in {of_run['seconds']:.1f} s, {of_run['failed']} failed")]
    for key, name in _TOTALS.items():
        if (value := of_run.get(key)) is not None:
            rows.append((name, f"{value:.0%}" if key in _SHARES else f"{value:.2f}"))
    return rows


def write_json(path: Path, report: dict[str, Any]) -> None:
    path.write_text(json.dumps({"version": VERSION, **report}, indent=1) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """A report of ours. Raises ConfigError."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as wrong:
        raise ConfigError(f"{path}: {wrong}") from None
    if not isinstance(report, dict) or report.get("version") != VERSION or not isinstance(report.get("runs"), list):
        raise ConfigError(f"{path} is no report of 'imp bench serve --json'")
    return report


def compared(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """Of each load that both have: what, before, after, after / before. Raises ConfigError if they share none."""
    rows = []
    known = {run["load"]: run for run in before["runs"]}
    for run in after["runs"]:
        if (other := known.get(run["load"])) is None:
            continue
        for key, name in {**_TOTALS, **_LATENCIES}.items():
            if key in run and key in other:
                a, b = _value(other[key]), _value(run[key])
                rows.append((run["load"], name, f"{a:.2f}", f"{b:.2f}", f"{b / a:.2f}" if a else "-"))
    if not rows:
        raise ConfigError("the two reports have no load in common")
    return rows


def _value(entry: Any) -> float:
    """A latency stands for its median."""
    return float(entry["p50"] if isinstance(entry, dict) else entry)


def as_html(report: dict[str, Any], pictures: dict[str, str]) -> str:
    """One page without anything from outside. `pictures`: title -> PNG in base64."""
    parts = [f"<h1>{html.escape(report['model'])} at {html.escape(report['url'])}</h1>"]
    parts.append(
        f"<p>{html.escape(report['made'])}, seed {report['seed']}, {html.escape(', '.join(report['shapes']))}</p>"
    )
    for title, png in pictures.items():
        parts.append(f'<h2>{html.escape(title)}</h2><img alt="{html.escape(title)}" src="data:image/png;base64,{png}">')
    for run in report["runs"]:
        parts.append(f"<h2>{html.escape(run['load'])}</h2>")
        parts.append(_table(("", ""), total_rows(run)))
        parts.append(_table(("milliseconds", "mean", "p50", "p90", "p99"), latency_rows(run)))
    return _PAGE.replace("BODY", "\n".join(parts))


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    lines = ["<tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in head) + "</tr>"] if any(head) else []
    lines += ["<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows]
    return "<table>" + "".join(lines) + "</table>"


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>imp bench serve</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: .5rem 0 1.5rem }
td, th { padding: .25rem .8rem; border-bottom: 1px solid #ddd; text-align: right }
td:first-child, th:first-child { text-align: left }
img { max-width: 100% }
</style>
<body>BODY</body></html>
"""
