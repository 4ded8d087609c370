"""The page docs/config.md, made from the fields so that it can't lag behind them."""

from __future__ import annotations

from typing import Any

from imp_server.config.compat import FORMER, Former
from imp_server.config.knobs import Knob, knobs, section_text
from imp_server.config.names import NOT_YET, OWN_VALUE_FLAGS
from imp_server.config.tree import Config

_HEAD = """\
# Configuration

Made by `imp config docs`; a test keeps it true.

A knob is set by its flag, its variable, its key in a TOML file, or `--set section.key=value` (repeatable).
Flags win over the environment, the environment over the file, the file over the default. The file is
`--config FILE`, else `$IMP_CONFIG`, else `imp.toml` or `imp.conf` in the current folder, else in `~/.config/imp/`.
An unknown key is an error that names the nearest ones. `imp config show --origin` prints every value and where
it comes from. Lists are given by repeating the flag or by commas. `IMP_SET` holds `section.key=value` pairs
separated by blanks; `IMP_HOME` is where models and caches live.
"""

_FORMER_HEAD = """
## Names of imp-server

What became of the flags and keys of imp-server, the server in C++ and CUDA that this one follows. Those that are
called the same here aren't listed. Variables follow flags (`--think-budget`, `IMP_THINK_BUDGET`); any key
`constrained.*` is `grammar.*`.

| there | here |
|---|---|
"""


def config_page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for section in Config.__struct_fields__:
        parts.append(
            f"\n## {section}\n\n{section_text(section)}\n\n| key, flag, variable | default | |\n|---|---|---|\n"
        )
        parts += [_row(knob) for knob in knobs().values() if knob.section == section]
    parts += [f"\n`{flag}` sets `{key}` to `{value}`.\n" for flag, (key, value) in OWN_VALUE_FLAGS.items()]
    parts.append(_FORMER_HEAD)
    parts += [f"| `{row.name}{'*' if row.name.endswith('.') else ''}` | {_became(row)} |\n" for row in FORMER]
    return "".join(parts)


def _became(row: Former) -> str:
    if row.ours:
        return f"`{row.ours}`" + (f" = `{row.value}`" if row.value else "")
    return f"{'refused' if row.refused else 'no effect'}: {row.why}"


def _row(knob: Knob) -> str:
    flags = ", ".join(f"`{flag}`" for flag in knob.flags)
    text = knob.help + (f" One of {', '.join(f'`{c}`' for c in knob.choices if c)}." if knob.choices else "")
    text += f" ({knob.bounds})" if knob.bounds else ""
    text += " **No effect yet.**" if knob.key in NOT_YET else ""
    escaped = text.replace("|", "\\|")
    return f"| `{knob.name}` {flags} `{knob.variable}` | {_default(knob.default)} | {escaped} |\n"


def _default(value: Any) -> str:
    if value in ("", ()):
        return ""
    if isinstance(value, tuple):
        return f"`{','.join(value)}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"
