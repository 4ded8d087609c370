"""What drafts for ordinary text gain at another size: a small model's answers, paid for with a large one's steps.

    python analysis/draft_replay.py SMALL.gguf --costs-of LARGE.gguf [--threads 2] [--streams 1] [--answers FILE]

SMALL answers questions, wishes for prose and wishes for code, greedily and at temperature 0.8, without drafts; nothing
of the answers stands in the prompts. Then the server's own drafters and its own choice of lengths go over each answer
token by token, and every step costs what a step of that width was measured to cost with LARGE (a file of
`shaped_models.py` will do: what it writes doesn't matter). The ids are given, so what is counted is steps alone: by how
much they get fewer, and dearer. `--answers`: made once, and read from there afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import statistics
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
from imp_server.backends.base import BLOCK_TOKENS, KvSpec
from imp_server.backends.cpu.backend import CpuBackend
from imp_server.config import Config
from imp_server.core import GenerateRequest, GenerationOptions, OutputPlan, SamplingParams, pack_ids, unpack_ids
from imp_server.decode.ngram import NgramDrafter
from imp_server.decode.recall import RecallDrafter
from imp_server.decode.state import SamplerState
from imp_server.engine.build import build_engine
from imp_server.engine.choice import Counts
from imp_server.engine.client.inline import InlineEngine
from imp_server.engine.drafting.drafts import RowDrafting
from imp_server.engine.drafting.speculation import Speculation
from imp_server.engine.live import LiveRow
from imp_server.engine.warming import measure_drafts
from imp_server.models.opening import open_model
from imp_server.schedule.cost import VerifyCosts
from imp_server.vocab.load import tokenizer_of

PROMPTS = {
    "questions": (
        "How do I make a good cup of coffee?", "Why is the sky blue?", "How can I sleep better?",
        "Tell me about the history of chess.", "Plan a weekend in Lisbon for two people.",
        "What should I cook with eggs, rice and spinach?",
    ),
    "prose": (
        "Write a short story about a lighthouse keeper.", "Describe a walk through an old town in the rain.",
        "Write a letter to a friend about moving to a new city.", "Tell a fairy tale about a clever fox.",
        "Write an essay about the importance of reading.", "Describe a summer morning at the sea.",
    ),
    "code": (
        "Write a Python function that checks whether a number is prime.", "Write a Python class for a stack.",
        "Write a Python function for binary search.", "Write a C function that reverses a string.",
        "Write a Python script that counts words in a file.", "Write SQL to list customers with their orders.",
    ),
}  # fmt: skip
TEMPERATURES = (0.0, 0.8)
N_TOKENS = 256
N_POSITIONS = 512

Answer = dict[str, Any]
"""Its kind, temperature, ids of the prompt and of the answer."""


async def answered(small: str) -> list[Answer]:
    encode = tokenizer_of(open_model(small).header).encode
    config = Config.of({"engine.backend": "cpu"})
    engine = InlineEngine(functools.partial(build_engine, small, "model", config.for_engine()))
    await engine.start()
    answers: list[Answer] = []
    for temperature in TEMPERATURES:
        for kind, prompts in PROMPTS.items():
            for prompt in prompts:
                ids = list(encode(f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"))
                request = GenerateRequest(
                    engine.new_key(),
                    pack_ids(ids),
                    OutputPlan(max_tokens=N_TOKENS, end_ids=(2,)),
                    SamplingParams(temperature=temperature, seed=1, top_k=40, top_p=0.95),
                    options=GenerationOptions(speculative=False),
                )
                out: list[int] = []
                async for delta in await engine.submit(request):
                    out += unpack_ids(delta.ids)
                answers.append({"kind": kind, "temperature": temperature, "prompt": ids, "out": out})
    await engine.stop()
    return answers


def costs_of(large: str, n_threads: int) -> VerifyCosts:
    """As a server measures them at its start, a few times over."""
    backend = CpuBackend(open_model(large), n_threads=n_threads)
    kv = KvSpec((N_POSITIONS // BLOCK_TOKENS,), "bf16")
    backend.allocate(kv)
    costs = VerifyCosts()
    for _ in range(3):
        measure_drafts(backend, kv, costs, N_POSITIONS)
    backend.close()
    return costs


class _Output:
    """What drafting asks of a running answer."""

    def __init__(self, request: GenerateRequest, n_tokens: int) -> None:
        self.request, self.counts, self.room_left = request, Counts(), n_tokens


class _Row:
    def __init__(self, sampler: SamplerState) -> None:
        self.sampler = sampler
        self.drafts = np.empty(0, dtype=np.int32)


class Replayed:
    """An answer that is given, in place of a `LiveRow`."""

    grammar = None

    def __init__(self, answer: Answer) -> None:
        self.out: list[int] = answer["out"]
        params = SamplingParams(temperature=answer["temperature"])
        prompt = np.array(answer["prompt"], dtype=np.int32)
        self.row = _Row(SamplerState(params, 0, prompt, len(prompt) + len(self.out)))
        self.output = _Output(GenerateRequest(1, prompt.tobytes()), len(self.out))
        self.drafting: RowDrafting | None = None
        self.advance(1)  # the prompt's own step writes the first

    @property
    def is_over(self) -> bool:
        return self.output.room_left <= 0

    def advance(self, n: int) -> None:
        at = self.row.sampler.position
        self.row.sampler.append(self.out[at : at + n])
        self.output.room_left = len(self.out) - self.row.sampler.position

    def verified(self) -> int:
        """How many of the drafts are what the answer goes on with."""
        at = self.row.sampler.position
        n_right = 0
        for drafted, real in zip(self.row.drafts.tolist(), self.out[at:], strict=False):
            if drafted != real:
                break
            n_right += 1
        return n_right


def gain(group: list[Answer], speculation: Speculation, costs: VerifyCosts) -> float:
    """Time of a group of answers written side by side without drafts over that with them."""
    rows = [Replayed(answer) for answer in group if len(answer["out"]) > 1]
    plain_ms = drafted_ms = 0.0
    longest = max(len(row.out) for row in rows)
    for i in range(1, longest):
        plain_ms += costs.estimate_ms(sum(len(row.out) > i for row in rows))
    while running := [row for row in rows if not row.is_over]:
        speculation.propose(cast(list[LiveRow], running))
        drafted_ms += costs.estimate_ms(len(running) + sum(len(row.row.drafts) for row in running))
        for row in running:
            n_drafted, n_accepted = len(row.row.drafts), row.verified()
            row.advance(n_accepted + 1)
            if n_drafted:
                speculation.settle(cast(LiveRow, row), n_drafted, n_accepted)
    return plain_ms / drafted_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("small")
    parser.add_argument("--costs-of", required=True)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--answers", type=Path)
    options = parser.parse_args()
    if options.answers and options.answers.exists():
        answers = json.loads(options.answers.read_text())
    else:
        answers = asyncio.run(answered(options.small))
        if options.answers:
            options.answers.write_text(json.dumps(answers))
    began = time.perf_counter()
    costs = costs_of(options.costs_of, options.threads)
    shown = ", ".join(f"{n}: {costs.estimate_ms(n):.2f}" for n in (1, 2, 3, 4, 5, 8, 16))
    print(f"ms by width {shown} (measured in {time.perf_counter() - began:.0f} s)")
    for temperature in TEMPERATURES:
        speculation = Speculation((NgramDrafter(), RecallDrafter()), costs=costs)
        for kind in PROMPTS:
            chosen = [each for each in answers if (each["kind"], each["temperature"]) == (kind, temperature)]
            groups = [chosen[i : i + options.streams] for i in range(0, len(chosen), options.streams)]
            gains = [gain(group, speculation, costs) for group in groups]
            print(
                f"temperature {temperature}, {kind}, {options.streams} at once: "
                f"{statistics.geometric_mean(gains):.2f} x plain ({min(gains):.2f}-{max(gains):.2f})"
            )


if __name__ == "__main__":
    main()
