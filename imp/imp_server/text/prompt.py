"""A conversation -> prompt ids, with the span of each message. Owner of a model's templates."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from imp_server.core import ChatRequest, InvalidRequest, Message, MessageSpan, TemplateRefused, message_text
from imp_server.text.cache_scope import transcript_scope
from imp_server.text.call_ids import settled, short_id
from imp_server.text.chat_messages import MessageDicts, request_strings, tool_dict
from imp_server.text.fold_systems import fold_systems
from imp_server.text.guard import Guard, SpecialTexts, unused_characters
from imp_server.text.pins import MarkedPrefix, ends_inside, pins_of
from imp_server.text.prompt_ids import PromptEncoder
from imp_server.text.spans import Boundaries, Marks, TextSpan, places_by_search
from imp_server.text.template import Template
from imp_server.text.template_traits import TemplateTraits, traits_of
from imp_server.text.thinking import ThinkTags, ends_in_thinking, think_tags
from imp_server.text.tools.base import SpellId
from imp_server.text.tools.formats import all_formats, choose_format
from imp_server.text.tools.untaught import ToolHistory, instruction, teach
from imp_server.text.transcripts import Transcripts, Written
from imp_server.vocab.encoder import Ids
from imp_server.vocab.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    ids: Ids
    text: str
    """The rendered prompt as a person reads it; control tokens and text that looks like them are the same here."""
    spans: tuple[MessageSpan, ...]
    """One per message of the request, in order; neighbours touch."""
    pins: MarkedPrefix
    """Tokens up to the ends of the blocks with the last cache marks."""
    starts_thinking: bool
    has_closed_thinking: bool = False
    """It ends behind thinking that it opened and closed."""
    continues: str = ""
    """Text of the answer that stands in the prompt already (continue_final_message)."""
    written: Written | None = None
    """What a reply is remembered behind."""


class _TemplateUse:
    """One template with what was found out about it."""

    def __init__(self, template: Template, tokenizer: Tokenizer) -> None:
        self.template = template
        self.traits: TemplateTraits = traits_of(template)
        self.tags: ThinkTags | None = think_tags(
            template.source, lambda text: tokenizer.vocabulary.special_id(text) is not None
        )
        control = [t.text for t in tokenizer.added if t.control]
        taught = [t.text for t in tokenizer.added if not t.control and t.text in template.source]
        self.hard = SpecialTexts(control)
        self.soft = SpecialTexts([*control, *taught])
        # What the prompt has to teach is taught in one notation, whatever the template's source mentions.
        self.tool_format = choose_format(template.source) if self.traits.tools else all_formats()["hermes"]
        own: SpellId | None = getattr(self.tool_format, "spell_id", None)
        self.spell_id = short_id if self.traits.short_ids else own


class PromptMaker:
    """Immutable after construction; `chat` may run in several threads."""

    def __init__(
        self, tokenizer: Tokenizer, templates: Mapping[str, Template], transcripts: Transcripts | None = None
    ) -> None:
        """`templates`: by name, at least `default`. `transcripts` None = every prompt is tokenised whole."""
        self.tokenizer = tokenizer
        self._encoder = PromptEncoder(tokenizer, transcripts)
        self._templates = dict(templates)
        self._uses: dict[str, _TemplateUse] = {}
        self._boundaries = Boundaries([t.text for t in tokenizer.added])

    @cached_property
    def default(self) -> _TemplateUse:
        return self._use("default")

    def use_for(self, chat: ChatRequest) -> _TemplateUse:
        return self._use("tool_use" if chat.tools and "tool_use" in self._templates else "default")

    def chat(
        self,
        chat: ChatRequest,
        *,
        extra: Mapping[str, Any] | None = None,
        close_thinking: bool = False,
        check: Callable[[str], None] = lambda text: None,
    ) -> ChatPrompt:
        """`extra`: further template variables. `close_thinking`: if the prompt ends in thinking, close it there.
        `check` sees the rendered text before it is tokenised, which costs some 280 bytes a token.

        Raises TemplateRefused, VisionUnavailable, InvalidRequest, and what `check` raises.
        """
        use = self.use_for(chat)
        chat = msgspec.structs.replace(chat, messages=settled(chat.messages, use.spell_id))
        messages, where = _for_template(chat, use.traits)
        rendering = _Rendering(use, chat, messages, extra or {})
        text, places = rendering.text, rendering.places
        continues = ""
        if chat.continue_final_message:
            text, continues = _cut_after_final(text, places, messages, rendering.guard)
        starts_thinking = _starts_thinking(use.tags, text, places, chat.continue_final_message)
        if starts_thinking and close_thinking and use.tags is not None:
            text = text.rstrip() + use.tags.closing
            starts_thinking = False
        has_closed = use.tags is not None and not continues and text.rstrip().endswith(use.tags.close)
        ends = self._boundaries.ends(text, [p if p is None or p.end <= len(text) else None for p in places])
        if chat.continue_final_message:
            ends[-1] = len(text)
        check(text)
        block_ends = ends_inside(chat, text, places, where, rendering.guard)
        ends += [end for end in block_ends if end is not None]
        written, offsets = self._encoder.encode(text, rendering.guard, ends, transcript_scope(chat.cache))
        inside = [None if end is None else offsets.pop() for end in reversed(block_ends)][::-1]
        spans = _spans(chat.messages, where, offsets)
        return ChatPrompt(
            ids=written.ids,
            text=rendering.guard.clean(text),
            spans=spans,
            pins=pins_of(chat, spans, len(written.ids), inside),
            starts_thinking=starts_thinking,
            has_closed_thinking=has_closed,
            continues=continues,
            written=written,
        )

    def _use(self, name: str) -> _TemplateUse:
        # Two threads may both build it; they build the same.
        use = self._uses.get(name)
        if use is None:
            use = self._uses[name] = _TemplateUse(self._templates[name], self.tokenizer)
        return use


def _for_template(chat: ChatRequest, traits: TemplateTraits) -> tuple[list[Message], list[int]]:
    """The messages to render, rewritten where the template lacks something; where each original one is now."""
    helped = bool(chat.tools) and not traits.tools
    history = ToolHistory(calls=traits.tool_calls and not helped, results=traits.tool_role and not helped)
    messages, where = history.spell(chat.messages)
    n_added = 0
    if helped:
        messages, n_added = teach(messages, instruction([tool_dict(t) for t in chat.tools]))
    folded, where_folded = fold_systems(messages, traits)
    return folded, [where_folded[n_added + index] for index in where]


class _Rendering:
    """The prompt's text, still guarded, and the places of the contents in it."""

    def __init__(
        self, use: _TemplateUse, chat: ChatRequest, messages: Sequence[Message], extra: Mapping[str, Any]
    ) -> None:
        strings = [*request_strings(chat), use.template.source]
        guard, start, end = unused_characters(3, strings)
        self.guard = Guard(guard)
        marks = Marks(start, end)
        dicts = MessageDicts(self.guard, use.hard, use.soft, use.traits)
        tools = dicts.tools(chat.tools) if chat.tools and use.traits.tools else None
        variables = self.guard.protect_all({**extra, **chat.template_kwargs}, use.soft)
        generate = chat.add_generation_prompt and not chat.continue_final_message

        def render(marked: bool) -> str:
            return use.template.render(
                [dicts.message(m, marks.edges(i) if marked else ("", "")) for i, m in enumerate(messages)],
                tools=tools,
                add_generation_prompt=generate,
                extra=variables,
            )

        self.text = render(marked=False)
        places = None
        # A template that looks into contents may refuse marked ones; the search below finds them.
        with contextlib.suppress(TemplateRefused):
            places = marks.places(self.text, render(marked=True), len(messages))
        if places is None:
            contents = [dicts.message(m)["content"] for m in messages]
            places = places_by_search(self.text, [_plain_content(c) for c in contents])
        self.places = places


def _plain_content(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content).strip()
    return (content or "").strip()


def _cut_after_final(
    text: str, places: Sequence[TextSpan | None], messages: Sequence[Message], guard: Guard
) -> tuple[str, str]:
    final = messages[-1] if messages else None
    if final is None or final.role != "assistant" or final.tool_calls:
        raise InvalidRequest(
            "continue_final_message needs an assistant message with text as the last one",
            param="continue_final_message",
            code="invalid_history",
        )
    place = places[-1]
    if place is None:
        raise InvalidRequest(
            "the chat template doesn't show the final message, so it can't be continued",
            param="messages",
            code="invalid_history",
        )
    content = message_text(final)
    tail = content[len(content.rstrip()) :]
    end = place.end
    for blank in tail:
        if text[end : end + 1] != blank:
            break
        end += 1
    return text[:end], guard.clean(text[place.start : end])


def _starts_thinking(tags: ThinkTags | None, text: str, places: Sequence[TextSpan | None], continues: bool) -> bool:
    if tags is None:
        return False
    if not continues:
        return ends_in_thinking(text, tags)
    last = places[-1] if places else None
    region = text[last.start :] if last is not None else text
    return region.rfind(tags.open) > region.rfind(tags.close)


def _spans(messages: Sequence[Message], where: Sequence[int], offsets: Sequence[int]) -> tuple[MessageSpan, ...]:
    """A folded message shares the span of the one it went into: all but the last of a group are empty."""
    spans = []
    start = 0
    for index, message in enumerate(messages):
        last = index + 1 == len(messages) or where[index + 1] != where[index]
        end = offsets[where[index]] if last else start
        spans.append(MessageSpan(message.role, start, end))
        start = end
    return tuple(spans)
