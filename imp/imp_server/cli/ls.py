"""List the models that are here."""

from __future__ import annotations

import json
from typing import Any

import click

from imp_server.backends.machine import available_bytes
from imp_server.cli._model_facts import SOME_CONTEXT, ModelFacts, memory_of_known, model_facts
from imp_server.cli._terminal import age_text, print_table, size_text
from imp_server.weights.catalogue import Pulled, pulled_models
from imp_server.weights.known import KNOWN, Known

KNOWN_HEADINGS = ("NAME", "NOT HERE YET", "SIZE", "MEMORY", "LICENCE", "RUNS")


@click.command()
@click.option("--known", is_flag=True, help="Also models that are known by name and not here.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def command(known: bool, as_json: bool) -> None:
    """List the models that are here."""
    here = [(pulled, model_facts(pulled.path)) for pulled in pulled_models()]
    names = {pulled.name for pulled, _ in here}
    missing = [entry for entry in KNOWN.values() if entry.name not in names]
    if as_json:
        rows = [_as_json(pulled, facts) for pulled, facts in here]
        rows += [
            {
                "name": e.name,
                "here": False,
                "source": e.source_text,
                "about": e.about_text,
                "bytes": e.file_bytes,
                "memory_bytes": memory_of_known(e),
                "licence": e.licence,
                "runs": e.runs,
                "fits": _fits(e),
            }
            for e in missing
            if known
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    if here:
        headings = ("NAME", "KIND", "TYPE", "SIZE", "CONTEXT", "PULLED")
        print_table(headings, [_row(*entry) for entry in here], right=frozenset({"SIZE", "CONTEXT"}))
    else:
        click.echo("no models are here yet; `imp pull smollm2` fetches the default one")
    if known and missing:
        click.echo()
        print_table(KNOWN_HEADINGS, [_known_row(entry) for entry in missing], right=frozenset({"SIZE", "MEMORY"}))
        click.echo(f"MEMORY: about what it takes with {SOME_CONTEXT:,} tokens of context")


def _known_row(known: Known) -> tuple[str, ...]:
    runs = "not yet" if not known.runs else "yes" if _fits(known) else "not in the memory that is free"
    sizes = size_text(known.file_bytes), size_text(memory_of_known(known))
    return known.name, known.about, *sizes, known.licence, runs


def _fits(known: Known) -> bool:
    return memory_of_known(known) <= available_bytes()


def _row(pulled: Pulled, facts: ModelFacts) -> tuple[str, ...]:
    kind = f"{facts.architecture or '?'}" + ("" if not facts.problem else " (unsupported)")
    context = f"{facts.context:,}" if facts.context else ""
    when = age_text(pulled.manifest.pulled_at)
    return pulled.name, kind, facts.quantisation, size_text(pulled.manifest.size), context, when


def _as_json(pulled: Pulled, facts: ModelFacts) -> dict[str, Any]:
    manifest = pulled.manifest
    about = {"name": pulled.name, "here": True, "source": manifest.source, "bytes": manifest.size}
    return {**about, "pulled_at": int(manifest.pulled_at), **facts.as_json()}
