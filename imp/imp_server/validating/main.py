"""The command line: `imp validate`, and `analysis/validate_safetensors.py` where only Python is installed."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from imp_server.degeneration.client import Client, Unreachable
from imp_server.degeneration.findings import Finding
from imp_server.degeneration.main import CommandHelp
from imp_server.validating.checks import CHECKS, run
from imp_server.validating.server import Served

PASSED, FAILED, UNREACHABLE = 0, 1, 2
"""Exit codes; 2 also for wrong usage, as argparse has it."""

Serve = Callable[[str], AbstractContextManager[str]]
"""Serves a checkpoint as long as its block lasts: path -> URL."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="imp validate",
        formatter_class=CommandHelp,
        description="Looks whether a served checkpoint is healthy: its tokenizer, greedy replays byte by byte, a few "
        "prompts, logprobs, repetition, seeds, and parity with transformers where that is installed. Exit code 0: all "
        "passed; 1: a check failed; 2: no server, no model, or wrong usage.",
    )
    made.add_argument("checkpoint", nargs="?", default="", help="the model's folder or file; served for the run")
    made.add_argument("--url", default="", help="a running server of it instead, with or without /v1")
    made.add_argument("--model", default="", help="its name there (default: the first of /v1/models)")
    made.add_argument("--key", default="", help="API key")
    made.add_argument("--only", default="", help=f"checks, comma-separated: {', '.join(CHECKS)}")
    made.add_argument("--skip", default="", help="checks to leave out")
    made.add_argument("--timeout", type=float, default=300.0, help="seconds for one answer (default: %(default)s)")
    return made


def main(arguments: Sequence[str] | None = None, serve: Serve | None = None) -> int:
    """The exit code. `serve`: for a checkpoint without a server; without it --url is needed."""
    options = parser().parse_args(arguments)
    names = [name for name in _names(options.only) or CHECKS if name not in _names(options.skip)]
    if unknown := [name for name in (*names, *_names(options.skip)) if name not in CHECKS]:
        return _wrong(f"there is no check {', '.join(unknown)}: they are {', '.join(CHECKS)}")
    checkpoint = Path(options.checkpoint) if options.checkpoint else None
    if not options.url and (checkpoint is None or serve is None):
        return _wrong("name a checkpoint, or a server of one with --url")
    serving = contextlib.nullcontext(options.url) if options.url or serve is None else serve(options.checkpoint)
    with serving as url:
        try:
            client = Client(url, options.key, options.timeout)
            model = options.model or next(iter(client.models()), "")
            if not model:
                return _wrong(f"{url} lists no model; name one with --model")
            findings = list(_told(run(Served(client, model), checkpoint, names)))
        except Unreachable as wrong:
            return _wrong(f"no answer from {url}: {wrong}")
    return _report(findings)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _wrong(message: str) -> int:
    print(f"imp validate: {message}", file=sys.stderr)
    return UNREACHABLE


def _told(findings: Iterator[Finding]) -> Iterator[Finding]:
    """Each finding that isn't a pass is a line at once."""
    for finding in findings:
        if finding.verdict != "pass":
            print(f"{finding.verdict.upper()}: {finding.check}: {finding.detail}", flush=True)
        yield finding


def _report(findings: list[Finding]) -> int:
    for name in CHECKS:
        counts = Counter(finding.verdict for finding in findings if finding.category == name)
        if counts:
            print(f"{name:12} " + ", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items())))
    return FAILED if any(finding.verdict == "fail" for finding in findings) else PASSED
