"""Builds the OutputPlan of a chat or a plain completion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from imp_server.config.generating import ReasoningSettings
from imp_server.config.serving import ServerSettings
from imp_server.core import (
    ChatRequest,
    ContextLengthExceeded,
    GrammarPlan,
    InvalidRequest,
    OutputIntent,
    OutputPlan,
    PromptRequest,
    ReasoningIntent,
    SamplingIntent,
    Segment,
    pack_ids,
)
from imp_server.text.thinking import Mark, ThinkTags, spellings, think_segments
from imp_server.vocab.tokenizer import Tokenizer

NO_LIMIT = 2**31 - 1
"""Of tokens, as a client may ask for it: more than any context holds."""

# Share of max_tokens that thinking may take, for clients that name an effort.
EFFORT_FRACTIONS = {"none": 0.0, "minimal": 0.1, "low": 0.25, "medium": 0.5, "high": 0.8, "xhigh": 0.9, "max": 0.95}


@dataclass(frozen=True, slots=True)
class ThinkWish:
    """What becomes of thinking in one request, before the template has spoken."""

    on: bool
    explicit: bool
    """The client asked for it by name: it is stamped into the rendering."""
    scan_tokens: int
    """First tokens in which an opener is looked for."""


def think_wish(chat: ChatRequest, knobs: ReasoningSettings, tags: ThinkTags | None) -> ThinkWish:
    intent = chat.reasoning
    structured = bool(chat.tools) or chat.output.response_format.kind != "text"
    default = chat.reasoning_default_on and (knobs.beside_tools or not structured)
    asked = asks_thinking(intent)
    on = default if asked is None else asked
    if 0 in (knobs.think_budget, knobs.budget_tokens) or 0 in (intent.budget_tokens, intent.budget_fraction):
        on = False
    scan = knobs.agent_scan_tokens if chat.tools else knobs.scan_tokens
    return ThinkWish(on and tags is not None, asked is not None, scan)


def asks_thinking(intent: ReasoningIntent) -> bool | None:
    """Whether the request wants thinking; None = it doesn't say."""
    if intent.enabled is not None:
        return intent.enabled
    if intent.effort is not None:
        return intent.effort != "none"
    if intent.budget_tokens is not None or intent.budget_fraction is not None:
        return bool(intent.budget_tokens or intent.budget_fraction)
    return None


def think_budget(intent: ReasoningIntent, knobs: ReasoningSettings, max_tokens: int) -> int:
    """Reasoning tokens after which it is closed by force; -1 = never.

    A share of max_tokens, less if that would leave the answer less than its reserve (or than half, if half is less).
    """
    fraction = knobs.think_budget
    if intent.budget_tokens is not None and intent.budget_tokens >= 0:
        return intent.budget_tokens
    if intent.budget_fraction is not None:
        fraction = intent.budget_fraction
    elif knobs.budget_tokens >= 0 and intent.effort not in EFFORT_FRACTIONS:
        return knobs.budget_tokens
    elif intent.effort in EFFORT_FRACTIONS:
        fraction = EFFORT_FRACTIONS[intent.effort]
    if fraction >= 1.0:
        return -1
    reserve = min(knobs.answer_reserve, max_tokens // 2)
    return max(min(int(fraction * max_tokens), max_tokens - reserve), 1)


def token_limit(
    asked: int | None, knobs: ServerSettings, n_prompt: int, context_length: int, param: str = "messages"
) -> int:
    """max_tokens in force. Raises ContextLengthExceeded if the prompt leaves no room."""
    room = context_length - n_prompt
    wanted = knobs.max_tokens if asked is None else asked
    if knobs.most_tokens:
        wanted = min(wanted, knobs.most_tokens)
    if room < 1 and wanted > 0:
        raise ContextLengthExceeded(
            f"this model's maximum context length is {context_length} tokens, completion included, and the prompt "
            f"has {n_prompt}: shorten the prompt",
            param=param,
        ).sized(n_prompt, context_length)
    return min(wanted, max(room, 0))


def shifting_limit(asked: int | None, knobs: ServerSettings, longest: int) -> int:
    """max_tokens in force where a full context is shifted. `longest`: of a reply that names no limit."""
    wanted = knobs.max_tokens if asked is None else asked
    wanted = min(wanted, knobs.most_tokens or wanted)
    return wanted if wanted < longest or asked not in (None, NO_LIMIT) else longest


_SHRINKING = 4
"""What normalising and stripping may take from a text; more than any known tokenizer does."""


def check_size(text: str, longest: int, context_length: int, param: str = "messages") -> None:
    """Raises ContextLengthExceeded for a text too long whatever its tokens (of `longest` bytes at most) may be."""
    least = len(text) // (_SHRINKING * longest)
    if least > context_length:
        raise ContextLengthExceeded(
            f"this model's maximum context length is {context_length} tokens{_and_more(param)}, and the {_noun(param)} "
            f"has {len(text)} characters, more than {least} tokens: shorten it",
            param=param,
        ).sized(least, context_length)


def _noun(param: str) -> str:
    """What a text is called that came in this field."""
    return "input" if param == "input" else "prompt"


def _and_more(param: str) -> str:
    """Nothing is written to an input that is embedded."""
    return "" if param == "input" else ", completion included"


def think_closer(tokenizer: Tokenizer, tags: ThinkTags | None, message: str, *, open_end: bool = False) -> bytes:
    """int32 ids that end thinking by force: what the model is made to think last, and the closing tag.

    With channels the answer's header follows, unless `open_end`: the grammar then says what may.
    Raises InvalidRequest for a message that would end the thinking itself.
    """
    if tags is None:
        return b""
    if tags.close in message:
        raise InvalidRequest(
            f"the message can't hold {tags.close}, which ends this model's thinking",
            param="reasoning_budget_message",
            code="unsupported_value",
        )
    last = tokenizer.encode(message, control=False).tolist()
    closer = tags.close if tags.channels and open_end else tags.forced_close
    return pack_ids([*last, *tokenizer.encode(closer, control=True).tolist()])


def chat_segments(
    tags: ThinkTags | None,
    mark: Mark,
    wish: ThinkWish,
    *,
    keep_tags: bool,
    bound: bool,
    calls: Sequence[Segment] = (),
    is_closed: bool = False,
) -> tuple[Segment, ...]:
    """Segment 0 is the answer, 1 the thinking (if the model has tags), then `calls`.

    `is_closed`: the prompt has closed the thinking. Some models close it once more; that marker is no text.

    `bound`: the answer is nothing but a value or calls, which may spell any tag, so whatever else the reply may hold
    stands in front.
    """
    segments: tuple[Segment, ...] = (Segment("answer"),)
    if tags is not None and is_closed and not (keep_tags or bound or tags.channels):
        segments = (Segment("answer", closers=spellings((tags.close,), mark, tags), closes_to=0),)
    if tags is not None:
        scan = 0 if bound and not wish.on else wish.scan_tokens
        segments += think_segments(tags, mark, scan_tokens=scan, keep_tags=keep_tags, at_start=bound)
    return segments + tuple(msgspec.structs.replace(c, at_start=c.at_start or bound) for c in calls)


@dataclass(frozen=True, slots=True)
class ThinkPlan:
    """How thinking stands in one reply."""

    tags: ThinkTags | None
    starts: bool
    """The reply begins inside it."""
    keeps_tags: bool
    """It stays in the text, tags and all (--reasoning-format none)."""
    budget: int
    """Of think_budget."""
    closer: bytes
    """Of think_closer."""


def chat_plan(
    tokenizer: Tokenizer,
    chat: ChatRequest,
    think: ThinkPlan,
    segments: tuple[Segment, ...],
    max_tokens: int,
    grammar: GrammarPlan | None,
) -> OutputPlan:
    """`segments`: of chat_segments. `max_tokens`: in force."""
    vocabulary, tags = tokenizer.vocabulary, think.tags
    shown: tuple[int, ...] = ()
    if tags is not None and think.keeps_tags:
        pieces = tokenizer.split(tags.open + tags.close, control=True)
        shown = tuple(p.token.id for p in pieces if p.token is not None and vocabulary.is_special(p.token.id))
    return OutputPlan(
        segments=segments,
        start=1 if think.starts else 0,
        end_ids=_end_ids(chat.sampling, chat_end_ids(tokenizer, tags)),
        stop=_stop(chat.output),
        max_tokens=max_tokens,
        think_budget=think.budget if tags is not None else -1,
        think_closer=think.closer if tags is not None else b"",
        shown_ids=shown,
        only_calls=chat.tool_choice.mode == "required" and chat.output.response_format.kind == "text",
        steers=_steers(chat.output),
        grammar=grammar,
    )


def _steers(output: OutputIntent) -> bool:
    return output.length_steering and output.response_format.kind != "text"


def _stop(output: OutputIntent) -> tuple[bytes, ...]:
    return tuple(s.encode() for s in output.stop if s)


def _end_ids(sampling: SamplingIntent, own: tuple[int, ...]) -> tuple[int, ...]:
    """The model's own first, each once."""
    return tuple(dict.fromkeys((*(() if sampling.ignore_eos else own), *sampling.stop_token_ids)))


def n_fixed_segments(tags: ThinkTags | None) -> int:
    """Index of the first call segment."""
    return 1 if tags is None else 3 if tags.channels else 2


def chat_end_ids(tokenizer: Tokenizer, tags: ThinkTags | None) -> tuple[int, ...]:
    """What ends a reply. A model of channels ends messages within its reply, so that mark is none of them."""
    vocabulary = tokenizer.vocabulary
    inner = vocabulary.special_id(tags.close) if tags is not None and tags.channels else None
    return tuple(i for i in vocabulary.end_ids if i != inner)


def check_least(min_tokens: int, max_tokens: int) -> None:
    """Raises InvalidRequest for a least length that can't be kept."""
    if min_tokens > max_tokens:
        message = f'"min_tokens" must be at most the limit of the answer, {max_tokens}'
        raise InvalidRequest(message, param="min_tokens", code="unsupported_value")


def text_plan(tokenizer: Tokenizer, prompt: PromptRequest, max_tokens: int, grammar: GrammarPlan | None) -> OutputPlan:
    """A completion without structure: nothing but text up to an end token or a stop string."""
    return OutputPlan(
        end_ids=_end_ids(prompt.sampling, tokenizer.vocabulary.end_ids),
        stop=_stop(prompt.output),
        max_tokens=max_tokens,
        min_indent=prompt.output.min_indent,
        steers=_steers(prompt.output),
        grammar=grammar,
    )
