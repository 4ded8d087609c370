"""When a measured ratio counts as lost: against what this kind of machine showed before, and against a committed floor.

Values are ratios of two things measured in turn in one run, larger is better. `floors.json` is changed by hand alone;
`history/KIND.jsonl` grows by a line with each `make bench ARGS=--keep`.
"""

from __future__ import annotations

import json
import platform
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from imp_server.native import usable_isas

HERE = Path(__file__).parent
FLOORS: dict[str, float] = json.loads((HERE / "floors.json").read_text())
N_RUNS = 5
ENOUGH = 5
"""Kept values from which on the history has a say: fewer have no spread."""
LOSS = 0.9
N_MADS = 3


class Sample(NamedTuple):
    """One run: how many times less than its yardstick it takes, and what it took, in microseconds."""

    ratio: float
    us: float


class Measure(NamedTuple):
    name: str
    what: str
    """What is timed / what it is held against."""
    prepare: Callable[[], Callable[[], Sample]]
    most_us: float | None = None
    """A limit in microseconds that is promised whatever the machine."""


def verdict(values: Sequence[float], kept: Sequence[float], floor: float) -> str | None:
    """What is wrong with the median of `values`, if anything. `kept`: earlier medians on machines of this kind."""
    found = statistics.median(values)
    if found < floor:
        return f"{found:.3g} is below the committed floor of {floor:g}"
    if len(kept) < ENOUGH:
        return None
    usual = statistics.median(kept)
    spread = statistics.median(abs(value - usual) for value in kept)
    if found < LOSS * usual and found < usual - N_MADS * spread:
        return f"{found:.3g} is {1 - found / usual:.0%} below the usual {usual:.3g} (its spread is {spread:.2g})"
    return None


def broken_limit(measure: Measure, samples: Sequence[Sample]) -> str | None:
    """The best run is held against a limit in time: a busy neighbour only ever adds some."""
    best = min(sample.us for sample in samples)
    if measure.most_us is not None and best > measure.most_us:
        return f"{best:.0f} microseconds are above the limit of {measure.most_us:g}"
    return None


def machine_kind() -> str:
    """CPU, instruction set and cores, as a file name."""
    name = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            name = line.partition(":")[2]
            break
    return re.sub(r"[^a-z0-9]+", "-", f"{name} {usable_isas()[0]}".lower()).strip("-")


def history_path(kind: str) -> Path:
    return HERE / "history" / f"{kind}.jsonl"


def read_history(path: Path) -> list[dict[str, Any]]:
    """One entry per kept run: {"made": date, "commit": ..., "medians": {name: ratio}}."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def kept_values(history: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [entry["medians"][name] for entry in history if name in entry["medians"]]
