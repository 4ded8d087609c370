"""imp beside llama.cpp: same file, same threads, turn by turn in one run; medians, spread and ratios.

    python analysis/peers.py MODEL.gguf [--threads 1,2] [--rounds 7] [--requantise] [--decode] [--busy]
                             [--peer-python PYTHON] [--json FILE]
    python analysis/peers.py --shape 1b [--types Q4_K_M,Q8_0] [--layers N] [--threads 1,2] [--rounds 3]
                             [--llamacpp BUILD] [--files FOLDER]

`--peer-python`: an interpreter that has llama-cpp-python (extra `peers`), if it isn't this one. `--requantise` adds
the same model as Q4_0 and Q8_0, made by llama.cpp, its fast paths. `--decode`: one stream alone, from an empty context
and after 1,024 tokens. Below the table: imp's decoding as a share of the bandwidth at which one thread reads a buffer
of the weights' size, measured between the turns. `--busy`: decoding once more while a process keeps one core busy, turn
by turn with the quiet machine; each engine's share of its own quiet figure.

`--shape` 1b, 3b, olmoe, gpt-oss: files of these true shapes (shaped_models.py), made first, and the table of
shape_table.py. `--llamacpp`: a build of llama.cpp with bin/llama-bench; without it the table has imp alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from analysis.peer_side import N_SEQUENCES, Side, own_side
from analysis.shape_table import print_table

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Scenario:
    name: str
    ask: dict[str, Any]


SCENARIOS = (
    Scenario("decode, 1 stream", {"do": "decode", "context": 0, "n": 48}),
    Scenario("decode, 1 stream, after 1,024", {"do": "decode", "context": 1024, "n": 32}),
    Scenario("prefill 512", {"do": "prefill", "context": 0, "n": 512}),
    Scenario("prefill 512, after 1,024", {"do": "prefill", "context": 1024, "n": 512}),
    Scenario("8 sequences, total", {"do": "batch", "context": 0, "n": 16, "rows": 8}),
    Scenario("8 sequences, total, after 1,024", {"do": "batch", "context": 1024, "n": 12, "rows": 8}),
)


DECODE = SCENARIOS[0]
_SPIN = "while True: pass"


class Pair:
    """Both engines on one file with as many threads."""

    def __init__(self, model: Path, threads: int, peer_python: str) -> None:
        packs = tempfile.mkdtemp(prefix="imp-packs-")
        self.own = own_side(model, threads, Path(packs))
        arguments = [str(model), str(threads), str(N_SEQUENCES)]
        self.peer = Side([peer_python, str(HERE / "peer_llamacpp.py"), *arguments], dict(os.environ))
        self._label = {"model": model.name, "threads": threads}

    def compare(self, scenario: Scenario, rounds: int) -> dict[str, Any]:
        """The first turn of each warms caches and is not counted."""
        for side in (self.own, self.peer):
            side.rate(scenario.ask)
        ours, theirs, bandwidths = [], [], []
        for _ in range(rounds):
            ours.append(self.own.rate(scenario.ask))
            theirs.append(self.peer.rate(scenario.ask))
            bandwidths.append(self.own.rate({"do": "bandwidth"}))
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        row = {**self._label, "scenario": scenario.name, "imp": _spread(ours), "llama.cpp": _spread(theirs)}
        n_bytes = int(self.own.about["weight_bytes"])
        shares = [rate * n_bytes / bandwidth for rate, bandwidth in zip(ours, bandwidths, strict=True)]
        return {**row, "ratio": _spread(ratios), "share_of_bandwidth": _spread(shares)}

    def disturb(self, rounds: int) -> dict[str, Any]:
        """Decoding while another process wants a core, as a share of decoding alone."""
        shares: dict[str, list[float]] = {"imp": [], "llama.cpp": []}
        for _ in range(rounds):
            for name, side in (("imp", self.own), ("llama.cpp", self.peer)):
                quiet = side.rate(DECODE.ask)
                with busy_process():
                    shares[name].append(side.rate(DECODE.ask) / quiet)
        return {**self._label, "scenario": "decode beside a busy process", **{n: _spread(v) for n, v in shares.items()}}

    def close(self) -> None:
        self.own.close()
        self.peer.close()


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", _SPIN])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure(model: Path, threads: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    pair = Pair(model, threads, options.peer_python)
    names = options.only or [s.name for s in SCENARIOS if not options.decode or s.name.startswith(DECODE.name)]
    rows = []
    for scenario in SCENARIOS:
        if scenario.name in names:
            rows.append(pair.compare(scenario, options.rounds))
            print(_line(rows[-1]), flush=True)
    if options.busy:
        rows.append(pair.disturb(options.rounds))
    pair.close()
    return rows


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def _line(row: dict[str, Any]) -> str:
    ours, theirs, ratio = row["imp"], row["llama.cpp"], row["ratio"]
    return (
        f"| {row['model']} | {row['threads']} | {row['scenario']} "
        f"| {ours['median']:.0f} ({ours['low']:.0f}-{ours['high']:.0f}) "
        f"| {theirs['median']:.0f} ({theirs['low']:.0f}-{theirs['high']:.0f}) "
        f"| {ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f}) |"
    )


def _note(row: dict[str, Any]) -> str:
    what = f"{row['model']}, {row['threads']} threads, {row['scenario']}: "
    if "share_of_bandwidth" in row:
        share = row["share_of_bandwidth"]
        return what + f"{share['median']:.0%} ({share['low']:.0%}-{share['high']:.0%}) of the read bandwidth"
    ours, theirs = row["imp"], row["llama.cpp"]
    return what + f"imp keeps {ours['median']:.0%}, llama.cpp {theirs['median']:.0%} of its quiet figure"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--shape", help="1b, 3b, olmoe, gpt-oss, gemma-3n or gemma-4, instead of a model")
    parser.add_argument("--types", default="", help="of the shape's files; empty = those of its table")
    parser.add_argument("--layers", type=int, default=0, help="of the shape; 0 = all it has")
    parser.add_argument("--llamacpp", type=Path, help="a build of llama.cpp")
    parser.add_argument("--files", type=Path, help="where the shape's files lie or are made; else they go at the end")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--rounds", type=int, default=0, help="7; of a shape 3")
    parser.add_argument("--requantise", action="store_true")
    parser.add_argument("--decode", action="store_true")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--only", action="append", default=[], help="name of a scenario to run; may be repeated")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.rounds = options.rounds or (3 if options.shape else 7)
    if options.shape:
        print_table(options)
        return
    if options.model is None:
        parser.error("name a model, or a --shape")
    with tempfile.TemporaryDirectory() as folder:
        models = [options.model]
        for kind in ("Q4_0", "Q8_0") if options.requantise else ():
            target = Path(folder) / f"{options.model.stem}.as-{kind}.gguf"
            command = [options.peer_python, str(HERE / "peer_llamacpp.py"), "requantise"]
            subprocess.run([*command, str(options.model), str(target), kind], check=True)
            models.append(target)
        print("| model | threads | tokens per second | imp | llama.cpp | ratio |\n|---|---|---|---|---|---|")
        rows: list[dict[str, Any]] = []
        for model in models:
            for threads in options.threads.split(","):
                rows += measure(model, int(threads), options)
    print()
    for row in rows:
        if row["scenario"].startswith(DECODE.name) or "ratio" not in row:
            print(_note(row))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
