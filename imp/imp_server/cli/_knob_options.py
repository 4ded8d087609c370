"""Command-line flags made from the knobs, and the configuration that flags, environment and file give."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from imp_server.config import environment, imp_variables
from imp_server.config.compat import NO_EFFECT, NO_EFFECT_FLAGS, REFUSED_FLAGS, VALUE_FLAGS
from imp_server.config.knobs import Knob, knobs, section_text
from imp_server.config.load import Loaded, find_file, load
from imp_server.config.names import FOREIGN_FLAGS, NOT_YET
from imp_server.config.tree import Config
from imp_server.core import ConfigError
from imp_server.logs import set_up_logging, tell

ENGINE_SECTIONS = (
    "model",
    "engine",
    "scheduler",
    "kv_cache",
    "prefix_cache",
    "speculative",
    "grammar",
    "reasoning",
    "cpu",
    "cuda",
    "adapters",
    "router",
    "log",
)
"""Sections that matter to a command that runs a model by itself."""
_GIVEN = "imp.flags"
_NOTES = "imp.notes"


class KnobOption(click.Option):
    """A flag of one knob; `section` groups it in --help."""

    def __init__(self, knob: Knob) -> None:
        self.knob = knob
        many = knob.kind is tuple
        names = [*knob.aliases, knob.flag]
        if knob.kind is bool:
            names = [f"{flag}/--no-{flag.removeprefix('--')}" for flag in (*knob.aliases, knob.flag)]
        shown = "" if knob.default in ("", ()) else f" [{_spelled(knob.default)}]"
        super().__init__(
            [*names, f"knob_{knob.section}_{knob.name}"],
            default=None,
            multiple=many,
            type=bool if knob.kind is bool else str,
            metavar=None if knob.kind is bool else _metavar(knob),
            help=knob.help + shown + (" No effect yet." if knob.key in NOT_YET else ""),
            expose_value=False,
            callback=self._collect,
        )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The choices of a knob that has them, though its type is text."""
        choices = [choice for choice in self.knob.choices if choice and choice.startswith(incomplete)]
        if choices:
            return [CompletionItem(choice) for choice in choices]
        if any(part in self.knob.name for part in ("path", "file", "dir", "template")):
            return [CompletionItem(incomplete, type="file")]
        return super().shell_complete(ctx, incomplete)

    def _collect(self, ctx: click.Context, _: click.Parameter, value: Any) -> None:
        if value is None or value == ():
            return
        texts = [_spelled(value)] if isinstance(value, bool) else list(value) if self.knob.kind is tuple else [value]
        ctx.meta.setdefault(_GIVEN, {})[self.knob.key] = texts


COMMON = frozenset(
    {
        "server.host", "server.port", "server.api_key", "server.cors_origins", "server.max_tokens",
        "server.max_concurrent", "server.request_timeout_s", "model.path", "model.alias", "model.max_seq_len",
        "model.chat_template", "engine.backend", "scheduler.max_rows", "kv_cache.dtype", "kv_cache.size_mib",
        "prefix_cache.path", "speculative.draft_model", "reasoning.think_budget", "cpu.threads", "log.level",
    }
)  # fmt: skip
"""What --help shows; the rest is under --help-all."""
_ALL = "imp.help_all"


class KnobCommand(click.Command):
    """--help with an example and the common options, --help-all with all of them under one heading per section."""

    def __init__(self, *args: Any, example: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.example = example
        self.params.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=self._show_all,
                help="Show every option and exit.",
            )
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)  # the parser empties it
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:  # its own suggestions include hidden ones
            options = [p for p in self.get_params(ctx) if isinstance(p, click.Option) and not p.hidden]
            names = [name for option in options for name in (*option.opts, *option.secondary_opts)]
            if hint := _foreign(given, error.option_name, names):
                raise click.NoSuchOption(error.option_name, hint, ctx=ctx) from None
            close = difflib.get_close_matches(error.option_name, names, 3, 0.6)
            raise click.NoSuchOption(error.option_name, possibilities=close, ctx=ctx) from None

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_usage(ctx, formatter)
        if self.example:
            formatter.write_paragraph()
            formatter.write_text(f"Example: {self.example}")
        self.format_help_text(ctx, formatter)
        self.format_options(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        everything = bool(ctx.meta.get(_ALL))
        own = [p for p in self.get_params(ctx) if not isinstance(p, KnobOption | click.Argument)]
        options = [p for p in self.params if isinstance(p, KnobOption)]
        common = [] if everything else [p for p in options if p.knob.key in COMMON]
        with formatter.section("Options"):
            formatter.write_dl([record for p in [*common, *own] if (record := p.get_help_record(ctx))])
        if not everything:
            formatter.write_paragraph()
            formatter.write_text(f"{len(options) - len(common)} more options: {ctx.command_path} --help-all")
            return
        for section in Config.__struct_fields__:
            rows = [p.get_help_record(ctx) for p in options if p.knob.section == section]
            if rows:
                with formatter.section(f"{section}: {section_text(section).rstrip('.')}"):
                    formatter.write_dl([row for row in rows if row])

    def _show_all(self, ctx: click.Context, _: click.Parameter, given: bool) -> None:
        if given:
            ctx.meta[_ALL] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()


def _foreign(args: list[str], refused: str, names: list[str]) -> str:
    """What is said to a flag of another server, as -ngl, of which click refuses `refused`, its first letter."""
    words = [word.partition("=")[0] for word in args]
    given = next((word for word in words if word in FOREIGN_FLAGS and word.startswith(refused)), "")
    ours = FOREIGN_FLAGS.get(given, "")
    if not ours or (ours.startswith("--") and ours.split()[0] not in names):
        return ""
    return f"there is no option {given}; " + (ours if ours.startswith("leave") else f"here it is {ours}")


def with_config(*sections: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the flags of `sections` (all of them if none is named), --config and --set.

    The command's function gets the `Loaded` configuration as its first argument. Use with
    `@click.command(cls=KnobCommand)` above it.
    """
    chosen = [knob for knob in knobs().values() if not sections or knob.section in sections]
    keys = {knob.key for knob in chosen}

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, config: str, assignments: tuple[str, ...], **kwargs: Any) -> Any:
            return function(loaded_config(config, assignments), *args, **kwargs)

        params = [
            click.Option(["--config"], default="", metavar="FILE", help="TOML file with sections and keys."),
            click.Option(["--set", "assignments"], multiple=True, metavar="SECTION.KEY=VALUE", help="Set one key."),
            *(KnobOption(knob) for knob in chosen),
            *(_value_flag(flag, *target) for flag, target in VALUE_FLAGS.items() if target[0] in keys),
            *(_silent_flag(flag, takes_value) for flag, takes_value in NO_EFFECT_FLAGS.items()),
            *(_refused_flag(flag, *rest) for flag, rest in REFUSED_FLAGS.items()),
        ]
        run.__click_params__ = [*getattr(function, "__click_params__", []), *reversed(params)]  # type: ignore[attr-defined]
        return run

    return decorate


def loaded_config(file: str = "", assignments: tuple[str, ...] = ()) -> Loaded:
    """The configuration of the command that is running; its notes are written to stderr."""
    ctx = click.get_current_context(silent=True)
    meta = ctx.meta if ctx else {}
    variables = imp_variables()
    user = Path(environment("XDG_CONFIG_HOME") or "~/.config").expanduser() / "imp"
    here = Path.cwd()
    found = find_file(file, variables, here, user)
    loaded = load(meta.get(_GIVEN), assignments, variables, found)
    loaded.notes += meta.get(_NOTES, [])
    if found is not None and found.parent == here and not (file or variables.get("IMP_CONFIG")):
        loaded.notes.append(f"settings are taken from {found.name} in this folder")
    if loaded.config.log.format == "json":
        set_up_logging(loaded.config.log)
    for note in loaded.notes:
        tell(f"imp: {note}")
    return loaded


def with_model(loaded: Loaded, model: str | None) -> Config:
    """The configuration with a MODEL argument put in; --model and MODEL together are refused."""
    if not model:
        return loaded.config
    if loaded.origins.get("model.path") == "--model":
        raise ConfigError("give the model once: either MODEL or --model")
    return Config.from_plain({**loaded.config.plain(), "model": {**loaded.config.plain()["model"], "path": model}})


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _metavar(knob: Knob) -> str:
    if knob.choices:
        return "|".join(choice for choice in knob.choices if choice)
    return {int: "N", float: "X", tuple: "A,B"}.get(knob.kind, "TEXT")


def _value_flag(flag: str, key: str, value: str) -> click.Option:
    def collect(ctx: click.Context, _: click.Parameter, given: bool) -> None:
        if given:
            ctx.meta.setdefault(_GIVEN, {})[key] = [value]

    return click.Option([flag], is_flag=True, expose_value=False, hidden=True, callback=collect)


def _silent_flag(flag: str, takes_value: bool) -> click.Option:
    def note(ctx: click.Context, _: click.Parameter, given: Any) -> None:
        if given:
            ctx.meta.setdefault(_NOTES, []).append(f"{flag} has no effect here: {NO_EFFECT[flag]}")

    return _hidden(flag, takes_value, note)


def _refused_flag(flag: str, takes_value: bool, reason: str) -> click.Option:
    def refuse(_: click.Context, __: click.Parameter, given: Any) -> None:
        if given:
            raise ConfigError(reason)

    return _hidden(flag, takes_value, refuse)


def _hidden(flag: str, takes_value: bool, callback: Callable[..., None]) -> click.Option:
    default = None if takes_value else False
    return click.Option(
        [flag], is_flag=not takes_value, default=default, expose_value=False, hidden=True, callback=callback
    )
