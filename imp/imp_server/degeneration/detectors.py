"""What degenerate text looks like: pure functions over a text, each in linear time."""

from __future__ import annotations

import re
import unicodedata

RAW_MARKERS = (
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|begin_of_text|>", "<|end_of_text|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|start|>",
    "<|channel|>", "<|message|>", "<|return|>", "<|call|>", "<channel|>", "<start_of_turn>", "<end_of_turn>",
    "<|turn>", "<turn|>", "[INST]", "[/INST]", "<<SYS>>", "<</SYS>>", "[TOOL_CALLS]", "<pad>", "<|pad|>", "<unk>",
    "<s>", "</s>", "<bos>", "<eos>", "<think>", "</think>", "<|think|>", "\x00", "\ufffd",
)  # fmt: skip
"""Texts of control tokens of the usual templates: none of them belongs into an answer."""

THINK_TAGS = (
    "<think>",
    "</think>",
    "<thinking>",
    "</thinking>",
    "<|channel|>analysis",
    "<seed:think>",
    "</seed:think>",
)

REASONING_OPENERS = (
    "okay, so", "okay, the user", "ok, the user", "the user asks", "the user asked", "the user is asking",
    "the user wants", "let me think", "alright, let", "first, i need to", "i need to figure", "hmm,",
    "we need to answer", "der nutzer", "der benutzer", "okay, der", "lass mich nachdenken", "ich muss zuerst",
)  # fmt: skip
"""How models talk to themselves (English and German) before they answer."""
OPENING_CHARS = 80

MAX_WORD_RUN = 6
NGRAM, NGRAM_REPEATS = 4, 4
MIN_PERIOD, MAX_PERIOD, PERIOD_REPEATS = 6, 160, 6
MAX_RULE = 200
MIN_UNIQUE = 0.25
MIN_UNITS_FOR_RATIO = 40
_RULES = frozenset("-=_*#~.|+ \t\n:")


def units(text: str) -> list[str]:
    """Words; where a script writes without spaces, pairs of characters of its runs."""
    found: list[str] = []
    for word in text.split():
        if len(word) > 3 and _unspaced(word):
            found.extend(word[i : i + 2] for i in range(0, len(word), 2))
        else:
            found.append(word)
    return found


def _unspaced(word: str) -> bool:
    """Whether most characters are of a script without spaces between words (Chinese, Japanese, Thai)."""
    n_found = sum(
        1 for c in word if "\u0e00" <= c <= "\u0eff" or "\u3040" <= c <= "\u30ff" or "\u3400" <= c <= "\u9fff"
    )
    return 2 * n_found > len(word)


def longest_run(text: str) -> int:
    """The most times that one word stands in a row."""
    longest, run, before = 0, 0, None
    for word in units(text):
        run = run + 1 if word == before else 1
        before = word
        longest = max(longest, run)
    return longest


def ngram_loop(text: str, *, n: int = NGRAM, repeats: int = NGRAM_REPEATS) -> str | None:
    """The first n words that stand `repeats` times in a row, or None."""
    words = units(text)
    same = 0
    for i in range(n, len(words)):
        same = same + 1 if words[i] == words[i - n] else 0
        if same >= n * (repeats - 1):
            return " ".join(words[i - n + 1 : i + 1])
    return None


def character_loop(text: str) -> str | None:
    """The first piece of 6 to 160 characters that stands six times in a row, or None; rules of a table don't count."""
    for period in range(MIN_PERIOD, min(MAX_PERIOD, len(text) // PERIOD_REPEATS) + 1):
        same = 0
        for i in range(period, len(text)):
            same = same + 1 if text[i] == text[i - period] else 0
            if same >= period * (PERIOD_REPEATS - 1):
                piece = text[i - period + 1 : i + 1]
                if not _rule(text, i):
                    return piece
    return None


def _rule(text: str, at: int) -> bool:
    """Whether a line of signs (a table's rule, a heading's underline) ends at `at`, no longer than one may be."""
    start = at
    while start > 0 and text[start - 1] in _RULES and at - start <= MAX_RULE:
        start -= 1
    return text[at] in _RULES and at - start <= MAX_RULE


def unique_ratio(text: str) -> float:
    """Different words over words; 1 for texts too short to judge."""
    words = [word.casefold() for word in units(text)]
    if len(words) < MIN_UNITS_FOR_RATIO:
        return 1.0
    return len(set(words)) / len(words)


def raw_markers(text: str) -> list[str]:
    return [marker for marker in RAW_MARKERS if marker in text]


def think_tags(text: str) -> list[str]:
    folded = text.casefold()
    return [tag for tag in THINK_TAGS if tag in folded]


def reasoning_opener(text: str) -> str | None:
    opening = text.lstrip()[:OPENING_CHARS].casefold().replace("\u2019", "'")
    return next((opener for opener in REASONING_OPENERS if opening.startswith(opener)), None)


def garbled(text: str) -> str | None:
    """What makes a text no text: replacement or control characters, or hardly a letter in it."""
    control = next((c for c in text if unicodedata.category(c) == "Cc" and c not in "\n\r\t"), None)
    if control is not None:
        return f"a control character U+{ord(control):04X}"
    if "\ufffd" in text:
        return "a replacement character"
    stripped = re.sub(r"\s", "", text)
    n_letters = sum(1 for c in stripped if c.isalnum())
    if len(stripped) >= 20 and n_letters < len(stripped) / 4:
        return "hardly a letter or digit in it"
    return None


def character_name(character: str) -> str:
    """Its Unicode name, empty where it has none."""
    return unicodedata.name(character, "")
