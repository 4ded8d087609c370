"""What a person sees: progress bars on stderr, tables on stdout, sizes and times in words."""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import TransferSpeedColumn as SpeedColumn
from rich.table import Table
from rich.text import Text

from imp_server.logs import is_json, tell
from imp_server.weights.manifest import OnProgress

NAME_WIDTH = 22
PLAIN_EVERY_S = 5.0


def size_text(n_bytes: float) -> str:
    """98362432 -> `98.4 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} TB"


def age_text(unix_s: float) -> str:
    """How long ago, in one unit."""
    seconds = max(0.0, time.time() - unix_s)
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            n = int(seconds // length)
            return f"{n} {unit}{'s' if n > 1 else ''} ago"
    return "just now"


def count_text(n: int) -> str:
    """134515008 -> `135M`."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.3g}{unit}"
    return str(n)


def shortened(text: str, width: int) -> str:
    """Cut in the middle: a long name is told by both its ends."""
    head = width // 3
    return text if len(text) <= width else f"{text[:head]}…{text[len(text) - (width - head - 1) :]}"


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[str] = frozenset()) -> None:
    """A borderless table on stdout; not cut when it goes to a file or a pipe."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    if sys.stdout.isatty():
        Console().print(table)
        return
    plain = Console(width=1000, file=io.StringIO())
    plain.print(table)
    for line in plain.file.getvalue().splitlines():  # type: ignore[attr-defined]
        print(line.rstrip())


@contextmanager
def transfer_progress() -> Iterator[OnProgress]:
    """Bars with bytes/s and time left on a terminal; elsewhere a line now and then."""
    if is_json() or not sys.stderr.isatty():
        yield _plain()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        DownloadColumn(),
        SpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    lock = threading.Lock()
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True)) as bars:

        def show(file: str, done: int, total: int) -> None:
            with lock:
                if file not in tasks:
                    tasks[file] = bars.add_task(shortened(file, NAME_WIDTH), total=total or None)
            bars.update(tasks[file], completed=done, total=total or None)

        yield show


def _plain() -> OnProgress:
    lock = threading.Lock()
    told: dict[str, float] = {}

    def show(file: str, done: int, total: int) -> None:
        with lock:
            now = time.monotonic()
            finished = bool(total) and done >= total
            if (now - told.get(file, 0.0) < PLAIN_EVERY_S and not finished) or told.get(file) == float("inf"):
                return
            told[file] = float("inf") if finished else now
        share = f"{100 * done // total} % of {size_text(total)}" if total else size_text(done)
        tell(f"{file}: {share}")

    return show
