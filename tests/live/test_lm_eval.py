"""lm-eval against a server of ours: the loglikelihoods that it reads are transformers' of the same weights.

Skipped where lm-eval isn't installed (`pip install 'imp-server[eval]'`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from tests.live.served_model import serving
from tests.models.tiny_hf import write_tiny_folder
from tests.toy import bpe_library

PAIRS = [
    ("The quick brown", " fox jumps"),
    ("def main(argument):", "\n    return argument"),
    ("I'm sure they've", " said: it's 2024"),
    ("Größe, Straße,", " façade 你好"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    library = bpe_library(600)
    write_tiny_folder(path, vocab_size=library.get_vocab_size(), bos_token_id=1, eos_token_id=0)
    fast: Any = PreTrainedTokenizerFast
    fast(tokenizer_object=library, eos_token="<|im_end|>", bos_token="<|im_start|>").save_pretrained(path)
    return path


def by_transformers(folder: Path, ids: list[int], n_context: int) -> tuple[float, bool]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        every = torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)
    where = range(n_context - 1, len(ids) - 1)
    own = [float(every[i, ids[i + 1]]) for i in where]
    return sum(own), all(int(every[i].argmax()) == ids[i + 1] for i in where)


def test_its_loglikelihoods_are_those_of_transformers(folder: Path) -> None:
    pytest.importorskip("lm_eval", reason="lm-eval isn't installed")
    from imp_server.cli._lm_eval import ImpCompletions
    from lm_eval.api.instance import Instance

    with serving(folder, "--no-cpu-pack-cache") as (url, _):
        asked = ImpCompletions(
            base_url=f"{url}/v1/completions", model="m", tokenizer_backend="remote", num_concurrent=2, max_length=128
        )
        requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(PAIRS)]
        found = asked.loglikelihood(requests)
        cut = [(asked.tok_encode(a), asked.tok_encode(a + b)) for a, b in PAIRS]
    for (logprob, greedy), (context, whole) in zip(found, cut, strict=True):
        expected, is_greedy = by_transformers(folder, whole, len(context))
        assert logprob == pytest.approx(expected, abs=0.02 * (len(whole) - len(context)))
        assert greedy == is_greedy
