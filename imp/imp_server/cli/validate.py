"""Look whether a checkpoint is served as it should be."""

from __future__ import annotations

import click

from imp_server.cli._own_server import served
from imp_server.validating.main import main


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> int:
    """Check a checkpoint's tokenizer, answers and logprobs, on a server of its own or a running one."""
    try:
        return main(arguments, served)
    except SystemExit as exit_:  # argparse's way out
        return exit_.code if isinstance(exit_.code, int) else 1
