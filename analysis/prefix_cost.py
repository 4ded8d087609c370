"""What the prefix cache costs a request of whose prompt nothing is known: `imp serve` with it and without it, in turn.

    python analysis/prefix_cost.py MODEL [--rounds 40] [--blocks 192] [--set kv_cache.host_spill_mib=256] [--check]

Two servers on the same file, one thread each for the kernels, drafts off. One has the default settings (prefix cache
and transcripts on, no tier; `--set` adds to them), the other neither cache nor transcripts. Each round sends both the
same few requests at once, in turn (who goes first changes), and takes the time until all are answered and the CPU time
of all of the server's processes. Everything that the cache does is in there: look-ups, hashing, new nodes, evictions
from a pool that is full from the first rounds on, copies of blocks that a token or two are known of, and forwards whose
blocks are spread wider. Printed: the median of the rounds' differences, the middle half of them, and where the median
of such rounds lies with 95 % (bootstrap). --check: fail where even the lower end of that range reaches 1 %.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
GOAL_PERCENT = 1.0
START_S = 120.0
WORDS = ["river", "stone", "winter", "garden", "letter", "window", "copper", "market", "silver", "engine", "harbour"]
_SERVE = "import sys; from imp_server.cli.main import main; sys.argv[0] = 'imp'; main()"
Json = dict[str, Any]


class Took(NamedTuple):
    wall_s: float
    cpu_s: float
    answers: list[str]
    cached: int
    prompt: int


class Server:
    """Owner of one serving process and those below it."""

    def __init__(self, model: str, options: Sequence[str]) -> None:
        env = dict(os.environ, PYTHONPATH=str(HERE.parent / "imp"))
        command = [sys.executable, "-c", _SERVE, "serve", "--model", model, "--alias", "m", "--port", "0", *options]
        self._process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        line = next((line for line in self._process.stdout if line.startswith("Server listening on ")), "")
        if not line:
            raise SystemExit(f"imp serve ended with {self._process.wait()}")
        self._address = line.split()[-1].removeprefix("http://")
        self._pids = _family(self._process.pid)

    def answer(self, wanted: Sequence[tuple[str, Json]]) -> Took:
        """All at once."""
        cpu_s, began = self._cpu_s(), time.perf_counter()
        with ThreadPoolExecutor(len(wanted)) as pool:
            replies = list(pool.map(self.post, wanted))
        wall_s = time.perf_counter() - began
        # The engine tidies up behind its last message: that belongs to the request.
        time.sleep(0.02)
        cpu_s = self._cpu_s() - cpu_s
        usages = [reply["usage"] for reply in replies]
        choices = [reply["choices"][0] for reply in replies]
        return Took(
            wall_s,
            cpu_s,
            [choice["text"] if "text" in choice else choice["message"]["content"] for choice in choices],
            sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages),
            sum(usage["prompt_tokens"] for usage in usages),
        )

    def post(self, wanted: tuple[str, Json]) -> Json:
        path, body = wanted
        connection = http.client.HTTPConnection(self._address, timeout=300)
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            data = response.read()
        if response.status != 200:
            raise SystemExit(data.decode())
        return dict(json.loads(data))

    def counter(self, name: str) -> float:
        connection = http.client.HTTPConnection(self._address, timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"imp_{name}"))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _cpu_s(self) -> float:
        """Of all threads that live; the kernel counts nanoseconds."""
        files = [path for pid in self._pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
        return sum(int(path.read_text().split()[0]) for path in files) / 1e9


def _family(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        for path in Path(f"/proc/{each}/task").glob("*/children"):
            found += [int(child) for child in path.read_text().split()]
    return found


def text(rng: random.Random, n_words: int) -> str:
    """Begins with a number that no other text begins with."""
    return f"{rng.getrandbits(60)} " + " ".join(rng.choice(WORDS) for _ in range(n_words))


def completions(rng: random.Random, n: int, n_words: int, n_tokens: int) -> list[tuple[str, Json]]:
    more = {"model": "m", "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True}
    return [("/v1/completions", {"prompt": text(rng, n_words)} | more) for _ in range(n)]


def chats(rng: random.Random, n: int, n_words: int, n_tokens: int) -> list[tuple[str, Json]]:
    more = {"model": "m", "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True}
    turns = ("system", "user", "assistant", "user")
    return [
        (
            "/v1/chat/completions",
            {"messages": [{"role": role, "content": text(rng, n_words // 4)} for role in turns]} | more,
        )
        for _ in range(n)
    ]


KINDS = {"raw prompts": completions, "chats": chats}


def compare(kept: Server, plain: Server, kind: str, options: argparse.Namespace) -> bool:
    """Prints what the cache adds to wall and CPU time in percent; whether that is below the goal."""
    rng = random.Random(kind)
    pairs: list[tuple[Took, Took]] = []
    for number in range(options.warm + options.rounds):
        wanted = KINDS[kind](rng, options.streams, options.words, options.tokens)
        # A B B A: what drifts over minutes hits both alike.
        order = (kept, plain) if number % 4 in (0, 3) else (plain, kept)
        took = {id(server): server.answer(wanted) for server in order}
        one, other = took[id(kept)], took[id(plain)]
        if one.answers != other.answers:
            raise SystemExit("the cache changed an answer")
        if number >= options.warm:
            pairs.append((one, other))
    n_cached, n_prompt = (sum(getattr(one, name) for one, _ in pairs) for name in ("cached", "prompt"))
    print(f"{kind}: {n_prompt // len(pairs) // options.streams} tokens, {100 * n_cached / n_prompt:.1f} % known")
    is_good = True
    for what in ("wall_s", "cpu_s"):
        added = [100.0 * (getattr(one, what) / getattr(other, what) - 1.0) for one, other in pairs]
        low, high = bootstrap(added)
        quarters = statistics.quantiles(added, n=4)
        typical = 1e3 * statistics.median(getattr(other, what) for _, other in pairs)
        print(
            f"  {what[:-2]:4} {typical:6.0f} ms, the cache adds {statistics.median(added):+.2f} % "
            f"(95 %: {low:+.2f} to {high:+.2f}; middle half of {len(added)} rounds: "
            f"{quarters[0]:+.1f} to {quarters[2]:+.1f})"
        )
        is_good &= low < GOAL_PERCENT
    return is_good


def bootstrap(values: Sequence[float], n_draws: int = 4000) -> tuple[float, float]:
    """Where the median of as many such values lies with 95 %."""
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(n_draws))
    return medians[n_draws // 40], medians[-n_draws // 40]


@contextlib.contextmanager
def both(options: argparse.Namespace) -> Iterator[tuple[Server, Server]]:
    common = ["--threads", "1", "--speculative-enabled", "off", "--set", f"kv_cache.max_blocks={options.blocks}"]
    more = [part for each in options.set for part in ("--set", each)]
    kept = Server(options.model, [*common, *more])
    plain = None
    try:
        plain = Server(options.model, [*common, "--no-prefix-cache", "--set", "prefix_cache.transcripts=false"])
        yield kept, plain
    finally:
        kept.close()
        if plain is not None:
            plain.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--warm", type=int, default=3, help="rounds before those that count; they fill the pool")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--words", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--blocks", type=int, default=192, help="size of both pools; little more than a round needs")
    parser.add_argument("--set", action="append", default=[], help="a setting of the server with the cache")
    parser.add_argument("--only", choices=list(KINDS))
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    with both(options) as (kept, plain):
        is_good = [compare(kept, plain, kind, options) for kind in KINDS if options.only in (None, kind)]
        print(f"{kept.counter('prefix_cache_evictions_total'):.0f} blocks evicted")
    if options.check and not all(is_good):
        raise SystemExit(f"{GOAL_PERCENT} % or more")


if __name__ == "__main__":
    main()
