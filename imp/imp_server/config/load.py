"""Flags over environment over file over defaults; the origin of every value is kept."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imp_server.config.compat import KEY_ALIASES, NO_EFFECT, NO_EFFECT_FLAGS, NO_EFFECT_KEYS, VALUE_FLAGS
from imp_server.config.knobs import Knob, knobs, variable_of
from imp_server.config.names import NOT_YET
from imp_server.config.tree import Config
from imp_server.config.values import FALSE_WORDS, from_text, from_toml
from imp_server.core import ConfigError

OWN_VARIABLES = frozenset({"IMP_HOME", "IMP_CONFIG", "IMP_SET"})
_SERVICE_LINK = re.compile(r"IMP_(SERVICE_|PORT_\d+_)|_SERVICE_(HOST|PORT)$")
"""Variables that Kubernetes sets in every pod beside a service named imp."""


@dataclass(slots=True)
class Loaded:
    """A configuration, where each value that isn't a default came from, and lines to tell the user."""

    config: Config
    origins: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class _Layers:
    """Collects values from the weakest layer to the strongest; owns `values`, `origins`, `notes`."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.notes: list[str] = []

    def put(self, knob: Knob, value: Any, origin: str) -> None:
        self.values[knob.key] = value
        self.origins[knob.key] = origin

    def put_text(self, knob: Knob, text: str, origin: str) -> None:
        self.put(knob, from_text(knob, text, origin), origin)

    def no_effect(self, name: str, origin: str) -> None:
        section = name.partition(".")[0] + "."
        why = NO_EFFECT.get(name) or NO_EFFECT[section]
        self.notes.append(f"{origin}: {name} has no effect here: {why}")


def load(
    flags: Mapping[str, Sequence[str]] | None = None,
    sets: Iterable[str] = (),
    variables: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Loaded:
    """`flags`: key -> the texts given on the command line. `sets`: section.key=value of --set. `variables`: the
    IMP_* variables. `file`: the TOML file, already found (see `find_file`).

    Raises ConfigError for an unknown key (with the nearest names) or a wrong value.
    """
    layers = _Layers()
    if file is not None:
        _from_file(layers, file)
    if variables:
        for assignment in variables.get("IMP_SET", "").split():
            _assign(layers, assignment, "IMP_SET")
        _from_variables(layers, variables)
    for assignment in sets:
        _assign(layers, assignment, "--set")
    for key, texts in (flags or {}).items():
        knob = knobs()[key]
        layers.put_text(knob, ",".join(texts) if knob.kind is tuple else texts[-1], knob.flag)
    for key in NOT_YET & layers.values.keys():
        layers.notes.append(f"{layers.origins[key]}: {key} has no effect yet")
    return Loaded(Config.of(layers.values), layers.origins, sorted(layers.notes))


def find_file(asked: str, variables: Mapping[str, str], here: Path, user_folder: Path) -> Path | None:
    """--config, else IMP_CONFIG, else imp.toml or imp.conf here, else in the user's config folder; None = no file.

    Raises ConfigError if a file that was asked for doesn't exist.
    """
    if named := asked or variables.get("IMP_CONFIG", ""):
        path = Path(named).expanduser()
        if not path.is_file():
            raise ConfigError(f"no configuration file {path}")
        return path
    candidates = [folder / name for folder in (here, user_folder) for name in ("imp.toml", "imp.conf")]
    return next((path for path in candidates if path.is_file()), None)


def resolve_key(key: str) -> Knob | None:
    """The knob that `key` or one of the original's names means; None if it has no effect here.

    Raises ConfigError with the nearest names for anything else.
    """
    known = knobs()
    knob = known.get(key) or known.get(KEY_ALIASES.get(key, ""))
    if knob:
        return knob
    section, _, name = key.partition(".")
    if section == "constrained" and f"grammar.{name}" in known:
        return known[f"grammar.{name}"]
    if key in NO_EFFECT_KEYS or f"{section}." in NO_EFFECT_KEYS:
        return None
    raise ConfigError(f"no configuration key {key}{nearest(key, [*known, *KEY_ALIASES])}")


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean A or B?`, or a pointer to the list."""
    names = list(names)
    last = name.rpartition(".")[2]
    same = [other for other in names if other.rpartition(".")[2] == last][:3]
    close = same or difflib.get_close_matches(name, names, 3, 0.6)
    return f"; did you mean {' or '.join(close)}?" if close else "; see `imp config show`"


def _assign(layers: _Layers, assignment: str, origin: str) -> None:
    key, equals, text = assignment.partition("=")
    if not equals:
        raise ConfigError(f"{origin} {assignment}: write section.key=value")
    knob = resolve_key(key.strip())
    if knob is None:
        layers.no_effect(key.strip(), origin)
    else:
        layers.put_text(knob, text, origin)


def _from_file(layers: _Layers, path: Path) -> None:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    for section, entries in document.items():
        if not isinstance(entries, dict):
            raise ConfigError(f"{path}: {section} stands outside a [section]")
        for name, value in entries.items():
            origin = str(path)
            try:
                knob = resolve_key(f"{section}.{name}")
            except ConfigError as error:
                raise ConfigError(f"{origin}: {error.message}") from None
            if knob is None:
                layers.no_effect(f"{section}.{name}", origin)
            else:
                layers.put(knob, from_toml(knob, value, origin), origin)


def _from_variables(layers: _Layers, variables: Mapping[str, str]) -> None:
    known = {knob.variable: knob for knob in knobs().values()}
    aliases = {variable_of(alias): knob for knob in knobs().values() for alias in knob.aliases}
    fixed = {variable_of(flag): target for flag, target in VALUE_FLAGS.items()}
    silent = {variable_of(flag): NO_EFFECT[flag] for flag in NO_EFFECT_FLAGS}
    for name, text in sorted(variables.items(), key=lambda item: item[0] in known):
        knob = known.get(name) or aliases.get(name)
        if name in OWN_VARIABLES or _SERVICE_LINK.search(name) or (name == "IMP_PORT" and text.startswith("tcp://")):
            continue
        if knob:
            layers.put_text(knob, text, name)
        elif name in fixed:
            key, value = fixed[name]
            if text.lower() not in FALSE_WORDS:
                layers.put_text(knobs()[key], value, name)
        elif name in silent:
            layers.notes.append(f"environment: {name} has no effect here: {silent[name]}")
        else:
            layers.notes.append(f"environment: {name} is none of our variables{nearest(name, known)}")
