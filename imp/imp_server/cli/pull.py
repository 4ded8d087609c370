"""Fetch a model into the catalogue."""

from __future__ import annotations

import json
import sys

import click

from imp_server.backends.machine import total_bytes
from imp_server.cli._completion import model_names
from imp_server.cli._terminal import size_text, transfer_progress
from imp_server.core import UnsupportedModel
from imp_server.weights.catalogue import find
from imp_server.weights.known import KNOWN, HubModel
from imp_server.weights.pull import pull


@click.command()
@click.argument("source", shell_complete=model_names)
@click.option("--as", "name", default="", metavar="NAME", help="Keep it under this name.")
@click.option("--revision", default="main", show_default=True, help="Branch, tag or commit of an hf: repository.")
@click.option("--force", is_flag=True, help="Fetch it again although it is here.")
@click.option("--yes", is_flag=True, help="Fetch it without asking, even if it can't be run.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(source: str, name: str, revision: str, force: bool, yes: bool, as_json: bool) -> None:
    """Fetch SOURCE: a known name (`imp ls --known`), hf:org/repo[:file or quantisation], or a path.

    A pull that was stopped goes on where it was. Files are checked against their digests.
    """
    if not yes and (problem := _why_not_runnable(source, revision)):
        _ask(source, problem)
    if too_large := _why_too_large(source):
        click.echo(too_large, err=True)
    with transfer_progress() as on_progress:
        pulled = pull(source, on_progress, name=name, revision=revision, force=force)
    size = pulled.manifest.size
    if as_json:
        result = {"name": pulled.name, "path": str(pulled.path), "bytes": size, "source": pulled.manifest.source}
        click.echo(json.dumps(result))
    else:
        click.echo(f"{pulled.name} is here, {size_text(size)}:\n{pulled.path}")


def _why_too_large(source: str) -> str:
    """ "" if this machine's memory holds it, as far as we know before it is here."""
    from imp_server.cli._model_facts import memory_of_known

    known, memory = KNOWN.get(source), total_bytes()
    if known is None or memory is None or memory_of_known(known) <= memory:
        return ""
    need = size_text(memory_of_known(known))
    return f"{source} takes about {need} of memory to run, and this machine has {size_text(memory)}"


def _why_not_runnable(source: str, revision: str) -> str:
    """ "" if it can be run, or if only its files will tell."""
    wanted = find(source)
    if wanted is None or wanted.pulled:
        return ""
    if wanted.path is None:
        known = KNOWN.get(source)
        if known is None and isinstance(wanted.source, HubModel):
            return _foreign_at_hub(wanted.source, revision)
        return (
            ""
            if known is None or known.runs
            else f"{source} ({known.about}) can't be run yet: its family isn't supported"
        )
    from imp_server.cli._model_facts import model_facts

    facts = model_facts(wanted.path)
    return f"{source} can't be run: {facts.problem}" if facts.exit_code == UnsupportedModel.exit_code else ""


def _foreign_at_hub(source: HubModel, revision: str) -> str:
    from imp_server.models.opening import families_by_architecture, families_by_model_type
    from imp_server.weights.pull_hub import family_at_hub

    architecture, model_type = family_at_hub(source.repo, revision)
    is_known = architecture in families_by_architecture() if architecture else model_type in families_by_model_type()
    if is_known or not (architecture or model_type):
        return ""
    return f"hf:{source.repo} can't be run: its family, {architecture or model_type}, isn't supported"


def _ask(source: str, problem: str) -> None:
    """Raises UnsupportedModel where nobody says yes."""
    if not sys.stdin.isatty():
        raise UnsupportedModel(f"{problem}; `imp pull {source} --yes` fetches it anyway")
    click.echo(problem, err=True)
    if not click.confirm("Fetch it anyway?", err=True):
        raise UnsupportedModel(f"{source} wasn't fetched")
