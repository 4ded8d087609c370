"""Which ids end a completion: the model's declared ones and every turn marker that its vocabulary has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# Texts that mark the end of a turn or document in the families in use. A file often declares only one
# of them; a model that writes another would otherwise talk on as its own user.
_ENDS = """
<|im_end|> <|eot_id|> <|eom_id|> <|end|> <|return|> <|call|> <|endoftext|> <|end_of_text|> <|eot|> <|eom|>
<end_of_turn> <turn|> <eos> </s> <EOT> _<EOT> [EOT] [EOS] <end_of_utterance> <|end_of_turn|> <|END_OF_TURN_TOKEN|>
<|endofturn|> <SPECIAL_12> <｜end▁of▁sentence｜> <|flush|> <|calls|> [e~[ <|endofprompt|>
[|endofturn|] <|role_end|> <seed:eos> <|eos|> <｜hy_place▁holder▁no▁2｜> <|end_of_sentence|>
"""
_STARTS = """
<|im_start|> <start_of_turn> <|start_header_id|> <|start_of_role|> <|user|> <|observation|> <｜User｜>
<|START_OF_TURN_TOKEN|> <SPECIAL_11> <extra_id_1> <|turn> <|tool_response>
"""
_FILE_ENDS = "<|fim_pad|> <|repo_name|> <|file_sep|>"

TURN_ENDS = frozenset(_ENDS.split())
TURN_MARKERS = TURN_ENDS | frozenset(_STARTS.split()) | frozenset(_FILE_ENDS.split())


def end_ids(declared: Iterable[int | None], special_texts: Mapping[int, str]) -> tuple[int, ...]:
    """Declared ids first, in order, then the markers among the special tokens."""
    ids = [i for i in declared if i is not None]
    ids += [i for i, text in special_texts.items() if text in TURN_MARKERS]
    return tuple(dict.fromkeys(ids))
