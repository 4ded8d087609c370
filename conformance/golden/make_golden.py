"""Makes conformance/golden/smollm2.json: greedy continuations by transformers in float32, from the same GGUF file.

    pip install '.[oracle]'
    python conformance/golden/make_golden.py PATH/SmolLM2-135M-Instruct.Q4_1.gguf

Per prompt: its ids, the greedy ids that follow, and at each of them the eight highest logits (best first), so that
the margin between first and second can be read off. Nothing of imp is used.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from prompts import PROMPTS, Prompt

N_NEW = 32
N_TOP = 8


def prompt_ids(tokenizer: Any, prompt: Prompt) -> list[int]:
    if "messages" in prompt:
        text = tokenizer.apply_chat_template(prompt["messages"], add_generation_prompt=True, tokenize=False)
    else:
        text = prompt["text"]
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


@torch.inference_mode()
def continuation(model: Any, ids: list[int], end_ids: set[int]) -> dict[str, Any]:
    """Greedy, lowest id on ties, up to an end id."""
    new: list[int] = []
    tops: list[list[tuple[int, float]]] = []
    past = None
    step = torch.tensor([ids])
    while len(new) < N_NEW:
        out = model(step, past_key_values=past, use_cache=True)
        past = out.past_key_values
        logits = out.logits[0, -1]
        order = torch.sort(logits, descending=True, stable=True)
        tops.append([(int(i), round(float(v), 5)) for v, i in zip(order.values[:N_TOP], order.indices[:N_TOP])])
        new.append(tops[-1][0][0])
        if new[-1] in end_ids:
            break
        step = torch.tensor([[new[-1]]])
    return {"ids": new, "top": tops}


def main(path: Path) -> None:
    torch.set_num_threads(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    end_ids = {tokenizer.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<|endoftext|>")}
    cases = []
    for prompt in PROMPTS:
        ids = prompt_ids(tokenizer, prompt)
        cases.append({**prompt, "prompt_ids": ids, **continuation(model, ids, end_ids)})
        print(prompt["name"], len(ids), repr(tokenizer.decode(cases[-1]["ids"])), flush=True)
    document = {
        "model": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "made_by": f"transformers {transformers.__version__}, torch {torch.__version__}, float32",
        "end_ids": sorted(end_ids),
        "cases": cases,
    }
    lines = json.dumps(document, ensure_ascii=False, separators=(",", ":")).replace('{"name"', '\n{"name"')
    (Path(__file__).parent / "smollm2.json").write_text(lines + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
