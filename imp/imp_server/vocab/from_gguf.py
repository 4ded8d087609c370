"""Builds a Tokenizer from the `tokenizer.ggml.*` keys of a GGUF file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from imp_server.core import InvalidModel, UnsupportedModel
from imp_server.vocab import byte_alphabet
from imp_server.vocab.encoder import Encoder, LibraryEncoder, MakeEncoder
from imp_server.vocab.end_tokens import TURN_MARKERS, end_ids
from imp_server.vocab.pre_kinds import PRE_KINDS, PreKind
from imp_server.vocab.score_merges import merges_of_scores
from imp_server.vocab.table import Vocabulary, n_used
from imp_server.vocab.tokenizer import AddedToken, Tokenizer
from imp_server.vocab.unigram import unigram_json
from imp_server.weights.key_rules import KeyRules

# Values of tokenizer.ggml.token_type.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BLANK = "\u2581"
_POSITION_ORDERED = ("gemma", "gemma2", "gemma3", "gemma3n")


class GgufVocabulary:
    """The raw lists of the file, checked against each other. Raises InvalidModel."""

    def __init__(self, keys: Mapping[str, Any], architecture: str = "") -> None:
        self.keys = keys
        self.architecture = architecture
        self.tokens = self._texts("tokens")
        if not self.tokens:
            raise InvalidModel("the key 'tokenizer.ggml.tokens' is missing or empty; the file has no tokenizer")
        self.types = [NORMAL] * len(self.tokens)
        if keys.get("token_type") is not None:
            self.types = [int(t) for t in self._numbers("token_type")]

    def scores(self) -> list[float]:
        return self._numbers("scores")

    def merges(self) -> list[str]:
        return self._texts("merges")

    def _texts(self, key: str) -> list[str]:
        value = self.keys.get(key)
        texts = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else None
        if value is not None and (texts is None or not all(isinstance(t, str) for t in texts)):
            raise InvalidModel(f"the key 'tokenizer.ggml.{key}' isn't a list of texts")
        return texts or []

    def _numbers(self, key: str) -> list[float]:
        """One finite number per token."""
        value: Any = self.keys.get(key)
        numbers = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(numbers, list) or not all(isinstance(n, int | float) and isfinite(n) for n in numbers):
            raise InvalidModel(f"the key 'tokenizer.ggml.{key}' is missing or isn't a list of finite numbers")
        if len(numbers) != len(self.tokens):
            raise InvalidModel(f"'tokenizer.ggml.{key}' has {len(numbers)} entries for {len(self.tokens)} tokens")
        return numbers

    def id_of(self, key: str) -> int | None:
        """The id under `<key>_token_id`, None when absent or outside the vocabulary."""
        value = self.keys.get(f"{key}_token_id")
        return value if isinstance(value, int) and 0 <= value < len(self.tokens) else None

    def gap_ids(self) -> tuple[int, int, int] | None:
        """Of prefix, suffix and middle, under today's keys or those of before."""
        found = []
        for names in (("fim_pre", "prefix"), ("fim_suf", "suffix"), ("fim_mid", "middle")):
            ids = [i for name in names if (i := self.id_of(name)) is not None]
            found += ids[:1]
        return (found[0], found[1], found[2]) if len(found) == 3 else None

    def suppressed(self) -> list[int]:
        """Ids that the file says must never be sampled. Raises InvalidModel."""
        value: Any = self.keys.get("suppress_tokens")
        ids = [] if value is None else value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(ids, list) or not all(type(i) is int for i in ids):
            raise InvalidModel("the key 'tokenizer.ggml.suppress_tokens' isn't a list of ids")
        return ids

    def octets(self, key: str) -> bytes:
        """Empty where there are none. Raises InvalidModel."""
        value: Any = self.keys.get(key)
        values = [] if value is None else value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(values, list) or not all(type(v) is int and -128 <= v < 256 for v in values):
            raise InvalidModel(f"the key 'tokenizer.ggml.{key}' isn't a list of bytes")
        return bytes(v & 255 for v in values)

    def text(self, key: str) -> str:
        """An empty text when the key is absent or no text."""
        value = self.keys.get(key)
        return value if isinstance(value, str) else ""

    def flag(self, key: str, default: bool) -> bool:
        value = self.keys.get(key)
        return value if isinstance(value, bool) else default

    def added(self) -> list[AddedToken]:
        """Control and user-defined tokens; a turn marker counts as control whatever the file says."""
        found = []
        for i, (text, kind) in enumerate(zip(self.tokens, self.types)):
            if not text:
                continue
            if kind == CONTROL or (kind == USER_DEFINED and text in TURN_MARKERS):
                found.append(AddedToken(i, text, control=True))
            elif kind == USER_DEFINED and not self.is_blank_run(text):
                found.append(AddedToken(i, text, control=False))
        return found

    def special_texts(self) -> dict[int, str]:
        texts = {t.id: t.text for t in self.added() if t.control}
        return texts | {i: self.tokens[i] for i, kind in enumerate(self.types) if kind == UNKNOWN}

    def is_blank_run(self, text: str) -> bool:
        """The token is one that merges produce, whatever its type."""
        # Gemma files spell the runs of blanks that its merges produce as real spaces, type user-defined.
        return self.text("model") == "llama" and len(text) > 1 and not text.strip(" ")


TOKENIZER_KEYS = KeyRules(
    inert=frozenset(
        {
            "model", "pre", "tokens", "token_type", "scores", "merges", "bos_token_id", "eos_token_id", "eot_token_id",
            "eom_token_id", "unknown_token_id", "seperator_token_id", "cls_token_id", "add_bos_token", "add_eos_token",
            "add_sep_token", "add_space_prefix", "normalizer.lowercase", "normalizer.strip_accents", "suppress_tokens",
            "fim_pre_token_id", "fim_suf_token_id", "fim_mid_token_id", "fim_pad_token_id", "fim_rep_token_id",
            "fim_sep_token_id", "prefix_token_id", "suffix_token_id", "middle_token_id",  # all of these are read here
            "padding_token_id", "mask_token_id",  # nothing pads or masks
            "token_type_count",  # rows of an encoder's token types, which the tensor says
            "added_tokens",  # a list of before the types
            "remove_extra_whitespaces", "precompiled_charsmap",  # of the unigram kind
        }
    ),
    neutral={},
)  # fmt: skip


def tokenizer_of_gguf(
    keys: Mapping[str, Any], architecture: str = "", foreign: MakeEncoder = LibraryEncoder.of_json
) -> Tokenizer:
    """`keys` without their `tokenizer.ggml.` prefix. `foreign`: makes the encoder where the file brings steps of its
    own.

    Raises InvalidModel, UnsupportedModel.
    """
    raw = GgufVocabulary(keys, architecture)
    TOKENIZER_KEYS.check(keys, "'tokenizer.ggml.")
    model = raw.text("model")
    if model == "gpt2":
        return _byte_level(raw)
    if model in ("llama", "gemma4"):
        return _sentence_piece(raw)
    if model == "bert":
        return _word_piece(raw)
    if model == "t5":
        return _unigram(raw, foreign)
    raise UnsupportedModel(f"the tokenizer kind {model!r} isn't supported (gpt2, llama, gemma4, bert and t5 are)")


def _byte_level(raw: GgufVocabulary) -> Tokenizer:
    name = raw.text("pre") or "default"
    kind = PRE_KINDS.get(name)
    if kind is None:
        known = ", ".join(sorted(PRE_KINDS))
        raise UnsupportedModel(f"the pre-tokenizer '{name}' isn't supported (known: {known})")
    special = raw.special_texts()
    pieces: list[bytes | None] = []
    for text, sort in zip(raw.tokens, raw.types):
        if sort == UNUSED:
            pieces.append(None)
        else:
            pieces.append(text.encode() if sort == USER_DEFINED else byte_alphabet.to_bytes(text))
    vocab = {t: i for i, t in enumerate(raw.tokens) if t and i not in special and raw.types[i] != UNUSED}
    library = LibraryTokenizer(models.BPE(vocab=vocab, merges=_file_merges(raw, vocab), ignore_merges=kind.whole_words))
    library.pre_tokenizer = pre_tokenizer_of(kind)
    if kind.nfc:
        library.normalizer = normalizers.NFC()
    return _finish(raw, LibraryEncoder(library), pieces, add_bos=kind.adds_bos)


def pre_tokenizer_of(kind: PreKind) -> pre_tokenizers.PreTokenizer:
    steps = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in kind.patterns]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _file_merges(raw: GgufVocabulary, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for line in raw.merges():
        # The first character may be a blank itself (vocabularies that aren't spelled in the byte alphabet).
        cut = line.find(" ", 1)
        left, right = line[:cut], line[cut + 1 :]
        if left in vocab and right in vocab and left + right in vocab:
            merges.append((left, right))
    return merges


def _sentence_piece(raw: GgufVocabulary) -> Tokenizer:
    special = raw.special_texts()
    spelled = [_BLANK * len(t) if raw.is_blank_run(t) else t.replace(" ", _BLANK) for t in raw.tokens]
    vocab = {t: i for i, t in enumerate(spelled) if t and i not in special and raw.types[i] != UNUSED}
    pieces: list[bytes | None] = []
    for text, sort in zip(raw.tokens, raw.types):
        byte = _BYTE_TOKEN.fullmatch(text) if sort in (BYTE, NORMAL) else None
        if sort == UNUSED:
            pieces.append(None)
        else:
            pieces.append(bytes([int(byte[1], 16)]) if byte else text.replace(_BLANK, " ").encode())
    unknown = next((t for t, kind in zip(raw.tokens, raw.types) if kind == UNKNOWN), None)
    if unknown is not None:
        vocab[unknown] = raw.tokens.index(unknown)
    library = LibraryTokenizer(
        models.BPE(
            vocab=vocab,
            merges=_piece_merges(raw, spelled, vocab),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback="<0x00>" in vocab,
        )
    )
    prefix = raw.flag("add_space_prefix", raw.text("model") == "llama")
    blanks = normalizers.Replace(" ", _BLANK)
    library.normalizer = normalizers.Sequence([normalizers.Prepend(_BLANK), blanks]) if prefix else blanks
    return _finish(raw, LibraryEncoder(library), pieces, add_bos=True, strip_leading_space=prefix)


def _piece_merges(raw: GgufVocabulary, spelled: list[str], vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    if raw.merges():
        return _file_merges(raw, vocab)
    if raw.architecture in _POSITION_ORDERED:
        # Gemma's scores don't follow the order in which its merges were learned; its ids do.
        return merges_of_scores(vocab, {t: -i for t, i in vocab.items()})
    return merges_of_scores(vocab, dict(zip(spelled, raw.scores())))


def _unigram(raw: GgufVocabulary, foreign: MakeEncoder) -> Tokenizer:
    """SentencePiece's unigram kind, whose normalisation is a table in the file."""
    unknown = raw.types.index(UNKNOWN) if UNKNOWN in raw.types else raw.id_of("unknown")
    if unknown is None:
        raise InvalidModel("the vocabulary has no unknown token ('tokenizer.ggml.unknown_token_id')")
    silent = {i for i, sort in enumerate(raw.types) if sort not in (NORMAL, BYTE)} | {unknown}
    squeezes, prefix = raw.flag("remove_extra_whitespaces", True), raw.flag("add_space_prefix", True)
    text = unigram_json(
        list(zip(raw.tokens, raw.scores(), strict=True)),
        unknown,
        silent=silent,
        byte_ids={i for i, sort in enumerate(raw.types) if sort == BYTE},
        charsmap=raw.octets("precompiled_charsmap"),
        squeezes_blanks=squeezes,
        puts_blank_first=prefix,
    )
    try:
        encoder = foreign(text)
    except ValueError as error:
        raise InvalidModel(f"the tokenizers library refuses 'tokenizer.ggml.tokens': {error}") from None
    pieces: list[bytes | None] = []
    for token, sort in zip(raw.tokens, raw.types, strict=True):
        byte = _BYTE_TOKEN.fullmatch(token) if sort == BYTE else None
        spelled = bytes([int(byte[1], 16)]) if byte else token.replace(_BLANK, " ").encode()
        pieces.append(None if sort == UNUSED else spelled)
    return _finish(raw, encoder, pieces, add_eos=True, strip_leading_space=prefix, is_foreign=True)


def _word_piece(raw: GgufVocabulary) -> Tokenizer:
    special = raw.special_texts()
    unknown = raw.id_of("unknown")
    vocab: dict[str, int] = {}
    pieces: list[bytes | None] = []
    for i, (text, sort) in enumerate(zip(raw.tokens, raw.types)):
        begins = text.startswith(_BLANK)
        word = text[1:] if begins else text if i in special or sort == UNUSED else "##" + text
        if i == unknown or (i not in special and word and sort != UNUSED):
            vocab.setdefault(word, i)
        pieces.append(None if sort == UNUSED else (" " + text[1:] if begins else text).encode())
    unknown_text = raw.tokens[unknown] if unknown is not None else "[UNK]"
    if unknown_text not in vocab:
        raise InvalidModel(
            f"the vocabulary lacks its unknown token '{unknown_text}' ('tokenizer.ggml.unknown_token_id')"
        )
    library = LibraryTokenizer(models.WordPiece(vocab=vocab, unk_token=unknown_text))
    lowercase = raw.flag("normalizer.lowercase", True)
    library.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=raw.flag("normalizer.strip_accents", lowercase),
        lowercase=lowercase,
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return _finish(raw, LibraryEncoder(library), pieces, add_bos=True, add_eos=True, strip_leading_space=True)


def _finish(
    raw: GgufVocabulary,
    encoder: Encoder,
    pieces: list[bytes | None],
    *,
    add_bos: bool = False,
    add_eos: bool = False,
    strip_leading_space: bool = False,
    is_foreign: bool = False,
) -> Tokenizer:
    bos, eos = raw.id_of("bos"), raw.id_of("eos")
    if raw.text("model") == "bert":
        cls, sep = raw.id_of("cls"), raw.id_of("seperator")  # the key is misspelled in the format
        bos, eos = bos if cls is None else cls, eos if sep is None else sep
    special = raw.special_texts()
    declared = ("eot", "eom", "fim_pad", "fim_rep", "fim_sep")
    ends = end_ids((eos, *(raw.id_of(name) for name in declared)), special)
    size = n_used(pieces, special, bos, eos, *ends, *encoder.vocabulary().values())
    if not size:
        raise InvalidModel("no token of 'tokenizer.ggml.tokens' writes anything")
    vocabulary = Vocabulary(pieces[:size], special, end_ids=ends, bos_id=bos, suppressed=raw.suppressed())
    return Tokenizer(
        encoder,
        vocabulary,
        raw.added(),
        add_bos=raw.flag("add_bos_token", add_bos),
        add_eos=raw.flag("add_sep_token" if raw.text("model") == "bert" else "add_eos_token", add_eos),
        bos_id=bos,
        eos_id=eos,
        strip_leading_space=strip_leading_space,
        gap_ids=raw.gap_ids(),
        is_foreign=is_foreign,
    )
