"""imp's side of analysis/peers.py: the cpu backend, driven like its peer: one step at a time, ids fed back by us."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from imp_server.backends.base import BLOCK_TOKENS, WANT_NOTHING, WANT_SAMPLE, KvSpec, StepRow
from imp_server.backends.cpu.backend import CpuBackend
from imp_server.backends.cpu.probes import Probes
from imp_server.backends.step_builder import StepBuilder
from imp_server.core import SamplingParams
from imp_server.decode.state import SamplerState
from imp_server.engine.warming import warm_up
from imp_server.models.opening import open_model
from imp_server.schedule.cost import CostTable

N_CONTEXT_TOKENS = 4096
CHUNK = 512


class Own:
    def __init__(
        self,
        path: str,
        n_threads: int,
        n_sequences: int,
        pack_folder: str,
        n_context: int = N_CONTEXT_TOKENS,
        kv_dtype: str = "bf16",
    ) -> None:
        self.backend = CpuBackend(open_model(path), n_threads=n_threads, pack_folder=Path(pack_folder))
        self.n_blocks = n_context // BLOCK_TOKENS
        self.n_groups = len(self.backend.architecture.cache_groups)
        kv = KvSpec((self.n_blocks * n_sequences,) * self.n_groups, kv_dtype)
        self.backend.allocate(kv)
        warm_up(self.backend, kv, CostTable(), CHUNK)  # as a server does at its start: a look at each number of threads
        self.vocab = self.backend.architecture.vocab_size
        self.table = np.arange(n_sequences * self.n_blocks, dtype=np.int32).reshape(n_sequences, self.n_blocks)
        greedy = SamplingParams(temperature=0.0)
        self.state = SamplerState(greedy, 0, np.zeros(1, dtype=np.int32), 1)
        self.probes = Probes(n_threads)

    def forward(self, ids: np.ndarray, first: int, sequence: int, *, wants: bool) -> int:
        """A chunk of one sequence from position `first` on; the id that follows if it is wanted."""
        builder = StepBuilder(self.n_groups)
        row = StepRow(WANT_SAMPLE if wants else WANT_NOTHING, sampler=self.state)
        builder.add_alone(row, ids.astype(np.int32), first, [self.table[sequence]] * self.n_groups)
        tokens = self.backend.run(builder.finish()).rows[0].tokens
        return int(tokens[0]) if wants else -1

    def forward_all(self, ids: list[int], position: int) -> list[int]:
        """One token of each sequence, all at the same position; the ids that follow."""
        builder = StepBuilder(self.n_groups)
        for sequence, token_id in enumerate(ids):
            row = StepRow(WANT_SAMPLE, sampler=self.state)
            builder.add_alone(
                row, np.array([token_id], dtype=np.int32), position, [self.table[sequence]] * self.n_groups
            )
        return [int(row.tokens[0]) for row in self.backend.run(builder.finish()).rows]

    def fill(self, n_tokens: int, sequence: int) -> int:
        ids = np.random.default_rng(sequence).integers(100, self.vocab - 100, max(1, n_tokens))
        following = -1
        for first in range(0, len(ids), CHUNK):
            part = ids[first : first + CHUNK]
            following = self.forward(part, first, sequence, wants=first + len(part) == len(ids))
        return following

    def decode(self, context: int, n: int, rows: int = 1) -> tuple[int, float]:
        next_ids = [self.fill(context, sequence) for sequence in range(rows)]
        start = time.perf_counter()
        for i in range(n):
            next_ids = self.forward_all(next_ids, max(1, context) + i)
        return n * rows, time.perf_counter() - start

    def prefill(self, context: int, n: int) -> tuple[int, float]:
        if context:
            self.fill(context, 0)
        ids = np.random.default_rng(1).integers(100, self.vocab - 100, n)
        start = time.perf_counter()
        for first in range(0, n, CHUNK):
            part = ids[first : first + CHUNK]
            self.forward(part, context + first, 0, wants=first + len(part) == n)
        return n, time.perf_counter() - start

    def probe(self) -> dict[str, float]:
        """Rates of this machine now: bytes and operations per second, and operations per token of a prefill."""
        bounds = self.backend.compute_bounds()
        return {
            "read": self.probes.read_bandwidth(self.backend.weights.buffer),
            "peak": bounds.peak,
            "ceiling": bounds.ceiling,
            "ops": bounds.ops_per_token,
        }


def main() -> None:
    own = Own(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    about = {
        "name": "imp",
        "version": own.backend.info.detail,
        "weight_bytes": own.backend.greedy_step_bytes,
        "packed_bytes": own.backend.weights.nbytes,
    }
    print(json.dumps(about), flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        if ask["do"] == "probe":
            print(json.dumps(own.probe()), flush=True)
            continue
        if ask["do"] == "prefill":
            tokens, seconds = own.prefill(ask["context"], ask["n"])
        elif ask["do"] == "bandwidth":
            tokens, seconds = own.backend.weights.nbytes, own.backend.weights.nbytes / own.backend.read_bandwidth()
        else:
            tokens, seconds = own.decode(ask["context"], ask["n"], ask.get("rows", 1))
        print(json.dumps({"tokens": tokens, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
