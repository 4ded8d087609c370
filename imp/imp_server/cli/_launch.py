"""From a configuration to a model on disk and an engine for it, with progress for whoever waits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from imp_server.api.router.names import named
from imp_server.cli._terminal import transfer_progress
from imp_server.config import Config
from imp_server.config.adapters import lora_entries
from imp_server.core import ConfigError, UnsupportedModel
from imp_server.engine.client.base import OnLoading
from imp_server.logs import is_json, tell
from imp_server.weights.catalogue import find
from imp_server.weights.known import KNOWN
from imp_server.weights.pull import pull

STAGES = {
    "open": "opening the file",
    "read": "reading weights",
    "adapters": "loading adapters",
    "pack": "packing weights",
    "warm": "warming up",
    "measure": "measuring speed",
}
"""What a loading stage is called for a person; others go by their own name."""


@dataclass(frozen=True, slots=True)
class Located:
    """A model that is on this machine, and the name it is served under."""

    path: Path
    model_id: str
    aliases: tuple[str, ...] = ()


def locate(config: Config) -> Located | None:
    """The model to run, pulled if it isn't here; None for `--model none`. Raises UserFault."""
    wanted = find(config.model.path, config.router.models_dir)
    if wanted is None:
        if lora_entries(config.adapters):
            raise ConfigError("an adapter needs a model: name one, or leave out --lora")
        return None
    path = wanted.local
    if path is None:
        if (known := KNOWN.get(wanted.name)) and not known.runs:
            raise UnsupportedModel(
                f"{known.name} can't be run yet, so it isn't fetched; `imp ls --known` says which can"
            )
        tell(f"fetching {wanted.name}, which isn't here yet")
        with transfer_progress() as on_progress:
            path = pull(config.model.path or wanted.name, on_progress, revision=config.model.revision).path
    return Located(path, *named(config.model.alias, wanted.name))


@contextmanager
def loading_progress() -> Iterator[OnLoading]:
    """A bar per stage on a terminal, one line per stage elsewhere; all on stderr."""
    if is_json() or not sys.stderr.isatty():
        yield _plain_stages()
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("loading", total=1.0)

        def show(stage: str, value: float) -> None:
            bars.update(task, description=f"{STAGES.get(stage, stage):<18}", completed=value)

        yield show


def _plain_stages() -> OnLoading:
    seen: set[str] = set()

    def show(stage: str, _: float) -> None:
        if stage not in seen:
            seen.add(stage)
            tell(f"{STAGES.get(stage, stage)} ...")

    return show
