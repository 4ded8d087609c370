"""Tokens per second of the plain and the overlapped loop, in turn, on one model: python analysis/overlap.py MODEL

Rounds alternate between two engines of this process, so both meet the same neighbours; medians are shown. CPU is
milliseconds of the process per token, GAP the microseconds per step in which no forward ran: the host's time that is
exposed. On a busy machine these two say more than tokens per second. Answers are sampled; nothing is drafted without
--drafts.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

from imp_server.cli._bench_runs import Bench, Sizes
from imp_server.config.load import load
from imp_server.engine.build import build_engine

LOOPS = ("off", "on")


def bench(path: str, overlap: str, options: argparse.Namespace) -> Bench:
    sets = [f"engine.overlap={overlap}", "scheduler.max_rows=32", f"cpu.threads={options.threads}"]
    config = load(sets=[*sets, "kv_cache.size_mib=256"]).config.for_engine()
    return Bench(
        lambda emit, post: build_engine(path, "m", config, emit=emit, post=post),
        Sizes(8, options.tokens, 32, options.rounds, options.drafts),
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
    print(" rows   plain/s   ahead/s  ratio   cpu plain ahead   gap plain ahead  ratios of pairs")
    for n_rows in options.rows:
        found: dict[str, list[tuple[float, float, float]]] = {overlap: [] for overlap in LOOPS}
        for own in benches.values():
            await rounds(own, n_rows, 8, 0)
        for turn in range(1, options.rounds + 1):
            for overlap in LOOPS if turn % 2 else reversed(LOOPS):
                found[overlap].append(await rounds(benches[overlap], n_rows, options.tokens, turn))
        speeds, cpus, gaps = ([[each[i] for each in found[o]] for o in LOOPS] for i in range(3))
        ratios = [on / off for off, on in zip(*speeds, strict=True)]
        median = statistics.median
        print(
            f"{n_rows:5} {median(speeds[0]):9.1f} {median(speeds[1]):9.1f} {median(ratios):6.3f} "
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
    parser.add_argument("--drafts", action="store_true")
    asyncio.run(main(parser.parse_args()))
