"""Score any OpenAI, Anthropic or Responses server against the conformance kit."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from imp_server.conformance.capabilities import probe
from imp_server.conformance.case import Case, load_cases, load_known_failures
from imp_server.conformance.exchange import Target
from imp_server.conformance.report import as_html, as_json, as_junit, as_text
from imp_server.conformance.run import Outcome, run_cases
from imp_server.core import ConfigError

_SILENCE_S = 10.0


@click.command()
@click.option("--url", required=True, help="Base URL of the server, with or without /v1.")
@click.option("--key", default="", help="API key, sent as a bearer token.")
@click.option("--model", default=None, help="Model to ask for (default: the first that /v1/models lists).")
@click.option("--dialect", "dialects", multiple=True, help="Only this dialect; repeatable.")
@click.option("--only", default="", help="Only these case ids or id prefixes, comma-separated.")
@click.option("--require", default="", help="What the server must offer, comma-separated: chat, tools, structured, ...")
@click.option("--known-failures", type=click.Path(path_type=Path), help="YAML list of {id, reason} to report apart.")
@click.option("--timeout", default=60.0, show_default=True, help="Seconds for one exchange.")
@click.option("--json", "json_path", is_flag=False, flag_value="-", help="Write the scorecard as JSON (- = stdout).")
@click.option("--junit", type=click.Path(path_type=Path), help="Write JUnit XML.")
@click.option("--html", type=click.Path(path_type=Path), help="Write an HTML report.")
@click.option("--verbose", is_flag=True, help="A line per case as it ends.")
def command(
    url: str,
    key: str,
    model: str | None,
    dialects: tuple[str, ...],
    only: str,
    require: str,
    known_failures: Path | None,
    timeout: float,
    json_path: str | None,
    junit: Path | None,
    html: Path | None,
    verbose: bool,
) -> int:
    """Score the server at URL. Exit code 1 if a MUST fails, 0 otherwise.

    Needs nothing but the URL: what the server doesn't offer is reported as not claimed, and is a failure only if
    --require names it.
    """
    everything = load_cases()
    cases = _chosen(everything, dialects, only)
    required = _required(everything, require)
    known = _known(everything, known_failures)
    _check_writable(junit, html, Path(json_path) if json_path and json_path != "-" else None)
    target = Target(url.rstrip("/").removesuffix("/v1"), key, timeout)
    capabilities = probe(target, model)
    missing = sorted(required - capabilities.claimed)
    with _progress(len(cases), verbose) as on_outcome:
        card = run_cases(target, cases, capabilities, known_failures=known, on_outcome=on_outcome)
    if json_path:
        _write(json_path, as_json(card))
    if junit:
        junit.write_text(as_junit(card), encoding="utf-8")
    if html:
        html.write_text(as_html(card), encoding="utf-8")
    if json_path != "-":
        click.echo(as_text(card))
    if missing:
        click.echo(f"required, but not offered for the model {capabilities.model}: {', '.join(missing)}", err=True)
    return 0 if card.passed and not missing else 1


def _required(cases: list[Case], names: str) -> set[str]:
    """Raises ConfigError for a name that no case needs."""
    known = {need for case in cases for need in case.needs}
    required = {name.strip() for name in names.split(",") if name.strip()}
    if unknown := sorted(required - known):
        raise ConfigError(f"--require {', '.join(unknown)}: the names are {', '.join(sorted(known))}")
    return required


def _known(cases: list[Case], file: Path | None) -> dict[str, str]:
    """Raises ConfigError for an id that is no case's: it would excuse nothing."""
    known = load_known_failures(file) if file else {}
    if strangers := sorted(set(known) - {case.id for case in cases}):
        raise ConfigError(f"{file}: there is no case {', '.join(strangers)}")
    return known


def _check_writable(*reports: Path | None) -> None:
    """Before a run of minutes. Raises ConfigError."""
    for report in reports:
        if report is not None and not (report.parent.is_dir() and os.access(report.parent, os.W_OK)):
            raise ConfigError(f"{report} can't be written: {report.parent} is no folder that you can write to")


def _chosen(cases: list[Case], dialects: tuple[str, ...], only: str) -> list[Case]:
    known = sorted({c.dialect for c in cases})
    for dialect in dialects:
        if dialect not in known:
            raise ConfigError(f"there are no cases for '{dialect}': the dialects are {', '.join(known)}")
    prefixes = tuple(p.strip() for p in only.split(",") if p.strip())
    chosen = [c for c in cases if (not dialects or c.dialect in dialects) and (not prefixes or _begins(c.id, prefixes))]
    if not chosen:
        raise ConfigError(f"no case matches --only {only}")
    return chosen


def _begins(case_id: str, prefixes: tuple[str, ...]) -> bool:
    return any(case_id == p or case_id.startswith(p.rstrip("/") + "/") for p in prefixes)


@contextmanager
def _progress(n_cases: int, verbose: bool) -> Iterator[Callable[[Outcome], None] | None]:
    """A line per case if asked for, else a bar on a terminal, else a line now and then; all on stderr."""
    if verbose:
        yield _tell
        return
    if not sys.stderr.isatty():
        yield _Counted(n_cases).count
        return
    columns = (TextColumn("{task.completed:.0f} of {task.total:.0f}"), BarColumn(bar_width=30), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=n_cases)
        yield lambda outcome: bars.update(task, advance=1, description=outcome.case.id)


class _Counted:
    """Tells how far the run is: after each tenth of it and whenever it has been silent for a while."""

    def __init__(self, n_cases: int) -> None:
        self._n_cases, self._n_done = n_cases, 0
        self._told_s = time.monotonic()

    def count(self, outcome: Outcome) -> None:
        self._n_done += 1
        tenth = 10 * self._n_done // self._n_cases > 10 * (self._n_done - 1) // self._n_cases
        if tenth or time.monotonic() - self._told_s > _SILENCE_S:
            self._told_s = time.monotonic()
            click.echo(f"{self._n_done} of {self._n_cases} cases: {outcome.case.id}", err=True)


def _tell(outcome: Outcome) -> None:
    click.echo(f"{outcome.verdict:<14} {outcome.case.level:<6} {outcome.case.id}", err=True)


def _write(path: str, text: str) -> None:
    if path == "-":
        click.echo(text)
    else:
        Path(path).write_text(text, encoding="utf-8")
