"""Tokens per second of the plain and the overlapped loop, in turn, on one model: python analysis/overlap.py MODEL

Answers are free (sampled), constrained (sampled under a schema that never ends) or drafted (greedy behind a prompt that
repeats itself, with drafts). Rounds alternate between two engines of this process, so both meet the same neighbours;
medians are shown. CPU is milliseconds of the process per token, GAP the microseconds per step in which no forward ran:
the host's time that is exposed. On a busy machine these two say more than tokens per second.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from itertools import product

from imp_server.cli._bench_runs import Bench, Sizes
from imp_server.config.load import load
from imp_server.core import GenerateRequest, GenerationOptions, OutputPlan, SamplingParams
from imp_server.engine.build import build_engine
from imp_server.grammar.check import check_schema
from msgspec.structs import replace

LOOPS = ("off", "on")
KINDS = ("free", "constrained", "drafted")
ENDLESS = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 40}, "size": {"type": "integer"}},
        "required": ["name", "size"],
        "additionalProperties": False,
    },
}


class Asking(Bench):
    """Requests of one kind after the other: `kind` is set in between."""

    kind = "free"

    def request(self, seed: int, n_prompt: int, n_tokens: int) -> GenerateRequest:
        plain = super().request(seed, n_prompt, n_tokens)
        if self.kind == "constrained":
            return replace(plain, plan=OutputPlan(max_tokens=n_tokens, grammar=check_schema(ENDLESS)))
        if self.kind == "drafted":
            greedy = SamplingParams(temperature=0.0)
            return replace(plain, ids=plain.ids * 4, sampling=greedy, options=GenerationOptions())
        return plain


def bench(path: str, overlap: str, options: argparse.Namespace) -> Asking:
    sets = [f"engine.overlap={overlap}", "scheduler.max_rows=32", f"cpu.threads={options.threads}"]
    config = load(sets=[*sets, "kv_cache.size_mib=256"]).config.for_engine()
    return Asking(
        lambda emit, post: build_engine(path, "m", config, emit=emit, post=post),
        Sizes(8, options.tokens, 32, options.rounds, speculative=False),
    )


async def rounds(own: Bench, n_rows: int, n_tokens: int, turn: int) -> tuple[float, float, float]:
    """Tokens per second, CPU milliseconds per token, microseconds without a forward per step."""
    own.backend.reset()
    began, cpu = time.perf_counter(), time.process_time()
    await own._round(n_rows, 8, n_tokens, turn)
    n, wall_s = n_rows * n_tokens, time.perf_counter() - began
    gap = 1e6 * (wall_s - own.backend.native_s) / own.backend.n_steps
    return n / wall_s, 1e3 * (time.process_time() - cpu) / n, gap


async def main(options: argparse.Namespace) -> None:
    benches = {overlap: bench(options.model, overlap, options) for overlap in LOOPS}
    for own in benches.values():
        await own.engine.start()
    print("             rows   plain/s   ahead/s  ratio   cpu plain ahead   gap plain ahead  ratios of pairs")
    for kind, n_rows in product(options.kinds, options.rows):
        found: dict[str, list[tuple[float, float, float]]] = {overlap: [] for overlap in LOOPS}
        for own in benches.values():
            own.kind = kind
            await rounds(own, n_rows, 8, 0)
        for turn in range(1, options.rounds + 1):
            for overlap in LOOPS if turn % 2 else reversed(LOOPS):
                found[overlap].append(await rounds(benches[overlap], n_rows, options.tokens, turn))
        speeds, cpus, gaps = ([[each[i] for each in found[o]] for o in LOOPS] for i in range(3))
        ratios = [on / off for off, on in zip(*speeds, strict=True)]
        median = statistics.median
        print(
            f"{kind:11} {n_rows:5} {median(speeds[0]):9.1f} {median(speeds[1]):9.1f} {median(ratios):6.3f} "
            f"{median(cpus[0]):11.3f} {median(cpus[1]):5.3f} {median(gaps[0]):11.0f} {median(gaps[1]):5.0f}  "
            f"{min(ratios):.3f}-{max(ratios):.3f}",
            flush=True,
        )
    counters, _ = await benches["on"].engine.stats()
    print({name: value for name, value in counters.items() if "overlap" in name and value})
    for own in benches.values():
        await own.engine.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    asyncio.run(main(parser.parse_args()))
