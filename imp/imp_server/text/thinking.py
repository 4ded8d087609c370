"""How families mark reasoning: whether a template can think, where a prompt's tail stands, the plan's segments."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from imp_server.core import Segment

Mark = Callable[[str], bytes]
"""Text -> marked bytes of one vocabulary (Tokenizer.marked)."""


class ThinkTags(NamedTuple):
    """`closing` is written behind the reasoning when it is closed for the model."""

    open: str
    close: str
    closing: str
    answer_headers: tuple[str, ...] = ()
    """Channels: what stands before the visible text. Such a model may think again later, too."""

    @property
    def forced_close(self) -> str:
        """What the engine writes to end reasoning whose budget is spent."""
        return self.close + self.answer_headers[0] if self.channels else "\n" + self.close

    @property
    def channels(self) -> bool:
        return bool(self.answer_headers)


_START = "<|start|>assistant"
HARMONY = ThinkTags(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    "<|end|>",
    tuple(
        f"{start}<|channel|>{channel}<|message|>"
        for channel in ("final", "final <|constrain|>json", "commentary")
        for start in (_START, "")
    ),
)
_GEMMA4 = ThinkTags("<|channel>thought", "<channel|>", "\n<channel|>")
_TAGS = (
    ThinkTags("<think>", "</think>", "\n</think>\n\n"),
    ThinkTags("[THINK]", "[/THINK]", "[/THINK]"),
    ThinkTags("<seed:think>", "</seed:think>", "</seed:think>"),
    ThinkTags("<|START_THINKING|>", "<|END_THINKING|>", "<|END_THINKING|>"),
    ThinkTags("◁think▷", "◁/think▷", "◁/think▷"),
    ThinkTags("<mm:think>", "</mm:think>", "</mm:think>"),
    ThinkTags("<longcat_think>", "</longcat_think>", "\n</longcat_think>\n"),
    ThinkTags("<|inner_prefix|>", "<|inner_suffix|>", "<|inner_suffix|>"),
    ThinkTags("<|begin_of_thought|>", "<|end_of_thought|>", "<|end_of_thought|>"),
    ThinkTags("<thought>", "</thought>", "\n</thought>\n"),
    ThinkTags("<thinking>", "</thinking>", "\n</thinking>\n\n"),
    ThinkTags("<reasoning>", "</reasoning>", "\n</reasoning>\n\n"),
)


def think_tags(template: str, knows: Callable[[str], bool] = lambda _: False) -> ThinkTags | None:
    """The tags that the template mentions or, failing it, those that the vocabulary `knows`.

    None = the model can't think. Deliberately loose: models that think unasked depend on it.
    """
    if "<|channel|>" in template and "<|message|>" in template and "analysis" in template:
        return HARMONY
    if "<|channel>" in template and "<channel|>" in template:
        return _GEMMA4
    for tags in _TAGS:
        if tags.open in template or tags.close in template:
            return tags
    return next((tags for tags in _TAGS if knows(tags.open) and knows(tags.close)), None)


def ends_in_thinking(prompt: str, tags: ThinkTags) -> bool:
    """The prompt's tail decides: an opener that nothing but blanks follows."""
    return prompt.rstrip().endswith(tags.open)


def think_segments(
    tags: ThinkTags, mark: Mark, *, scan_tokens: int, keep_tags: bool, at_start: bool = False
) -> tuple[Segment, ...]:
    """Segments 1 and on of a plan whose segment 0 is the answer.

    `at_start`: thinking can't begin within an answer, which may spell its tags.
    """
    openers, closers = spellings((tags.open,), mark, tags), spellings((tags.close,), mark, tags)
    if not tags.channels:
        return (Segment("think", openers, closers, (0,), 0, keep_tags, scan_tokens, max_visits=1, at_start=at_start),)
    # Segment 0 is then what stands between messages: nothing but headers.
    again = spellings((tags.open, _START + tags.open), mark, tags)
    headers = spellings(tags.answer_headers, mark, tags)
    return (
        Segment("think", again, closers, (0,), 0, keep_tags),
        Segment("answer", headers, closers, (0,), 0, keep_tags),
    )


def spellings(texts: tuple[str, ...], mark: Mark, tags: ThinkTags) -> tuple[bytes, ...]:
    """As text, and with the vocabulary's special tokens: models write either. Headers of channels are tokens alone."""
    return tuple(dict.fromkeys(s for text in texts for s in (*(() if tags.channels else (text.encode(),)), mark(text))))
