'''Reads what the user types: history, several lines between """ and """, a trailing backslash goes on.'''

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_LONGEST_HISTORY = 1000
PROMPT, MORE = ">>> ", "... "
FENCE = '"""'


def set_up_history(path: Path) -> Callable[[], None]:
    """Line editing and a history of whole messages; returns what saves it. Without readline: plain input.

    A pasted text of several lines is one input, and one entry.
    """
    try:
        import readline
    except ImportError:
        return lambda: None
    readline.set_auto_history(False)
    readline.parse_and_bind("set enable-bracketed-paste on")
    readline.set_history_length(_LONGEST_HISTORY)
    for message in _kept(path):
        readline.add_history(message)

    def save() -> None:
        entries = [readline.get_history_item(at + 1) for at in range(readline.get_current_history_length())]
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = [json.dumps(entry) for entry in entries[-_LONGEST_HISTORY:]]
            path.write_text("\n".join([*lines, ""]), encoding="utf-8")
            path.chmod(0o600)

    return save


def _kept(path: Path) -> list[str]:
    """One JSON text per line; lines of older files are entries as they stand."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [_entry(line) for line in lines[-_LONGEST_HISTORY:] if line]


def _entry(line: str) -> str:
    try:
        value = json.loads(line)
    except ValueError:
        return line
    return value if isinstance(value, str) else line


def _remember(message: str) -> None:
    """One entry, whatever lines it has; not twice in a row."""
    readline = sys.modules.get("readline")
    if readline is None or not message.strip():
        return
    n = readline.get_current_history_length()
    if not n or readline.get_history_item(n) != message:
        readline.add_history(message)


def read_message(read_line: Callable[[str], str] = input) -> str | None:
    """One message; None at the end of input (Ctrl-D). Ctrl-C drops what was typed and begins again."""
    while True:
        try:
            message = _read(read_line)
            _remember(message)
            return message
        except EOFError:
            return None
        except KeyboardInterrupt:
            print("\n(Ctrl-D or /bye ends the chat)", file=sys.stderr)


def _read(read_line: Callable[[str], str]) -> str:
    line = read_line(PROMPT)
    if line.lstrip().startswith(FENCE):
        return _fenced(line.lstrip().removeprefix(FENCE), read_line)
    lines = []
    while line.endswith("\\"):
        lines.append(line[:-1])
        line = read_line(MORE)
    return "\n".join([*lines, line])


def _fenced(line: str, read_line: Callable[[str], str]) -> str:
    lines = []
    while not line.rstrip().endswith(FENCE):
        lines.append(line)
        line = read_line(MORE)
    lines.append(line.rstrip().removesuffix(FENCE))
    return "\n".join(lines).strip("\n")
