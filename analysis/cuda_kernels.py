"""The CUDA kernels as machine code: registers, shared memory, warps at once, and what stands in their hot loops.

    .venv/bin/python -m analysis.cuda_kernels            the table of docs/cuda.md, for all architectures
    .venv/bin/python -m analysis.cuda_kernels --sass     and the instructions of the loops

Needs NVRTC (and nvdisasm for --sass), no GPU. Exits 1 if a kernel has local memory or can't run somewhere.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Mapping

from imp_server.backends.cuda.compile import ARCHITECTURES, compile_cubin, nvrtc_version
from imp_server.backends.cuda.cubins import KernelFacts, kernels_of
from imp_server.backends.cuda.formats import FORMATS
from imp_server.backends.cuda.kernels import (
    FOUR_BITS,
    KV_TYPES,
    ProductMode,
    attention_source,
    format_defines,
    gemm_source,
    gemv_source,
    prefill_source,
)
from imp_server.backends.cuda.launching import KernelSource

from analysis.sass import disassembled, disassembler


def _of(file: str, **defines: int) -> KernelSource:
    return KernelSource(file, tuple(defines.items()))


SAMPLE = {
    "norms": _of("norm.cu"),
    "qkv, int8 cache": _of("qkv.cu", KV_TYPE=3),
    "qkv, nvfp4 cache": _of("qkv.cu", KV_TYPE=5),
    "decode attention, 128, bf16": attention_source(128, "bf16", 4),
    "decode attention, 128, int4": attention_source(128, "int4", 4),
    "prefill attention, 128, bf16": prefill_source(128, "bf16"),
    "gemv, bf16, 1 row": gemv_source("BF16", ProductMode.bias, 1, 4),
    "gemv, Q4_K, 1 row": gemv_source("Q4_K", ProductMode.bias, 1, 4),
    "gated, Q4_K, 8 rows": gemv_source("Q4_K", ProductMode.gate, 8, 2),
    "gemm, Q4_K, 64 rows": gemm_source("Q4_K", ProductMode.bias, 64),
    "head's best, Q8_0": gemv_source("Q8_0", ProductMode.best, 1, 4),
    "experts, MXFP4": gemv_source("MXFP4", ProductMode.expert_gate, 1, 4),
    "sampling": _of("sample.cu"),
    "routing": _of("route.cu"),
}
"""One of each kind, by name."""


def everything() -> dict[str, KernelSource]:
    """What models of any shape may ask for: formats, widths, heads and types of the cache are walked, if not each with
    each."""
    found = dict(SAMPLE) | {
        "elementwise": _of("elementwise.cu"),
        "copies": _of("copy.cu"),
        "functions": _of("functions.cu"),
    }
    for name in (*FORMATS, "BF16", "F16", "F32"):
        found[f"embed, {name}"] = KernelSource("embed.cu", tuple(format_defines(name).items()))
        for product, (tokens, rows) in itertools.product(
            (ProductMode.bias, ProductMode.gate), ((1, 2), (1, 4), (4, 4), (8, 2))
        ):
            found[f"gemv {product}, {name}, {tokens} tokens, {rows} rows"] = gemv_source(name, product, tokens, rows)
        found[f"gemv 2, {name}"], found[f"gemv 3, {name}"] = (
            gemv_source(name, ProductMode.head, 2, 4),
            gemv_source(name, ProductMode.best, 8, 2),
        )
        found[f"experts 4, {name}"], found[f"experts 5, {name}"] = (
            gemv_source(name, ProductMode.expert_gate, 1, 4),
            gemv_source(name, ProductMode.expert_sum, 1, 2),
        )
        if name not in ("F16", "F32"):
            for product, tokens in itertools.product((ProductMode.bias, ProductMode.gate), (16, 64)):
                found[f"gemm {product}, {name}, {tokens}"] = gemm_source(name, product, tokens)
    for head, dtype in itertools.product((64, 80, 96, 128, 256, 512), KV_TYPES):
        if dtype in FOUR_BITS and head % 32:
            continue
        for queries in (1, 8):
            found[f"decode {head} {dtype} {queries}"] = attention_source(head, dtype, queries)
            found[f"decode {head} {dtype} {queries}, all rules"] = attention_source(head, dtype, queries, True, True)
        if head <= 256 and dtype != "f32":
            found[f"prefill {head} {dtype}"] = prefill_source(head, dtype)
            found[f"prefill {head} {dtype}, all rules"] = prefill_source(head, dtype, True, True)
    return found | {f"qkv {dtype}": _of("qkv.cu", KV_TYPE=number) for dtype, number in KV_TYPES.items()}


def faults(facts: KernelFacts, arch: int) -> list[str]:
    """What keeps a kernel from being used."""
    found = []
    if facts.local_bytes:
        found.append(f"{facts.name} on sm_{arch}: {facts.local_bytes} bytes of local memory")
    if not facts.warps_at_once(arch):
        found.append(f"{facts.name} on sm_{arch}: doesn't fit a processor")
    return found


ISSUED_PER_S = 132 * 4 * 1.755e9
"""Instructions of warps that an H200 begins: processors, schedulers, clock."""
STREAMED_PER_S = 4.3e12
"""Bytes that a large copy moves on it."""
_WIDTHS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}


def bytes_of(loop: Counter[str]) -> int:
    """What a warp reads of global memory in one turn."""
    loads = ((name.split("."), n) for name, n in loop.items() if name.split(".")[0] in ("LDG", "LDGSTS"))
    return sum(32 * n * next((_WIDTHS[part] for part in parts if part in _WIDTHS), 4) for parts, n in loads)


def streams() -> dict[str, KernelSource]:
    """Kernels that read much and compute little."""
    found = {}
    for name, tokens in itertools.product(("BF16", "FP8", "Q8_0", "Q6_K", "Q4_K", "Q4_0", "MXFP4", "NVFP4"), (1, 4, 8)):
        found[f"gemv, {name}, {tokens} rows"] = gemv_source(name, ProductMode.bias, tokens, 4 if tokens < 8 else 2)
    for dtype, queries in itertools.product(("bf16", "fp8", "int8"), (1, 4)):
        found[f"decode attention, 128, {dtype}, {queries} queries"] = attention_source(128, dtype, queries)
    return found


def print_roofline() -> None:
    """Of the loop that streams: the share of the bandwidth at which the card can't issue its instructions any faster.
    Above 1 memory is what limits it."""
    program = disassembler()
    if program is None:
        sys.exit("there is no nvdisasm: pip install nvidia-cuda-nvdisasm")
    print("| kernel | instructions a turn | bytes a turn | share of the bandwidth |\n|---|---:|---:|---:|")
    for name, source in streams().items():
        found = disassembled(compile_cubin(source, 90), program)
        loop = found[min(found)].hottest("FFMA")  # gemv; decode_attention, not merge_splits
        share = ISSUED_PER_S / loop.total() * bytes_of(loop) / STREAMED_PER_S
        print(f"| {name} | {loop.total()} | {bytes_of(loop)} | {share:.0%} |")


def table(sources: Mapping[str, KernelSource]) -> tuple[list[str], list[str]]:
    """Lines of registers of a thread / KiB of shared memory / warps at once by architecture, and what is wrong."""
    lines = ["| kernel | " + " | ".join(f"sm_{arch}" for arch in ARCHITECTURES) + " |"]
    lines.append("|---|" + "---:|" * len(ARCHITECTURES))
    wrong: list[str] = []
    for name, source in sources.items():
        cells: dict[str, list[str]] = {}
        for arch in ARCHITECTURES:
            for facts in kernels_of(compile_cubin(source, arch)):
                wrong += [f"{name}: {fault}" for fault in faults(facts, arch)]
                shared = f"{facts.shared_bytes / 1024:.0f}"
                cell = f"{facts.registers} / {shared} / {facts.warps_at_once(arch)}"
                cells.setdefault(facts.name, []).append(cell)
        lines += [f"| {name}: `{kernel}` | " + " | ".join(row) + " |" for kernel, row in cells.items()]
    return lines, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="What the CUDA kernels became.")
    parser.add_argument("--sass", action="store_true", help="the loops, too")
    parser.add_argument("--all", action="store_true", help="every instantiation, not one of each kind")
    parser.add_argument("--roofline", action="store_true", help="only how fast the loops over weights can be issued")
    asked = parser.parse_args()
    if asked.roofline:
        print_roofline()
        return 0
    lines, wrong = table(everything() if asked.all else SAMPLE)
    print(f"NVRTC {'.'.join(map(str, nvrtc_version()))}\n")
    print("\n".join(lines))
    if asked.sass:
        print_loops()
    print("\n".join(["", *wrong]))
    return bool(wrong)


def print_loops() -> None:
    program = disassembler()
    if program is None:
        sys.exit("there is no nvdisasm: pip install nvidia-cuda-nvdisasm")
    for name, source in SAMPLE.items():
        for kernel, code in disassembled(compile_cubin(source, 90), program).items():
            for i, loop in enumerate(code.loops):
                print(f"\n{name}: {kernel}, loop {i}: {loop.total()} instructions")
                print("  " + ", ".join(f"{n} {opcode}" for opcode, n in loop.most_common(14)))


if __name__ == "__main__":
    sys.exit(main())
