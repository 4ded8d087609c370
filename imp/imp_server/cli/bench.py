"""Measure a model on this machine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import click
import msgspec

from imp_server.cli._bench_runs import Bench, Measured, Sizes
from imp_server.cli._bench_serve import command as bench_serve
from imp_server.cli._completion import runnable_names
from imp_server.cli._knob_options import ENGINE_SECTIONS, KnobCommand, with_config, with_model
from imp_server.cli._launch import loading_progress, locate
from imp_server.cli._terminal import print_table
from imp_server.config.load import Loaded
from imp_server.core import ConfigError
from imp_server.engine.build import build_engine
from imp_server.logs import set_up_logging


class BenchCommand(KnobCommand):
    """`imp bench serve` measures a running server: a command of its own behind this one's first word."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == ["serve"]:
            return bench_serve.make_context("bench serve", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(cls=BenchCommand, example="imp bench smollm2 --threads 4")
@click.argument("model", required=False, shell_complete=runnable_names)
@click.option(
    "--prompt-tokens",
    type=click.IntRange(2),
    default=512,
    metavar="N",
    show_default=True,
    help="Length of the prefill.",
)
@click.option(
    "--tokens", type=click.IntRange(2), default=64, metavar="N", show_default=True, help="Tokens generated per stream."
)
@click.option(
    "--streams", type=click.IntRange(2), default=8, metavar="N", show_default=True, help="Streams of the batch."
)
@click.option(
    "--rounds", type=click.IntRange(1), default=5, metavar="N", show_default=True, help="Rounds; medians are shown."
)
@click.option("--speculate", is_flag=True, help="Let drafters propose; off unless asked.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@with_config(*ENGINE_SECTIONS)
def command(
    loaded: Loaded,
    model: str | None,
    prompt_tokens: int,
    tokens: int,
    streams: int,
    rounds: int,
    speculate: bool,
    as_json: bool,
) -> None:
    """Measure MODEL here: decoding, prefill and a batch, through the engine's own loop in this process.

    Prompts are random ids and answers are sampled, so nothing repeats and no cache helps. GB/S counts the weights once
    per step; SHARE is its part of the bandwidth at which one thread reads them, measured in the same round. HOST is
    the time per step outside the forward; whoever reads the answers does so in this process, too, and adds to it, which
    a server's engine doesn't have. DRAFTS: accepted of drafted. COMPUTE is the prefill's rate beside what the inner
    loops of the file's layouts, and dot products alone, reach on numbers that stay in the first-level cache.

    `imp bench serve --url URL` measures a running server instead, imp or not, as its clients see it.
    """
    config = with_model(loaded, model)
    set_up_logging(config.log)
    located = locate(config)
    if located is None:
        raise ConfigError("a measurement needs a model")
    bench = Bench(
        lambda emit, post: build_engine(str(located.path), located.model_id, config.for_engine(), emit=emit, post=post),
        Sizes(prompt_tokens, tokens, streams, rounds, speculate),
    )
    rows = asyncio.run(_run(bench))
    info = bench.engine.info
    facts = {
        "model": located.model_id,
        "quantisation": info.quantisation,
        "backend": f"{info.backend} ({info.backend_detail})",
        "kv": info.kv_dtype,
        "weight_bytes": info.weight_bytes,
        "loop": bench.loop_name,
        "speculation": "on" if speculate else "off",
    }
    if as_json:
        measured = msgspec.to_builtins({"compute": bench.compute, "results": rows})
        click.echo(json.dumps({**facts, **measured}, indent=2))
        return
    if bench.compute:
        facts["compute"] = str(bench.compute)
    for name, value in facts.items():
        click.echo(f"{name.replace('_', ' '):13} {value:,}" if isinstance(value, int) else f"{name:13} {value}")
    click.echo()
    headings = ("RUN", "TOKENS/S", "LOW-HIGH", "GB/S", "SHARE", "HOST US/STEP", "DRAFTS")
    print_table(headings, [_row(row) for row in rows], right=frozenset(headings[1:6]))


async def _run(bench: Bench) -> list[Measured]:
    with loading_progress() as on_progress:
        await bench.engine.start(on_progress)
    try:
        return await bench.run()
    finally:
        await bench.engine.stop()


def _row(row: Measured) -> tuple[str, ...]:
    return (
        row.scenario,
        f"{row.tokens_per_s:.1f}",
        f"{row.low:.1f}-{row.high:.1f}",
        f"{row.gb_per_s:.1f}" if row.gb_per_s else "-",
        f"{row.share_of_bandwidth:.0%}" if row.gb_per_s else "-",
        f"{row.host_us_per_step:.0f}",
        f"{row.n_accepted} of {row.n_drafted}" if row.n_drafted else "none",
    )
