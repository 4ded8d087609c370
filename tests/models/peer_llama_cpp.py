"""Greedy ids of GGUF files by llama.cpp, as JSON; run by the Python of an environment that has llama-cpp-python.

python peer_llama_cpp.py N_IDS < {FILE: [ID, ...]}
"""

from __future__ import annotations

import json
import sys

from llama_cpp import Llama


def greedy(path: str, ids: list[int], n: int) -> list[int]:
    model = Llama(model_path=path, n_ctx=0, n_batch=256, n_threads=1, n_gpu_layers=0, verbose=False, logits_all=True)
    model.eval(ids)
    found: list[int] = []
    for _ in range(n):
        found.append(int(model.scores[model.n_tokens - 1].argmax()))
        model.eval(found[-1:])
    return found


def main() -> None:
    n = int(sys.argv[1])
    answers: dict[str, list[int] | str] = {}
    for path, ids in json.load(sys.stdin).items():
        try:
            answers[path] = greedy(path, ids, n)
        except (ValueError, RuntimeError, AssertionError) as error:
            answers[path] = str(error)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
