"""What the shell may complete: names of models, and files beside them."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from imp_server.weights.catalogue import pulled_models
from imp_server.weights.known import KNOWN


def pulled_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Models that are here."""
    return [pulled.name for pulled in pulled_models() if pulled.name.startswith(incomplete)]


def model_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Models that are here or known; files where the word looks like a path."""
    if incomplete.startswith((".", "/", "~")):
        return [CompletionItem(incomplete, type="file")]
    here = {pulled.name: "here" for pulled in pulled_models()}
    names = {**{name: known.about_text for name, known in KNOWN.items()}, **here}
    return [CompletionItem(name, help=text) for name, text in names.items() if name.startswith(incomplete)]
