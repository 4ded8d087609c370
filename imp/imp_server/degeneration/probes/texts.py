"""Categories repetition, special-tokens and adherence: is it language, without control tokens, and to the point?"""

from __future__ import annotations

from collections.abc import Iterator

from imp_server.degeneration.asker import ProbeAsker
from imp_server.degeneration.checks import fault_of
from imp_server.degeneration.findings import Finding, judged

_STORY = "Tell a story about a lighthouse keeper who finds a boat without a crew. Take your time and give details."
_ANIMAL = "Describe an animal that nobody has seen yet: how it looks, what it eats, where it sleeps."
_SEAS = "Name three seas and say one thing about each."


def repetition(ask: ProbeAsker) -> Iterator[Finding]:
    story = ask.chat(_STORY, 200 if ask.quick else 512, temperature=0.7)
    for check in ("not_empty", "no_loop", "vocab_div", "not_garbled", "finish_set"):
        yield judged("repetition", "story", check, fault_of(check, story, True))
    animal = ask.chat(_ANIMAL, 160, temperature=1.2, seed=7)
    yield judged("repetition", "hot", "no_loop", fault_of("no_loop", animal, 8))
    for top_k in (129, 2000):
        seas = ask.chat(_SEAS, 160, temperature=0.9, top_k=top_k)
        yield judged("repetition", f"top-k-{top_k}", "no_loop", fault_of("no_loop", seas, 8))
        yield judged("repetition", f"top-k-{top_k}", "vocab_div", fault_of("vocab_div", seas, True))


def special_tokens(ask: ProbeAsker) -> Iterator[Finding]:
    prompts = ("Write two sentences about rain.", "What is a violin?", "Give me a plan for a short walk.")
    for seed, prompt in enumerate(prompts, 100):
        answer = ask.chat(prompt, 120 if ask.quick else 300, temperature=0.9, seed=seed)
        yield judged("special-tokens", f"seed-{seed}", "no_markers", fault_of("no_markers", answer, True))


def adherence(ask: ProbeAsker) -> Iterator[Finding]:
    asked = {
        "echo": ("Repeat exactly this word and nothing else: BANANA42", "banana42"),
        "sum": ("What is 17 + 25? Answer with the number.", "42"),
        "german-code": ("Der Code lautet 7391. Wie lautet der Code? Antworte nur mit der Zahl.", "7391"),
        "capital": ("What is the capital of France? Answer in one word.", "paris"),
    }
    for name, (prompt, word) in asked.items():
        answer = ask.chat(prompt, 80)
        yield judged("adherence", name, "contains", fault_of("contains", answer, word))
