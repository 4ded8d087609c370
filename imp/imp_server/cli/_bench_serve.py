"""`imp bench serve`: load on a running server."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from imp_server.cli._terminal import print_table
from imp_server.core import ConfigError
from imp_server.serving_bench.exchange import BenchTarget, Timing
from imp_server.serving_bench.figures import Promise, errors, figures
from imp_server.serving_bench.load import Plan, run
from imp_server.serving_bench.metrics import drafts
from imp_server.serving_bench.plots import in_base64, pictures, write_plots
from imp_server.serving_bench.report import as_html, compared, latency_rows, read_json, total_rows, write_json
from imp_server.serving_bench.shapes import SHAPES


@click.command(name="bench serve")
@click.option("--url", default="", help="Base URL of the server, with or without /v1.")
@click.option("--key", default="", help="API key, sent as a bearer token.")
@click.option("--model", default="", help="Model to ask for (default: the first of /v1/models).")
@click.option(
    "--shape", "shapes", multiple=True, type=click.Choice(list(SHAPES)), help="What is asked; repeatable [chat]."
)
@click.option(
    "--clients", default="1,4,8", show_default=True, help="Closed loop: so many clients at once, comma-separated."
)
@click.option("--rate", default="", help="Open loop instead: requests per second, arriving by chance; comma-separated.")
@click.option("--requests", type=click.IntRange(1), default=32, show_default=True, help="Requests of each load.")
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True, help="Limit of each answer.")
@click.option("--temperature", type=click.FloatRange(0), help="Of the answers (default: the server's own).")
@click.option("--seed", default=0, show_default=True, help="What is asked, and when: the same for the same seed.")
@click.option("--timeout", default=120.0, show_default=True, help="Seconds for one request.")
@click.option("--promise-first", default=0.0, metavar="MS", help="Goodput: first token within so many milliseconds.")
@click.option("--promise-per-token", default=0.0, metavar="MS", help="Goodput: each further token within so many.")
@click.option("--promise-end", default=0.0, metavar="MS", help="Goodput: the whole answer within so many.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures.")
@click.option(
    "--html", "html_path", type=click.Path(path_type=Path), help="Write one HTML page, with plots if possible."
)
@click.option("--plots", "plots_folder", type=click.Path(path_type=Path), help="Write PNG plots into this folder.")
@click.option(
    "--compare", nargs=2, type=click.Path(path_type=Path), help="Two JSON files side by side; nothing is run."
)
def command(**options: Any) -> int:
    """Load on a running server, and what its clients see: first token, tokens, whole answers, goodput.

    Any server of OpenAI Chat Completions can be measured. Exit code 1 if a request failed.
    """
    if options["compare"]:
        before, after = (read_json(path) for path in options["compare"])
        print_table(
            ("LOAD", "WHAT", "BEFORE", "AFTER", "RATIO"),
            compared(before, after),
            right=frozenset(("BEFORE", "AFTER", "RATIO")),
        )
        return 0
    if not options["url"]:
        raise ConfigError("name a server: imp bench serve --url http://127.0.0.1:8080")
    report, failed = asyncio.run(_measure(options))
    _write(report, options)
    return 1 if failed else 0


async def _measure(options: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    shapes = options["shapes"] or ("chat",)
    target = await _target(options)
    promise = Promise(options["promise_first"], options["promise_per_token"], options["promise_end"])
    runs, failed = [], False
    for name, plan in _plans(options, shapes):
        plan = replace(plan, temperature=options["temperature"])
        before = await drafts(target)
        timings = await _with_progress(target, name, plan)
        accepted = (await drafts(target)).share_since(before)
        of_run = {"load": name, **figures(timings, promise)}
        if accepted is not None:
            of_run["drafts_accepted"] = accepted
        runs.append(of_run)
        failed = failed or of_run["failed"] > 0
        _tell(of_run, timings)
    made = time.strftime("%Y-%m-%d %H:%M")
    facts = {
        "url": options["url"],
        "model": target.model,
        "made": made,
        "seed": options["seed"],
        "shapes": list(shapes),
    }
    asked = {"max_tokens": options["max_tokens"], "temperature": options["temperature"]}
    return {**facts, **asked, "runs": runs}, failed


async def _target(options: dict[str, Any]) -> BenchTarget:
    target = BenchTarget(options["url"], options["key"], options["model"], options["timeout"])
    status, body = await target.get("/v1/models")
    if status == 0:
        raise ConfigError(f"no answer from {options['url']}")
    if not target.model:
        try:
            target.model = str(json.loads(body)["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError):
            raise ConfigError(f"{options['url']} lists no model (HTTP {status}); name one with --model") from None
    return target


def _plans(options: dict[str, Any], shapes: tuple[str, ...]) -> list[tuple[str, Plan]]:
    sizes = (shapes, options["requests"], options["max_tokens"])
    if options["rate"]:
        rates = _numbers(options["rate"], "--rate")
        return [(f"{rate:g} requests/s", Plan(*sizes, rate=rate, seed=options["seed"])) for rate in rates]
    counts = [int(n) for n in _numbers(options["clients"], "--clients")]
    return [(f"{n} client{'s' * (n != 1)}", Plan(*sizes, clients=n, seed=options["seed"])) for n in counts]


def _numbers(text: str, option: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if not numbers or any(not 0 < n <= 10_000 for n in numbers):
        raise ConfigError(f"{option} {text}: numbers above 0, separated by commas")
    return numbers


async def _with_progress(target: BenchTarget, name: str, plan: Plan) -> list[Timing]:
    if not sys.stderr.isatty():
        return await run(target, plan)
    columns = (TextColumn(name), BarColumn(bar_width=30), TextColumn("{task.completed:.0f} of {task.total:.0f}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=plan.n_requests)
        return await run(target, plan, lambda _: bars.advance(task))


def _tell(of_run: dict[str, Any], timings: list[Timing]) -> None:
    click.echo(f"\n{of_run['load']}")
    for name, value in total_rows(of_run):
        click.echo(f"  {name:30} {value}")
    print_table(
        ("  MILLISECONDS", "MEAN", "P50", "P90", "P99"),
        [("  " + r[0], *r[1:]) for r in latency_rows(of_run)],
        right=frozenset(("MEAN", "P50", "P90", "P99")),
    )
    for n, told in errors(timings):
        click.echo(f"  {n} times: {told}", err=True)


def _write(report: dict[str, Any], options: dict[str, Any]) -> None:
    made: dict[str, bytes] = {}
    if options["plots_folder"]:
        made = pictures(report)
        for path in write_plots(options["plots_folder"], made):
            click.echo(f"wrote {path}")
    try:
        if options["json_path"]:
            write_json(options["json_path"], report)
        if options["html_path"]:
            options["html_path"].write_text(as_html(report, in_base64(made or _if_possible(report))), encoding="utf-8")
    except OSError as wrong:
        raise ConfigError(f"{wrong.filename}: {wrong.strerror}") from None


def _if_possible(report: dict[str, Any]) -> dict[str, bytes]:
    try:
        return pictures(report)
    except ConfigError as missing:
        click.echo(f"imp bench serve: {missing}; the page has tables alone", err=True)
        return {}
