"""The command line: `imp degen`, and `analysis/degen_suite.py` where only Python is installed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from imp_server.degeneration.asker import ProbeAsker, reasons
from imp_server.degeneration.baseline import BaselineError, compare, read_baseline, write_baseline
from imp_server.degeneration.client import Client, Unreachable
from imp_server.degeneration.corpus import CorpusError, Record, load_corpus
from imp_server.degeneration.findings import CATEGORIES, Finding
from imp_server.degeneration.report import as_json, as_text, failed
from imp_server.degeneration.run import run

PASSED, FAILED, UNREACHABLE = 0, 1, 2
"""Exit codes; 2 also for wrong usage, as argparse has it."""


class CommandHelp(argparse.HelpFormatter):
    """Begins as the other commands' help does."""

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, "Usage: " if prefix is None else prefix)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="imp degen",
        formatter_class=CommandHelp,
        description="Asks a running server for answers and looks for degenerate ones: loops, leaked thoughts and "
        "control tokens, mixed or lost streams, JSON that doesn't fit. Exit code 0: all passed; 1: a check failed; "
        "2: no server, no model, or wrong usage.",
    )
    made.add_argument(
        "--url", default="http://localhost:8080", help="base URL, with or without /v1 (default: %(default)s)"
    )
    made.add_argument("--model", default="", help="model to ask (default: the first of /v1/models)")
    made.add_argument("--key", default="", help="API key")
    made.add_argument("--only", default="", help=f"categories, comma-separated: {', '.join(CATEGORIES)}")
    made.add_argument("--skip", default="", help="categories to leave out")
    made.add_argument(
        "--corpus",
        nargs="?",
        const="",
        default=None,
        metavar="PATH",
        help="ask the corpus, too: ours, or that of PATH (*.jsonl)",
    )
    made.add_argument("--quick", action="store_true", help="shorter answers, and only the corpus's quick records")
    made.add_argument("--timeout", type=float, default=300.0, help="seconds for one answer (default: %(default)s)")
    made.add_argument("--json", default="", metavar="PATH", help="write all findings (- = stdout)")
    made.add_argument("--skip-deterministic", action="store_true", help="don't expect equal answers to equal requests")
    made.add_argument(
        "--baseline",
        default="",
        metavar="FILE",
        help="a reference engine's run on the same weights: its failures are the model's",
    )
    made.add_argument(
        "--write-baseline",
        nargs=2,
        metavar=("FILE", "ENGINE"),
        help="keep this run as the baseline that ENGINE made; a FILE that is there is added to",
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = parser().parse_args(arguments)
    try:
        categories = _categories(options.only, options.skip)
        reference = read_baseline(Path(options.baseline)) if options.baseline else {}
        if options.write_baseline and Path(options.write_baseline[0]).exists():
            read_baseline(Path(options.write_baseline[0]))
        records = _records(options.corpus)
    except (BaselineError, CorpusError) as wrong:
        print(f"imp degen: {wrong}", file=sys.stderr)
        return UNREACHABLE
    try:
        client = Client(options.url, options.key, options.timeout)
        listed = client.models()
        model = options.model or next(iter(listed), "")
        if not model:
            print(f"imp degen: {options.url} lists no model; name one with --model", file=sys.stderr)
            return UNREACHABLE
        thinks = _probe(client, model)
    except Unreachable as wrong:
        print(f"imp degen: no answer from {options.url}: {wrong}", file=sys.stderr)
        return UNREACHABLE
    if thinks is None:
        return UNREACHABLE
    ask = ProbeAsker(client, model, thinks, options.quick, not options.skip_deterministic)
    findings = _told(run(ask, categories, records))
    compare(findings, reference)
    if options.write_baseline:
        path, engine = options.write_baseline
        write_baseline(Path(path), findings, engine, model)
    _report(options.json, findings, options.url, model, thinks)
    return FAILED if failed(findings) else PASSED


def _categories(only: str, skip: str) -> list[str]:
    chosen, left_out = _names(only), _names(skip)
    if unknown := [name for name in (*chosen, *left_out) if name not in CATEGORIES]:
        raise CorpusError(f"there is no category {', '.join(unknown)}: they are {', '.join(CATEGORIES)}")
    return [name for name in CATEGORIES if (not chosen or name in chosen) and name not in left_out]


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _records(corpus: str | None) -> list[Record]:
    if corpus is None:
        return []
    return load_corpus(Path(corpus) if corpus else None)


def _probe(client: Client, model: str) -> bool | None:
    """Whether it reasons; None, told, where the server refuses a plain question."""
    answer = ProbeAsker(client, model).chat("Say hello.", 8)
    if not answer.ok:
        print(f"imp degen: a plain question is refused: HTTP {answer.status}: {answer.error[:200]}", file=sys.stderr)
        return None
    return reasons(client, model)


def _told(findings: Iterator[Finding]) -> list[Finding]:
    """All findings; progress on stderr, a sign for each."""
    signs = {"pass": ".", "fail": "F", "skip": "s"}
    kept: list[Finding] = []
    for finding in findings:
        kept.append(finding)
        print(signs.get(finding.verdict, "?"), end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return kept


def _report(path: str, findings: list[Finding], url: str, model: str, thinks: bool) -> None:
    if path:
        text = as_json(findings, url, model, thinks)
        if path == "-":
            print(text)
        else:
            Path(path).write_text(text + "\n", encoding="utf-8")
    if path != "-":
        print(as_text(findings))
