"""How a message of one line is laid out: whole words per row on a terminal, one line for everything else."""

from __future__ import annotations

import shutil
import textwrap
from typing import TextIO


def fitted(text: str, stream: TextIO) -> str:
    """`text` as `stream` should get it. Words longer than a row (paths, addresses) stay whole."""
    if not stream.isatty():
        return text
    columns = shutil.get_terminal_size().columns
    return "\n".join(
        textwrap.fill(line, columns, break_long_words=False, break_on_hyphens=False) for line in text.split("\n")
    )
