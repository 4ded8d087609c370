"""The plainest text side: a token is a byte, a prompt is `role: text` lines. For tests of everything around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from imp_server.core import (
    ChatRequest,
    GenerateRequest,
    InvalidRequest,
    MediaPart,
    MessageSpan,
    OutputPlan,
    PromptRequest,
    SamplingParams,
    Segment,
    TextPart,
    VisionUnavailable,
    pack_ids,
    special,
    unpack_ids,
)
from imp_server.engine.client.scripted import byte_vocabulary
from imp_server.grammar.proving import Prover
from imp_server.text.session import OutputSession, Prepared

from tests.asked import made

END, THINK, THOUGHT, CALL, CALLED = "<|end|>", "<think>", "</think>", "<call>", "</call>"


class ByteText:
    chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    sampling_defaults: Mapping[str, float] = {}
    template_facts: Mapping[str, Any] = {}
    apart: frozenset[str] = frozenset()
    trouble = ""
    killed: Mapping[str, int] = {}

    def __init__(self) -> None:
        self.vocabulary = byte_vocabulary(END, THINK, THOUGHT, CALL, CALLED)

    def close(self) -> None:
        pass

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return [*text.encode()]

    def detokenize(self, ids: Sequence[int]) -> str:
        if any(i > 255 for i in ids):
            raise InvalidRequest("a token id isn't in the vocabulary", param="tokens", code="unknown_token")
        return bytes(ids).decode(errors="ignore")

    def render(self, request: ChatRequest) -> str:
        lines = []
        for message in request.messages:
            for part in message.parts:
                if isinstance(part, MediaPart):
                    raise VisionUnavailable(f'"{part.path}": this model reads text only', param=part.path)
            text = "".join(part.text for part in message.parts if isinstance(part, TextPart))
            lines.append(f"{message.role}: {text}\n")
        return "".join(lines)

    def limit_context(self, context_length: int) -> None:
        self.context_length = context_length

    def count(self, request: ChatRequest) -> int:
        return len(self.render(request).encode())

    def begin_chat(self, request: ChatRequest) -> Callable[[Prover], Prepared]:
        prepared = self.prepare_chat(request)
        return lambda prover: prepared

    def begin_prompt(self, request: PromptRequest) -> Callable[[Prover], Prepared]:
        prepared = self.prepare_prompt(request)
        return lambda prover: prepared

    def prepare_chat(self, request: ChatRequest) -> Prepared:
        think = Segment("think", openers=(special(THINK),), closers=(special(THOUGHT),), opens_from=(0,), closes_to=0)
        plan = OutputPlan(
            segments=(Segment("answer"), think),
            end_ids=self.vocabulary.end_ids,
            stop=tuple(s.encode() for s in request.output.stop),
            max_tokens=request.output.max_tokens or 64,
        )
        bias = tuple(request.sampling.logit_bias.items())
        ids = self.render(request).encode()
        generate = made(
            GenerateRequest,
            key=0,
            ids=pack_ids(list(ids)),
            spans=(MessageSpan("user", 0, len(ids)),),
            plan=plan,
            n=request.options.n,
            logprobs=request.options.logprobs,
            adapters=request.options.adapters,
            sampling=SamplingParams(logit_bias=bias),
        )
        return self._prepared(generate)

    def prepare_prompt(self, request: PromptRequest) -> Prepared:
        pieces = [piece.encode() if isinstance(piece, str) else bytes([piece]) for piece in request.prompt]
        generate = made(
            GenerateRequest,
            key=0,
            ids=pack_ids(list(b"".join(pieces))),
            plan=OutputPlan(
                end_ids=self.vocabulary.end_ids,
                stop=tuple(s.encode() for s in request.output.stop),
                max_tokens=64 if request.output.max_tokens is None else request.output.max_tokens,
            ),
            n=request.options.n,
            logprobs=request.options.logprobs,
            adapters=request.options.adapters,
        )
        return self._prepared(generate)

    def _prepared(self, request: GenerateRequest) -> Prepared:
        session = OutputSession(request.plan, self.vocabulary, logprobs=request.options.logprobs is not None)
        return Prepared(request, session, bytes(unpack_ids(request.ids)).decode(errors="replace"))
