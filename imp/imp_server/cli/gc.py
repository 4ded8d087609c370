"""Free what no model uses."""

from __future__ import annotations

import json

import click

from imp_server.cli._knob_options import KnobCommand, with_config
from imp_server.cli._leftovers import delete, leftovers
from imp_server.cli._terminal import print_table, size_text
from imp_server.config.load import Loaded


@click.command(cls=KnobCommand)
@click.option("--yes", is_flag=True, help="Delete it; without this it is only listed.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array of what was found.")
@with_config("cpu", "prefix_cache")
def command(loaded: Loaded, yes: bool, as_json: bool) -> None:
    """List what no model uses any more, with its size; with --yes delete it.

    Packed weights of models that are gone or have changed, pulls that were stopped, kept prefixes of models that
    aren't here, damaged stores.
    """
    found = leftovers(loaded.config)
    freed = sum(delete(each) for each in found) if yes else 0
    total = sum(each.n_bytes for each in found)
    if as_json:
        rows = [{"path": str(e.path), "bytes": e.n_bytes, "why": e.why, "deleted": yes} for e in found]
        click.echo(json.dumps(rows, indent=2))
    elif not found:
        click.echo("nothing to free: a model uses everything that is here")
    else:
        print_table(("SIZE", "WHAT", "PATH"), [(size_text(e.n_bytes), e.why, str(e.path)) for e in found])
        click.echo(f"{size_text(freed)} freed" if yes else f"{size_text(total)} in all; `imp gc --yes` deletes it")
