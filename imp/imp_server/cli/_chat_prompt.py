'''Reads what the user types: history, several lines between """ and """, a trailing backslash goes on.'''

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PROMPT, MORE = ">>> ", "... "
FENCE = '"""'


def set_up_history(path: Path) -> Callable[[], None]:
    """Line editing and a history file; returns what saves it. Without readline: plain input."""
    try:
        import readline
    except ImportError:
        return lambda: None
    readline.set_history_length(1000)
    with suppress(OSError):
        readline.read_history_file(path)

    def save() -> None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)

    return save


def read_message(read_line: Callable[[str], str] = input) -> str | None:
    """One message; None at the end of input (Ctrl-D). Ctrl-C drops what was typed and begins again."""
    while True:
        try:
            return _read(read_line)
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
