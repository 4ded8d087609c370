"""Tokens per second of answers under a JSON schema over those of free text, on one engine.

python analysis/structured_bench.py MODEL [--backend cpu] [--rounds 5] [--batches 1 8] [--clock cpu]
python analysis/structured_bench.py MODEL --temperature 0 --varied

One process. Per round and schema a batch of constrained answers and one of free answers of the same lengths from the
same prompts run in turn (A B A B); the first round isn't counted. Printed per batch size: the median of the ratios of
tokens per second (submission to last token), the share of the constrained tokens that the grammar forced, and the
rows sampled that had to wait for a mask. The ids of all rounds must be equal. The default temperature is 0.8, since a
small model's greedy prose repeats itself, which n-gram drafts then speed up several times. With `--varied` the free
answers are such as don't: the beginnings of answers to other questions, as far as no four tokens in a row stood in the
question or the answer before, so many of them as make up the length. They are found before anything is timed, with
drafts off, and run with the default drafters, as the constrained ones do. Both are then timed from their first token to
their last, since free text is made in more pieces. Batches are of one. `--clock cpu` counts the
time of the process on one core instead, where a machine is shared: what the mask thread does counts in full then,
though it runs beside the forward.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from imp_server.config import Config
from imp_server.core import (
    GenerateRequest,
    GenerationOptions,
    GrammarPlan,
    OutputPlan,
    SamplingParams,
    pack_ids,
    unpack_ids,
)
from imp_server.engine.build import build_engine
from imp_server.engine.client.inline import InlineEngine
from imp_server.grammar.check import check_schema
from imp_server.grammar.engine import Matcher
from imp_server.models.opening import open_model
from imp_server.vocab.load import tokenizer_of
from imp_server.vocab.tokenizer import Tokenizer

Clock = Callable[[], float]

TICKET = {
    "type": "object",
    "properties": {
        "ticket_identifier": {"type": "integer", "minimum": 1, "maximum": 9999},
        "customer_name": {"type": "string", "maxLength": 24},
        "priority_level": {"enum": ["low_priority", "normal_priority", "high_priority"]},
        "requires_follow_up": {"type": "boolean"},
        "product_category": {"enum": ["kitchen_appliances", "garden_furniture", "bathroom_fittings"]},
    },
    "additionalProperties": False,
}
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "temperature_unit": {"const": "degrees_celsius"},
        "temperature": {"type": "integer", "minimum": -50, "maximum": 60},
        "wind": {
            "type": "object",
            "properties": {"direction": {"enum": ["north", "east", "south", "west"]}, "is_stormy": {"type": "boolean"}},
            "required": ["direction", "is_stormy"],
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}
PEOPLE = {
    "type": "array",
    "minItems": 3,
    "maxItems": 3,
    "items": {
        "type": "object",
        "properties": {
            "given_name": {"type": "string", "maxLength": 16},
            "age_in_years": {"type": "integer", "minimum": 18, "maximum": 99},
            "employment_status": {"enum": ["employed", "self_employed", "unemployed"]},
        },
        "additionalProperties": False,
    },
}


def _all_required(schema: Any) -> Any:
    """The schema with every listed property required, as clients of structured output must send it."""
    if isinstance(schema, dict):
        schema = {key: _all_required(value) for key, value in schema.items()}
        if schema.get("type") == "object":
            schema["required"] = list(schema["properties"])
    return schema


SCHEMAS = {name: _all_required(s) for name, s in (("ticket", TICKET), ("weather", WEATHER), ("people", PEOPLE))}
PROMPT = "<|im_start|>user\nWrite example number {} of a {} record as JSON.<|im_end|>\n<|im_start|>assistant\n"

QUESTION = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
QUESTIONS = tuple(
    pattern.format(thing)
    for pattern in (
        "Tell a short story about {}.",
        "Explain to a child what {} is good for.",
        "Write a letter to a friend about {}.",
        "What should I know before I buy {}?",
        "Describe {} to somebody who has never seen one.",
    )
    for thing in ("a lighthouse", "an old bicycle", "a wooden boat", "a violin", "a garden shed", "a winter coat")
)
N_ALIKE = 4
"""So many tokens in a row that stood before make a text one that repeats itself."""


def unrepeated(prompt: list[int], answer: list[int]) -> list[int]:
    """The answer up to where some run of tokens comes that stood in the prompt or the answer before."""
    text = prompt + answer
    seen = set()
    for end in range(N_ALIKE, len(text) + 1):
        run = tuple(text[end - N_ALIKE : end])
        if end > len(prompt) and run in seen:
            return answer[: end - 1 - len(prompt)]
        seen.add(run)
    return answer


@dataclass(slots=True)
class Timed:
    """An answer, and when its first and its last tokens came."""

    ids: list[int]
    n_first: int = 0
    """Tokens that came at once with the first."""
    first_s: float = 0.0
    last_s: float = 0.0

    @property
    def n_tokens(self) -> int:
        return len(self.ids)


def rate_of(told: list[Timed]) -> float:
    """Tokens per second behind the first ones."""
    return sum(each.n_tokens - each.n_first for each in told) / sum(each.last_s - each.first_s for each in told)


@dataclass(slots=True)
class Tally:
    """What the batches of one size came to."""

    ratios: list[float] = field(default_factory=list)
    rates: list[tuple[float, float]] = field(default_factory=list)
    n_tokens: int = 0
    n_forced: int = 0
    ids: dict[str, list[list[int]]] = field(default_factory=dict)


class Bench:
    def __init__(self, engine: InlineEngine, tokenizer: Tokenizer, temperature: float, clock: Clock) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._temperature = temperature
        self._clock = clock
        self._varied: list[tuple[list[int], int]] = []
        self._next = 0

    async def find_varied(self, n_tokens: int = 160, least: int = 20) -> None:
        """Questions, and how much of each answer doesn't repeat itself."""
        ends = tuple(self._tokenizer.vocabulary.end_ids)
        for text in QUESTIONS:
            prompt = list(self._tokenizer.encode(QUESTION.format(text)))
            _, (answer,) = await self.batch([prompt], [OutputPlan(end_ids=ends, max_tokens=n_tokens)], drafts=False)
            if (n_good := len(unrepeated(prompt, answer))) >= least:
                self._varied.append((prompt, n_good))
        n_good = sum(n for _, n in self._varied)
        print(f"{len(self._varied)} of {len(QUESTIONS)} questions, {n_good} tokens that don't repeat what stood before")

    async def free_of(self, length: int) -> float:
        """Tokens per second behind the first, over as many varied answers as the length takes."""
        told: list[Timed] = []
        while sum(each.n_tokens for each in told) < length:
            prompt, n_good = self._varied[self._next % len(self._varied)]
            self._next += 1
            told += await self._timed([prompt], [OutputPlan(max_tokens=n_good)], None)
        return rate_of(told)

    async def batch(
        self, prompts: list[list[int]], plans: list[OutputPlan], drafts: bool | None = None
    ) -> tuple[float, list[list[int]]]:
        """Tokens per second, of all and from the submission on, and the ids of each answer."""
        began_s = self._clock()
        answers = [timed.ids for timed in await self._timed(prompts, plans, drafts)]
        return sum(map(len, answers)) / (self._clock() - began_s), answers

    async def _timed(self, prompts: list[list[int]], plans: list[OutputPlan], drafts: bool | None) -> list[Timed]:
        requests = [
            GenerateRequest(
                self._engine.new_key(), pack_ids(ids), plan, SamplingParams(temperature=self._temperature, seed=index),
                options=GenerationOptions(speculative=drafts),
            )
            for index, (ids, plan) in enumerate(zip(prompts, plans, strict=True))
        ]  # fmt: skip
        return list(await asyncio.gather(*(self._answer(request) for request in requests)))

    async def _answer(self, request: GenerateRequest) -> Timed:
        told = Timed([])
        async for delta in await self._engine.submit(request):
            ids = unpack_ids(delta.ids)
            if not told.ids:
                told.first_s, told.n_first = self._clock(), len(ids)
            told.ids += ids
            told.last_s = self._clock()
        return told

    async def round(self, name: str, grammar: GrammarPlan, size: int, tally: Tally, counts: bool) -> None:
        prompts = [list(self._tokenizer.encode(PROMPT.format(i, name))) for i in range(size)]
        ends = tuple(self._tokenizer.vocabulary.end_ids)
        bound = OutputPlan(end_ids=ends, max_tokens=200, grammar=grammar)
        if self._varied:
            await self._varied_round(name, prompts, bound, tally, counts)
            return
        bound_rate, answers = await self.batch(prompts, [bound] * size)
        free_rate, free = await self.batch(prompts, [OutputPlan(max_tokens=len(a)) for a in answers])
        assert [len(a) for a in free] == [len(a) for a in answers]
        self._take(name, grammar, answers, (bound_rate, free_rate), tally, counts)

    async def _varied_round(
        self, name: str, prompts: list[list[int]], bound: OutputPlan, tally: Tally, counts: bool
    ) -> None:
        told = await self._timed(prompts, [bound] * len(prompts), None)
        rates = (rate_of(told), await self.free_of(sum(each.n_tokens for each in told)))
        assert bound.grammar is not None
        self._take(name, bound.grammar, [each.ids for each in told], rates, tally, counts)

    def _take(
        self, name: str, grammar: GrammarPlan, answers: list[list[int]], rates: tuple[float, float], tally: Tally,
        counts: bool,
    ) -> None:  # fmt: skip
        assert tally.ids.setdefault(name, answers) == answers, "the ids differ from round to round"
        if counts:
            tally.ratios.append(rates[0] / rates[1])
            tally.n_tokens += sum(map(len, answers))
            tally.n_forced += sum(n_forced(grammar, self._tokenizer, ids) for ids in answers)
            tally.rates.append(rates)


def n_forced(grammar: GrammarPlan, tokenizer: Tokenizer, ids: list[int]) -> int:
    """Tokens that lie within text which the grammar forces."""
    matcher = Matcher(grammar, tokenizer.vocabulary)
    state, found = matcher.start, 0
    for token_id in ids:
        data = tokenizer.vocabulary.token_bytes[token_id]
        found += matcher.forced(state).startswith(data)
        after = matcher.advance(state, token_id)
        if after is None:
            break
        state = after
    return found


async def measure(options: argparse.Namespace) -> None:
    tokenizer = tokenizer_of(open_model(options.model).header)
    knobs: dict[str, Any] = {"engine.backend": options.backend}
    if options.clock == "cpu":
        knobs["cpu.threads"] = 1
    if options.no_jump_ahead:
        knobs["grammar.jump_ahead"] = False
    clock = time.process_time if options.clock == "cpu" else time.perf_counter
    engine = InlineEngine(
        functools.partial(build_engine, options.model, "model", Config.of(knobs).for_engine(), clock=clock)
    )
    await engine.start()
    bench = Bench(engine, tokenizer, options.temperature, clock)
    grammars = {name: check_schema(schema) for name, schema in SCHEMAS.items()}
    if options.varied:
        await bench.find_varied()
    for size in [1] if options.varied else options.batches:
        tally = Tally()
        before, _ = await engine.stats()
        for number in range(options.rounds + 1):
            for name, grammar in grammars.items():
                await bench.round(name, grammar, size, tally, number > 0)
            if number == 0:
                first, _ = await engine.stats()
        after, _ = await engine.stats()
        gained = {name: value - before.get(name, 0.0) for name, value in after.items()}
        waits, samples = gained["constrained_mask_waits_total"], gained["constrained_samples_total"]
        later = [after[name] - first[name] for name in ("constrained_mask_waits_total", "constrained_samples_total")]
        low, *_, high = statistics.quantiles(tally.ratios, n=4)
        print(
            f"batch {size}: {statistics.median(tally.ratios):.2f} x free text (quartiles {low:.2f} {high:.2f}), "
            f"{tally.n_forced / tally.n_tokens:.0%} of {tally.n_tokens} tokens forced, {waits:.0f} of {samples:.0f} "
            f"rows waited for a mask, {gained['constrained_mask_wait_ms_total']:.1f} ms in all; after the first round "
            f"{later[0]:.0f} of {later[1]:.0f} ({later[0] / later[1]:.2%})"
        )
        bound_rate, free_rate = (statistics.median(side) for side in zip(*tally.rates, strict=True))
        print(f"   {bound_rate:.0f} tokens/s constrained, {free_rate:.0f} free (medians)")
        shown = ("spec_forced_drafted_total", "spec_forced_accepted_total", "spec_forced_verify_steps_total")
        print("  ", {name: gained[name] for name in shown if name in gained})
    await engine.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--varied", action="store_true", help="free answers that don't repeat themselves")
    parser.add_argument("--no-jump-ahead", action="store_true")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
