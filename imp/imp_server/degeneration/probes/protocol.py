"""Categories stream and isolation: a stream loses nothing, and requests at the same time never mix."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from imp_server.degeneration.asker import ProbeAsker
from imp_server.degeneration.checks import fault_of
from imp_server.degeneration.client import Answer
from imp_server.degeneration.findings import Finding, judged, skipped

_NUMBERS = "Count from 1 to 10 in words, separated by commas."
_WORDS = ("falcon", "marble", "cinnamon", "glacier", "trumpet", "orchid", "saddle", "compass")
_SAMPLED = "Write one sentence about the sea."


def stream(ask: ProbeAsker) -> Iterator[Finding]:
    streamed = ask.chat(_NUMBERS, 120, stream=True)
    whole = ask.chat(_NUMBERS, 120)
    yield judged("stream", "numbers", "done", None if streamed.done else "no [DONE] at the end")
    yield judged("stream", "numbers", "finish_set", fault_of("finish_set", streamed, True))
    yield judged("stream", "numbers", "not_empty", fault_of("not_empty", streamed, True))
    if not ask.repeatable:
        yield skipped("stream", "numbers/equal", "--skip-deterministic")
        return
    yield judged("stream", "numbers", "equal", different(streamed, whole))


def different(streamed: Answer, whole: Answer) -> str | None:
    """How a stream's text differs from the whole reply's, or None."""
    if streamed.content == whole.content and streamed.reasoning == whole.reasoning:
        return None
    one, other = streamed.reasoning + streamed.content, whole.reasoning + whole.content
    at = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    return f"from character {at}: streamed {one[at : at + 40]!r}, whole {other[at : at + 40]!r}"


def isolation(ask: ProbeAsker) -> Iterator[Finding]:
    """Eight words at a time, each in its own conversation; then sampled answers, alone and all at once."""
    with ThreadPoolExecutor(len(_WORDS)) as pool:
        prompts = [f"The password is {word}. Say the password, nothing else." for word in _WORDS]
        answers = list(pool.map(lambda prompt: ask.chat(prompt, 40), prompts))
        yield judged("isolation", "words", "no_foreign_word", _foreign(answers))
        if not ask.repeatable:
            yield skipped("isolation", "seeds", "--skip-deterministic")
            return
        alone = [ask.chat(_SAMPLED, 24, temperature=1.0, seed=seed, exact_tokens=True) for seed in range(4)]
        together = list(
            pool.map(
                lambda seed: ask.chat(
                    _SAMPLED, 24, temperature=1.0, seed=seed, exact_tokens=True, stream=bool(seed % 2)
                ),
                range(4),
            )
        )
    faults = [different(b, a) for a, b in zip(alone, together)]
    fault = next((f"seed {seed}: {f}" for seed, f in enumerate(faults) if f), None)
    yield judged("isolation", "seeds", "as_alone", fault)


def _foreign(answers: list[Answer]) -> str | None:
    """A word of another's conversation in an answer; what a model makes of its own is no matter of isolation."""
    for own, answer in zip(_WORDS, answers):
        for word in _WORDS:
            if word != own and word in answer.content.casefold():
                return f"{word!r} in the answer to {own!r}: {answer.content[:80]!r}"
    return None
