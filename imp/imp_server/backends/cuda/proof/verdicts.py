"""Verdicts on kernels, kept in files: each holds for one card, driver, set of sources and set of cases."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Collection, Sequence

import msgspec

from imp_server.backends.cuda.compile import kernel_sources
from imp_server.backends.cuda.proof.cases import OperationCall
from imp_server.backends.cuda.proof.kept import SERVING, KeptVerdict, KernelVerdict, folder

_FORMAT = 1
"""Of the files, and of what a proof looks at."""


class VerdictFile:
    """Owner of one file."""

    def __init__(self, card: str, model: str, cases: Sequence[OperationCall]) -> None:
        self._card, self._model = card, model
        digest = hashlib.sha256(repr((_FORMAT, card, sorted(kernel_sources().items()))).encode())
        for case in cases:
            digest.update(case.digest_text())
        self.path = folder() / f"{digest.hexdigest()[:32]}.json"

    def read(self) -> KernelVerdict | None:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=KeptVerdict).verdict
        except (OSError, msgspec.MsgspecError):
            return None

    def write(self, verdict: KernelVerdict) -> None:
        """What can't be kept is tried again the next time."""
        data = msgspec.json.format(msgspec.json.encode(KeptVerdict(self._card, self._model, verdict)))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.path.parent, delete=False) as partial:
                partial.write(data)
                partial.flush()
                os.fsync(partial.fileno())
            os.replace(partial.name, self.path)
        except OSError:
            return

    def condemn(self, operations: Collection[str]) -> None:
        """From the next start on they are left to the plain layer."""
        known = self.read() or KernelVerdict([], {}, was_tried=False)
        condemned = known.condemned | dict.fromkeys(operations, SERVING)
        proved = [name for name in known.proved if name not in condemned]
        self.write(msgspec.structs.replace(known, proved=proved, condemned=condemned))
