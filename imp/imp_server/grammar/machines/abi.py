"""The C structs of kernels/cpu/grammar (store.h, walk.h), and its library, refused if it is another version's."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_int32, c_int64, c_void_p
from functools import cache

from imp_server.core import UnsupportedModel
from imp_server.native import load_library

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
    """`Struct.field` -> offset, and `Struct` -> size, of everything that Python and the library share."""
    structs = (Tables, Trie, Cursor, Walker)
    sizes = {struct.__name__: ctypes.sizeof(struct) for struct in structs}
    offsets = {f"{s.__name__}.{field[0]}": getattr(s, field[0]).offset for s in structs for field in s._fields_}
    return {"calls": CALLS} | sizes | offsets


def fields_there(loaded: ctypes.CDLL) -> dict[str, int]:
    """The same as the library was compiled; empty for one from before it could tell."""
    try:
        loaded.imp_grammar_field.argtypes = [c_int32, POINTER(c_int64)]
    except AttributeError:
        return {}
    loaded.imp_grammar_field.restype = ctypes.c_char_p
    offset = c_int64()
    found = {}
    for index in range(loaded.imp_grammar_n_fields()):
        name = loaded.imp_grammar_field(index, ctypes.byref(offset)).decode()
        found[name] = offset.value
    return found


def refuse_another_version(there: dict[str, int]) -> None:
    """Raises UnsupportedModel naming the first thing that isn't as Python thinks."""
    here = fields_here()
    wrong = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    if wrong:
        raise UnsupportedModel(
            f"the native grammar library is from another version of imp ({wrong[0]} differs): run 'make native' again"
        )


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
