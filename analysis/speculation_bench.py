"""Tokens per second with n-gram drafts over those without, on edits; speculation_cost.py has prose.

python analysis/speculation_bench.py MODEL [--backend cpu] [--rounds 7] [--tokens 128] [--check]

One process, the two arms in turn (who goes first changes with each round); the ids of both arms must be equal. Per text
the ratio of the best rounds, which a busy neighbour disturbs least, and the median of the rounds' ratios. The edits are
pinned: SmolLM2-135M-Instruct copies at least 80 % of its replies to them from the prompt, which is checked: the share
of the reply's 8-grams that stand in the prompt. --check: fail below 1.8.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import statistics
import sys
import time
from typing import NamedTuple

from imp_server.config import Config
from imp_server.core import GenerateRequest, GenerationOptions, OutputPlan, SamplingParams, pack_ids, unpack_ids
from imp_server.engine.build import build_engine
from imp_server.engine.client.inline import InlineEngine
from imp_server.models.opening import open_model
from imp_server.vocab.load import tokenizer_of

CODE = '''def total_price(items, tax_rate):
    """Sum of the items' prices with tax, rounded to cents."""
    subtotal = 0
    for item in items:
        if item.quantity < 0:
            raise ValueError("quantity must not be negative: " + item.name)
        subtotal += item.price * item.quantity
    shipping = 0 if subtotal > 100 else 7.5
    return round((subtotal + shipping) * (1 + tax_rate), 2)


def find_customer(customers, name):
    for customer in customers:
        if customer.name.lower() == name.lower():
            return customer
    raise KeyError("no customer is called " + name)
'''
EDITED = CODE.replace("items", "lines").replace("customer", "client")
LETTER = (
    "Dear neighbours, the street will be closed on Saturday from eight in the morning until six in the evening, since "
    "the water pipes between the bakery and the school are being replaced. Please park your cars in Mill Lane, where "
    "forty places are kept free, and fill a few bottles of water before you go to bed on Friday.\n"
)
LIST = """1. Check the oil and the water of the car.
2. Write to the landlord about the broken window.
3. Buy bread, butter, two lemons and a bag of rice.
4. Call the dentist and move the date to Tuesday.
5. Return the three books to the library in King Street.
6. Water the tomatoes behind the house in the evening.
"""


def edit(before: str, after: str, begun: str) -> str:
    """Two examples of the edit, and a third whose result has begun: any model, however small, goes on with it."""
    assert after.startswith(begun)
    return f"Before:\n{before}\nAfter:\n{after}\n" * 2 + f"Before:\n{before}\nAfter:\n{begun}"


EDITS = {
    "names in code": edit(CODE, EDITED, EDITED[: EDITED.index("def find_client") + 30]),
    "two words of a list": edit(LIST, LIST.replace("Tuesday", "Friday").replace("butter", "cheese"), LIST[:30]),
    "a letter again": f"The letter:\n{LETTER}\nThe letter again:\n{LETTER}\nOnce more the letter:\n{LETTER[:40]}",
}
GOAL = 1.8
LEAST_COPIED = 0.8
SHOWN = ("spec_drafted_total", "spec_accepted_total", "spec_verify_steps_total", "spec_miss_steps_total")


class Compared(NamedTuple):
    """Plain over drafted."""

    best: float
    median: float
    reply: list[int]


class Bench:
    def __init__(self, engine: InlineEngine, n_tokens: int) -> None:
        self._engine = engine
        self._n_tokens = n_tokens

    async def once(self, ids: list[int], speculative: bool) -> tuple[float, list[int]]:
        """Milliseconds of decoding per token, and the ids."""
        request = GenerateRequest(
            self._engine.new_key(),
            pack_ids(ids),
            OutputPlan(max_tokens=self._n_tokens),
            SamplingParams(temperature=0.0),
            options=GenerationOptions(speculative=speculative),
        )
        out: list[int] = []
        decode_ms = 0.0
        async for delta in await self._engine.submit(request):
            out += unpack_ids(delta.ids)
            if delta.finish:
                decode_ms = delta.finish.decode_ms
        return decode_ms / max(1, len(out) - 1), out

    async def compare(self, ids: list[int], rounds: int) -> Compared:
        _, reply = await self.once(ids, True)
        times: dict[bool, list[float]] = {True: [], False: []}
        for number in range(rounds):
            for speculative in (number % 2 == 0, number % 2 == 1):
                ms, out = await self.once(ids, speculative)
                assert out == reply, "drafts changed the ids"
                times[speculative].append(ms)
        plain, drafted = times[False], times[True]
        median = statistics.median(one / other for one, other in zip(plain, drafted))
        return Compared(min(plain) / min(drafted), median, reply)


def copied_share(prompt: list[int], reply: list[int], n: int = 8) -> float:
    known = {tuple(prompt[i : i + n]) for i in range(len(prompt) - n + 1)}
    own = [tuple(reply[i : i + n]) for i in range(len(reply) - n + 1)]
    return sum(each in known for each in own) / max(1, len(own))


async def measure(options: argparse.Namespace) -> bool:
    """Whether the goals are met."""
    encode = tokenizer_of(open_model(options.model).header).encode
    config = Config.of({"engine.backend": options.backend})
    engine = InlineEngine(functools.partial(build_engine, options.model, "model", config.for_engine()))
    await engine.start()
    bench = Bench(engine, options.tokens)
    is_good = True
    ratios = []
    for what, text in EDITS.items():
        ids = list(encode(text))
        found = await bench.compare(ids, options.rounds)
        share = copied_share(ids, found.reply)
        is_good &= share >= LEAST_COPIED
        print(f"  {what}: {found.best:.2f} x plain (median {found.median:.2f}), {share:.0%} copied")
        ratios.append(found.best)
    ratio = statistics.geometric_mean(ratios)
    print(f"edits: {ratio:.2f} x plain, goal {GOAL}")
    is_good &= ratio >= GOAL
    counters, _ = await engine.stats()
    print({name: round(value, 2) for name, value in counters.items() if value and name in SHOWN})
    await engine.stop()
    return is_good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    started = time.perf_counter()
    is_good = asyncio.run(measure(options))
    print(f"{time.perf_counter() - started:.0f} s")
    if options.check and not is_good:
        sys.exit("a goal was missed")


if __name__ == "__main__":
    main()
