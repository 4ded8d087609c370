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


def gap_ids(tokenizer: Tokenizer) -> tuple[int, int, int] | None:
    """Those of prefix, suffix and middle: as the file says, or by their texts."""
    if tokenizer.gap_ids is not None:
        return tokenizer.gap_ids
    id_of = {token.text: token.id for token in tokenizer.added}
    for family in FAMILIES:
        if set(family) <= id_of.keys():
            return id_of[family.prefix], id_of[family.suffix], id_of[family.middle]
    return None


def gap_prompt(tokenizer: Tokenizer, before: str, after: str) -> list[int]:
    """Ids of the prompt that asks for the text between `before` and `after`, which spell no control tokens.

    Raises InvalidRequest (fim_not_supported).
    """
    gap = gap_ids(tokenizer)
    if gap is None:
        message = "this model has no fill-in-the-middle tokens, so it can't take a suffix"
        raise InvalidRequest(message, param="suffix", code="fim_not_supported")
    prefix, suffix, middle = gap
    ids = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    ids += [prefix, *tokenizer.encode(before).tolist()]
    return [*ids, suffix, *tokenizer.encode(after).tolist(), middle]
