"""Delete pulled models."""

from __future__ import annotations

import click

from imp_server.cli._completion import pulled_names
from imp_server.cli._knob_options import loaded_config
from imp_server.cli._leftovers import caches_of, delete
from imp_server.cli._terminal import size_text
from imp_server.weights.catalogue import model_paths, remove


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=pulled_names)
def command(names: tuple[str, ...]) -> None:
    """Delete the pulled models NAME... from this machine, with their packed weights and kept prefixes."""
    config = loaded_config().config
    for name in names:
        caches = [each for path in model_paths(name) for each in caches_of(config, path)]
        freed = remove(name) + sum(delete(each) for each in caches)
        click.echo(f"removed {name}, {size_text(freed)} freed")
