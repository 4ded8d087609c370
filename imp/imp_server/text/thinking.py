"""Think tags: whether a template can think, and whether a rendered prompt ends inside thinking."""

from __future__ import annotations

from typing import NamedTuple

from imp_server.core import special
from imp_server.vocab.table import Vocabulary


class ThinkTags(NamedTuple):
    """How a family marks its reasoning. `closing` is written after it when it is closed for the model."""

    open: str
    close: str
    closing: str

    def openers(self) -> tuple[bytes, ...]:
        return self.open.encode(), special(self.open)

    def closers(self) -> tuple[bytes, ...]:
        return self.close.encode(), special(self.close)


_KNOWN = (
    ThinkTags("<think>", "</think>", "\n</think>\n\n"),
    ThinkTags("<|think|>", "<|/think|>", "<|/think|>"),
    ThinkTags("[THINK]", "[/THINK]", "[/THINK]"),
    ThinkTags("<seed:think>", "</seed:think>", "</seed:think>"),
    ThinkTags("<thought>", "</thought>", "\n</thought>\n"),
    ThinkTags("<thinking>", "</thinking>", "\n</thinking>\n\n"),
    ThinkTags("<reasoning>", "</reasoning>", "\n</reasoning>\n\n"),
    ThinkTags("<|START_THINKING|>", "<|END_THINKING|>", "<|END_THINKING|>"),
    ThinkTags("◁think▷", "◁/think▷", "◁/think▷"),
)


def think_tags(template: str, vocabulary: Vocabulary | None = None) -> ThinkTags | None:
    """The tags that the template (or, failing it, the vocabulary) mentions; None = the model can't think."""
    for tags in _KNOWN:
        if tags.open in template or tags.close in template:
            return tags
    if vocabulary is not None:
        for tags in _KNOWN:
            if vocabulary.special_id(tags.open) is not None and vocabulary.special_id(tags.close) is not None:
                return tags
    return None


def ends_in_thinking(prompt: str, tags: ThinkTags) -> bool:
    """The prompt's tail decides: an open tag that nothing but blanks follows."""
    return prompt.rstrip().endswith(tags.open)
