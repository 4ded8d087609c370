"""What kept keys and values depend on. Two processes whose fingerprints are equal compute the same bits."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from imp_server import __version__
from imp_server.backends.base import BLOCK_TOKENS, Backend, KvSpec
from imp_server.models.source import ModelSource

_FORMAT = 1
_HEAD_BYTES = 1 << 20
_SAMPLES = 256
_SAMPLE_BYTES = 4096


def model_name(source: ModelSource) -> bytes:
    """Stays the same when the model's files change."""
    return hashlib.blake2b(os.fsencode(source.header.path.resolve()), digest_size=32).digest()


def fingerprint(source: ModelSource, backend: Backend, kv: KvSpec) -> bytes:
    """32 bytes. Raises OSError if the model's files can't be read."""
    header = source.header
    facts = (
        (_FORMAT, __version__, np.__version__),
        (header.format, header.architecture, sorted(header.hyperparameters.items(), key=lambda item: item[0])),
        repr(source.architecture),
        (backend.info.name, backend.info.arithmetic),
        (kv.dtype, backend.block_bytes(kv.dtype), BLOCK_TOKENS),
        [_file_facts(path) for path in _files(header.path)],
    )
    return hashlib.blake2b(repr(facts).encode(), digest_size=32).digest()


def _files(path: Path) -> Iterable[Path]:
    """Of a folder all files that can hold weights or sizes; of a split file all parts."""
    if path.is_dir():
        return sorted(p for p in path.iterdir() if p.suffix in (".safetensors", ".json"))
    first, mark, rest = path.name.partition("-00001-of-")
    return sorted(path.parent.glob(f"{first}-*-of-{rest}")) if mark else [path]


def _file_facts(path: Path) -> tuple[str, int, int, str]:
    """Name, size, time of change, and a digest of the head and of evenly spaced samples.

    Models of one family differ by their weights alone; reading all of them would cost each start seconds.
    """
    state = path.stat()
    digest = hashlib.blake2b()
    with path.open("rb") as file:
        digest.update(file.read(_HEAD_BYTES))
        for number in range(_SAMPLES):
            file.seek(state.st_size * number // _SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
    return path.name, state.st_size, state.st_mtime_ns, digest.hexdigest()
