"""Fill in the middle: the prompt of a gap, for models that were trained with tokens for it."""

from __future__ import annotations

from typing import NamedTuple

from imp_server.core import InvalidRequest, PromptRequest
from imp_server.vocab.tokenizer import Tokenizer


class GapTokens(NamedTuple):
    """Texts of the three tokens; all families order the prompt prefix, suffix, middle."""

    prefix: str
    suffix: str
    middle: str


FAMILIES = (
    GapTokens("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, Granite 4, Codestral's GGUFs
    GapTokens("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    GapTokens("<|fim_begin|>", "<|fim_hole|>", "<|fim_end|>"),
    GapTokens("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    GapTokens("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    GapTokens("[PREFIX]", "[SUFFIX]", "[MIDDLE]"),  # Mistral
)


def check_gap(prompt: PromptRequest) -> None:
    """Raises InvalidRequest (fim_not_supported) for a suffix whose prompt is not one text, whatever the model."""
    if prompt.suffix is not None and not (len(prompt.prompt) == 1 and isinstance(prompt.prompt[0], str)):
        message = '"suffix" goes with a prompt that is one string'
        raise InvalidRequest(message, param="suffix", code="fim_not_supported")


def gap_tokens(tokenizer: Tokenizer) -> GapTokens | None:
    """The ones this vocabulary has as tokens of their own."""
    known = {token.text for token in tokenizer.added}
    return next((family for family in FAMILIES if set(family) <= known), None)


def gap_ids(tokenizer: Tokenizer, before: str, after: str) -> list[int]:
    """Ids of the prompt that asks for the text between `before` and `after`, which spell no control tokens.

    Raises InvalidRequest (fim_not_supported).
    """
    tokens = gap_tokens(tokenizer)
    if tokens is None:
        message = "this model has no fill-in-the-middle tokens, so it can't take a suffix"
        raise InvalidRequest(message, param="suffix", code="fim_not_supported")
    id_of = {token.text: token.id for token in tokenizer.added}
    ids = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    ids += [id_of[tokens.prefix], *tokenizer.encode(before).tolist()]
    return [*ids, id_of[tokens.suffix], *tokenizer.encode(after).tolist(), id_of[tokens.middle]]
