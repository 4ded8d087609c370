"""Decoding, and a chunk of a prompt, deep in a context: depth is put there, not computed.

    python -m analysis.long_context MODEL.gguf [--depths 8192,16384,32768] [--threads 2] [--kv bf16,int8] [--rounds 3]
                                    [--llamacpp BUILD]

The blocks of a short text are computed once and written (`write_blocks`) wherever the depth needs some. Per depth the
medians of the rounds: tokens per second; the bytes of weights and of the cache that a token reads, as a share of what
as many threads read at best; and what attention adds to a chunk of 512, in operations per second. `--llamacpp`:
llama-bench at the same depth with flash attention, which computes it first: minutes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from imp_server.backends.base import BLOCK_TOKENS
from imp_server.backends.kv_layout import block_bytes
from imp_server.models.mixers import Attention

from analysis.peer_imp import CHUNK, Own

N_DECODED = 16


class Deep:
    """A model whose cache holds something everywhere."""

    def __init__(self, own: Own, kv_dtype: str) -> None:
        self.own = own
        own.fill(CHUNK, 0)
        seed = own.backend.read_blocks(0, np.arange(CHUNK // BLOCK_TOKENS, dtype=np.int32))
        for first in range(0, own.n_blocks, CHUNK // BLOCK_TOKENS):
            ids = np.arange(first, min(own.n_blocks, first + CHUNK // BLOCK_TOKENS), dtype=np.int32)
            n_bytes = len(seed) // (CHUNK // BLOCK_TOKENS) * len(ids)
            own.backend.write_blocks(0, ids, seed[:n_bytes])
        self.token_bytes = block_bytes(own.backend.architecture, kv_dtype)[0] / BLOCK_TOKENS

    def decode_s(self, depth: int) -> float:
        """Seconds of a token."""
        self.own.forward_all([7], depth)
        began = time.perf_counter()
        for i in range(N_DECODED):
            self.own.forward_all([7 + i], depth + 1 + i)
        return (time.perf_counter() - began) / N_DECODED

    def chunk_s(self, depth: int) -> float:
        ids = np.random.default_rng(depth).integers(100, self.own.vocab - 100, CHUNK)
        began = time.perf_counter()
        self.own.forward(ids, depth, 0, wants=True)
        return time.perf_counter() - began

    def attention_ops(self, depth: int) -> float:
        """Of a chunk at this depth beyond one at the start: a product of each query with each key, and of the weights
        with each value."""
        mixers = [layer.mixer for layer in self.own.backend.architecture.layers]
        sizes = sum(m.n_heads * m.head_size for m in mixers if isinstance(m, Attention))
        return float(4 * CHUNK * depth * sizes)


def measure(options: argparse.Namespace, kv_dtype: str, depths: list[int], packs: str) -> None:
    own = Own(options.model, options.threads, 1, packs, max(depths) + 2 * CHUNK, kv_dtype)
    deep = Deep(own, kv_dtype)
    weights = own.backend.greedy_step_bytes
    deep.chunk_s(0)
    for depth in depths:
        decode, chunk, share, added = [], [], [], []
        for _ in range(options.rounds):
            at_start = deep.chunk_s(0)
            decode.append(deep.decode_s(depth))
            chunk.append(deep.chunk_s(depth))
            read = own.probes.read_bandwidth(own.backend.weights.buffer)
            share.append((weights + depth * deep.token_bytes) / decode[-1] / read)
            added.append(deep.attention_ops(depth) / max(1e-9, chunk[-1] - at_start))
        print(
            f"| {kv_dtype} | {depth} | {1 / statistics.median(decode):.1f} | {statistics.median(share):.0%} "
            f"| {CHUNK / statistics.median(chunk):.0f} | {statistics.median(added) / 1e9:.0f} "
            f"| {beside(options, depth)} |",
            flush=True,
        )
    own.backend.close()


def beside(options: argparse.Namespace, depth: int) -> str:
    """llama.cpp's two rates at this depth."""
    if options.llamacpp is None:
        return "- | -"
    bench = shutil.which("llama-bench", path=f"{options.llamacpp / 'bin'}:{options.llamacpp}")
    if bench is None:
        raise SystemExit(f"{options.llamacpp} has no llama-bench")
    command = [
        bench,
        "-m",
        options.model,
        "-p",
        str(CHUNK),
        "-n",
        str(N_DECODED),
        "-d",
        str(depth),
        "-fa",
        "on",
        "-r",
        "1",
    ]
    command += ["-t", str(options.threads), "-o", "json"]
    runs = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    rates = {bool(run["n_prompt"]): float(run["avg_ts"]) for run in runs}
    return f"{rates[False]:.1f} | {rates[True]:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model")
    parser.add_argument("--depths", default="8192,16384,32768")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv", default="bf16,int8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--llamacpp", type=Path)
    options = parser.parse_args()
    print(
        "| cache | depth | decode tok/s | of READ | chunk of 512 tok/s | attention GFLOP/s | llama.cpp decode | chunk |"
    )
    print("|" + "---|" * 8)
    with tempfile.TemporaryDirectory(prefix="packs-", dir=Path(options.model).parent) as packs:
        for kv_dtype in options.kv.split(","):
            measure(options, kv_dtype, [int(depth) for depth in options.depths.split(",")], packs)


if __name__ == "__main__":
    main()
