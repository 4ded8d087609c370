"""A choice among given texts as a machine."""

from __future__ import annotations

from collections.abc import Sequence

from imp_server.core import GrammarRefused
from imp_server.grammar.machines.literals import Literals

MAX_BYTES = 4_194_304


def choices_machine(choices: Sequence[str]) -> Literals:
    """Exactly one of the texts. Raises GrammarRefused if there is none, or one that UTF-8 can't write."""
    if not choices:
        raise GrammarRefused("a choice needs at least one text")
    try:
        texts = {choice.encode() for choice in choices}
    except UnicodeEncodeError:
        raise GrammarRefused("a choice holds half of a surrogate pair") from None
    if sum(map(len, texts)) > MAX_BYTES:
        raise GrammarRefused(f"the choices have more than {MAX_BYTES} bytes together")
    return Literals(texts)
