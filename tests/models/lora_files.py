"""Makes tests/models/files/*.lora.tar.xz: adapters of tiny models as PEFT saves them, as llama.cpp's own converter
writes them, and what PEFT makes of the model with them.

    python -m tests.models.lora_files PYTHON CONVERTER [CASE ...]

Needs peft; PYTHON and CONVERTER as in oracle_files.py. An archive holds adapter_config.json, adapter_model.safetensors,
adapter.gguf where the converter takes the model, and expected.npz: PEFT's logits at the last positions, the ids that it
goes on with.
"""

from __future__ import annotations

import io
import lzma
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.models.family_cases import CASES
from tests.models.oracle import IDS, model_of, oracle_logits, write_checkpoint
from tests.models.oracle_files import FILES, write_tokenizer

N_POSITIONS = 6
"""Whose logits are kept: the last ones."""
N_GREEDY = 3
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class LoraCase:
    """An adapter of one of CASES. `config`: of peft.LoraConfig."""

    model: str
    config: Mapping[str, Any] = field(default_factory=dict)
    modules: tuple[str, ...] = MODULES


LORAS = {
    "llama": LoraCase("falcon3", {"r": 4, "lora_alpha": 6}),
    "qwen2": LoraCase(
        "qwen2",
        {
            "r": 3,
            "lora_alpha": 2,
            "use_rslora": True,
            "rank_pattern": {"q_proj": 5, "model.layers.1.mlp.up_proj": 1},
            "alpha_pattern": {"layers.0.mlp.down_proj": 5, "o_proj": 3},
        },
    ),
    "phi3": LoraCase("phi3", {"r": 4, "lora_alpha": 4}, ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")),
    "gemma3": LoraCase("gemma3", {"r": 2, "lora_alpha": 3}),
    "latents": LoraCase(
        "deepseek-v2", {"r": 4, "lora_alpha": 4}, ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj")
    ),
    "experts": LoraCase("qwen2-moe", {"r": 4, "lora_alpha": 4}, ("q_proj", "v_proj", "shared_expert.down_proj")),
}  # fmt: skip


def lora_file(name: str) -> Path:
    return FILES / f"{name}.lora.tar.xz"


def unpack(name: str, folder: Path) -> Path:
    """The archive's files in a folder of their own."""
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(lora_file(name).read_bytes()))) as archive:
        archive.extractall(folder, filter="data")
    return folder


def _drawn(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """So large that what is added to a matrix is about a third of it."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    values = np.clip(np.rint(rng.standard_normal(shape) * 2), -3, 3) / 2
    scale = 1.6 * shape[-1] ** -0.5 if ".lora_A." in name else 0.5 * shape[-1] ** -0.5
    return torch.from_numpy((values * 2.0 ** np.round(np.log2(scale))).astype(np.float32))


def _write(case: LoraCase, folder: Path, python: str, converter: str) -> None:
    from peft import LoraConfig, get_peft_model

    own = CASES[case.model]
    model = model_of(own)
    write_checkpoint(own, model, folder / "base", published=True)
    write_tokenizer(own, folder / "base")
    adapted: Any = get_peft_model(model, LoraConfig(target_modules=list(case.modules), **case.config)).eval()
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data = _drawn(name, tuple(parameter.shape))
    out = folder / "out"
    adapted.save_pretrained(out)
    (out / "README.md").unlink(missing_ok=True)
    ids = list(IDS)
    for _ in range(N_GREEDY):
        ids.append(int(oracle_logits(adapted, ids)[-1].argmax()))
    logits = oracle_logits(adapted, IDS)[-N_POSITIONS:]
    np.savez(out / "expected.npz", logits=logits, greedy=np.array(ids[len(IDS) :], dtype=np.int32))
    if own.has_gguf and "use_rslora" not in case.config:
        command = [python, str(Path(converter) / "convert_lora_to_gguf.py"), "--base", str(folder / "base")]
        subprocess.run([*command, "--outfile", str(out / "adapter.gguf"), str(out)], check=True)


def main(python: str, converter: str, names: list[str]) -> None:
    for name in names:
        with tempfile.TemporaryDirectory() as base:
            _write(LORAS[name], Path(base), python, converter)
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w") as archive:
                for path in sorted((Path(base) / "out").iterdir()):
                    info = tarfile.TarInfo(path.name)
                    info.size = path.stat().st_size
                    archive.addfile(info, io.BytesIO(path.read_bytes()))
            lora_file(name).write_bytes(lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME))
            print(f"{name}: {len(packed.getvalue())} bytes, {lora_file(name).stat().st_size} packed")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:] or list(LORAS))
