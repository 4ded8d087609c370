"""imp beside llama.cpp: same file, same threads, turn by turn in one run; medians, spread and ratios.

    python analysis/peers.py MODEL.gguf [--threads 1,2] [--rounds 7] [--requantise] [--peer-python PYTHON] [--json FILE]

`--peer-python`: an interpreter that has llama-cpp-python (extra `peers`), if it isn't this one. `--requantise` adds
the same model as Q4_0 and Q8_0, made by llama.cpp, its fast paths.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
N_SEQUENCES = 8


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


class Side:
    """One engine in its own process, idle while the other is measured."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.about = self._answer()

    def tokens_per_s(self, ask: dict[str, Any]) -> float:
        assert self._process.stdin is not None
        print(json.dumps(ask), file=self._process.stdin, flush=True)
        answer = self._answer()
        return float(answer["tokens"]) / float(answer["seconds"])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args} ended with {self._process.wait()}")
        return dict(json.loads(line))


def compare(model: Path, threads: int, rounds: int, peer_python: str, names: list[str]) -> list[dict[str, Any]]:
    packs = tempfile.mkdtemp(prefix="imp-packs-")
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(HERE.parent / "imp"), os.environ.get("PYTHONPATH", "")]))
    own = Side([sys.executable, str(HERE / "peer_imp.py"), str(model), str(threads), str(N_SEQUENCES), packs], env)
    peer = Side([peer_python, str(HERE / "peer_llamacpp.py"), str(model), str(threads), str(N_SEQUENCES)], env)
    rows = []
    for scenario in SCENARIOS:
        if names and scenario.name not in names:
            continue
        ours, theirs = [], []
        for side, into in [(own, []), (peer, [])]:  # the first turn of each warms caches and is not counted
            into.append(side.tokens_per_s(scenario.ask))
        for _ in range(rounds):
            ours.append(own.tokens_per_s(scenario.ask))
            theirs.append(peer.tokens_per_s(scenario.ask))
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        rows.append(
            {
                "model": model.name,
                "threads": threads,
                "scenario": scenario.name,
                "imp": _spread(ours),
                "llama.cpp": _spread(theirs),
                "ratio": _spread(ratios),
            }
        )
        print(_line(rows[-1]), flush=True)
    own.close()
    peer.close()
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", default="1")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requantise", action="store_true")
    parser.add_argument("--only", action="append", default=[], help="name of a scenario to run; may be repeated")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
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
                rows += compare(model, int(threads), options.rounds, options.peer_python, options.only)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
