"""What a tier keeps: one block's contents under the hash of all tokens that lead to it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 32


_FIRST_SCOPED = 1 << 63
_FIRST_LASTING = 1 << 64


def reuse_group_of(content: bytes) -> int:
    """The group of rows under an adapter, from the digest of its contents (DIGEST_BYTES): in every process the same."""
    return _FIRST_LASTING | int.from_bytes(content, "little")


def scoped_group(reuse_group: int, scope: str) -> int:
    """The group of those rows of `reuse_group` that share with their own scope only; as lasting as that one is."""
    if not scope:
        return reuse_group
    data = reuse_group.to_bytes(DIGEST_BYTES, "little") + scope.encode()
    digest = hashlib.blake2b(data, digest_size=DIGEST_BYTES - 1, person=b"imp scope").digest()
    if is_lasting(reuse_group):
        return reuse_group_of(digest)
    return _FIRST_SCOPED | int.from_bytes(digest[:7], "little")


def is_lasting(reuse_group: int) -> bool:
    """The next process knows the group by the same number: the model itself, or an adapter by its contents."""
    return reuse_group == 0 or reuse_group >= _FIRST_LASTING


def root_hash(reuse_group: int) -> bytes:
    """The hash of no tokens at all in this group of rows."""
    group = reuse_group.to_bytes(DIGEST_BYTES, "little")
    return hashlib.blake2b(group, digest_size=DIGEST_BYTES, person=b"imp group").digest()


def content_hash(parent: bytes, key: bytes) -> bytes:
    """The hash of a prefix from that of the prefix before its last block, and the block's tokens (big-endian int32)."""
    return hashlib.blake2b(parent + key, digest_size=DIGEST_BYTES, person=b"imp block").digest()


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """One block. `mask`: bit g is set if cache group g has it; `payload`: the bytes of those groups, in order."""

    digest: bytes
    parent: bytes
    key: bytes
    mask: int
    payload: bytes
    reuse_group: int = 0


class BlockStore(Protocol):
    """Memory of blocks that can be read and written: a backend."""

    def read_blocks(self, group: int, block_ids: NDArray[np.int32]) -> bytes: ...

    def write_blocks(self, group: int, block_ids: NDArray[np.int32], data: bytes) -> None: ...
