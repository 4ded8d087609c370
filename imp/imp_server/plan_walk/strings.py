"""Where a string is open in the text of a segment, so that the segment's markers don't count there.

States are values: the walker keeps the one behind the text it has released and scans on from there.
"""

from __future__ import annotations

from typing import NamedTuple

from imp_server.core import SPECIAL_CLOSE, SPECIAL_OPEN, Segment, ValueTags

_QUOTE, _BACKSLASH = 0x22, 0x5C
_BLANKS = b" \t\r\n"
_OPENS_JSON = b'{["'

# Between values, in a value's opener, before a value's first character, in a value that isn't JSON, in JSON
# outside and inside its strings, behind a backslash, between two quote marks, in a wrapped value.
_BETWEEN, _HEAD, _FIRST, _RAW, _JSON, _STRING, _ESCAPED, _QUOTED, _WRAPPED = range(9)


class StringPlace(NamedTuple):
    mode: int
    number: int = 0
    """Of the pair of tags, or of the quote mark, that the mode is about."""
    begun: bytes = b""
    """What may be the beginning of a mark that changes the mode."""

    @property
    def in_string(self) -> bool:
        return self.mode in (_STRING, _ESCAPED, _QUOTED, _WRAPPED)


class StringRule:
    """The rule of one segment (its `json_body`, `quotes` and `values`). Immutable."""

    def __init__(self, segment: Segment) -> None:
        self._values = segment.values
        self._quotes = segment.quotes
        self.start = StringPlace(_JSON if segment.json_body else _BETWEEN)
        self._plain = not self._values and not self._quotes

    def scan(self, place: StringPlace, data: bytes) -> list[StringPlace]:
        """The place before each byte of `data` (marked bytes, special tokens whole) and behind the last."""
        if self._plain:
            return _scan_json(place, data)
        places = [place]
        at = 0
        while at < len(data):
            end = at + 1
            if data[at : at + 1] == SPECIAL_OPEN:
                end = (data.find(SPECIAL_CLOSE, at) + 1) or len(data)
            after = self._after(place, data[at:end])
            places += [place] * (end - at - 1) + [after]
            place, at = after, end
        return places

    def _after(self, place: StringPlace, unit: bytes) -> StringPlace:
        """Behind one byte or one special token."""
        waiting = place.begun + unit
        while waiting:
            marks = self._marks(place)
            reached = next((target for mark, target in marks if mark == waiting), None)
            if reached is not None:
                return reached
            if any(mark.startswith(waiting) for mark, _ in marks):
                return place._replace(begun=waiting)
            size = len(waiting) if waiting[:1] == SPECIAL_OPEN else 1
            place, waiting = self._plainly(place, waiting[:size]), waiting[size:]
        return place

    def _marks(self, place: StringPlace) -> list[tuple[bytes, StringPlace]]:
        """What changes the mode, and to which."""
        mode, number, _ = place
        if mode == _BETWEEN:
            return [(v.lead, StringPlace(_HEAD if v.end else _FIRST, i)) for i, v in enumerate(self._values)]
        if mode == _HEAD:
            return [(self._values[number].end, StringPlace(_FIRST, number))]
        if mode == _QUOTED:
            return [(self._quotes[number], StringPlace(_JSON))]
        if self._values:
            return self._marks_in(self._values[number], mode, number)
        return [(quote, StringPlace(_QUOTED, i)) for i, quote in enumerate(self._quotes)] if mode == _JSON else []

    @staticmethod
    def _marks_in(value: ValueTags, mode: int, number: int) -> list[tuple[bytes, StringPlace]]:
        opens, closes = value.wrap or (b"", b"")
        if mode == _WRAPPED:
            return [(closes + value.close, StringPlace(_BETWEEN))]
        found = [(value.close, StringPlace(_BETWEEN))] if mode in (_FIRST, _RAW, _JSON) else []
        return [*found, (opens, StringPlace(_WRAPPED, number))] if opens and mode == _FIRST else found

    def _plainly(self, place: StringPlace, unit: bytes) -> StringPlace:
        """Behind what is no part of a mark. A line break is in no JSON string, so then the value is something else."""
        mode, number, _ = place
        if mode == _FIRST and unit not in _BLANKS:
            mode = _JSON if unit in _OPENS_JSON else _RAW
        if mode in (_JSON, _STRING, _ESCAPED):
            mode = _RAW if self._values and mode != _JSON and unit < b" " else _json_mode(mode, unit[0])
        return StringPlace(mode, number)


def _json_mode(mode: int, byte: int) -> int:
    if mode == _ESCAPED:
        return _STRING
    if byte == _BACKSLASH and mode == _STRING:
        return _ESCAPED
    if byte == _QUOTE:
        return _STRING if mode == _JSON else _JSON
    return mode


_JSON_PLACES = {mode: StringPlace(mode) for mode in (_JSON, _STRING, _ESCAPED)}


def _scan_json(place: StringPlace, data: bytes) -> list[StringPlace]:
    """The same where the whole text is JSON."""
    mode = place.mode
    places = [place]
    for byte in data:
        mode = _json_mode(mode, byte)
        places.append(_JSON_PLACES[mode])
    return places
