"""Delete pulled models."""

from __future__ import annotations

import click

from imp_server.cli._completion import pulled_names
from imp_server.cli._terminal import size_text
from imp_server.weights.catalogue import remove


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=pulled_names)
def command(names: tuple[str, ...]) -> None:
    """Delete the pulled models NAME... from this machine."""
    for name in names:
        click.echo(f"removed {name}, {size_text(remove(name))} freed")
