"""Serve with llama-server's own command line, environment and habits."""

from __future__ import annotations

from pathlib import Path

import click

from imp_server.cli.serve import run_server
from imp_server.config.environment import all_variables, environment, imp_variables, put_variables
from imp_server.config.llama_server import HABITS, PRINTS, Translated, translated
from imp_server.config.llama_server_page import usage
from imp_server.config.load import Loaded, find_file, load
from imp_server.config.presets import serves_several
from imp_server.logs import tell
from imp_server.weights.catalogue import models_folder, tagged


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Serve with llama-server's own command line, environment (LLAMA_ARG_*) and habits.

    Each of its flags is served, said to be without effect, or refused with a reason: docs/llama-server.md.
    """
    for word in arguments:
        if word in PRINTS:
            _print(ctx, PRINTS[word])
            return
    asked = translated(arguments, all_variables())
    put_variables(asked.variables)
    loaded = configuration(asked)
    for note in (*asked.notes, *loaded.notes):
        tell(f"imp: {note}")
    run_server(loaded)


def configuration(asked: Translated) -> Loaded:
    """imp's own variables and files hold, too; weaker than the command line, stronger than llama-server's habits."""
    flags = {key: [text] for key, text in asked.knobs.items()}
    variables = imp_variables()
    user = Path(environment("XDG_CONFIG_HOME") or "~/.config").expanduser() / "imp"
    file = find_file("", variables, Path.cwd(), user)
    asked_for = load(flags, (), variables, file)
    if not (asked_for.config.model.path or serves_several(asked_for.config, None)):
        models_folder().mkdir(parents=True, exist_ok=True)
        flags["router.models_dir"] = [str(models_folder())]  # there no model means all that were fetched
        asked_for = load(flags, (), variables, file)
    if asked_for.config.model.path.startswith("hf:"):
        flags["model.path"] = [tagged(asked_for.config.model.path)]
    known = {*asked_for.origins, *(("server.model_names",) if serves_several(asked_for.config, None) else ())}
    habits = {key: [text] for key, text in HABITS.items() if key not in known}
    return load({**habits, **flags}, (), variables, file)


def _print(ctx: click.Context, what: str) -> None:
    if what == "--help":
        click.echo(usage(), nl=False)
        return
    assert ctx.parent is not None
    group = ctx.parent.command
    assert isinstance(group, click.Group)
    group.main([what], prog_name="imp", standalone_mode=False)
