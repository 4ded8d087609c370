"""`make bench`: every measure, judged by the floors and by what machines of this kind showed before, as a table.

    python -m tests.perf.bench [--keep] [--only NAME]

--keep adds the medians to tests/perf/history/KIND.jsonl, to be committed. Exit code 1: something is slower. It wants
an idle machine: the floors hold anywhere, the history is one of idle machines.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.perf.gates import (
    FLOORS,
    N_RUNS,
    Measure,
    Sample,
    broken_limit,
    history_path,
    kept_values,
    machine_kind,
    read_history,
    verdict,
)
from tests.perf.measures import MEASURES, api


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def taken(measures: Sequence[Measure]) -> dict[str, list[Sample]]:
    """Five runs of each, one run of all after the other: a slow minute meets them all alike."""
    ready = {measure.name: measure.prepare() for measure in measures}
    samples: dict[str, list[Sample]] = {name: [] for name in ready}
    for _ in range(N_RUNS):
        for name, once in ready.items():
            samples[name].append(once())
    return samples


def run(measures: Sequence[Measure], path: Path, *, keep: bool) -> int:
    """Takes them and judges them; the exit code."""
    return judge(measures, taken(measures), path, keep=keep)


def judge(measures: Sequence[Measure], samples: dict[str, list[Sample]], path: Path, *, keep: bool) -> int:
    """Prints the table; the exit code."""
    history = read_history(path)
    table = Table("measure", "what", "us", "ratio", "usual", "floor", "")
    failed = False
    for measure in measures:
        of_it = samples[measure.name]
        ratios, kept = [sample.ratio for sample in of_it], kept_values(history, measure.name)
        wrong = verdict(ratios, kept, FLOORS[measure.name]) or broken_limit(measure, of_it)
        failed = failed or wrong is not None
        usual = f"{statistics.median(kept):.3g} ({len(kept)})" if kept else "-"
        took = f"{min(sample.us for sample in of_it):.1f}"
        row = (took, f"{statistics.median(ratios):.3g}", usual, f"{FLOORS[measure.name]:g}", wrong or "ok")
        table.add_row(measure.name, measure.what, *row)
    Console(width=160, highlight=False).print(table)
    if keep:
        medians = {name: round(statistics.median(s.ratio for s in of), 4) for name, of in samples.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as lines:
            entry = {"made": time.strftime("%Y-%m-%d"), "commit": _commit(), "medians": medians}
            lines.write(json.dumps(entry) + "\n")
    return int(failed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description="Speed as ratios, and whether any was lost.")
    parser.add_argument("--keep", action="store_true", help="add the medians to the history of this kind of machine")
    parser.add_argument("--only", default="", help="names that begin so")
    asked = parser.parse_args()
    chosen = [measure for measure in MEASURES if measure.name.startswith(asked.only)]
    samples = taken(chosen)
    if "api".startswith(asked.only):
        # by itself: a server in the process changes how C's allocator gets memory for the others
        with api() as (of_api, _):
            chosen.append(of_api)
            samples |= taken([of_api])
    return judge(chosen, samples, history_path(machine_kind()), keep=asked.keep)


if __name__ == "__main__":
    sys.exit(main())
