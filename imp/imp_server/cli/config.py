"""Show the configuration and where each value comes from."""

from __future__ import annotations

import json
from typing import Any

import click

from imp_server.cli._knob_options import KnobCommand, with_config
from imp_server.config import llama_server_page as llama_server
from imp_server.config.docs import config_page
from imp_server.config.knobs import knobs, section_text
from imp_server.config.load import Loaded
from imp_server.config.tree import Config


@click.group()
def command() -> None:
    """Show the configuration and where each value comes from."""


@command.command(cls=KnobCommand)
@click.option("--origin", is_flag=True, help="Say after each value where it comes from.")
@click.option("--changed", is_flag=True, help="Only values that aren't the default.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: section, key, {value, origin}.")
@with_config()
def show(loaded: Loaded, origin: bool, changed: bool, as_json: bool) -> None:
    """The configuration in force, as TOML."""
    if as_json:
        click.echo(json.dumps(_described(loaded, changed), indent=2))
        return
    for section in Config.__struct_fields__:
        lines = []
        for knob in knobs().values():
            if knob.section == section and (not changed or knob.key in loaded.origins):
                line = f"{knob.name} = {_toml(_value(loaded, knob.key))}"
                lines.append(f"{line:<40}# {loaded.origins.get(knob.key, 'default')}" if origin else line)
        if lines:
            click.echo(f"[{section}]  # {section_text(section)}" if not changed else f"[{section}]")
            click.echo("\n".join(lines) + "\n")


@command.command()
@click.option("--page", type=click.Choice(["config", "llama-server"]), default="config", help="Which page.")
def docs(page: str) -> None:
    """The pages docs/config.md and docs/llama-server.md, made from the fields and the table of flags."""
    click.echo(config_page() if page == "config" else llama_server.page(), nl=False)


def _value(loaded: Loaded, key: str) -> Any:
    section, _, name = key.partition(".")
    value = getattr(getattr(loaded.config, section), name)
    return ("(hidden)",) * len(value) if knobs()[key].secret else value


def _described(loaded: Loaded, changed: bool) -> dict[str, dict[str, Any]]:
    tree: dict[str, dict[str, Any]] = {}
    for knob in knobs().values():
        if not changed or knob.key in loaded.origins:
            origin = loaded.origins.get(knob.key, "default")
            tree.setdefault(knob.section, {})[knob.name] = {"value": _value(loaded, knob.key), "origin": origin}
    return tree


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(json.dumps(word, ensure_ascii=False) for word in value) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value, ensure_ascii=False)
