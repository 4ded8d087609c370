"""The C structs of kernels/cpu/grammar (store.h, walk.h), and its library, refused if it is another version's."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_void_p
from functools import cache

from imp_server.native import compiled_fields, load_library, refuse_difference, shared_fields

CALLS = 3
"""Raised whenever a call takes or answers something else; so is that of fields.cpp."""

FILL = ctypes.CFUNCTYPE(c_int32, c_int32, c_int32)


class Tables(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("rows", "ops", "kinds", "objects")),
        *((name, c_int32) for name in ("n_locals", "capacity", "n_ops", "ops_capacity", "n_ready")),
        ("texts", c_void_p),
    ]


class Trie(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("byte", "links", "ids", "number", "inside", "staying", "next")),
        ("n_roots", c_int32),
        ("max_depth", c_int32),
    ]


class Cursor(ctypes.Structure):
    _fields_ = [
        ("nodes", c_void_p),
        ("n_levels", c_int32),
        ("block", c_int32),
        ("max_words", c_int64),
        ("n_words", c_int64),
    ]


class Walker(ctypes.Structure):
    _fields_ = [
        ("tables", c_void_p),
        ("fill", FILL),
        ("stack", c_void_p),
        ("asks", c_void_p),
        ("cursor", Cursor),
        ("max_asks", c_int32),
        ("depth_used", c_int32),
    ]


def fields_here() -> dict[str, int]:
    """Everything that Python and the library share, as Python has it."""
    return {"calls": CALLS} | shared_fields((Tables, Trie, Cursor, Walker))


def fields_there(loaded: ctypes.CDLL) -> dict[str, int]:
    """The same as the library was compiled."""
    return compiled_fields(loaded, "imp_grammar")


def refuse_another_version(there: dict[str, int]) -> None:
    """Raises UnsupportedModel."""
    refuse_difference("grammar", fields_here(), there)


@cache
def grammar_library() -> ctypes.CDLL | None:
    """None if it isn't built. Raises UnsupportedModel if it was built from other sources."""
    loaded = load_library("grammar")
    if loaded is not None:
        refuse_another_version(fields_there(loaded))
    return loaded


def built_library() -> ctypes.CDLL:
    """The same where it has to be there."""
    loaded = grammar_library()
    if loaded is None:
        raise RuntimeError("the native library 'grammar' isn't built")
    return loaded
