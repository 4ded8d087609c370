"""Which steps of a tokenizer.json are known to take linear time and to make nothing much longer.

Everything that isn't listed here is foreign: a regex of the file's own, a text replaced by a longer one, words without
a limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imp_server.vocab.pre_kinds import PRE_KINDS

_PLAIN = frozenset(
    {"NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "StripAccents", "Strip", "BertNormalizer", "ByteLevel",
     "Metaspace", "BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Digits", "Punctuation", "UnicodeScripts"}
)  # fmt: skip
_OUR_PATTERNS = frozenset(pattern for kind in PRE_KINDS.values() for pattern in kind.patterns)
_LONGEST_WORD = 1000
"""Characters: WordPiece takes the square of it per word."""
_SHORT = 4
"""Characters that one may become."""


def steps_are_known(data: Mapping[str, Any]) -> bool:
    """`data`: a tokenizer.json."""
    model = data.get("model") or {}
    kind = model.get("type") or "BPE"
    longest = model.get("max_input_chars_per_word", 100)
    if kind not in ("BPE", "WordPiece", "WordLevel") or not isinstance(longest, int) or longest > _LONGEST_WORD:
        return False
    return all(_is_known(data.get(name)) for name in ("normalizer", "pre_tokenizer"))


def _is_known(step: Any) -> bool:
    if step is None:
        return True
    if not isinstance(step, Mapping):
        return False
    kind = step.get("type")
    if kind == "Sequence":
        steps = step.get("normalizers", step.get("pretokenizers"))
        replaced = sum(isinstance(s, Mapping) and s.get("type") in ("Replace", "Prepend") for s in steps or ())
        return isinstance(steps, list) and replaced <= _SHORT and all(map(_is_known, steps))
    pattern = step.get("pattern")
    if kind == "Split":
        return _is_string(pattern) or (isinstance(pattern, Mapping) and pattern.get("Regex") in _OUR_PATTERNS)
    if kind == "Replace":
        return _is_string(pattern) and len(str(step.get("content"))) <= _SHORT
    if kind == "Prepend":
        return len(str(step.get("prepend"))) <= _SHORT
    return kind in _PLAIN


def _is_string(pattern: Any) -> bool:
    return isinstance(pattern, Mapping) and bool(pattern.get("String"))
