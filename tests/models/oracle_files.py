"""Makes tests/models/files: each family's tiny model as a GGUF file, by llama.cpp's own converter.

    python -m tests.models.oracle_files PYTHON CONVERTER [CASE ...]

PYTHON runs the converter, in an environment of the versions that it pins (requirements/ beside it):
`make oracle-files`.
"""

from __future__ import annotations

import json
import lzma
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from tests.models.family_cases import CASES
from tests.models.oracle import VOCABULARY, Case, model_of, write_checkpoint

BLANK = "\u2581"
FILES = Path(__file__).parent / "files"


def file_of(name: str) -> Path:
    return FILES / f"{name.replace(' ', '-')}.gguf.xz"


def sentencepiece_model() -> bytes:
    """Byte tokens and a few pieces, in the wire format of sentencepiece_model.proto."""
    normal, unknown, control, byte = 1, 2, 3, 6
    pieces = [("<unk>", 0.0, unknown), ("<s>", 0.0, control), ("</s>", 0.0, control)]
    pieces += [(f"<0x{i:02X}>", 0.0, byte) for i in range(256)]
    pieces += [(letter, -float(i), normal) for i, letter in enumerate(["▁", *"etaoinshrdlcumwfgypbvkxjqz,", "▁t"])]
    assert len(pieces) == VOCABULARY
    out = b""
    for piece, score, kind in pieces:
        text = piece.encode()
        message = b"\x0a" + bytes([len(text)]) + text + b"\x15" + struct.pack("<f", score) + b"\x18" + bytes([kind])
        out += b"\x0a" + bytes([len(message)]) + message
    size = bytes([VOCABULARY % 128 + 128, VOCABULARY // 128])
    trainer = b"\x18\x02" + b"\x20" + size + b"\x98\x02\x01"  # BPE, its size, with bytes to fall back on
    normaliser = b"\x0a\x08identity"
    return out + b"\x12" + bytes([len(trainer)]) + trainer + b"\x1a" + bytes([len(normaliser)]) + normaliser


def write_tokenizer(case: Case, folder: Path) -> None:
    """Three special ids, the bytes, and merges that fill the vocabulary."""
    if not case.pre:
        (folder / "tokenizer.model").write_bytes(sentencepiece_model())
        return
    tokenizer = _with_byte_pieces(case) if case.pre == "gemma4" else _byte_level(case)
    tokenizer.add_special_tokens(list(case.specials))
    tokenizer.save(str(folder / "tokenizer.json"))
    special = dict(zip(("unk_token", "bos_token", "eos_token"), case.specials))
    config = {"tokenizer_class": case.tokenizer_class, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _byte_level(case: Case) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*case.specials, *alphabet]
    merges = [(a, b) for a in "etaoin" for b in "shrdl"][: VOCABULARY - len(pieces)]
    vocabulary = {piece: i for i, piece in enumerate([*pieces, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _with_byte_pieces(case: Case) -> Tokenizer:
    """Letters and merges, and bytes to fall back on, as Gemma's tokenizer.json has them."""
    pieces = [*case.specials, *(f"<0x{i:02X}>" for i in range(256)), BLANK, *"etaoinshrdl"]
    merges = [(a, b) for a in "etaoin" for b in "shrdl"][: VOCABULARY - len(pieces)]
    vocabulary = {piece: i for i, piece in enumerate([*pieces, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", BLANK)
    tokenizer.decoder = decoders.Sequence([decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def main(python: str, converter: str, names: list[str]) -> None:
    FILES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as base:
        jobs: list[str] = []
        for number, name in enumerate(names):
            folder = Path(base) / str(number)
            write_checkpoint(CASES[name], model_of(CASES[name]), folder, published=True)
            write_tokenizer(CASES[name], folder)
            jobs += [CASES[name].pre, str(folder), str(folder / "out.gguf")]
        subprocess.run([python, str(Path(__file__).with_name("convert.py")), converter, *jobs], check=True)
        for number, name in enumerate(names):
            data = (Path(base) / str(number) / "out.gguf").read_bytes()
            file_of(name).write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
            print(f"{name}: {len(data)} bytes, {file_of(name).stat().st_size} packed")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:] or [name for name, case in CASES.items() if case.has_gguf])
