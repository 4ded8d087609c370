"""The llama.cpp side of analysis/peers.py: its low-level API, driven line by line. Needs llama-cpp-python alone.

Reads one JSON object a line ({"do": decode | prefill | batch, ...}), answers one a line ({"tokens", "seconds"}).
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
import time

import llama_cpp

N_CONTEXT_TOKENS = 4096
N_BATCH = 512


class Peer:
    def __init__(self, path: str, n_threads: int, n_sequences: int) -> None:
        llama_cpp.llama_log_set(_quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), model_params)
        if not self.model:
            raise SystemExit(f"llama.cpp can't load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = N_CONTEXT_TOKENS * n_sequences
        params.n_batch = params.n_ubatch = N_BATCH
        params.n_seq_max = n_sequences
        params.n_threads = params.n_threads_batch = n_threads
        params.no_perf = True
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.sampler = llama_cpp.llama_sampler_init_greedy()
        self.batch = llama_cpp.llama_batch_init(N_BATCH, 0, n_sequences)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def forward(self, tokens: list[tuple[int, int, int, bool]]) -> None:
        """(id, position, sequence, wants logits) of up to N_BATCH tokens."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, (token, position, sequence, wants) in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, wants
        if llama_cpp.llama_decode(self.context, batch):
            raise SystemExit("llama_decode failed")

    def best(self, index: int) -> int:
        return int(llama_cpp.llama_sampler_sample(self.sampler, self.context, index))

    def fill(self, n_tokens: int, sequence: int) -> int:
        """A random context; the id that follows."""
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self.context), sequence, -1, -1)
        ids = random.Random(sequence).choices(range(100, self.n_vocab - 100), k=max(1, n_tokens))
        for first in range(0, len(ids), N_BATCH):
            part = ids[first : first + N_BATCH]
            last = first + len(part) == len(ids)
            self.forward([(t, first + i, sequence, last and i == len(part) - 1) for i, t in enumerate(part)])
        return self.best(-1)

    def decode(self, context: int, n: int, rows: int = 1) -> tuple[int, float]:
        next_ids = [self.fill(context, sequence) for sequence in range(rows)]
        start = time.perf_counter()
        for i in range(n):
            self.forward([(t, max(1, context) + i, sequence, True) for sequence, t in enumerate(next_ids)])
            next_ids = [self.best(sequence) for sequence in range(rows)]
        return n * rows, time.perf_counter() - start

    def prefill(self, context: int, n: int) -> tuple[int, float]:
        self.fill(context, 0)
        if not context:
            llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self.context), 0, -1, -1)
        ids = random.Random(1).choices(range(100, self.n_vocab - 100), k=n)
        start = time.perf_counter()
        for first in range(0, n, N_BATCH):
            part = ids[first : first + N_BATCH]
            self.forward([(t, context + first + i, 0, first + i == n - 1) for i, t in enumerate(part)])
        self.best(-1)
        return n, time.perf_counter() - start


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _quiet(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    pass


def requantise(source: str, target: str, kind: str) -> None:
    """`kind`: Q4_0 | Q8_0, by llama.cpp's own quantiser."""
    llama_cpp.llama_log_set(_quiet, ctypes.c_void_p(0))
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = {"Q4_0": 2, "Q8_0": 7}[kind]
    params.allow_requantize = True
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)):
        raise SystemExit(f"llama.cpp can't requantise {source} to {kind}")


def main() -> None:
    if sys.argv[1] == "requantise":
        requantise(*sys.argv[2:5])
        return
    peer = Peer(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    print(json.dumps({"name": "llama.cpp", "version": llama_cpp.__version__}), flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        if ask["do"] == "prefill":
            tokens, seconds = peer.prefill(ask["context"], ask["n"])
        else:
            tokens, seconds = peer.decode(ask["context"], ask["n"], ask.get("rows", 1))
        print(json.dumps({"tokens": tokens, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
