"""The table of `peers.py --shape`: files of true shapes in imp and, where a build is given, in llama.cpp, in turn.

Bytes first: what the file has, what imp keeps packed (every copy counted), what a greedy token reads. Then the rates:
medians of the rounds; READ is what as many threads read at best in the same round (the best of several loops over the
packed weights); of a prefill GOP/s beside the dot-product peak and the ceiling of the file's layouts, by their inner
loops on numbers in the first-level cache.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from analysis.peer_side import Side, own_side
from analysis.shaped_models import SHAPES, Shape, write

N_PROMPT = 512
N_DECODED = 32
DECODE = {"do": "decode", "context": 0, "n": N_DECODED}
PREFILL = {"do": "prefill", "context": 0, "n": N_PROMPT}


def print_table(options: argparse.Namespace) -> None:
    shape = SHAPES[options.shape]
    if options.layers:
        shape = replace(shape, n_layers=options.layers)
    recipes = options.types.split(",") if options.types else shape.recipes
    threads = [int(n) for n in options.threads.split(",")]
    print(f"{options.shape}, {shape.n_layers} layers of {shape.width}; {_machine()}")
    if options.llamacpp is None:
        print("imp alone: --llamacpp names a build of llama.cpp (with bin/llama-bench) to set beside it")
    rows = []
    with tempfile.TemporaryDirectory(prefix="imp-shapes-") as own_folder:
        folder = options.files or Path(own_folder)
        folder.mkdir(parents=True, exist_ok=True)
        for recipe in recipes:
            path = _made(folder, options.shape, shape, recipe)
            with tempfile.TemporaryDirectory(prefix="packs-", dir=folder) as packs:
                for n in threads:
                    rows.append(measured(path, recipe, n, Path(packs), options))
                    _print_row(rows[-1], first=len(rows) == 1)
            if not options.files:
                path.unlink()
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


def _made(folder: Path, name: str, shape: Shape, recipe: str) -> Path:
    path = folder / f"{name}-{shape.n_layers}-{recipe}.gguf"
    return path if path.exists() else write(path, shape, recipe)


def measured(path: Path, recipe: str, threads: int, packs: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One file with so many threads; of each rate the rounds' values."""
    own = own_side(path, threads, packs)
    row: dict[str, Any] = {"type": recipe, "threads": threads, "load": os.getloadavg()[0], **own.about}
    row["file_bytes"] = tensor_bytes(path)
    kept: dict[str, list[float]] = {}
    for turn in range(options.rounds + 1):
        rates = _own_turn(own)
        rates |= _peer_turn(options.llamacpp, path, threads) if options.llamacpp else {}
        if turn:  # the first one warms caches
            for name, rate in rates.items():
                kept.setdefault(name, []).append(rate)
    own.close()
    return row | kept


def tensor_bytes(path: Path) -> int:
    import gguf

    return sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors if len(tensor.shape) > 1)


def _own_turn(own: Side) -> dict[str, float]:
    decode, prefill, probed = own.rate(DECODE), own.rate(PREFILL), own.answer({"do": "probe"})
    return {"decode": decode, "prefill": prefill, **probed}


def _peer_turn(build: Path, path: Path, threads: int) -> dict[str, float]:
    bench = shutil.which("llama-bench", path=f"{build / 'bin'}:{build}")
    if bench is None:
        raise SystemExit(f"{build} has no llama-bench")
    command = [bench, "-m", str(path), "-p", str(N_PROMPT), "-n", str(N_DECODED), "-t", str(threads), "-r", "1"]
    told = json.loads(subprocess.run([*command, "-o", "json"], capture_output=True, check=True, text=True).stdout)
    return {"peer prefill" if run["n_prompt"] else "peer decode": float(run["avg_ts"]) for run in told}


def _print_row(row: dict[str, Any], *, first: bool) -> None:
    if first:
        heads = (
            "type, threads", "GB in the file", "packed / file", "read per token", "decode tok/s", "GB/s",
            "READ GB/s", "share", "llama.cpp", "ratio", "prefill tok/s", "GOP/s", "of ceiling", "of peak",
            "llama.cpp", "ratio",
        )  # fmt: skip
        print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads), flush=True)
    decode, prefill = (statistics.median(row[name]) for name in ("decode", "prefill"))
    size, read = row["file_bytes"], row["weight_bytes"]
    rate = [tokens * read for tokens in row["decode"]]
    gops = [tokens * ops for tokens, ops in zip(row["prefill"], row["ops"], strict=True)]
    cells = (
        f"{row['type']}, {row['threads']}",
        f"{size / 1e9:.3f}",
        f"{row['packed_bytes'] / size:.3f}",
        f"{read / size:.3f}",
        f"{decode:.2f}",
        f"{statistics.median(rate) / 1e9:.1f}",
        f"{statistics.median(row['read']) / 1e9:.1f}",
        f"{_share(rate, row['read']):.0%}",
        *_beside(row, "decode"),
        f"{prefill:.1f}",
        f"{statistics.median(gops) / 1e9:.0f}",
        f"{_share(gops, row['ceiling']):.0%}",
        f"{_share(gops, row['peak']):.0%}",
        *_beside(row, "prefill"),
    )
    print("| " + " | ".join(cells) + " |", flush=True)


def _beside(row: dict[str, Any], name: str) -> tuple[str, str]:
    theirs = row.get(f"peer {name}")
    if not theirs:
        return "-", "-"
    return f"{statistics.median(theirs):.2f}", f"{_share(row[name], theirs):.2f}"


def _share(ours: Iterable[float], of: Iterable[float]) -> float:
    """Median of the rounds' own ratios: each round has its own weather."""
    return statistics.median(a / b for a, b in zip(ours, of, strict=True))


def _machine() -> str:
    name = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return f"{os.cpu_count()} cores of {name}, load {os.getloadavg()[0]:.1f}"
