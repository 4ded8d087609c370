"""What a served checkpoint must do: each check yields findings; a refusal of the server fails its check."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from imp_server.degeneration import detectors
from imp_server.degeneration.client import Unreachable
from imp_server.degeneration.findings import Finding, judged, skipped
from imp_server.validating.parity import against_transformers
from imp_server.validating.server import Completed, Served

TEXTS = {
    "plain": "The quick brown fox jumps over the lazy dog.",
    "blanks": "  two  blanks, a\ttab,\n\n  and lines\r\n",
    "code": "def f(x):\n    return {'a': [1, 2.5e-3, None]}  # x != y && z\n",
    "languages": "Größe, naïve, Привет мир, 你好，世界, こんにちは, مرحبا, שלום, नमस्ते, 안녕",
    "emoji": "😀 👍🏽 🇩🇪 👨‍👩‍👧 é é",
    "digits": "0 00 12345678901234567890 3.14159 1,000,000",
    "control": "<|im_start|>user <s></s> [INST] <think>",
}
PROMPTS = {
    "fact": "The capital of France is",
    "list": "Monday, Tuesday, Wednesday,",
    "story": "Once upon a time there was a lighthouse keeper who",
    "code": "def fibonacci(n):\n    ",
    "dialogue": "Question: What is the largest planet?\nAnswer:",
    "german": "Die Hauptstadt von Deutschland ist",
}
N_TOKENS, N_LONG = 32, 160
N_TOPS = 5
SLACK = 1e-3
"""Of a sum of probabilities that are told in decimal digits."""


def tokenizer(served: Served, checkpoint: Path | None) -> Iterator[Finding]:
    library = _library_tokenizer(checkpoint)
    for name, text in TEXTS.items():
        ids = served.tokenize(text)
        again = served.detokenize(ids)
        yield judged("tokenizer", name, "round-trip", None if again == text else f"{text!r} came back as {again!r}")
        if library is not None:
            theirs = library(text)
            yield judged("tokenizer", name, "library", None if ids == theirs else f"{ids} instead of {theirs}")
    if library is None:
        yield skipped(
            "tokenizer", "library", "no tokenizer.json beside the checkpoint that the package `tokenizers` reads"
        )


def _library_tokenizer(checkpoint: Path | None) -> Callable[[str], list[int]] | None:
    """The published tokenizer of the folder; texts that spell control tokens are theirs to read as such, so it is asked
    for others only."""
    path = checkpoint / "tokenizer.json" if checkpoint and checkpoint.is_dir() else None
    if path is None or not path.exists():
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    try:
        loaded = Tokenizer.from_file(str(path))
    except Exception:  # the library's own are bare
        return None
    control = {token["content"] for token in json.loads(path.read_text("utf-8")).get("added_tokens", [])}

    def ids(text: str) -> list[int]:
        if any(name in text for name in control):
            loaded.encode_special_tokens = True
        return list(loaded.encode(text, add_special_tokens=False).ids)

    return ids


def replays(served: Served, _checkpoint: Path | None) -> Iterator[Finding]:
    """Greedy answers are the same bytes again, from the cache or not, alone or among others."""
    first = {name: served.complete(prompt, N_TOKENS).text for name, prompt in PROMPTS.items()}
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        together = dict(zip(PROMPTS, pool.map(lambda p: served.complete(p, N_TOKENS).text, PROMPTS.values())))
    for name, text in first.items():
        again = served.complete(PROMPTS[name], N_TOKENS).text
        yield judged("replay", name, "again", _same(text, again))
        yield judged("replay", name, "among others", _same(text, together[name]))


def determinism(served: Served, _checkpoint: Path | None) -> Iterator[Finding]:
    """What is sampled follows the seed."""
    seeded = [served.complete(PROMPTS["story"], N_TOKENS, temperature=0.9, seed=seed).text for seed in (7, 7, 8)]
    yield judged("determinism", "seed", "the same seed", _same(*seeded[:2]))
    same = "two seeds give one text" if seeded[0] == seeded[2] else None
    yield judged("determinism", "seed", "another seed", same)


def _same(text: str, other: str) -> str | None:
    if text == other:
        return None
    at = next((i for i, (a, b) in enumerate(zip(text, other)) if a != b), min(len(text), len(other)))
    return f"differs from character {at} on: {text[at : at + 40]!r} and {other[at : at + 40]!r}"


def battery(served: Served, _checkpoint: Path | None) -> Iterator[Finding]:
    for name, prompt in PROMPTS.items():
        answer = served.complete(prompt, N_TOKENS)
        yield judged("prompts", name, "not empty", None if answer.text.strip() else "the answer is empty")
        ended = None if answer.finish in ("stop", "length") else f"finish_reason {answer.finish}"
        yield judged("prompts", name, "ended", ended)
        yield judged("prompts", name, "no control token", ", ".join(detectors.raw_markers(answer.text)) or None)
        yield judged("prompts", name, "readable", detectors.garbled(answer.text))


def repetition(served: Served, _checkpoint: Path | None) -> Iterator[Finding]:
    for name in ("story", "dialogue"):
        text = served.complete(PROMPTS[name], N_LONG, temperature=0.8, seed=11).text
        run = detectors.longest_run(text)
        long_run = f"one word {run} times in a row" if run > detectors.MAX_WORD_RUN else None
        yield judged("repetition", name, "no run", long_run)
        yield judged("repetition", name, "no loop", detectors.ngram_loop(text) or detectors.character_loop(text))
        ratio = detectors.unique_ratio(text)
        few = f"{ratio:.2f} of its words differ" if ratio < detectors.MIN_UNIQUE else None
        yield judged("repetition", name, "different words", few)


def logprobs(served: Served, _checkpoint: Path | None) -> Iterator[Finding]:
    """Numbers that can be logarithms of probabilities, and a greedy answer that is made of the likeliest tokens."""
    for name, prompt in PROMPTS.items():
        answer = served.complete(prompt, N_TOKENS, logprobs=N_TOPS, echo=True)
        yield judged("logprobs", name, "healthy", unhealthy(answer))
    shown = served.complete(PROMPTS["fact"], N_TOKENS, logprobs=N_TOPS)
    surer = next((i for i, (own, tops) in enumerate(zip(shown.logprobs, shown.tops)) if _is_beaten(own, tops)), None)
    beaten = f"token {surer} of a greedy answer isn't the likeliest" if surer is not None else None
    yield judged("logprobs", "fact", "greedy", beaten)


def _is_beaten(own: float | None, tops: dict[str, float] | None) -> bool:
    return own is not None and bool(tops) and own < max((tops or {}).values()) - SLACK


def unhealthy(answer: Completed) -> str | None:
    """What is wrong with the logprobs of a prompt and its answer; None if nothing is."""
    if not answer.logprobs or answer.logprobs[0] is not None:
        return "a prompt's first token has no logprob, and the others have one"
    for index, (own, tops) in enumerate(zip(answer.logprobs[1:], answer.tops[1:]), 1):
        if own is None or not math.isfinite(own) or own > SLACK:
            return f"token {index}: {own} is no logarithm of a probability"
        among = list((tops or {}).values())
        if any(not math.isfinite(top) or top > SLACK for top in among) or sum(map(math.exp, among)) > 1 + SLACK:
            return f"token {index}: {among} are no logarithms of probabilities"
    return None


def parity(served: Served, checkpoint: Path | None) -> Iterator[Finding]:
    yield from against_transformers(served, checkpoint, PROMPTS)


CHECKS = {
    "tokenizer": tokenizer,
    "replay": replays,
    "determinism": determinism,
    "prompts": battery,
    "logprobs": logprobs,
    "repetition": repetition,
    "parity": parity,
}


def run(served: Served, checkpoint: Path | None, names: list[str]) -> Iterator[Finding]:
    for name in names:
        try:
            yield from CHECKS[name](served, checkpoint)
        except Unreachable:
            raise
        except Exception as wrong:  # a reply may be of any shape, and the other checks tell of more
            yield judged(name, "all", "answered", f"{type(wrong).__name__}: {wrong}")
