"""What the API process needs of a model's text side (api/model_text_side.py has it): what prompts are made with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from imp_server.core import ChatRequest, InvalidRequest, PromptRequest, check_media
from imp_server.core.errand import NotWanted, current_errand
from imp_server.grammar.proving import Prover
from imp_server.text.fim import check_gap
from imp_server.text.session import Prepared
from imp_server.vocab.table import Vocabulary


class TextSide(Protocol):
    """All methods are slow and thread-safe: they run in the pool."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def chat_template(self) -> str:
        """Jinja source of the template in use."""
        ...

    @property
    def sampling_defaults(self) -> Mapping[str, float]:
        """By parameter, for requests that name none."""
        ...

    @property
    def template_facts(self) -> Mapping[str, Any]:
        """bos_token, eos_token and chat_template_caps, as llama.cpp's /props tells them."""
        ...

    @property
    def apart(self) -> frozenset[str]:
        """What of template and tokenizer runs in another process, for which threads wait: those are the model's own."""
        ...

    @property
    def trouble(self) -> str:
        """Why prompts can't be made, in words; empty while they can."""
        ...

    @property
    def killed(self) -> Mapping[str, int]:
        """How often a limit ended what the model brought along, by what it was."""
        ...

    def close(self) -> None:
        """Ends what of it runs in processes apart; it is of no use behind that."""
        ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...

    def detokenize(self, ids: Sequence[int]) -> str:
        """Raises InvalidRequest (unknown_token) for an id outside the vocabulary."""
        ...

    def render(self, request: ChatRequest) -> str:
        """The prompt as text."""
        ...

    def limit_context(self, context_length: int) -> None:
        """Told once, when the engine is ready: positions of prompt and completion together."""
        ...

    def count(self, request: ChatRequest) -> int:
        """Prompt tokens."""
        ...

    def begin_chat(self, request: ChatRequest) -> Callable[[Prover], Prepared]:
        """Render and tokenise. Raises TemplateRefused, VisionUnavailable.

        What comes back plans the output; it asks the prover about grammars and may be called again once it has learnt
        more. Raises GrammarRefused.
        """
        ...

    def begin_prompt(self, request: PromptRequest) -> Callable[[Prover], Prepared]:
        """Tokenise. Raises InvalidRequest (unknown_token, fim_not_supported)."""
        ...


def tokenised(side: TextSide, pieces: Sequence[str | int], *, add_special: bool, parse_special: bool) -> list[int]:
    """Texts and ids as one sequence. The opening token comes before a first text, and alone where there is nothing.

    Raises InvalidRequest (unknown_token), NotWanted.
    """
    errand, size = current_errand(), side.vocabulary.size
    ids: list[int] = []
    for i, piece in enumerate(pieces):
        if errand.is_over:
            raise NotWanted
        if isinstance(piece, str):
            ids += side.tokenize(piece, add_special=add_special and i == 0, parse_special=parse_special)
        elif piece < size:
            ids.append(piece)
        else:
            message = f"token id {piece} isn't in the vocabulary (0 to {size - 1})"
            raise InvalidRequest(message, param=f"content[{i}]", code="unknown_token")
    return ids


def check_for_any_model(request: ChatRequest | PromptRequest) -> None:
    """What no model could take is the request's fault, also where no model is there to say so.

    Raises VisionUnavailable, InvalidRequest (fim_not_supported).
    """
    if isinstance(request, ChatRequest):
        check_media(request)
    else:
        check_gap(request)
