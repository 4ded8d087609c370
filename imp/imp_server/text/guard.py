"""Keeps text that users typed from spelling control tokens, through any template.

A special token's text inside user text gets a guard character after its first character before the
template sees it, so the tokenizer doesn't find it in the rendered prompt; the guard is taken out of the
literal text afterwards. The guard is a random ideograph that occurs nowhere in the request, so nobody can
forge it; it prints, isn't blank and has no case, so filters like `trim` and `tojson` leave it alone.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_FIRST, _LAST = 0x20000, 0x2A6D6
"""CJK Unified Ideographs Extension B."""


def unused_characters(count: int, texts: Iterable[str]) -> list[str]:
    """Distinct characters that occur in none of `texts`."""
    texts = list(texts)
    found: list[str] = []
    while len(found) < count:
        candidate = chr(random.SystemRandom().randint(_FIRST, _LAST))
        if candidate not in found and not any(candidate in text for text in texts):
            found.append(candidate)
    return found


class SpecialTexts:
    """The texts that must not arise from user text, indexed for the search. Immutable."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(sorted({t for t in texts if t.strip()}, key=len, reverse=True))
        self._firsts = re.compile(_beginnings(self.texts)) if self.texts else None
        self._whole = re.compile("|".join(map(re.escape, self.texts)))
        self._starts = frozenset(t[:k] for t in self.texts for k in range(1, len(t)))
        self._ends = frozenset(t[k:] for t in self.texts for k in range(1, len(t)))
        self._longest = max(map(len, self.texts), default=0)

    def positions(self, text: str) -> list[int]:
        """Where a guard must be put: after the first character of every whole occurrence and of every
        beginning at the text's end, and at the text's start if an ending stands there (the template's or
        a neighbour's text might complete those)."""
        if self._firsts is None:
            return []
        cuts = {m.start() + 1 for m in self._firsts.finditer(text) if self._whole.match(text, m.start())}
        for core in (text, text.strip()):
            lead = len(text) - len(text.lstrip()) if core is not text else 0
            for size in range(1, min(self._longest, len(core) + 1)):
                if core[-size:] in self._starts:
                    cuts.add(lead + len(core) - size + 1)
                if core[:size] in self._ends:
                    cuts.add(lead)
        return sorted(cuts)


def _beginnings(texts: Iterable[str]) -> str:
    """A cheap pattern for places where one of `texts` may begin: its first character, its second looked ahead at."""
    seconds: dict[str, set[str]] = {}
    for text in texts:
        seconds.setdefault(text[0], set()).add(text[1:2])
    patterns = []
    for first, second in sorted(seconds.items()):
        ahead = "" if "" in second else f"(?=[{''.join(map(re.escape, sorted(second)))}])"
        patterns.append(re.escape(first) + ahead)
    return "|".join(patterns)


class Guard:
    """One request's guard character. `protect` on the way in, `clean` on the way out."""

    def __init__(self, character: str) -> None:
        self.character = character
        self._done: dict[tuple[SpecialTexts, str], str] = {}

    def protect(self, text: str, specials: SpecialTexts) -> str:
        done = self._done.get((specials, text))
        if done is None:
            cuts = specials.positions(text)
            ends = [*cuts[1:], len(text)]
            done = (
                "".join([text[: cuts[0]], *(self.character + text[a:b] for a, b in zip(cuts, ends))]) if cuts else text
            )
            self._done[specials, text] = done
        return done

    def protect_all(self, value: Any, specials: SpecialTexts) -> Any:
        """The same in every string of a JSON value, keys included."""
        if isinstance(value, str):
            return self.protect(value, specials)
        if isinstance(value, Mapping):
            return {self.protect(str(k), specials): self.protect_all(v, specials) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.protect_all(v, specials) for v in value]
        return value

    def clean(self, text: str) -> str:
        return text.replace(self.character, "")


def strings_of(value: Any) -> Iterator[str]:
    """Every string in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from strings_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings_of(item)
