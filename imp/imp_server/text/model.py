"""A loaded model as the API process sees it: tokenizer, templates, vocabulary. `TextModel` owns them.

Its methods block; the API process calls them in its pool.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from imp_server.config import Config
from imp_server.config.generating import ReasoningSettings as ReasoningKnobs
from imp_server.core import (
    ChatRequest,
    ConfigError,
    ContextShift,
    GenerateRequest,
    GenerationOptions,
    InvalidRequest,
    OutputPlan,
    PromptRequest,
    ResponseFormat,
    SamplingIntent,
    SamplingParams,
    Segment,
    Tool,
    pack_ids,
)
from imp_server.grammar.check import Rules
from imp_server.grammar.proving import PROVES_HERE, Prover
from imp_server.text.cache_scope import cache_marks
from imp_server.text.calls import CallReaders
from imp_server.text.constraint import ThinkState, bound_text, constraint, leaves_text_free
from imp_server.text.fim import check_gap, gap_prompt
from imp_server.text.lenient import Leniency, lenient
from imp_server.text.model_workers import ModelWorkers
from imp_server.text.plan import (
    ThinkPlan,
    asks_thinking,
    chat_plan,
    chat_segments,
    check_least,
    check_size,
    n_fixed_segments,
    shifting_limit,
    text_plan,
    think_budget,
    think_closer,
    think_wish,
    token_limit,
)
from imp_server.text.prompt import ChatPrompt, PromptMaker
from imp_server.text.sampling_defaults import configured, default_sampling, sampling_params
from imp_server.text.session import OutputSession, Prepared
from imp_server.text.template import ChatTemplate, Template
from imp_server.text.templates import builtin_templates, is_ours
from imp_server.text.templates.named import named_templates
from imp_server.text.tools.base import CallReader, ToolFormat, reader_text
from imp_server.text.tools.enforce import offered_tools
from imp_server.text.transcripts import Transcripts
from imp_server.vocab.load import tokenizer_of
from imp_server.vocab.table import Vocabulary
from imp_server.vocab.tokenizer import Tokenizer
from imp_server.weights.header import ModelHeader, read_header
from imp_server.workers.client import Workers

_PREDICTED_CHARACTERS = 8
"""Of a prediction per token that the context holds: more than tokens write on average."""


Finish = Callable[[Prover], Prepared]
"""Plans the output of a prompt that is made: quick but for what it asks the prover."""


class TextModel:
    """Immutable but for `context_length` and the transcripts; its methods may run in several threads at once."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        templates: Mapping[str, str],
        config: Config,
        *,
        architecture: str = "",
        generation: Mapping[str, Any] | None = None,
        context_length: int = 0,
        workers: ModelWorkers | None = None,
    ) -> None:
        """`templates`: Jinja by name; `default` is used where there is no better one.

        `workers`: where templates run that aren't ours; None = here.
        """
        self.workers = workers
        self.tokenizer = tokenizer
        self.config = config
        self._longest = context_length or 1 << 17
        """Of a reply that names no limit, where the context is shifted: what the model was trained for."""
        self.context_length = context_length or 1 << 30
        """Positions of prompt and completion together; the engine's figure once it is known."""
        chosen = _chosen_templates(config.model.chat_template, templates)
        variables = _token_variables(tokenizer)
        self.transcripts = _transcripts(tokenizer, config)
        used: Mapping[str, Template]
        if workers is None or all(map(is_ours, chosen.values())):
            used = {name: ChatTemplate(source, variables) for name, source in chosen.items()}
        else:
            used = workers.templates(chosen, variables, lambda: self.context_length)
        self.prompts = PromptMaker(tokenizer, used, self.transcripts)
        self._variables = _default_variables(config.model.chat_template_kwargs)
        own = default_sampling(architecture, generation or {}, original=config.model.sampling_defaults == "original")
        self.sampling_defaults = configured(own, config.sampling)

    @classmethod
    def load(
        cls, model: ModelHeader | str | os.PathLike[str], config: Config, workers: Workers | None = None
    ) -> TextModel:
        """`workers`: start the processes in which foreign templates and tokenizers run; None = they run here.

        Raises ModelFileMissing, InvalidModel, UnsupportedModel, ConfigError.
        """
        header = model if isinstance(model, ModelHeader) else read_header(model)
        own = None if workers is None else ModelWorkers(workers)
        return cls(
            tokenizer_of(header) if own is None else tokenizer_of(header, own.encoder),
            header.chat_templates,
            config,
            architecture=header.architecture,
            generation=header.generation,
            context_length=header.context_length,
            workers=own,
        )

    @property
    def vocabulary(self) -> Vocabulary:
        return self.tokenizer.vocabulary

    @property
    def chat_template(self) -> str:
        """Source of the template in use."""
        return self.prompts.default.template.source

    @property
    def edge_tokens(self) -> dict[str, str]:
        """bos_token and eos_token as text; empty where there is none."""
        names = _token_variables(self.tokenizer)
        return {"bos_token": names["bos_token"], "eos_token": names["eos_token"]}

    def prepare_chat(self, chat: ChatRequest, key: int) -> Prepared:
        """Raises TemplateRefused, VisionUnavailable, ContextLengthExceeded, InvalidRequest, GrammarRefused."""
        return self.begin_chat(chat, key)(PROVES_HERE)

    def begin_chat(self, chat: ChatRequest, key: int) -> Finish:
        """Renders and tokenises. Raises as `prepare_chat`, GrammarRefused excepted."""
        chat = self._with_defaults(chat)
        prompt = self._chat_prompt(chat, partial(self._check_size, param="messages"))
        return partial(self._finish_chat, chat, prompt, key)

    def _finish_chat(self, chat: ChatRequest, prompt: ChatPrompt, key: int, prover: Prover) -> Prepared:
        answer = self._leniency(chat.output.response_format, prover)
        chat = _with_format(chat, answer.format)
        plan, readers, opened = self._chat_output(chat, prompt, prover)
        request = GenerateRequest(
            key=key,
            ids=prompt.ids.tobytes(),
            plan=plan,
            sampling=self._sampling(chat.sampling),
            options=chat.options,
            shift=self._shift(chat.options, len(prompt.ids)),
            spans=prompt.spans,
            cache=cache_marks(chat.cache, *prompt.pins, isolate_keys=self.config.prefix_cache.isolate_keys),
            prediction=self._prediction(chat.prediction),
        )
        session = OutputSession(
            plan,
            self.vocabulary,
            readers=readers,
            taken_ids={call.id for message in chat.messages for call in message.tool_calls},
            logprobs=chat.options.logprobs is not None,
            whole_schema=answer.whole,
        )
        remember = None
        if self.transcripts is not None and prompt.written is not None:
            remember = partial(self.transcripts.note, prompt.written)
        shown = self._shown(prompt.ids, prompt.text)
        return Prepared(_with_digest(request), session, shown, remember, answer.ignored, opened)

    def _chat_output(
        self, chat: ChatRequest, prompt: ChatPrompt, prover: Prover
    ) -> tuple[OutputPlan, CallReaders | None, tuple[str, ...]]:
        """The plan, what reads its calls, and which schemas stayed open (constraint.py)."""
        use = self.prompts.use_for(chat)
        knobs = self._reasoning_knobs(chat)
        wish = think_wish(chat, knobs, use.tags)
        shifts = self._shift(chat.options, len(prompt.ids)) is not None
        max_tokens = self._token_limit(chat.output.max_tokens, len(prompt.ids), "messages", shifts=shifts)
        tools = offered_tools(chat)
        form = use.tool_format if tools else None
        calls, readers = _call_segments(form, tools, n_fixed_segments(use.tags))
        thinking = ThinkState(use.tags, prompt.starts_thinking, wish.on)
        segments = chat_segments(
            use.tags,
            self.tokenizer.marked,
            wish,
            keep_tags=knobs.format == "none",
            bound=not leaves_text_free(chat),
            calls=calls,
            is_closed=prompt.has_closed_thinking,
        )
        message = knobs.budget_message if chat.reasoning.budget_message is None else chat.reasoning.budget_message
        think = ThinkPlan(
            use.tags,
            starts=prompt.starts_thinking,
            keeps_tags=knobs.format == "none",
            budget=think_budget(chat.reasoning, knobs, max_tokens),
            closer=think_closer(self.tokenizer, use.tags, message, open_end=bool(tools)),
        )
        bound = constraint(
            chat, self.tokenizer.marked, thinking, segments, form, use.template.source, self._rules(), prover
        )
        plan = chat_plan(self.tokenizer, chat, think, segments, max_tokens, bound.grammar)
        check_least(chat.sampling.min_tokens, max_tokens)
        return plan, readers, bound.opened

    def prepare_prompt(self, prompt: PromptRequest, key: int) -> Prepared:
        """A raw prompt. Raises ContextLengthExceeded, InvalidRequest, GrammarRefused."""
        return self.begin_prompt(prompt, key)(PROVES_HERE)

    def begin_prompt(self, prompt: PromptRequest, key: int) -> Finish:
        """Tokenises. Raises as `prepare_prompt`, GrammarRefused excepted."""
        ids, text = self._prompt_ids(prompt)
        return partial(self._finish_prompt, prompt, ids, text, key)

    def _finish_prompt(self, prompt: PromptRequest, ids: list[int], text: str, key: int, prover: Prover) -> Prepared:
        answer = self._leniency(prompt.output.response_format, prover)
        prompt = _with_format(prompt, answer.format)
        shift = self._shift(prompt.options, len(ids)) if prompt.task == "generate" else None
        wanted = 0 if prompt.task == "embed" else prompt.output.max_tokens
        max_tokens = self._token_limit(wanted, len(ids), "prompt", shifts=shift is not None)
        bound = bound_text(answer.format, self._rules(), prover)
        plan = text_plan(self.tokenizer, prompt, max_tokens, bound.grammar)
        check_least(prompt.sampling.min_tokens, plan.max_tokens)
        request = GenerateRequest(
            key=key,
            ids=pack_ids(ids),
            plan=plan,
            sampling=self._sampling(prompt.sampling),
            options=prompt.options,
            task=prompt.task,
            pooling=self.config.model.pooling,
            shift=shift,
            cache=cache_marks(
                prompt.cache,
                len(ids) if prompt.cache.pin_prompt else 0,
                isolate_keys=self.config.prefix_cache.isolate_keys,
            ),
        )
        session = OutputSession(
            plan, self.vocabulary, logprobs=prompt.options.logprobs is not None, whole_schema=answer.whole
        )
        shown = self._shown(ids, text)
        return Prepared(_with_digest(request), session, shown, ignored=answer.ignored, opened=bound.opened)

    def _shown(self, ids: Iterable[int], text: str) -> str:
        """llama-server shows what the model sees, its opening token included."""
        if self.config.server.habits == "llama-server":
            return self.tokenizer.decode(ids, skip_special=False)
        return text

    def _prompt_ids(self, prompt: PromptRequest) -> tuple[list[int], str]:
        """Its ids, and its text as a person reads it."""
        pieces, param = prompt.prompt, "input" if prompt.task == "embed" else "prompt"
        whole = pieces[0] if len(pieces) == 1 and isinstance(pieces[0], str) else None
        if prompt.suffix is not None:
            check_gap(prompt)
            assert whole is not None
            ids = gap_prompt(self.tokenizer, whole, prompt.suffix)
        elif whole is not None:
            self._check_size(whole, param)
            return self.tokenize(whole, add_special=True), whole
        else:
            ids = []
            for i, piece in enumerate(pieces):
                ids += self.tokenize(piece, add_special=i == 0) if isinstance(piece, str) else [piece]
        return ids, self.detokenize(ids, skip_special=False, param=param)

    def _token_limit(self, asked: int | None, n_prompt: int, param: str, *, shifts: bool = False) -> int:
        if not shifts:
            return token_limit(asked, self.config.server, n_prompt, self.context_length, param)
        token_limit(asked, self.config.server, n_prompt, self.context_length, param)
        return shifting_limit(asked, self.config.server, self._longest)

    def _shift(self, options: GenerationOptions, n_prompt: int) -> ContextShift | None:
        """What becomes of a full context; the opening token is always kept."""
        if not self.config.model.context_shift or options.prompt_logprobs is not None:
            return None
        keep = self.config.model.keep_tokens if options.n_keep is None else options.n_keep
        return ContextShift(n_prompt if keep < 0 else keep + self.tokenizer.add_bos, options.n_discard)

    def _reasoning_knobs(self, chat: ChatRequest) -> ReasoningKnobs:
        own = self.config.reasoning
        wanted = chat.reasoning.format or own.format
        if wanted == "deepseek-legacy":
            wanted = "none" if chat.streamed else "deepseek"
        return msgspec.structs.replace(own, format=wanted)

    def _leniency(self, wanted: ResponseFormat, prover: Prover) -> Leniency:
        return lenient(wanted, self._rules(), prover) if self.config.grammar.lenient else Leniency(wanted)

    def _rules(self) -> Rules:
        grammar = self.config.grammar
        return Rules(
            grammar.key_order,
            grammar.extra_arguments,
            extra_properties=grammar.extra_properties == "allow",
        )

    def tokenize(self, text: str, *, add_special: bool = False, control: bool = True) -> list[int]:
        """Ids of `text`. `control`: control tokens it spells count. `add_special`: BOS, EOS as the model has it."""
        ids: list[int] = self.tokenizer.encode(text, control=control, add_special=add_special).tolist()
        return ids

    def detokenize(self, ids: Sequence[int], *, skip_special: bool = True, param: str = "tokens") -> str:
        """Raises InvalidRequest, naming the field `param`, for an id outside the vocabulary."""
        return self.tokenizer.decode(self._checked_ids(ids, param), skip_special=skip_special)

    def token_bytes(self, token_id: int) -> bytes:
        """What one token writes."""
        [token_id] = self._checked_ids([token_id], "tokens")
        return self.vocabulary.plain_bytes(token_id)

    def count(self, chat: ChatRequest) -> int:
        """Prompt tokens of a chat: exactly `usage.prompt_tokens` of the same request."""
        return len(self._chat_prompt(self._with_defaults(chat)).ids)

    def apply_template(self, chat: ChatRequest) -> str:
        """The rendered prompt."""
        return self._chat_prompt(self._with_defaults(chat)).text

    def _with_defaults(self, chat: ChatRequest) -> ChatRequest:
        """Thinks as the configuration says where the request doesn't."""
        thinks = self._variables.get("enable_thinking")
        if not isinstance(thinks, bool) or asks_thinking(chat.reasoning) is not None:
            return chat
        return msgspec.structs.replace(chat, reasoning=msgspec.structs.replace(chat.reasoning, enabled=thinks))

    def _check_size(self, text: str, param: str) -> None:
        check_size(text, self.vocabulary.longest, self.context_length, param)

    def _chat_prompt(self, chat: ChatRequest, check: Callable[[str], None] = lambda text: None) -> ChatPrompt:
        wish = think_wish(chat, self.config.reasoning, self.prompts.use_for(chat).tags)
        extra = dict(self._variables)
        if chat.reasoning.effort is not None:
            extra["reasoning_effort"] = chat.reasoning.effort
        is_said = wish.explicit or not wish.on or self.prompts.use_for(chat).traits.wants_thinking_said
        if "enable_thinking" not in chat.template_kwargs and is_said:
            extra["enable_thinking"] = wish.on
        return self.prompts.chat(chat, extra=extra, close_thinking=not wish.on, check=check)

    def _sampling(self, intent: SamplingIntent) -> SamplingParams:
        return sampling_params(
            intent,
            self.sampling_defaults,
            end_ids=self.vocabulary.end_ids,
            vocab_size=self.vocabulary.size,
        )

    def _prediction(self, text: str | None) -> bytes:
        """As much as a reply can repeat. More would keep a thread busy, and then the engine, for nothing."""
        if not text:
            return b""
        ids = self.tokenize(text[: _PREDICTED_CHARACTERS * self.context_length], control=False)
        return pack_ids(ids[: self.context_length])

    def _checked_ids(self, ids: Sequence[int], param: str) -> list[int]:
        size = self.vocabulary.size
        for i in ids:
            if not 0 <= i < size:
                message = f"token id {i} isn't in the vocabulary (0 to {size - 1})"
                raise InvalidRequest(message, param=param, code="unknown_token")
        return list(ids)


R = TypeVar("R", ChatRequest, PromptRequest)


def _with_format(request: R, response_format: ResponseFormat) -> R:
    output = msgspec.structs.replace(request.output, response_format=response_format)
    return msgspec.structs.replace(request, output=output)


def _default_variables(text: str) -> dict[str, Any]:
    """Raises ConfigError."""
    try:
        found = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError as error:
        raise ConfigError(f"model.chat_template_kwargs isn't JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError('model.chat_template_kwargs must be a JSON object, such as {"enable_thinking": false}')
    return found


def _chosen_templates(choice: str, own: Mapping[str, str]) -> dict[str, str]:
    """`--chat-template`: auto, a name of the table, or a file. Raises ConfigError."""
    if choice == "auto":
        return dict(own) if "default" in own else {**own, "default": builtin_templates()["chatml"]}
    named = {**builtin_templates(), **named_templates()}
    if choice in named:
        return {"default": named[choice]}
    if "{" in choice:  # Jinja itself: no name, and no path that anybody has
        return {"default": choice}
    path = Path(choice)
    if not path.is_file():
        names = ", ".join(["auto", *named])
        raise ConfigError(f"there is no chat template '{choice}': use {names}, the path of a Jinja file, or Jinja")
    try:
        return {"default": path.read_text(encoding="utf-8")}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read the chat template {choice}: {error}") from None


def _transcripts(tokenizer: Tokenizer, config: Config) -> Transcripts | None:
    knobs = config.prefix_cache
    if not (knobs.enabled and knobs.transcripts):
        return None
    return Transcripts(
        tokenizer.vocabulary.token_bytes,
        tokenizer.vocabulary.end_ids,
        max_entries=knobs.max_transcripts,
        max_bytes=knobs.transcripts_mib << 20,
    )


def _token_variables(tokenizer: Tokenizer) -> dict[str, Any]:
    texts = tokenizer.vocabulary.special_texts
    named = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
    named |= dict.fromkeys(("unk_token", "sep_token", "pad_token", "cls_token", "mask_token"))
    return {
        **{name: texts.get(i, "") if i is not None else "" for name, i in named.items()},
        "special_tokens": tuple(t.text for t in tokenizer.added),
    }


def _call_segments(
    form: ToolFormat | None, tools: Sequence[Tool], first: int
) -> tuple[tuple[Segment, ...], CallReaders | None]:
    """The plan's call segments, from index `first` on, and what reads their text. None of either without `form`."""
    if form is None:
        return (), None

    def reader(segment: int, opener: bytes) -> CallReader:
        return form.reader(tools, segment - first, reader_text(opener))

    return form.segments(tools, 0, first), reader


def _with_digest(request: GenerateRequest) -> GenerateRequest:
    """The digest leaves out what differs between two tries of the same request."""
    anonymous = msgspec.structs.replace(
        request, key=0, sampling=msgspec.structs.replace(request.sampling, seed=0), digest=""
    )
    digest = hashlib.blake2b(msgspec.msgpack.encode(anonymous), digest_size=16).hexdigest()
    return msgspec.structs.replace(request, digest=digest)
