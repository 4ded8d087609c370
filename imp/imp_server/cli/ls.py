"""List the models that are here."""

from __future__ import annotations

import json
from typing import Any

import click

from imp_server.cli._model_facts import ModelFacts, model_facts
from imp_server.cli._terminal import age_text, print_table, size_text
from imp_server.weights.catalogue import Pulled, pulled_models
from imp_server.weights.known import KNOWN


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
            {"name": e.name, "here": False, "source": e.source_text, "about": e.about_text} for e in missing if known
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
        print_table(("NAME", "NOT HERE YET"), [(entry.name, entry.about_text) for entry in missing])


def _row(pulled: Pulled, facts: ModelFacts) -> tuple[str, ...]:
    kind = f"{facts.architecture or '?'}" + ("" if not facts.problem else " (unsupported)")
    context = f"{facts.context:,}" if facts.context else ""
    when = age_text(pulled.manifest.pulled_at)
    return pulled.name, kind, facts.quantisation, size_text(pulled.manifest.size), context, when


def _as_json(pulled: Pulled, facts: ModelFacts) -> dict[str, Any]:
    manifest = pulled.manifest
    about = {"name": pulled.name, "here": True, "source": manifest.source, "bytes": manifest.size}
    return {**about, "pulled_at": int(manifest.pulled_at), **facts.as_json()}
