"""The preset file of a server of several models: INI, a section for each, `[*]` for all of them.

    [*]
    max-seq-len = 8192
    [small]
    model = smollm2            ; a name, file or folder; left out, a model of this name
    alias = fast, claude-*haiku*
    tags = chat
    load-on-startup = true
    temperature = 0.7          ; any knob of a model, by flag, section.key or variable

A knob is taken from the first that names it: command line and environment, the model's section, `[*]`, the
configuration file, the default.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imp_server.config.adapters import lora_entries
from imp_server.config.knobs import Knob, knobs, variable_of
from imp_server.config.llama_server import of_llama_server
from imp_server.config.load import Loaded, nearest
from imp_server.config.names import FOREIGN_FLAGS
from imp_server.config.tree import Config
from imp_server.config.values import FALSE_WORDS, TRUE_WORDS, from_text
from imp_server.core import ConfigError

ALL = "*"
OF_A_MODEL = frozenset({
    "model", "engine", "scheduler", "kv_cache", "prefix_cache", "speculative", "grammar", "reasoning", "sampling",
    "cpu", "cuda", "adapters",
})  # fmt: skip
"""Sections of the configuration that each model may have its own of."""
_ALSO = frozenset({"server.max_tokens", "server.max_input_tokens", "server.request_timeout_s"})
_LOADS, _HIDES = "load-on-startup", "dedup-cache-models"
_TOP = "(above all sections)"


def serves_several(config: Config, model: str | None) -> bool:
    """A folder or a preset file, and no model named. Raises ConfigError for a preset file beside a model."""
    is_named = bool(model or config.model.path)
    if is_named and config.router.models_preset:
        raise ConfigError("--models-preset serves the models of its sections: leave MODEL out, or the file")
    return not is_named and bool(config.router.models_dir or config.router.models_preset)


@dataclass(frozen=True, slots=True)
class Preset:
    """One section of the file."""

    name: str
    config: Config
    """The server's, with what the section says. Its model.path is what to open, "" = a model called `name`."""
    loads_at_start: bool = False
    problem: str = ""
    """What is wrong with the section, for people; the model can't be loaded then."""
    hides: tuple[str, ...] = ()
    """Repositories whose models aren't listed by themselves."""


@dataclass(frozen=True, slots=True)
class Presets:
    """What a preset file says."""

    sections: Mapping[str, Preset]
    """By name, in the order of the file."""
    shared: Preset
    """For models without a section."""


def read_presets(path: Path | None, loaded: Loaded) -> Presets:
    """None: no file, so that nothing is said. A section that is wrong is a Preset with a problem.

    Raises ConfigError for a file that can't be read at all.
    """
    sections = {} if path is None else _sections(path)
    shared = sections.pop(ALL, {})
    presets = {name: _preset(name, (shared, entries), loaded) for name, entries in sections.items()}
    return Presets(presets, _preset("", (shared,), loaded))


def _sections(path: Path) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(
        delimiters=("=",),
        comment_prefixes=("#", ";"),
        inline_comment_prefixes=(" ;", " #"),
        default_section=_TOP,
        strict=False,
        allow_no_value=True,
    )
    parser.optionxform = str.strip  # type: ignore[assignment, method-assign]
    try:
        parser.read_string(f"[{_TOP}]\n" + path.read_text(encoding="utf-8-sig"), source=str(path))
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise ConfigError(f"--models-preset {path}: {error}") from None
    above = set(parser.defaults())
    if strays := sorted(above - {"version"}):
        raise ConfigError(f"--models-preset {path}: {strays[0]} stands above the first [section]")
    return {name: {k: v or "" for k, v in parser.items(name) if k not in above} for name in parser.sections()}


def _preset(name: str, layers: Sequence[Mapping[str, str]], loaded: Loaded) -> Preset:
    try:
        return _read(name, layers, loaded)
    except ConfigError as error:
        return Preset(name, loaded.config, problem=error.message)


def _read(name: str, layers: Sequence[Mapping[str, str]], loaded: Loaded) -> Preset:
    """`layers`: the stronger ones last."""
    plain = loaded.config.plain()
    is_theirs = loaded.config.server.habits == "llama-server"
    loads = hides = False
    hidden: list[str] = []
    for entries, origin in zip(layers, (f"[{ALL}]", f"[{name}]")):
        loads = _switch(entries[_LOADS], f"{origin} {_LOADS}") if _LOADS in entries else loads
        hides = _switch(entries[_HIDES], f"{origin} {_HIDES}") if _HIDES in entries else hides
        own = {key: text for key, text in entries.items() if key not in (_LOADS, _HIDES)}
        if is_theirs:
            own, repositories = of_llama_server(own)
            hidden += repositories
        for key, text in own.items():
            knob = _knob(key, origin)
            value = from_text(knob, text, f"{origin} {key}")
            if not _is_strong(loaded.origins.get(knob.key, "")):
                plain[knob.section][knob.name] = value
    config = Config.from_plain(plain)
    lora_entries(config.adapters)
    return Preset(
        name,
        config,
        loads,
        hides=tuple(hidden) if hides else (),
    )


def _knob(key: str, origin: str) -> Knob:
    """By a flag's name, with or without its dashes, by its key, by its variable, or by another server's flag."""
    known = knobs()
    by_name = {name: knob for knob in known.values() for name in (knob.key, *knob.flags, *map(variable_of, knob.flags))}
    bare = key.lstrip("-")
    found = next((by_name[word] for word in (key, f"--{bare}") if word in by_name), None)
    if found is None:
        foreign = next((FOREIGN_FLAGS[word] for word in (f"-{bare}", f"--{bare}") if word in FOREIGN_FLAGS), "")
        found = by_name.get(foreign)
        if found is None and foreign.startswith("leave"):
            raise ConfigError(f"{origin}: there is no option {key}; {foreign}")
    if found is None:
        raise ConfigError(f"{origin}: there is no option {key}{nearest(bare, [n.lstrip('-') for n in by_name])}")
    if found.section not in OF_A_MODEL and found.key not in _ALSO:
        raise ConfigError(f"{origin}: {key} is of the whole server; set it where that is started")
    return found


def _is_strong(origin: str) -> bool:
    """Set on the command line or in the environment."""
    return origin.startswith(("--", "IMP_"))


def _switch(text: str, origin: str) -> bool:
    word = text.strip().lower()
    if word in TRUE_WORDS or word in FALSE_WORDS:
        return word in TRUE_WORDS
    raise ConfigError(f"{origin}: {text!r} isn't valid (expected: true or false)")
