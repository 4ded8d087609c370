"""Models of true shapes with random weights made on the device itself, and steps that run them: for gpu_check.py.

Imports nothing but numpy, torch, msgspec and imp, so it runs wherever these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from imp_server.backends.base import LAST_SAMPLED, WANT_NOTHING, WANT_SAMPLE, Pending, Step, StepResult, StepRow
from imp_server.backends.cuda.backend import CudaBackend
from imp_server.backends.cuda.operations import PackedMatrix
from imp_server.backends.cuda.proof.made_up import matrix
from imp_server.backends.cuda.weights import DeviceWeights
from imp_server.backends.step_builder import StepBuilder
from imp_server.core import SamplingParams
from imp_server.decode.state import SamplerState
from imp_server.models.architecture import Architecture, Layer, grouped
from imp_server.models.feed_forwards import Dense, Experts
from imp_server.models.mixers import Attention
from imp_server.models.rotation import Rope
from imp_server.models.shapes import expected_shapes
from imp_server.weights.header import ModelHeader

FORMATS = {"bf16": "BF16", "fp8": "FP8", "w8": "Q8_0", "w4": "Q4_K"}
"""What gpu_check calls them: the backend's own names."""
GREEDY = SamplingParams(temperature=0.0)
PROMPT_CHUNK = 512


def qwen3(n_layers: int, width: int, n_heads: int, hidden: int, *, tied: bool) -> Architecture:
    rope = Rope(base=1e6, dims=128)
    layer = Layer(Attention(n_heads, 8, 128, rope=rope, qk_norm="per_head"), Dense(hidden))
    return _model("qwen3", [layer] * n_layers, width, 151936, tied)


def gpt_oss(n_layers: int = 24) -> Architecture:
    rope = Rope(base=150000.0, dims=64)
    full = Attention(64, 8, 64, rope=rope, sinks=True, qkv_bias=True, out_bias=True)
    experts = Experts(32, 4, 2880, bias=True, activation="swiglu_clamped")
    layers = [Layer(full.seeing(128 if i % 2 == 0 else 0), experts) for i in range(n_layers)]
    return _model("gpt-oss", layers, 2880, 201088, False)


def small(n_layers: int = 2) -> Architecture:
    """For tests, and for golden ids."""
    layer = Layer(Attention(4, 2, 32, rope=Rope(dims=32)), Dense(96))
    return _model("small", [layer] * n_layers, 64, 97, False)


def _model(family: str, layers: Sequence[Layer], width: int, vocab: int, tied: bool) -> Architecture:
    with_groups, groups = grouped(list(layers))
    return Architecture(
        family=family,
        n_layers=len(layers),
        width=width,
        vocab_size=vocab,
        context_length=8192,
        layers=with_groups,
        cache_groups=groups,
        tied_head=tied,
        norm_eps=1e-6,
    )


SHAPES = {
    "qwen3-0.6b": qwen3(28, 1024, 16, 3072, tied=True),
    "qwen3-4b": qwen3(36, 2560, 32, 9728, tied=True),
    "qwen3-8b": qwen3(36, 4096, 32, 12288, tied=False),
    "gpt-oss-20b": gpt_oss(),
}


class NoSource:
    """A ModelSource that has a description and no tensors."""

    def __init__(self, architecture: Architecture, name: str) -> None:
        self.architecture = architecture
        self.header = ModelHeader(Path(name), "gguf", name, name, {}, {}, 8192, 0, "random", 0)


class MadeUpWeights(DeviceWeights):
    """Random, made on the device: matrices of one format, but routers and what is no matrix."""

    def __init__(self, architecture: Architecture, matrix_format: str, device: torch.device) -> None:
        super().__init__(NoSource(architecture, architecture.family), device)  # type: ignore[arg-type]
        self._format = matrix_format
        self.shapes = expected_shapes(architecture)

    def has(self, name: str) -> bool:
        return name in self.shapes

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.shapes[name]

    def _packed(self, name: str) -> PackedMatrix:
        shape = self.shapes[name]
        is_router = name.endswith("router")
        own = "F32" if is_router else "MXFP4" if "experts_" in name and self._format == "BF16" else self._format
        n_out = int(np.prod(shape[:-1]))
        return matrix(own, n_out, shape[-1], abs(hash_of(name)), self.device)

    def _read(self, name: str) -> torch.Tensor:
        return self.numbers(name)

    def numbers(self, name: str) -> torch.Tensor:
        """float32 in its shape."""
        g = torch.Generator(self.device).manual_seed(abs(hash_of(name)))
        noise = torch.randn(self.shapes[name], generator=g, device=self.device)
        return 1 + 0.1 * noise if name.endswith("norm") else 0.05 * noise


def hash_of(name: str) -> int:
    """The same in each process."""
    return int.from_bytes(name.encode()[-6:].rjust(8, b"\0"), "big") ^ len(name)


class Rows:
    """Owner of some rows of one backend whose blocks are allocated: their samplers, tables and steps."""

    def __init__(
        self, backend: CudaBackend, n: int, capacity: int, law: SamplingParams = GREEDY, seed: int = 0
    ) -> None:
        a = backend.architecture
        rng = np.random.default_rng(seed)
        self.backend, self.n, self._vocab = backend, n, a.vocab_size
        self._n_groups, self._columns = len(a.cache_groups), -(-capacity // 16)
        self._law, self._capacity, self._rng = law, capacity, rng
        self.states: list[SamplerState] = []
        self._done = [0] * n
        self._n_ahead = 0
        self._has_tables = False

    def prefill(self, prompt: int, n_known: int = 0, chunk: int = PROMPT_CHUNK) -> None:
        """Random prompts; the first `n_known` ids count as computed before. The last step samples."""
        ids = [self._rng.integers(0, self._vocab, prompt).astype(np.int32) for _ in range(self.n)]
        self.states = [SamplerState(self._law, r, text, self._capacity) for r, text in enumerate(ids)]
        self._done = [n_known] * self.n
        for first in range(n_known, prompt, chunk):
            end = min(prompt, first + chunk)
            step = self._step([text[first:end] for text in ids], WANT_SAMPLE if end == prompt else WANT_NOTHING)
            self.take(self.backend.run(step))

    def next_step(self, *, ahead: bool = False, n_drafts: int = 0, masks: Any = None, flags: Any = None) -> Step:
        """One id a row and so many drafts. `ahead`: the id is what the step under way samples."""
        drafts = [0] * n_drafts
        last = [LAST_SAMPLED if ahead else int(state.history[-1]) for state in self.states]
        return self._step(
            [np.array([i, *drafts], dtype=np.int32) for i in last], WANT_SAMPLE, ahead, n_drafts, masks, flags
        )

    def take(self, result: StepResult) -> list[list[int]]:
        """What was sampled joins the histories; a draft that was taken is forgotten, so that all steps are alike."""
        found = []
        for state, row in zip(self.states, result.rows, strict=True):
            if len(row.tokens):
                state.append(row.tokens[:1].tolist())
            found.append(row.tokens.tolist())
        self._n_ahead = max(0, self._n_ahead - 1)
        return found

    def _step(self, ids: list[Any], wants: int, ahead: bool = False, n_drafts: int = 0, masks: Any = None,
              flags: Any = None) -> Step:  # fmt: skip
        builder = StepBuilder(self._n_groups)
        for r, own in enumerate(ids):
            state = self.states[r] if wants == WANT_SAMPLE else None
            mask_row = -1 if masks is None else r * (1 + n_drafts)
            row = StepRow(wants, n_drafts, state, mask_row, slot=r, is_ahead=ahead)
            if state is not None:
                row.n_history = state.length + self._n_ahead
            if not self._has_tables:
                for group in range(self._n_groups):
                    columns = np.arange(self._columns, dtype=np.int32)
                    builder.change_table(group, r, columns, columns + r * self._columns)
            builder.add(row, own, self._done[r])
            self._done[r] += len(own) - n_drafts
        self._has_tables = True
        if wants == WANT_SAMPLE:
            self._n_ahead += 1
        return builder.finish(masks, flags)


def decode(rows: Rows, n_steps: int) -> None:
    """Each step is launched before the one in front of it is collected."""
    pending: Pending = rows.backend.launch(rows.next_step())
    for _ in range(n_steps - 1):
        following = rows.backend.launch(rows.next_step(ahead=True))
        rows.take(pending.collect())
        pending = following
    rows.take(pending.collect())


def decode_masked(rows: Rows, n_steps: int, masks: Any) -> None:
    """The same, but masks are there only once the step in front has been read."""
    flags = np.ones(len(masks), dtype=np.uint32)
    pending: Pending = rows.backend.launch(rows.next_step(masks=masks, flags=flags))
    for _ in range(n_steps - 1):
        flags = np.zeros(len(masks), dtype=np.uint32)
        following = rows.backend.launch(rows.next_step(ahead=True, masks=masks, flags=flags))
        rows.take(pending.collect())
        flags[:] = 1
        pending = following
    rows.take(pending.collect())


def decode_drafted(rows: Rows, n_steps: int, n_drafts: int) -> None:
    """Drafts that the host makes: each step waits for the one before."""
    for _ in range(n_steps):
        rows.take(rows.backend.run(rows.next_step(n_drafts=n_drafts)))
