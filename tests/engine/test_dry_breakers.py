"""The engine knows what tokens write, so texts that break a repetition are found in a row's history."""

from __future__ import annotations

from imp_server.core import SamplingParams
from imp_server.engine.client.inline import InlineEngine

from tests.engine.tiny_engine import Tiny, ask, request, vocabulary, with_engine


def test_breakers_decide_what_counts_as_a_repetition() -> None:
    every_character = tuple(chr(byte) for byte in range(32, 127))
    laws = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.0, dry_multiplier=50.0, dry_allowed_length=1, dry_sequence_breakers=()),
        SamplingParams(
            temperature=0.0, dry_multiplier=50.0, dry_allowed_length=1, dry_sequence_breakers=every_character
        ),
    ]

    async def body(engine: InlineEngine, _: Tiny) -> None:
        found = []
        for law in laws:
            (answer,) = await ask(engine, request(engine, [7, 8, 9] * 6, 60, sampling=law))
            found.append(answer.ids)
        plain, dry, broken = found
        assert plain != dry, "the plain answer has to repeat something"
        n_same = next((n for n, (a, b) in enumerate(zip(plain, broken)) if a != b), len(plain))
        written = vocabulary().token_bytes
        assert n_same == len(plain) or written[plain[n_same - 1]] not in map(str.encode, every_character)

    with_engine(body)
