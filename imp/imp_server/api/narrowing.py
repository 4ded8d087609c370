"""Long lists cut down for the validator, which holds the interpreter's lock and explains every element at fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

N_KEPT = 64
"""Elements that a cut list keeps."""
_N_KEYS = 2048
"""More than any maxProperties of the contract; the rest of an object isn't looked at."""
_WINDOW = 512
_SLICE = 1 << 15
MAX_IDS = 1_000_000
"""The contract's limit of token ids, the only one for lists of integers."""

IsValid = Callable[[Any], bool]


def thinned(value: Any) -> Any:
    """`value` with the least and the greatest number in place of each long list of integers.

    Of an integer in a list the contract asks for its type and its bounds only, so both are equally valid.
    """
    if isinstance(value, dict):
        return {key: thinned(item) if isinstance(item, dict | list) else item for key, item in value.items()}
    if not isinstance(value, list):
        return value
    if N_KEPT < len(value) <= MAX_IDS and type(value[0]) is int and _kinds(value) == {int}:
        slices = [value[start : start + _SLICE] for start in range(0, len(value), _SLICE)]
        return [min(map(min, slices)), max(map(max, slices))]
    if not any(type(item) is dict or type(item) is list for item in value):
        return value
    return [thinned(item) if isinstance(item, dict | list) else item for item in value]


def _kinds(values: list[Any]) -> set[type]:
    return {kind for start in range(0, len(values), _SLICE) for kind in set(map(type, values[start : start + _SLICE]))}


class Narrowed(NamedTuple):
    """A body that is as invalid as the whole one, with few elements."""

    body: Any
    starts: dict[int, int]
    """id of a list in `body` -> index that its first element had in the whole."""
    too_long: tuple[tuple[str | int, ...], int] | None = None
    """Path of the list that is longer than allowed, and how long it may be."""


class _Long(NamedTuple):
    """A list that was cut, by its place in the cut body."""

    holder: Any
    key: Any
    path: tuple[str | int, ...]
    whole: list[Any]


def narrowed(body: Any, is_valid: IsValid, limits: Sequence[int]) -> Narrowed | None:
    """Of a body that isn't valid; None if only all of it is. `limits`: lengths that the contract knows, ascending."""
    root = {"body": _cut(body)}
    if not is_valid(root["body"]):
        return Narrowed(root["body"], {})
    for long in _long_lists(root, "body", body, ()):
        found = _search(root, long, is_valid, limits)
        if found is not None:
            return found
    return None


def _cut(value: Any, depth: int = 0) -> Any:
    if isinstance(value, dict):
        items = list(value.items())[: _N_KEYS if depth else None]
        return {key: _cut(item, depth + 1) if isinstance(item, dict | list) else item for key, item in items}
    if not isinstance(value, list):
        return value
    return [_cut(item, depth + 1) if isinstance(item, dict | list) else item for item in value[:N_KEPT]]


def _long_lists(holder: Any, key: Any, whole: Any, path: tuple[str | int, ...]) -> Iterator[_Long]:
    """Those of `whole`, whose cut twin is holder[key]; outer ones first."""
    if isinstance(whole, list) and len(whole) > N_KEPT:
        yield _Long(holder, key, path, whole)
    cut = holder[key]
    places: Any = cut if isinstance(cut, dict) else range(len(cut)) if isinstance(cut, list) else ()
    for place in places:
        if isinstance(whole[place], dict | list):
            yield from _long_lists(cut, place, whole[place], (*path, place))


def _search(root: dict[str, Any], long: _Long, is_valid: IsValid, limits: Sequence[int]) -> Narrowed | None:
    """Looks through one list while all others are cut."""
    cut = long.holder[long.key]
    for start in range(0, len(long.whole), _WINDOW):
        window = [_cut(item, 1) for item in long.whole[start : start + _WINDOW]]
        long.holder[long.key] = window
        if not is_valid(root["body"]):
            return Narrowed(root["body"], {id(window): start})
        for i, item in enumerate(long.whole[start : start + _WINDOW]):
            if start + i < N_KEPT or not _has_long(item):
                continue
            long.holder[long.key] = one = [window[i]]
            for inner in _long_lists(one, 0, item, (*long.path, start + i)):
                found = _search(root, inner, is_valid, limits)
                if found is not None:
                    return found._replace(starts=found.starts | {id(one): start + i})
    # A union may tell its branches by the kind of element: each is valid, but not beside the others.
    places: dict[type, int] = {}
    for i, item in enumerate(long.whole):
        places.setdefault(type(item), i)
    firsts = [_cut(long.whole[i], 1) for i in places.values()]
    long.holder[long.key] = firsts
    if not is_valid(root["body"]):
        return Narrowed(root["body"], {id(firsts): max(places.values()) - len(firsts) + 1})
    for limit in limits:
        if N_KEPT <= limit < len(long.whole):
            long.holder[long.key] = (firsts * (limit // len(firsts) + 1))[: limit + 1]
            if not is_valid(root["body"]):
                return Narrowed(root["body"], {}, (long.path, limit))
    long.holder[long.key] = cut
    return None


def _has_long(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_long(item) for item in value.values() if isinstance(item, dict | list))
    return isinstance(value, list) and (
        len(value) > N_KEPT or any(_has_long(item) for item in value if isinstance(item, dict | list))
    )
