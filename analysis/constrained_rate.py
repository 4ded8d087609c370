"""Tokens per second of constrained rows in this checkout beside those in another one: what a change cost live rows.

    python analysis/constrained_rate.py MODEL OTHER [--rows 1 8 32] [--rounds 3]

OTHER is a checkout with its libraries built. Both run in turn, each in a process of its own: so many answers under one
schema at once, greedy and at temperature 0.8, drafts on and off. Printed are the medians of the ratios (0.98 wanted)
and whether the ids are equal, which they must be.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "size": {"type": "integer", "minimum": 1, "maximum": 9999},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 8, "maxItems": 12},
        "note": {"type": "string", "minLength": 60, "maxLength": 90},
    },
    "required": ["name", "size", "tags", "note"],
    "additionalProperties": False,
}
CASES = [(temperature, drafts) for temperature in (0.0, 0.8) for drafts in (True, False)]


async def rates(model: str, rows: list[int]) -> dict[str, Any]:
    """By case: tokens/s and the ids."""
    from imp_server.config import Config
    from imp_server.core import GenerateRequest, OutputPlan, SamplingParams, pack_ids, unpack_ids
    from imp_server.engine.build import build_engine
    from imp_server.engine.inline import InlineEngine
    from imp_server.grammar.check import check_schema
    from imp_server.models.opening import open_model
    from imp_server.vocab.load import tokenizer_of

    tokenizer = tokenizer_of(open_model(model).header)
    prompt = tokenizer.encode("A parcel, as JSON: ", control=True, add_special=True)
    config = Config.of({"scheduler.max_rows": max(rows), "prefix_cache.enabled": False})
    engine = InlineEngine(lambda emit, post: build_engine(model, "m", config, emit, post))
    await engine.start()

    grammar = check_schema(SCHEMA)

    async def one(seed: int, temperature: float, drafts: bool) -> list[int]:
        plan = OutputPlan(end_ids=tokenizer.vocabulary.end_ids, max_tokens=300, grammar=grammar)
        sampling = SamplingParams(temperature=temperature, seed=seed)
        wanted = GenerateRequest(engine.new_key(), pack_ids(prompt), plan, sampling, speculative=drafts)
        return [i async for delta in await engine.submit(wanted) for i in unpack_ids(delta.ids)]

    told: dict[str, Any] = {}
    for n in rows:
        for temperature, drafts in CASES:
            begun = time.perf_counter()
            ids = await asyncio.gather(*(one(seed, temperature, drafts) for seed in range(n)))
            seconds = time.perf_counter() - begun
            told[f"{n} rows, temperature {temperature}, drafts {'on' if drafts else 'off'}"] = (
                sum(map(len, ids)) / seconds,
                ids,
            )
    await engine.stop()
    return told


def run(checkout: Path, model: str, rows: list[int]) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).resolve()), model, "--tell", "--rows", *map(str, rows)]
    env = dict(os.environ, PYTHONPATH=str(checkout / "imp"))
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, cwd=checkout)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("other", type=Path, nargs="?")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tell", action="store_true", help="Measure this checkout alone, as JSON.")
    options = parser.parse_args()
    if options.tell or options.other is None:
        print(json.dumps(asyncio.run(rates(options.model, options.rows))))
        return
    pairs = [
        (run(HERE, options.model, options.rows), run(options.other, options.model, options.rows))
        for _ in range(options.rounds)
    ]
    for case in pairs[0][0]:
        ratio = statistics.median(here[case][0] / there[case][0] for here, there in pairs)
        is_equal = all(here[case][1] == there[case][1] for here, there in pairs)
        print(
            f"{case}: {pairs[0][0][case][0]:.1f} tokens/s, ratio {ratio:.3f}, ids {'equal' if is_equal else 'DIFFER'}"
        )


if __name__ == "__main__":
    main()
