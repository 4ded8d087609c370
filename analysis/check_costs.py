"""What checks and first starts of grammars cost, in CPU seconds and memory: of the suite, real schemas, hostile ones.

    PYTHONPATH=. python analysis/check_costs.py [--store 8] [--hostile 300 --seed 0] [--cases FOLDER]

Each grammar is checked and started in a process of its own, forked from one that is warm, as servers do it. Those
beyond 1 s of CPU time or 64 MB are printed: the least of three tries, since a busy machine makes work slower. `--store
N`: every Nth schema of the schemastore; `--hostile N`: so many drawn by the strategies of tests/grammar/hostile.py.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import signal
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from imp_server.core import GrammarTooCostly, ImpError
from imp_server.grammar.engine import GrammarSpace
from imp_server.grammar.proving import warm_up
from imp_server.grammar.values.schema.closing import with_closing

from tests.grammar import hostile, store, suite

MOST_S, MOST_MB = 1.0, 64.0
LIMIT_S = 30
"""After which a try is given up."""


class Asked(NamedTuple):
    where: str
    what: hostile.Hostile


class Cost(NamedTuple):
    """`outcome`: served | refused | blown (checked, and not started) | killed | what it raised."""

    outcome: str
    check_s: float = 0.0
    check_mb: float = 0.0
    start_s: float = 0.0
    start_mb: float = 0.0
    message: str = ""

    @property
    def is_dear(self) -> bool:
        seconds, megabytes = max(self.check_s, self.start_s), max(self.check_mb, self.start_mb)
        return self.outcome not in ("served", "refused") or seconds > MOST_S or megabytes > MOST_MB


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def cost_here(asked: hostile.Hostile) -> Cost:
    began, before = time.process_time(), peak_mb()
    try:
        plan = hostile.CHECKS[asked.kind](asked.what)
    except ImpError as refused:
        return Cost("refused", time.process_time() - began, peak_mb() - before, message=refused.message)
    checked, after = time.process_time(), peak_mb()
    told = (checked - began, after - before)
    try:
        GrammarSpace(hostile.VOCABULARY).matcher(plan)
    except GrammarTooCostly as refused:
        return Cost("blown", *told, time.process_time() - checked, peak_mb() - after, refused.message)
    return Cost("served", *told, time.process_time() - checked, peak_mb() - after)


def cost_apart(asked: hostile.Hostile) -> Cost:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        gc.freeze()  # as in a zygote: what was there before isn't walked
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        try:
            found = cost_here(asked)
        except BaseException as error:
            found = Cost(type(error).__name__, message=str(error)[:200])
        os.write(writer, json.dumps(found).encode()[:60_000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return Cost(*json.loads(told)) if told else Cost("killed", LIMIT_S)


def both(where: str, schema: Any) -> Iterator[Asked]:
    """As it is, and as answers under it are bound."""
    yield Asked(where, hostile.Hostile("schema", schema))
    if isinstance(schema, dict):
        yield Asked(f"{where}, closed", hostile.Hostile("schema", with_closing(schema, True)))


def drawn(n: int, seed: int) -> list[hostile.Hostile]:
    found: list[hostile.Hostile] = []

    @seeded(seed)
    @settings(
        max_examples=n, database=None, phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(hostile.grammars())
    def draw(one: hostile.Hostile) -> None:
        found.append(one)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draw()
    return found


def everything(options: argparse.Namespace) -> Iterator[Asked]:
    for group in suite.groups() if options.suite else ():
        yield from both(f"suite {group.name}", group.schema)
    for path in sorted(Path(options.cases).rglob("*.json")) if options.cases else ():
        yield from of_case(path)
    for real in store.schemas()[:: options.store] if options.store else ():
        yield from both(f"store {real.name}", real.schema)
    for number, one in enumerate(drawn(options.hostile, options.seed) if options.hostile else ()):
        yield Asked(f"hostile {options.seed}/{number}", one)


def of_case(path: Path) -> Iterator[Asked]:
    """Whatever of a stored request body, or of a schema, is a schema or a pattern."""
    todo = [json.loads(path.read_text())]
    while todo:
        part = todo.pop()
        if isinstance(part, dict) and part.keys() & {"$defs", "type", "oneOf", "anyOf", "allOf", "properties"}:
            yield from both(path.name, part)
        elif isinstance(part, dict):
            yield from (Asked(path.name, hostile.Hostile("regex", part[k])) for k in ("regex", "pattern") if k in part)
            todo += part.values()
        elif isinstance(part, list):
            todo += part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--store", type=int, default=0)
    parser.add_argument("--hostile", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", default="", help="folder of schemas and request bodies, as JSON")
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which it stops")
    options = parser.parse_args()
    for _ in range(2):
        warm_up()
    counts: Counter[str] = Counter()
    worst: dict[str, float] = {"check_s": 0.0, "check_mb": 0.0, "start_s": 0.0, "start_mb": 0.0}
    end = time.monotonic() + options.seconds
    for asked in everything(options):
        if time.monotonic() > end:
            print("time is up")
            break
        found = cost_apart(asked.what)
        for _ in range(2):
            if found.is_dear:
                found = min(found, cost_apart(asked.what), key=lambda cost: (cost.is_dear, cost.check_s + cost.start_s))
        counts[found.outcome] += 1
        worst = {name: max(most, getattr(found, name)) for name, most in worst.items()}
        if found.is_dear:
            counts["dear"] += 1
            print(f"{asked.where}: {found}", flush=True)
    print(", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items())))
    print("most: " + ", ".join(f"{name} {value:.2f}" for name, value in worst.items()))


if __name__ == "__main__":
    main()
