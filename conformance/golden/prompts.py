"""The prompts of the golden set: chats (rendered by the model's template) and raw texts."""

from __future__ import annotations

from typing import TypedDict


class Prompt(TypedDict, total=False):
    name: str
    messages: list[dict[str, str]]
    text: str


def chat(name: str, user: str, *more: str, system: str | None = None) -> Prompt:
    """`more` alternates assistant and user."""
    messages = [{"role": "system", "content": system}] if system else []
    roles = ("user", "assistant")
    messages += [{"role": roles[i % 2], "content": text} for i, text in enumerate((user, *more))]
    return {"name": name, "messages": messages}


def raw(name: str, text: str) -> Prompt:
    return {"name": name, "text": text}


STORY = (
    "The lighthouse keeper counted the ships that passed before dawn and wrote their names in a ledger. "
    "On the seventh day a vessel without a name came by, and he did not know what to write. "
)
FUNCTION = '''def binary_search(values, target):
    """Index of target in the sorted list values, or -1."""
    low, high = 0, len(values) - 1
'''

PROMPTS: tuple[Prompt, ...] = (
    chat("capital", "What is the capital of France?"),
    chat("haiku", "Write a haiku about autumn rain."),
    chat("list", "List five uses for a paper clip."),
    chat("arithmetic", "A train leaves at 14:05 and arrives at 16:50. How long does it take? Think step by step."),
    chat("system", "Who are you?", system="You are a pirate. Answer in one short sentence."),
    chat("turns", "My name is Ada.", "Nice to meet you, Ada!", "What is my name?"),
    chat("python", "Write a Python function that reverses a linked list."),
    chat("sql", "Write an SQL query for the ten customers with the highest total order value."),
    chat("json", 'Return a JSON object with the keys "name" and "age" for a fictional person.'),
    chat("regex", "Explain the regular expression ^[A-Z]{2}\\d{3,5}$ briefly."),
    chat("german", "Erkläre in zwei Sätzen, warum der Himmel blau ist."),
    chat("french", "Quelle est la différence entre un lac et un étang ?"),
    chat("spanish", "¿Cuáles son los colores del arcoíris?"),
    chat("portuguese", "Escreva uma frase sobre o mar."),
    chat("russian", "Напиши короткое предложение о зиме."),
    chat("chinese", "请用一句话介绍长城。"),
    chat("japanese", "日本で一番高い山は何ですか。"),
    chat("korean", "한국의 수도는 어디입니까?"),
    chat("arabic", "ما هي عاصمة مصر؟"),
    chat("hindi", "भारत की राजधानी क्या है?"),
    chat("emoji", "Translate into emoji: I love pizza and soccer 🍕⚽️👩‍🚀"),
    chat("symbols", "Simplify: ∑_{k=1}^{n} k² ≤ n³ — true for n ≥ 1? «√2 ≈ 1.41421»"),
    chat("whitespace", "  lines:\n\n\tone\r\n  two   three\n"),
    raw("code", FUNCTION),
    raw("single_token", "The"),
    raw("digits", "3.14159265358979"),
    raw("shouting", "WARNING: DO NOT OPEN THIS DOOR"),
    raw("long", "Summary of the story, told again and again:\n" + STORY * 52 + "\nIn short,"),
)
