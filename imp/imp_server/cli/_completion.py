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


def runnable_names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Of `model_names` those that imp can run."""
    if incomplete.startswith((".", "/", "~")):
        return model_names(ctx, parameter, incomplete)
    from imp_server.cli._model_facts import model_facts

    here = {pulled.name: pulled.path for pulled in pulled_models() if pulled.name.startswith(incomplete)}
    found = [CompletionItem(name, help="here") for name, path in here.items() if not model_facts(path).problem]
    known = [known for known in KNOWN.values() if known.runs and known.name.startswith(incomplete)]
    return found + [CompletionItem(known.name, help=known.about) for known in known if known.name not in here]
