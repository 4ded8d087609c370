"""The trie of a vocabulary as flat arrays, laid out natively or by the plain twin.

Nodes stand in depth-first preorder, children in the order of the tokens. Node i has `byte[i]`, `depth[i]` (1 for a
first byte), `skip[i]` (nodes in its subtree, itself included) and the tokens `ids[first[i]:first[i + 1]]` that end
there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imp_server.grammar.machines.abi import grammar_library

Token = tuple[bytes, int]
"""(bytes, id)"""


class TokenTrie(NamedTuple):
    byte: NDArray[np.uint8]
    depth: NDArray[np.uint16]
    skip: NDArray[np.int32]
    first: NDArray[np.int32]
    ids: NDArray[np.int32]


def build_trie(tokens: Sequence[Token]) -> TokenTrie:
    """The trie of sorted tokens, none of them empty. Several sorted lists one after the other make a trie each."""
    library = grammar_library()
    if library is None:
        return build_plainly(tokens)
    n_tokens = len(tokens)
    sizes = np.fromiter((len(data) for data, _ in tokens), np.int32, n_tokens)
    offsets = np.zeros(n_tokens + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    room = int(offsets[-1])
    data = np.frombuffer(b"".join(data for data, _ in tokens) or b"\0", np.uint8)
    byte, depth = np.empty(room, np.uint8), np.empty(room, np.uint16)
    skip, first = np.empty(room, np.int32), np.empty(room + 1, np.int32)
    path = np.empty(int(sizes.max(initial=0)) + 1, np.int32)
    arrays = (byte, depth, skip, first, path)
    n_nodes = library.imp_grammar_trie(
        _address(data), _address(offsets), n_tokens, *(_address(array) for array in arrays)
    )
    ids = np.fromiter((token_id for _, token_id in tokens), np.int32, n_tokens)
    return TokenTrie(
        byte[:n_nodes].copy(), depth[:n_nodes].copy(), skip[:n_nodes].copy(), first[: n_nodes + 1].copy(), ids
    )


def _address(array: NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def build_plainly(tokens: Sequence[Token]) -> TokenTrie:
    """The same, slow and obvious."""
    byte: list[int] = []
    depth: list[int] = []
    skip: list[int] = []
    first: list[int] = []
    path: list[int] = []
    last = b""
    for number, (data, _) in enumerate(tokens):
        common = 0
        while common < min(len(last), len(data)) and last[common] == data[common]:
            common += 1
        while len(path) > common:
            node = path.pop()
            skip[node] = len(byte) - node
        for at in range(common, len(data)):
            path.append(len(byte))
            byte.append(data[at])
            depth.append(at + 1)
            skip.append(0)
            first.append(number)
        last = data
    for node in path:
        skip[node] = len(byte) - node
    return TokenTrie(
        np.array(byte, np.uint8),
        np.array(depth, np.uint16),
        np.array(skip, np.int32),
        np.array([*first, len(tokens)], np.int32),
        np.array([token_id for _, token_id in tokens], np.int32),
    )
