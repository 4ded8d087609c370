"""Strings between their quotes: how JSON spells the code points that a machine reads decoded."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from imp_server.grammar.frames.position_texts import PositionTexts
from imp_server.grammar.frames.store import ListedFrame, Store
from imp_server.grammar.frames.tables import HOLE, POP
from imp_server.grammar.frames.verdicts import AllVerdicts, Reading, Single, Verdicts
from imp_server.grammar.machines.explored import refined, representatives
from imp_server.grammar.machines.machine import DEAD
from imp_server.grammar.machines.position_machine import PositionMachine
from imp_server.grammar.values.json_values import spelled
from imp_server.grammar.values.sat.found import MAX_LEAD, TooLong

QUOTE, BACKSLASH = 0x22, 0x5C
SHORT = {0x22: '"', 0x5C: "\\", 0x2F: "/", 0x62: "\b", 0x66: "\f", 0x6E: "\n", 0x72: "\r", 0x74: "\t"}
HEX = b"0123456789abcdefABCDEF"
HIGH, LOW = (0xD800, 0xDBFF), (0xDC00, 0xDFFF)
NEEDED = ((0, 0x1F), (0x7F, 0x10FFFF))
"""Code points that a strict text may spell \\uXXXX: no printable ASCII, which has one spelling only."""


class Closer(Protocol):
    """Where a text leads when its quote closes."""

    def closed(self, result: int) -> int:
        """Number of the local that follows a text with `result`."""
        ...

    def only(self, state: int) -> int | None:
        """The entry that reads the rest of the only text left; None if there are several."""
        ...


class Text(Reading):
    """Inside the quotes. `missing`: continuation bytes that the current code point still needs."""

    __slots__ = ("_filled", "closer", "missing", "texts")

    def __init__(self, texts: Texts, verdicts: Verdicts, state: int, missing: int, closer: Closer | None) -> None:
        super().__init__(texts.store, texts.verdicts, verdicts, state)
        self.texts = texts
        self.missing = missing
        self.closer = closer
        self._filled = False

    @property
    def captures(self) -> bool:  # type: ignore[override]
        return self.closer is not None

    def fill(self, byte: int) -> int:
        if self.verdicts.is_sparse:
            return self._fill_one(byte)
        verdicts, tables = self.verdicts, self.store.tables
        if byte == QUOTE and self.missing == 0 and self._filled:
            entry = self._close()
            tables.rows[self.id, QUOTE] = entry
            return entry
        if byte == BACKSLASH and self._filled and tables.rows[self.id, BACKSLASH] == HOLE:
            entry = self._escape()
            tables.rows[self.id, BACKSLASH] = entry
            return entry
        moves = verdicts.moves(self.state)
        escape = DEAD
        if self.missing == 0 and (moves is None or not verdicts.strict or any(needs_escape(b) for b in moves)):
            escape = self._escape() if verdicts.strict else HOLE
        if moves is None:
            found = self._all()
            row = tables.rows[self.id]
            row[:] = found
        else:
            entries = [(at, self._after(at, t)) for at, t in moves.items() if at >= 0x20]
            row = tables.rows[self.id]
            row[:] = DEAD
            for at, entry in entries:
                row[at] = entry
        row[BACKSLASH] = escape
        # what follows the quote or a backslash is worked out when somebody asks
        self._filled = True
        row[QUOTE] = HOLE if self.missing == 0 and verdicts.result(self.state) >= 0 else DEAD
        return self.fill(byte) if row[byte] == HOLE else int(row[byte])

    def _fill_one(self, byte: int) -> int:
        """The entries of the bytes that are read as this one is, and of no others."""
        verdicts = self.verdicts
        if byte in (QUOTE, BACKSLASH):
            at, entry = [byte], DEAD
            if self.missing == 0:
                entry = self._close() if byte == QUOTE else self._escape()
        else:
            at = like(verdict_classes(verdicts), byte)
            entry = DEAD if byte < 0x20 else self._after(byte, verdicts.step(self.state, byte))
        self.store.tables.rows[self.id, at] = entry
        return entry

    def only_byte(self) -> int:
        """The byte that must follow, of a sparse row; -1 if there is a choice."""
        verdicts = self.verdicts
        assert isinstance(verdicts, Single) and isinstance(verdicts.machine, PositionMachine)
        # whatever goes on may be spelled as an escape, too
        return -1 if verdicts.machine.goes_on(self.state) or verdicts.result(self.state) < 0 else QUOTE

    def _all(self) -> NDArray[np.int32]:
        """Entries by class and, of leads, by the width of the code point they begin."""
        classes, verdicts = np.frombuffer(verdict_classes(self.verdicts), np.uint8), self.verdicts
        targets = [self._after(at, verdicts.step(self.state, at)) for at in class_samples(verdicts.classes)]
        row = np.array(targets, dtype=np.int32)[classes]
        row[:0x20] = DEAD
        return row

    def _after(self, byte: int, state: int) -> int:
        if state == DEAD:
            return DEAD
        if self.closer is not None:
            entry = self.closer.only(state)
            if entry is not None:
                return entry
        missing = self.missing - 1 if self.missing else WIDTHS[byte]
        return self.texts.text(self.verdicts, state, missing, self.closer).id

    def _close(self) -> int:
        result = self.verdicts.result(self.state)
        if result < 0:
            return DEAD
        return self.store.tables.op(POP, result) if self.closer is None else self.closer.closed(result)

    def _escape(self) -> int:
        local = self.texts.escape(self, b"")
        return local.id if local.possible() else DEAD

    # --- what Escape asks -------------------------------------------------------------------

    @property
    def strict(self) -> bool:
        return self.verdicts.strict

    def after_char(self, char: str) -> int:
        """The entry for an escaped code point."""
        state = self.state
        for byte in char.encode():
            state = self.verdicts.step(state, byte)
            if state == DEAD:
                return DEAD
        return self.texts.text(self.verdicts, state, 0, self.closer).id

    def takes(self, low: int, high: int) -> bool:
        """Whether some code point in [low, high] may come next."""
        return self.texts.some_code_point(self.verdicts, self.state, low, high)

    def lead(self) -> bytes:
        rest = self.verdicts.shortest(self.state)
        if len(rest) > MAX_LEAD:
            raise TooLong
        n_raw = self.missing
        return rest[:n_raw] + spelled(("string", rest[n_raw:].decode())).encode()[1:]


class Host(Protocol):
    """The text in which an escape stands."""

    @property
    def strict(self) -> bool: ...
    def after_char(self, char: str) -> int: ...
    def takes(self, low: int, high: int) -> bool: ...


class Escape(ListedFrame):
    """After a backslash. `read`: what followed it so far, up to a surrogate pair."""

    __slots__ = ("host", "read", "texts")

    def __init__(self, texts: Texts, host: Host, read: bytes) -> None:
        super().__init__(texts.store)
        self.texts = texts
        self.host = host
        self.read = read

    def possible(self) -> bool:
        return bool(self.entries())

    def entries(self) -> dict[int, int]:
        read = self.read
        if not read:
            return self._first()
        if len(read) == 5:
            return {BACKSLASH: self._more(b"\\")}
        if len(read) == 6:
            return {0x75: self._more(b"u")}
        found = {}
        for digit in HEX:
            entry = self._digit(digit)
            if entry != DEAD:
                found[digit] = entry
        return found

    def _first(self) -> dict[int, int]:
        found = {}
        for byte, char in SHORT.items():
            if not (self.host.strict and byte == 0x2F):
                entry = self.host.after_char(char)
                if entry != DEAD:
                    found[byte] = entry
        if self._reaches(0, 0x10FFFF):
            found[0x75] = self._more(b"u")
        return found

    def _digit(self, digit: int) -> int:
        read = self.read + bytes([digit])
        hexes = read[1:5] if len(read) <= 5 else read[7:]
        free = 4 * (4 - len(hexes))
        low = int(hexes, 16) << free
        high = low + (1 << free) - 1
        if len(read) > 5:
            return self._low_surrogate(read, max(low, LOW[0]), min(high, LOW[1]))
        if len(read) == 5 and not HIGH[0] <= low <= HIGH[1]:
            if LOW[0] <= low <= LOW[1] or not self._reaches(low, low):
                return DEAD
            return self.host.after_char(chr(low))
        reachable = (low < HIGH[0] and self._reaches(low, min(high, HIGH[0] - 1))) or (
            high > LOW[1] and self._reaches(max(low, LOW[1] + 1), high)
        )
        if not reachable and low <= HIGH[1] and high >= HIGH[0]:
            first, last = max(low, HIGH[0]) - HIGH[0], min(high, HIGH[1]) - HIGH[0]
            reachable = self._reaches(0x10000 + (first << 10), 0x10000 + (last << 10) + 0x3FF)
        return self._more(bytes([digit])) if reachable else DEAD

    def _low_surrogate(self, read: bytes, low: int, high: int) -> int:
        if low > high:
            return DEAD
        lead = (int(read[1:5], 16) - HIGH[0]) << 10
        first, last = (0x10000 + lead + x - LOW[0] for x in (low, high))
        if not self._reaches(first, last):
            return DEAD
        return self.host.after_char(chr(first)) if len(read) == 11 else self._more(read[-1:])

    def _more(self, byte: bytes) -> int:
        return self.texts.escape(self.host, self.read + byte).id

    def _reaches(self, low: int, high: int) -> bool:
        if not self.host.strict:
            return self.host.takes(low, high)
        return any(self.host.takes(max(low, a), min(high, b)) for a, b in NEEDED if low <= b and high >= a)

    def lead(self) -> bytes:
        for byte, entry in self.entries().items():
            rest = self.store.locals[entry] if entry >= 0 else None
            return bytes([byte]) + (rest.lead() if isinstance(rest, Escape) else b"")
        raise AssertionError("an escape that leads nowhere")


class Texts:
    """The frames of strings."""

    def __init__(self, store: Store, verdicts: AllVerdicts) -> None:
        self.store = store.owned_by(self)
        self.verdicts = verdicts
        self.positions: PositionTexts | None = None
        """Whom to tell of frames of positions."""
        self._texts: dict[tuple[Verdicts, int, int, Closer | None], Text] = store.table()
        self._escapes: dict[tuple[Host, bytes], Escape] = store.table()
        self._code_points: dict[tuple[Verdicts, int, int, int], bool] = store.memo()

    def text(self, verdicts: Verdicts, state: int, missing: int, closer: Closer | None) -> Text:
        def make() -> Text:
            frame = Text(self, verdicts, state, missing, closer)
            if self.positions is not None:
                self.positions.tell(frame, quoted=True)
            return frame

        return self.store.local(self._texts, (verdicts, state, missing, closer), make)

    def free(self) -> Text:
        """The frame in which any text begins."""
        verdicts = self.verdicts.free()
        return self.text(verdicts, verdicts.start, 0, None)

    def escape(self, host: Host, read: bytes) -> Escape:
        return self.store.local(self._escapes, (host, read), lambda: Escape(self, host, read))

    def some_code_point(self, verdicts: Verdicts, state: int, low: int, high: int) -> bool:
        """Whether a code point in [low, high] may come next."""
        if verdicts.room(state) > 0:
            return True
        key = (verdicts, state, low, high)
        found = self._code_points.get(key)
        if found is None:
            found = self._code_points[key] = any(_passes(verdicts, state, block) for block in utf8_blocks(low, high))
        return found


def _passes(verdicts: Verdicts, state: int, block: list[tuple[int, int]]) -> bool:
    states = {state}
    for low, high in block:
        seen: set[tuple[int, int]] = set()
        after: set[int] = set()
        for here in states:
            for byte in range(low, high + 1):
                kind = (here, verdicts.classes[byte])
                if kind not in seen:
                    seen.add(kind)
                    after.add(verdicts.step(here, byte))
        states = after - {DEAD}
    return bool(states)


WIDTHS = bytes(0 if b < 0xC0 else 1 if b < 0xE0 else 2 if b < 0xF0 else 3 for b in range(256))
"""Continuation bytes that follow each byte."""


@lru_cache(maxsize=4096)
def _by_width(classes: bytes) -> tuple[bytes, tuple[int, ...]]:
    """Classes refined by WIDTHS, and a byte of each."""
    fine = refined([classes, WIDTHS])
    return fine, tuple(representatives(fine))


def verdict_classes(verdicts: Verdicts) -> bytes:
    return _by_width(verdicts.classes)[0]


def class_samples(classes: bytes) -> tuple[int, ...]:
    return _by_width(classes)[1]


@lru_cache(maxsize=1 << 16)
def like(classes: bytes, byte: int) -> list[int]:
    """The bytes of the same class that a text writes as they are, or doesn't."""
    same = [at for at in range(256) if classes[at] == classes[byte] and at not in (QUOTE, BACKSLASH)]
    return [at for at in same if (at < 0x20) == (byte < 0x20)]


def needs_escape(byte: int) -> bool:
    """Whether a strict text may spell the code point that begins with `byte` as an escape."""
    return byte < 0x20 or byte >= 0x7F or byte in (QUOTE, BACKSLASH)


def utf8_blocks(low: int, high: int) -> list[list[tuple[int, int]]]:
    """Byte ranges, position by position, whose products are exactly the code points [low, high]."""
    blocks: list[list[tuple[int, int]]] = []
    for first, last in ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF)):
        a, b = max(low, first), min(high, last)
        if a <= b:
            blocks += _split(chr(a).encode(), chr(b).encode())
    return blocks


def _split(low: bytes, high: bytes) -> list[list[tuple[int, int]]]:
    if len(low) == 1:
        return [[(low[0], high[0])]]
    if low[0] == high[0]:
        return [[(low[0], low[0]), *rest] for rest in _split(low[1:], high[1:])]
    n = len(low) - 1
    least, most = b"\x80" * n, b"\xbf" * n
    blocks, first, last = [], low[0], high[0]
    if low[1:] != least:
        blocks += [[(first, first), *rest] for rest in _split(low[1:], most)]
        first += 1
    if high[1:] != most:
        blocks += [[(last, last), *rest] for rest in _split(least, high[1:])]
        last -= 1
    if first <= last:
        blocks.append([(first, last), *([(0x80, 0xBF)] * n)])
    return blocks
