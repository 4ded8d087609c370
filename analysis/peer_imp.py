"""imp's side of analysis/peers.py: the cpu backend, driven like its peer: one step at a time, ids fed back by us."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from imp_server.backends.base import BLOCK_TOKENS, WANT_NOTHING, WANT_SAMPLE, KvSpec, Step, StepRow
from imp_server.backends.cpu.backend import CpuBackend
from imp_server.core import SamplingParams
from imp_server.decode.state import SamplerState
from imp_server.models.opening import open_model

N_CONTEXT_TOKENS = 4096
CHUNK = 512


class Own:
    def __init__(self, path: str, n_threads: int, n_sequences: int, pack_folder: str) -> None:
        self.backend = CpuBackend(open_model(path), n_threads=n_threads, pack_folder=Path(pack_folder))
        self.n_blocks = N_CONTEXT_TOKENS // BLOCK_TOKENS
        self.backend.allocate(KvSpec((self.n_blocks * n_sequences,), "bf16"))
        self.vocab = self.backend.architecture.vocab_size
        greedy = SamplingParams(temperature=0.0)
        self.state = SamplerState(greedy, 0, np.zeros(1, dtype=np.int32), 1)

    def forward(self, chunks: list[tuple[np.ndarray, int, int, bool]]) -> list[int]:
        """Rows of (ids, first position, sequence, wants an id); the ids that follow."""
        ids = np.concatenate([c[0] for c in chunks]).astype(np.int32)
        positions = np.concatenate([np.arange(c[1], c[1] + len(c[0]), dtype=np.int32) for c in chunks])
        starts = np.cumsum([0, *(len(c[0]) for c in chunks)]).astype(np.int32)
        rows = [StepRow(WANT_SAMPLE if c[3] else WANT_NOTHING, sampler=self.state) for c in chunks]
        columns = np.arange(self.n_blocks, dtype=np.int32)
        table = np.stack([columns + c[2] * self.n_blocks for c in chunks])
        result = self.backend.run(Step(ids, positions, starts, rows, (table,)))
        return [int(row.tokens[0]) for row in result.rows if len(row.tokens)]

    def fill(self, n_tokens: int, sequence: int) -> int:
        ids = np.random.default_rng(sequence).integers(100, self.vocab - 100, max(1, n_tokens))
        following: list[int] = []
        for first in range(0, len(ids), CHUNK):
            part = ids[first : first + CHUNK]
            following = self.forward([(part, first, sequence, first + len(part) == len(ids))])
        return following[0]

    def decode(self, context: int, n: int, rows: int = 1) -> tuple[int, float]:
        next_ids = [self.fill(context, sequence) for sequence in range(rows)]
        start = time.perf_counter()
        for i in range(n):
            position = max(1, context) + i
            next_ids = self.forward([(np.array([t]), position, s, True) for s, t in enumerate(next_ids)])
        return n * rows, time.perf_counter() - start

    def prefill(self, context: int, n: int) -> tuple[int, float]:
        if context:
            self.fill(context, 0)
        ids = np.random.default_rng(1).integers(100, self.vocab - 100, n)
        start = time.perf_counter()
        for first in range(0, n, CHUNK):
            part = ids[first : first + CHUNK]
            self.forward([(part, context + first, 0, first + len(part) == n)])
        return n, time.perf_counter() - start


def main() -> None:
    own = Own(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    print(json.dumps({"name": "imp", "version": own.backend.info.detail}), flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        if ask["do"] == "prefill":
            tokens, seconds = own.prefill(ask["context"], ask["n"])
        elif ask["do"] == "bandwidth":
            tokens, seconds = own.backend.weights.nbytes, own.backend.weights.nbytes / own.backend.read_bandwidth()
        else:
            tokens, seconds = own.decode(ask["context"], ask["n"], ask.get("rows", 1))
        print(json.dumps({"tokens": tokens, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
