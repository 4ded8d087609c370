"""Tokens per second with n-gram drafts over those without, on edits and on prose.

python analysis/speculation_bench.py MODEL [--backend cpu] [--rounds 5] [--tokens 128]

One process, the two arms in turn, the median of the ratios; the ids of both arms must be equal. The edit prompts show
a text and its edited copy twice and begin the copy again, which any model, however small, goes on with; the share
of the reply's 8-grams that stand in the prompt is printed beside the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import statistics
import time

from imp_server.config import Config
from imp_server.core import GenerateRequest, OutputPlan, SamplingParams, pack_ids, unpack_ids
from imp_server.engine.build import build_engine
from imp_server.engine.inline import InlineEngine
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
EDITS = [
    f"Before:\n{CODE}\nAfter:\n{EDITED}\nBefore:\n{CODE}\nAfter:\n{EDITED[:40]}",
    f"The letter:\n{LETTER}\nThe letter again:\n{LETTER}\nOnce more the letter:\n{LETTER[:40]}",
]
PROSE = [
    "The history of the lighthouse at the northern cape begins in the winter of 1823, when",
    "My grandmother kept bees behind her house, and every summer she told us that",
]


class Bench:
    def __init__(self, engine: InlineEngine, n_tokens: int) -> None:
        self._engine = engine
        self._n_tokens = n_tokens

    async def once(self, ids: list[int], temperature: float, speculative: bool) -> tuple[float, list[int]]:
        """Milliseconds of decoding per token, and the ids."""
        request = GenerateRequest(
            self._engine.new_key(),
            pack_ids(ids),
            OutputPlan(max_tokens=self._n_tokens),
            SamplingParams(temperature=temperature, seed=11),
            speculative=speculative,
        )
        out: list[int] = []
        decode_ms = 0.0
        async for delta in await self._engine.submit(request):
            out += unpack_ids(delta.ids)
            if delta.finish:
                decode_ms = delta.finish.decode_ms
        return decode_ms / max(1, len(out) - 1), out


def copied_share(prompt: list[int], reply: list[int], n: int = 8) -> float:
    known = {tuple(prompt[i : i + n]) for i in range(len(prompt) - n + 1)}
    own = [tuple(reply[i : i + n]) for i in range(len(reply) - n + 1)]
    return sum(each in known for each in own) / max(1, len(own))


async def measure(options: argparse.Namespace) -> None:
    encode = tokenizer_of(open_model(options.model).header).encode
    config = Config.of({"engine.backend": options.backend})
    engine = InlineEngine(functools.partial(build_engine, options.model, "model", config))
    await engine.start()
    bench = Bench(engine, options.tokens)
    for name, texts, temperature in (("edit", EDITS, 0.0), ("prose", PROSE, 0.8)):
        ratios, shares = [], []
        for text in texts:
            ids = list(encode(text))
            await bench.once(ids, temperature, True)
            for _ in range(options.rounds):
                plain_ms, plain = await bench.once(ids, temperature, False)
                drafted_ms, drafted = await bench.once(ids, temperature, True)
                assert plain == drafted, "drafts changed the ids"
                ratios.append(plain_ms / drafted_ms)
            shares.append(copied_share(ids, plain))
        listed = " ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"{name}: {statistics.median(ratios):.2f} x plain ({listed}), copied {statistics.mean(shares):.0%}")
    counters, _ = await engine.stats()
    print({name: round(value, 2) for name, value in counters.items() if name.startswith("spec_")})
    await engine.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    started = time.perf_counter()
    asyncio.run(measure(parser.parse_args()))
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
