"""Tokens per second of constrained rows in this checkout beside those in another one: what a change cost live rows.

    python analysis/constrained_rate.py MODEL OTHER [--rows 1 8 32] [--rounds 5] [--threads 1]

OTHER is a checkout with its libraries built, of 9cdd73a or later. An engine of each runs in a process of its own, and
answers every case in turn, first one, then the other: so many answers at once, greedy and at temperature 0.8, drafts on
and off, under a schema that is new in each round and then once more under the same. What steps cost is taken as fixed,
so that both plan the same steps and drafts whatever else the machine does. Printed are the medians over the rounds of
the ratios of tokens per second (0.98 wanted) and of tokens per second of the engine's processor time, the counts of
both that differ (rows under a mask, drafts, steps; equal but for waits), and whether the ids are equal, which they must
be.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import IO, Any, NamedTuple

HERE = Path(__file__).resolve().parents[1]
COUNTED = ("steps_total", "constrained_samples_total", "constrained_only_total", "spec_drafted_total")
WAITED = "constrained_mask_wait_ms_total"


class Case(NamedTuple):
    n_rows: int
    temperature: float
    drafts: bool
    salt: int
    """Names a property, so that the schema is a new one."""

    def __str__(self) -> str:
        return f"{self.n_rows} rows, temperature {self.temperature}, drafts {'on' if self.drafts else 'off'}"


def schema(salt: int) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            f"name{salt}": {"type": "string", "maxLength": 24},
            "size": {"type": "integer", "minimum": 1, "maximum": 9999},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2, "maxItems": 3},
            "note": {"type": "string", "minLength": 12, "maxLength": 24},
        },
        "required": [f"name{salt}", "size", "tags", "note"],
        "additionalProperties": False,
    }


# --- one checkout --------------------------------------------------------------------------------


def fix_costs() -> None:
    from imp_server.schedule.cost import CostTable, VerifyCosts

    def estimate_ms(_self: CostTable, n_tokens: int) -> float:
        return 8.0 + 1.0 * n_tokens

    def observe(_self: CostTable, _n_tokens: int, _ms: float) -> None:
        return

    table: Any
    for table in (CostTable, VerifyCosts):
        table.estimate_ms, table.observe = estimate_ms, observe


def inline_engine() -> Any:
    """The class, where the checkout has it."""
    try:
        return importlib.import_module("imp_server.engine.client.inline").InlineEngine
    except ModuleNotFoundError:
        return importlib.import_module("imp_server.engine.inline").InlineEngine


def drafting(is_on: bool) -> dict[str, Any]:
    """What says so in a request of the checkout."""
    core = importlib.import_module("imp_server.core")
    options = getattr(core, "GenerationOptions", None)
    return {"speculative": is_on} if options is None else {"options": options(speculative=is_on)}


async def tell(model: str, threads: int, most: int) -> None:
    """Answers cases, one JSON line each."""
    from imp_server.config import Config
    from imp_server.core import GenerateRequest, OutputPlan, SamplingParams, pack_ids, unpack_ids
    from imp_server.engine.build import BuiltEngine, build_engine
    from imp_server.grammar.check import check_schema
    from imp_server.models.opening import open_model
    from imp_server.vocab.load import tokenizer_of

    sys.setswitchinterval(0.0005)  # as the engine's process has it
    fix_costs()
    tokenizer = tokenizer_of(open_model(model).header)
    prompt = tokenizer.encode("A parcel, as JSON: ", control=True, add_special=True)
    config = Config.of({"scheduler.max_rows": most, "prefix_cache.enabled": False, "cpu.threads": threads})
    built: list[BuiltEngine] = []

    def build(emit: Any, post: Any) -> BuiltEngine:
        own: Any = config.for_engine() if hasattr(config, "for_engine") else config  # a checkout from before
        built.append(build_engine(model, "m", own, emit, post))
        return built[0]

    engine = inline_engine()(build)
    await engine.start()

    async def one(seed: int, case: Case, plan: OutputPlan) -> list[int]:
        sampling = SamplingParams(temperature=case.temperature, seed=seed)
        wanted = GenerateRequest(engine.new_key(), pack_ids(prompt), plan, sampling, **drafting(case.drafts))
        return [i async for delta in await engine.submit(wanted) for i in unpack_ids(delta.ids)]

    print("ready", flush=True)
    for line in iter(sys.stdin.readline, ""):
        case = Case(*json.loads(line))
        grammar = check_schema(schema(case.salt))
        plan = OutputPlan(end_ids=tokenizer.vocabulary.end_ids, max_tokens=300, grammar=grammar)
        before = dict(built[0].loop.stats()[0])
        begun, processor_s = time.perf_counter(), time.process_time()
        ids = await asyncio.gather(*(one(seed, case, plan) for seed in range(case.n_rows)))
        seconds, processor_s = time.perf_counter() - begun, time.process_time() - processor_s
        after = built[0].loop.stats()[0]
        counts = {name: after.get(name, 0) - before.get(name, 0) for name in (*COUNTED, WAITED)}
        print(json.dumps({"ids": ids, "s": seconds, "processor_s": processor_s, "counts": counts}), flush=True)
    await engine.stop()


# --- both ----------------------------------------------------------------------------------------


class Engine:
    """Owner of the process that runs one checkout's engine."""

    def __init__(self, checkout: Path, options: argparse.Namespace) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), options.model, "--tell"]
        command += ["--threads", str(options.threads), "--rows", *map(str, options.rows)]
        env = dict(os.environ, PYTHONPATH=str(checkout / "imp"))
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=checkout
        )
        if self._out.readline() != "ready\n":
            raise SystemExit(f"the engine of {checkout} didn't start")

    @property
    def _out(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def run(self, case: Case) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps(case), file=self._process.stdin, flush=True)
        told: dict[str, Any] = json.loads(self._out.readline())
        return told

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def pairs(here: Engine, there: Engine, shape: Case, rounds: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Results of both; who comes first changes from round to round."""
    for number in range(rounds):
        case = shape._replace(salt=shape.salt + number)
        for turn in range(2):
            if (number + turn) % 2:
                found_there = there.run(case)
                yield here.run(case), found_there
            else:
                found_here = here.run(case)
                yield found_here, there.run(case)


def shown(found: list[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    def ratio(what: str) -> float:
        return float(statistics.median(b[what] / a[what] for a, b in found))

    is_equal = all(a["ids"] == b["ids"] for a, b in found)
    n_tokens = sum(len(ids) for ids in found[0][0]["ids"])
    rate = statistics.median(n_tokens / a["s"] for a, _ in found)
    told = f"{rate:.0f} tokens/s, ratio {ratio('s'):.3f}, by processor time {ratio('processor_s'):.3f}, "
    told += f"ids {'equal' if is_equal else 'DIFFER'}"
    sums = {name: [sum(each["counts"][name] for each in side) for side in zip(*found, strict=True)] for name in COUNTED}
    told += "".join(f", {name} {a:.0f} here, {b:.0f} there" for name, (a, b) in sums.items() if a != b)
    waits = [statistics.median(each["counts"][WAITED] for each in side) for side in zip(*found, strict=True)]
    return f"{told}; waits {waits[0]:.0f} and {waits[1]:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("other", type=Path, nargs="?")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tell", action="store_true", help="Answer cases from standard input.")
    options = parser.parse_args()
    if options.tell or options.other is None:
        asyncio.run(tell(options.model, options.threads, max(options.rows)))
        return
    here, there = Engine(HERE, options), Engine(options.other, options)
    here.run(Case(1, 0.0, False, 0)), there.run(Case(1, 0.0, False, 0))
    salt = 1
    for n_rows, temperature, drafts in product(options.rows, (0.0, 0.8), (True, False)):
        case = Case(n_rows, temperature, drafts, salt)
        found = list(pairs(here, there, case, options.rounds))
        salt += options.rounds
        print(f"{case}, new schema: {shown(found[::2])}", flush=True)
        print(f"{case}, known schema: {shown(found[1::2])}", flush=True)
    here.close()
    there.close()


if __name__ == "__main__":
    main()
