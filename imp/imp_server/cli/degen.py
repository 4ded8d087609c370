"""Look for degenerate answers of any chat server: loops, leaks, mixed streams."""

from __future__ import annotations

import click

from imp_server.degeneration.main import main


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> int:
    """Ask a running server for answers and look for degenerate ones; --help has the options."""
    try:
        return main(arguments)
    except SystemExit as exit_:  # argparse's way out
        return exit_.code if isinstance(exit_.code, int) else 1
