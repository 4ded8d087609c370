"""Builds a Tokenizer from a Hugging Face tokenizer.json and the small files beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from imp_server.core import InvalidModel
from imp_server.vocab import byte_alphabet
from imp_server.vocab.encoder import LibraryEncoder, MakeEncoder
from imp_server.vocab.end_tokens import end_ids
from imp_server.vocab.known_steps import steps_are_known
from imp_server.vocab.table import Vocabulary
from imp_server.vocab.tokenizer import AddedToken, Tokenizer
from imp_server.vocab.unigram import silenced

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BLANK = "\u2581"
_MAX_IDS = 1 << 22


def tokenizer_of_json(
    path: Path,
    config: Mapping[str, Any],
    *,
    eos_ids: tuple[int, ...] = (),
    suppressed: tuple[int, ...] = (),
    foreign: MakeEncoder = LibraryEncoder.of_json,
) -> Tokenizer:
    """`config`: tokenizer_config.json. `eos_ids`: further end ids. `suppressed`: ids that must never be sampled.
    `foreign`: makes the encoder of a file whose steps aren't known to be harmless.

    Raises InvalidModel.
    """
    data = _read(path)
    try:
        return _built(data, path, config, eos_ids, suppressed, foreign)
    except (TypeError, KeyError, IndexError, AttributeError, ValueError, OverflowError) as error:
        # The format has a dozen kinds of steps, and each of their fields may be anything.
        raise InvalidModel(f"{path.name}: a field has a value of the wrong kind ({error})") from None


def _built(
    data: dict[str, Any],
    path: Path,
    config: Mapping[str, Any],
    eos_ids: tuple[int, ...],
    suppressed: tuple[int, ...],
    foreign: MakeEncoder,
) -> Tokenizer:
    added = _added_tokens(data, path)
    bare = {**data, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    if data["model"].get("type") == "Unigram":
        bare["model"] = _without_added(data["model"], {token.id for token in added})
    is_foreign = not steps_are_known(bare)
    make = foreign if is_foreign else LibraryEncoder.of_json
    try:
        encoder = make(json.dumps(bare))
    except ValueError as error:
        raise InvalidModel(f"{path.name}: the tokenizers library refuses it: {error}") from None
    ids = {i: text for text, i in encoder.vocabulary().items()}
    named = {t.text: t.id for t in added} | {text: i for i, text in ids.items()}
    bos = named.get(_token_text(config.get("bos_token")) or "")
    eos = named.get(_token_text(config.get("eos_token")) or "")
    first, last = _template_ids(data, named, config, bos, eos)
    special = _special_texts(added, data, named)
    size = max([0, *(i + 1 for i in ids), *(t.id + 1 for t in added)])
    if size > _MAX_IDS:
        raise InvalidModel(f"{path.name}: token id {size - 1} is beyond any vocabulary")
    plain = {t.id: t.text for t in added if t.id not in special}
    spell = _speller(data)
    pieces: list[bytes | None] = [None] * size
    for i, text in ids.items():
        pieces[i] = spell(text)
    for i, text in plain.items():
        pieces[i] = text.encode()
    ends = tuple(i for i in end_ids((eos, *eos_ids), special) if i < size)
    vocabulary = Vocabulary(pieces, special, end_ids=ends, bos_id=bos, suppressed=suppressed)
    return Tokenizer(
        encoder,
        vocabulary,
        added,
        add_bos=first is not None,
        add_eos=last is not None,
        bos_id=first if first is not None else bos,
        eos_id=last if last is not None else eos,
        strip_leading_space=_puts_space_first(data),
        is_foreign=is_foreign,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidModel(f"{path.name}: can't be read: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
        raise InvalidModel(f"{path.name}: the field 'model' is missing")
    return data


def _added_tokens(data: Mapping[str, Any], path: Path) -> list[AddedToken]:
    found = []
    for number, entry in enumerate(data.get("added_tokens") or ()):
        try:
            token_id, text = int(entry["id"]), str(entry["content"])
        except (TypeError, KeyError, ValueError):
            raise InvalidModel(f"{path.name}: added_tokens[{number}] has no id or content") from None
        if text and 0 <= token_id < _MAX_IDS:
            found.append(
                AddedToken(
                    token_id,
                    text,
                    control=bool(entry.get("special")),
                    strip_left=bool(entry.get("lstrip")),
                    strip_right=bool(entry.get("rstrip")),
                )
            )
    return found


def _without_added(model: Mapping[str, Any], added: set[int]) -> dict[str, Any]:
    """A unigram model that cuts no text into its added tokens, which stand in its vocabulary, nor into its unknown."""
    vocab = [(str(text), float(score)) for text, score in model["vocab"]]
    unknown = model.get("unk_id")
    return {**model, "vocab": silenced(vocab, added | ({unknown} if isinstance(unknown, int) else set()))}


def _special_texts(added: list[AddedToken], data: Mapping[str, Any], named: Mapping[str, int]) -> dict[int, str]:
    special = {t.id: t.text for t in added if t.control}
    unknown = data["model"].get("unk_token")
    if data["model"].get("type") == "Unigram" and isinstance(data["model"].get("unk_id"), int):
        unknown = data["model"]["vocab"][data["model"]["unk_id"]][0]
        return special | {data["model"]["unk_id"]: str(unknown)}
    if isinstance(unknown, str) and unknown in named:
        special[named[unknown]] = unknown
    return special


def _template_ids(
    data: Mapping[str, Any], named: Mapping[str, int], config: Mapping[str, Any], bos: int | None, eos: int | None
) -> tuple[int | None, int | None]:
    """The ids that the post-processor puts before and behind a text."""
    for step in _steps(data.get("post_processor"), "processors"):
        kind = step.get("type")
        if kind == "TemplateProcessing":
            return _single_template(step, named)
        if kind in ("BertProcessing", "RobertaProcessing"):
            return int(step["cls"][1]), int(step["sep"][1])
    return bos if config.get("add_bos_token") is True else None, eos if config.get("add_eos_token") is True else None


def _single_template(step: Mapping[str, Any], named: Mapping[str, int]) -> tuple[int | None, int | None]:
    ids: list[int | None] = [None, None]
    behind = 0
    for item in step.get("single") or ():
        if "Sequence" in item:
            behind = 1
        elif "SpecialToken" in item:
            ids[behind] = named.get(str(item["SpecialToken"].get("id")))
    return ids[0], ids[1]


def _steps(node: Any, children: str) -> Iterator[Mapping[str, Any]]:
    if isinstance(node, dict):
        yield node
        for child in node.get(children) or ():
            yield from _steps(child, children)


def _speller(data: Mapping[str, Any]) -> Any:
    """How an ordinary token's text becomes bytes: told by the decoder."""
    kinds = {str(s.get("type")) for s in _steps(data.get("decoder"), "decoders")}
    kinds |= {str(s.get("type")) for s in _steps(data.get("pre_tokenizer"), "pretokenizers")}
    if "ByteLevel" in kinds:
        return byte_alphabet.to_bytes
    if "WordPiece" in kinds or data["model"].get("type") == "WordPiece":
        prefix = str(data["model"].get("continuing_subword_prefix") or "##")
        return lambda text: (text[len(prefix) :] if text.startswith(prefix) else " " + text).encode()
    byte_fallback = bool(data["model"].get("byte_fallback")) or "ByteFallback" in kinds
    return lambda text: _piece_bytes(text, byte_fallback)


def _piece_bytes(text: str, byte_fallback: bool) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(text) if byte_fallback else None
    return bytes([int(byte[1], 16)]) if byte else text.replace(_BLANK, " ").encode()


def _puts_space_first(data: Mapping[str, Any]) -> bool:
    if data["model"].get("type") == "WordPiece":
        return True
    for step in _steps(data.get("normalizer"), "normalizers"):
        if step.get("type") == "Prepend":
            return True
    for step in _steps(data.get("pre_tokenizer"), "pretokenizers"):
        if step.get("type") == "Metaspace":
            return step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space") is not False
    return False


def _token_text(value: Any) -> str | None:
    """tokenizer_config.json names a token by its text or by an object that holds it."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None
