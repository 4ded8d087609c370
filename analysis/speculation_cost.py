"""What n-gram drafts cost where they save nothing: prose without repetition, alone and in a batch.

    python analysis/speculation_cost.py MODEL [--rounds 9] [--tokens 96] [--only "8 streams, sampled"] [--check]

One process, one thread for the kernels, the two arms in turn (who goes first changes); the ids, and the logprobs where
they are asked for, must be equal. A few hundredths are in question. So the ratio of plain to drafted is given three
times: of the time until all streams have ended; of the process's CPU time, which a busy neighbour disturbs less; and as
accounted: the best plain time over itself with what drafting added, which is the time in which drafts were looked for
and settled and what the cost table says of the positions tried, less the steps they saved. Medians, with the range that
holds the median of such rounds with 95 % (bootstrap). --check: fail where CPU time and account are both below 0.97.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from imp_server.config import Config
from imp_server.core import (
    GenerateRequest,
    GenerationOptions,
    OutputPlan,
    SamplingParams,
    TokenLogprob,
    pack_ids,
    unpack_ids,
)
from imp_server.engine.build import BuiltEngine, build_engine
from imp_server.engine.client.inline import InlineEngine
from imp_server.engine.live import LiveRow
from imp_server.models.opening import open_model
from imp_server.schedule.cost import CostTable, VerifyCosts
from imp_server.vocab.load import tokenizer_of

from analysis.prefix_cost import bootstrap

PROSE = (
    "The history of the lighthouse at the northern cape begins in the winter of 1823, when",
    "My grandmother kept bees behind her house, and every summer she told us that",
    "On the evening before the market the two brothers loaded the cart and",
    "Nobody in the village could say who had built the bridge, but",
    "The train left an hour late, so the teacher and her class",
    "When the doctor opened the letter from the ministry, she",
    "After the storm the fishermen found on the beach a wooden box that",
    "It takes four days to walk from the valley to the old monastery, and",
)
SAMPLED = SamplingParams(temperature=0.8)
SCENARIOS: dict[str, tuple[int, SamplingParams, int | None]] = {
    "1 stream, sampled": (1, SAMPLED, None),
    "1 stream, sampled, logprobs": (1, SAMPLED, 5),
    "1 stream, greedy, penalties": (1, SamplingParams(temperature=0.0, repetition_penalty=1.3), None),
    "8 streams, sampled": (8, SAMPLED, None),
    "8 streams, sampled, logprobs": (8, SAMPLED, 5),
    "8 streams, greedy, penalties": (8, SamplingParams(temperature=0.0, repetition_penalty=1.3), None),
}
"""How many streams, how they sample, logprobs."""
GOAL = 0.97
Said = list[tuple[list[int], list[TokenLogprob]]]


class Watched:
    """Owner of what one engine's drafting was seen to take."""

    def __init__(self) -> None:
        self.looking_ms = 0.0
        self.n_drafted = self.n_accepted = 0
        self._tried_ms = 0.0
        self._costs: CostTable = VerifyCosts()
        self._n_rows = 1

    def build(self, *arguments: Any) -> BuiltEngine:
        built = build_engine(*arguments)
        speculation = built.loop.parts.speculation
        self._costs = built.loop.scheduler.decode_costs
        propose, settle = speculation.propose, speculation.settle

        def timed_propose(decoding: Sequence[LiveRow], overlaps_masks: bool = False) -> None:
            began = time.perf_counter()
            propose(decoding, overlaps_masks)
            self.looking_ms += 1e3 * (time.perf_counter() - began)
            self._charge(len(decoding), sum(len(live.row.drafts) for live in decoding))

        def timed_settle(live: LiveRow, n_drafted: int, n_accepted: int) -> None:
            began = time.perf_counter()
            settle(live, n_drafted, n_accepted)
            self.looking_ms += 1e3 * (time.perf_counter() - began)
            self.n_accepted += n_accepted
            self._tried_ms -= n_accepted * self._costs.estimate_ms(self._n_rows) / self._n_rows

        speculation.propose, speculation.settle = timed_propose, timed_settle  # type: ignore[method-assign]
        return built

    def take(self) -> tuple[float, int, int]:
        """Since the last call: what drafting added in ms (negative if it saved time), drafted and accepted tokens."""
        found = self.looking_ms + self._tried_ms, self.n_drafted, self.n_accepted
        self.looking_ms = self._tried_ms = 0.0
        self.n_drafted = self.n_accepted = 0
        return found

    def _charge(self, n_rows: int, n_drafts: int) -> None:
        if n_drafts:
            self._n_rows = n_rows
            self.n_drafted += n_drafts
            self._tried_ms += self._costs.estimate_ms(n_rows + n_drafts) - self._costs.estimate_ms(n_rows)


class Arm(NamedTuple):
    """`added_ms`, `drafted` and `accepted`: see Watched.take."""

    wall_ms: float
    cpu_ms: float
    added_ms: float
    drafted: int
    accepted: int
    said: Said


class Bench:
    def __init__(self, engine: InlineEngine, watched: Watched, prompts: list[list[int]], n_tokens: int) -> None:
        self._engine = engine
        self._watched = watched
        self._prompts = prompts
        self._n_tokens = n_tokens

    async def once(self, scenario: str, speculative: bool) -> Arm:
        n, sampling, logprobs = SCENARIOS[scenario]
        self._watched.take()
        began, cpu_began = time.perf_counter(), time.process_time()
        said = await asyncio.gather(
            *(self._one(ids, sampling, logprobs, speculative, seed) for seed, ids in enumerate(self._prompts[:n]))
        )
        cpu_s, wall_s = time.process_time() - cpu_began, time.perf_counter() - began
        return Arm(1e3 * wall_s, 1e3 * cpu_s, *self._watched.take(), said)

    async def _one(
        self, ids: list[int], sampling: SamplingParams, logprobs: int | None, speculative: bool, seed: int
    ) -> tuple[list[int], list[TokenLogprob]]:
        request = GenerateRequest(
            self._engine.new_key(),
            pack_ids(ids),
            OutputPlan(max_tokens=self._n_tokens),
            SamplingParams(
                temperature=sampling.temperature, repetition_penalty=sampling.repetition_penalty, seed=11 + seed
            ),
            options=GenerationOptions(logprobs=logprobs, speculative=speculative),
        )
        out: list[int] = []
        entries: list[TokenLogprob] = []
        async for delta in await self._engine.submit(request):
            out += unpack_ids(delta.ids)
            entries += delta.logprobs
        return out, entries

    async def compare(self, scenario: str, rounds: int) -> bool:
        """Prints the ratios; whether the goal is met."""
        right = (await self.once(scenario, False)).said
        plain: list[Arm] = []
        drafted: list[Arm] = []
        for number in range(rounds):
            for speculative in (number % 2 == 0, number % 2 == 1):
                arm = await self.once(scenario, speculative)
                assert arm.said == right, "drafts changed a reply"
                (drafted if speculative else plain).append(arm)
        best_ms = min(arm.wall_ms for arm in plain)
        found = {
            "wall": [one.wall_ms / other.wall_ms for one, other in zip(plain, drafted)],
            "CPU": [one.cpu_ms / other.cpu_ms for one, other in zip(plain, drafted)],
            "account": [best_ms / (best_ms + arm.added_ms) for arm in drafted],
        }
        shown = []
        for name, ratios in found.items():
            low, high = bootstrap(ratios)
            shown.append(f"{name} {statistics.median(ratios):.3f} ({low:.3f}-{high:.3f})")
        n_drafted, n_accepted = (
            sum(getattr(arm, name) for arm in drafted) / rounds for name in ("drafted", "accepted")
        )
        print(f"{scenario}: {', '.join(shown)}; {n_accepted:.0f} of {n_drafted:.0f} drafted tokens accepted")
        return max(statistics.median(found["CPU"]), statistics.median(found["account"])) >= GOAL


async def measure(options: argparse.Namespace) -> bool:
    """Whether the goals are met."""
    encode = tokenizer_of(open_model(options.model).header).encode
    # Threads that spin while a busy machine keeps them waiting would count as work.
    config = Config.of({"engine.backend": options.backend, "cpu.threads": 1})
    watched = Watched()
    engine = InlineEngine(functools.partial(watched.build, options.model, "model", config.for_engine()))
    await engine.start()
    bench = Bench(engine, watched, [list(encode(text)) for text in PROSE], options.tokens)
    chosen = [name for name in SCENARIOS if options.only in ("", name)]
    met = [await bench.compare(name, options.rounds) for name in chosen]
    await engine.stop()
    return all(met)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--only", choices=list(SCENARIOS), default="")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    is_good = asyncio.run(measure(options))
    if options.check and not is_good:
        raise SystemExit(f"below {GOAL} x plain")


if __name__ == "__main__":
    main()
