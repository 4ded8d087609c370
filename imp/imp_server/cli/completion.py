"""Print the shell completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of SHELL.

    bash: eval "$(imp completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc;
    fish: imp completion fish > ~/.config/fish/completions/imp.fish
    """
    from imp_server.cli.main import imp

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(imp, {}, "imp", "_IMP_COMPLETE").source())
