"""A served checkpoint beside transformers' run of the same files: how likely each token of the same texts is."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from imp_server.degeneration.findings import Finding, judged, skipped
from imp_server.validating.server import Served

MEAN_BOUND = 0.1
"""Nats, of the absolute differences: rounding of weights and of the cache, not another model."""


def against_transformers(served: Served, checkpoint: Path | None, prompts: Mapping[str, str]) -> Iterator[Finding]:
    if missing := [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]:
        yield skipped("parity", "transformers", f"not installed: {', '.join(missing)}")
        return
    if checkpoint is None or not (checkpoint / "config.json").exists():
        yield skipped("parity", "transformers", "needs the checkpoint's folder with its config.json")
        return
    try:
        reference = _Reference(checkpoint)
    except Exception as wrong:  # whatever an architecture that it doesn't know, or a broken file, ends in
        yield skipped("parity", "transformers", f"can't load it: {wrong}")
        return
    differences: list[float] = []
    for text in prompts.values():
        ids = served.tokenize(text)
        ours = served.complete(ids, 1, echo=True, logprobs=1).logprobs[1 : len(ids)]
        differences += [abs(own - theirs) for own, theirs in zip(ours, reference.logprobs(ids)) if own is not None]
    if not differences:
        yield judged("parity", "transformers", "logprobs", "the server tells no logprobs of a prompt")
        return
    mean, widest = statistics.fmean(differences), max(differences)
    told = f"logprobs differ by {mean:.3f} on average, {widest:.3f} at most, over {len(differences)} tokens"
    yield judged("parity", "transformers", "logprobs", told if mean > MEAN_BOUND else None)


class _Reference:
    """transformers' model in float32."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
        self._model.train(False).requires_grad_(False)

    def logprobs(self, ids: list[int]) -> list[float]:
        """Of each id but the first."""
        batch = self._model.get_input_embeddings().weight.new_tensor([ids]).long()  # exact: float32, below 2^24
        every = self._model(batch).logits[0].float().log_softmax(-1)
        return [float(every[i, token]) for i, token in enumerate(ids[1:])]
