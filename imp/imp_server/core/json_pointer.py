"""JSON pointers (RFC 6901): the one spelling of keys in them."""

from __future__ import annotations

from collections.abc import Iterable


def escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def unescaped(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")


def pointer_to(path: Iterable[str | int]) -> str:
    """[] -> "", ["a/b", 0] -> "/a~1b/0"."""
    return "".join(f"/{escaped(str(key))}" for key in path)


def keys_of(pointer: str) -> list[str]:
    """The inverse; what stands before the first slash isn't looked at."""
    return [unescaped(part) for part in pointer.split("/")[1:]]
