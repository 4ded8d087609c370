"""Records: prompts in many languages, each with the checks its answer must pass."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imp_server.degeneration.checks import CHECKS, NEEDS_SECOND
from imp_server.degeneration.findings import CATEGORIES

FOLDER = Path(__file__).parent / "corpus"

_SUBJECTS = ("The ferry", "A baker", "Her neighbour", "The old bridge", "Our teacher", "The night train", "A gardener",
             "The harbour master", "My cousin", "The clockmaker", "A tired courier", "The village choir")  # fmt: skip
_VERBS = ("reached", "painted", "forgot", "measured", "described", "repaired", "visited", "counted", "sold", "watched")
_OBJECTS = ("the northern pier", "eleven wooden chairs", "a map of the valley", "the broken lantern", "two grey geese",
            "the autumn market", "a letter without a stamp", "the row of poplars", "the museum's cellar", "a clock",
            "the orchard wall", "three baskets of plums")  # fmt: skip
_TIMES = ("before noon", "on a rainy Tuesday", "while the bells rang", "after the second harvest", "in early spring",
          "without telling anyone", "for the third time that year", "as the fog lifted")  # fmt: skip


class CorpusError(Exception):
    """A corpus file that can't be used, with its place."""


@dataclass(slots=True)
class Record:
    id: str
    category: str
    language: str
    turns: list[str]
    """What the user says, turn by turn; the model's own answers stand between."""
    checks: dict[str, Any]
    """Name -> its argument (True where it has none); held against the last answer."""
    system: str = ""
    max_tokens: int = 160
    temperature: float = 0.0
    seed: int = 42
    quick: bool = False
    """Whether the quick run asks it."""
    filler: int = 0
    """Sentences of made prose around the last turn's `{filler}`."""
    hidden: str = ""
    """A sentence put among them."""
    extra: dict[str, Any] = field(default_factory=dict)
    """More fields of the request, as they are."""

    def texts(self) -> list[str]:
        """The turns with their prose in place."""
        return [turn.replace("{filler}", prose(self.filler, self.hidden, self.id)) for turn in self.turns]


def prose(n_sentences: int, hidden: str, seed: str) -> str:
    """Made sentences, the same for the same seed, with `hidden` somewhere in their middle half."""
    draw = random.Random(seed)
    pools = (_SUBJECTS, _VERBS, _OBJECTS, _TIMES)
    sentences = [" ".join(draw.choice(pool) for pool in pools) + "." for _ in range(n_sentences)]
    if hidden:
        sentences.insert(n_sentences // 4 + draw.randrange(max(1, n_sentences // 2)), hidden)
    return " ".join(sentences)


def load_corpus(path: Path | None = None) -> list[Record]:
    """All records of a JSON Lines file, or of a folder of them (default: ours). Raises CorpusError."""
    folder = path or FOLDER
    files = sorted(folder.glob("*.jsonl")) if folder.is_dir() else [folder]
    records: list[Record] = []
    seen: set[str] = set()
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except OSError as wrong:
            raise CorpusError(f"{file}: {wrong.strerror or wrong}") from None
        for number, line in enumerate(lines, 1):
            if line.strip():
                record = _record(line, f"{file.name}:{number}")
                if record.id in seen:
                    raise CorpusError(f"{file.name}:{number}: the id {record.id} is there twice")
                seen.add(record.id)
                records.append(record)
    if not records:
        raise CorpusError(f"{folder}: no records (*.jsonl) in it")
    return records


def _record(line: str, place: str) -> Record:
    try:
        fields = json.loads(line)
        if isinstance(fields.get("checks"), list):
            fields["checks"] = dict.fromkeys(fields["checks"], True)
        record = Record(**fields)
    except (ValueError, TypeError, AttributeError) as wrong:
        raise CorpusError(f"{place}: {wrong}") from None
    if record.category not in CATEGORIES:
        raise CorpusError(f"{place}: there is no category {record.category!r}: they are {', '.join(CATEGORIES)}")
    if unknown := [name for name in record.checks if name not in CHECKS and name not in NEEDS_SECOND]:
        raise CorpusError(
            f"{place}: there is no check {', '.join(unknown)}: they are {', '.join([*CHECKS, *NEEDS_SECOND])}"
        )
    if not record.checks or not record.turns:
        raise CorpusError(f"{place}: turns and checks can't be empty")
    return record
