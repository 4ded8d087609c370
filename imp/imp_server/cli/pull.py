"""Fetch a model into the catalogue."""

from __future__ import annotations

import json

import click

from imp_server.cli._completion import model_names
from imp_server.cli._terminal import size_text, transfer_progress
from imp_server.weights.pull import pull


@click.command()
@click.argument("source", shell_complete=model_names)
@click.option("--as", "name", default="", metavar="NAME", help="Keep it under this name.")
@click.option("--revision", default="main", show_default=True, help="Branch, tag or commit of an hf: repository.")
@click.option("--force", is_flag=True, help="Fetch it again although it is here.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(source: str, name: str, revision: str, force: bool, as_json: bool) -> None:
    """Fetch SOURCE: a known name (`imp ls --known`), hf:org/repo[:file or quantisation], or a path.

    A pull that was stopped goes on where it was. Files are checked against their digests.
    """
    with transfer_progress() as on_progress:
        pulled = pull(source, on_progress, name=name, revision=revision, force=force)
    size = pulled.manifest.size
    if as_json:
        result = {"name": pulled.name, "path": str(pulled.path), "bytes": size, "source": pulled.manifest.source}
        click.echo(json.dumps(result))
    else:
        click.echo(f"{pulled.name} is here, {size_text(size)}:\n{pulled.path}")
