"""The seam between our Tokenizer and what cuts literal text into ids: the library here, or one in a process apart.

A foreign file's patterns and steps are programs of a stranger: on some texts they never end (vocab/known_steps.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import models

Ids = npt.NDArray[np.int32]
_LOOK_AHEAD = 4096
_UNKNOWN = "a\u0378 \U000e0fff"
"""Characters that no vocabulary has."""


class Encoder(Protocol):
    """Literal text to ids; special tokens are no concern of its. Thread-safe."""

    @property
    def unknown_id(self) -> int | None:
        """Of the token that stands for what the vocabulary lacks."""
        ...

    def vocabulary(self) -> dict[str, int]: ...

    def encode(self, texts: Sequence[str]) -> list[Ids]: ...

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The characters of `text` that each of its ids stands for."""
        ...

    def n_ids_before(self, text: str, position: int) -> int:
        """How many ids of `text` end at or before character `position`."""
        ...


MakeEncoder = Callable[[str], Encoder]
"""From the text of a tokenizer.json. Raises ValueError in the library's words."""


class LibraryEncoder:
    """The library in this process. Long encodes release the GIL (`encode_batch`; the library's `encode` doesn't)."""

    def __init__(self, library: LibraryTokenizer, unknown_id: int | None = None) -> None:
        """`unknown_id`: of kinds that don't name it by its text."""
        self._library, self._unknown_id = library, unknown_id

    @classmethod
    def of_json(cls, text: str) -> LibraryEncoder:
        """From a tokenizer.json. Raises ValueError with the library's own words."""
        try:
            library = LibraryTokenizer.from_str(text)
            library.encode_batch([_UNKNOWN], add_special_tokens=False)  # some kinds can't write what they don't know
            is_unigram = isinstance(library.model, models.Unigram)
            return cls(library, json.loads(text)["model"].get("unk_id") if is_unigram else None)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library raises bare Exception, and its panics are none
            raise ValueError(str(error)) from None

    @property
    def unknown_id(self) -> int | None:
        if self._unknown_id is not None:
            return self._unknown_id
        text = getattr(self._library.model, "unk_token", None)
        return None if not text else self._library.token_to_id(str(text))

    def vocabulary(self) -> dict[str, int]:
        found: dict[str, int] = self._library.get_vocab(with_added_tokens=False)
        return found

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        if not texts:
            return []
        return [_as_array(e.ids) for e in self._library.encode_batch_fast(list(texts), add_special_tokens=False)]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        [encoding] = self._library.encode_batch([text], add_special_tokens=False)
        found: list[tuple[int, int]] = encoding.offsets
        return found

    def n_ids_before(self, text: str, position: int) -> int:
        [encoding] = self._library.encode_batch([text], add_special_tokens=False)
        for at in range(position, min(len(text), position + _LOOK_AHEAD)):
            index = encoding.char_to_token(at)  # None for characters that no token covers (dropped blanks)
            if index is not None:
                return int(index)
        return len(encoding)


def _as_array(values: list[int]) -> Ids:
    """In slices: converting a long list at once would hold the interpreter lock for milliseconds."""
    ids = np.empty(len(values), dtype=np.int32)
    for start in range(0, len(values), 1 << 15):
        ids[start : start + (1 << 15)] = values[start : start + (1 << 15)]
    return ids
