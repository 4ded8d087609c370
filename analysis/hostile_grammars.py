"""What a client keeps while eight others send grammars made to hurt.

    python analysis/hostile_grammars.py MODEL [--clients 8] [--seconds 10] [--rounds 3] [--threads 0] [--check]
        [--ahead]

One server. In every round `--clients` hostile clients send chats under schemas that nobody has sent before, each as
soon as its last one is answered, and the tokens that they are served are counted. The baseline follows in the same
run: as many clients with ordinary chats, paced to be served as many tokens. Beside both one client asks for free text
and, in turn, for an answer under a small schema, and for one under a small schema that is new. Printed are its tokens/s
and the times to its first tokens, whether it keeps 80 % of the baseline's rate and gets its first token within 250 ms
(constrained: 500 ms) or 1.5 times the baseline's, and who had how much of a core. --check: fail where it doesn't.

Checks at idle priority use up whatever nobody else wants: what they have costs nobody much. Wall time on cores that
other programs use, too, says little; the shares, and for how long the step loop waited for a core, tell. --ahead: put
this session before those of others where Linux lets us (autogroup), so that noise counts less.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
PROMPT = "The history of the lighthouse at the northern cape begins in the winter of 1823, when"
START_S = 120.0
_SERVE = "import sys; from imp_server.cli.main import main; sys.argv[0] = 'imp'; main()"


N_TOKENS = 40
"""Of each chat of the others, at most."""
SERVED = "imp_completion_tokens_total"
KEEPS = 0.8
FIRST_MS, FIRST_CONSTRAINED_MS, OR_TIMES = 250.0, 500.0, 1.5


def levels(own: str, n: int, around: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Each refers to the one below twice, so that what is written out doubles with each."""
    defs = {f"{own}{i}": around({"$ref": f"#/$defs/{own}{i + 1}"}) for i in range(n)}
    return {"$ref": f"#/$defs/{own}0", "$defs": {**defs, f"{own}{n}": {"const": own}}}


def nested(item: dict[str, Any], levels: int, around: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    for _ in range(levels):
        item = around(item)
    return item


def hostile(rng: random.Random) -> dict[str, Any]:
    """Each costs a check, masks, or both; a name of its own keeps it out of every memo."""
    own = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=6))
    letters = rng.sample("abcdefghijklmnopqrstuvwxyz", 12)
    pairs = list(pairwise(letters))[:10]
    between = [f"{own[:2]}{a}.{{{i}}}{b}" for i, (a, b) in enumerate(pairwise(letters))]
    return {
        "doubling": levels(own, 40, lambda s: {"type": "array", "prefixItems": [s, s], "minItems": 2}),
        "doubling objects": levels(
            own, 40, lambda s: {"type": "object", "properties": {"a": s, "b": s}, "required": ["a", "b"]}
        ),
        "long arrays": nested({"type": "integer"}, 4, lambda s: {"type": "array", "items": s, "minItems": 1000}),
        "pigeons": {
            "type": "object",
            "properties": {f"{own}{i}": {"type": "integer"} for i in range(10)},
            "additionalProperties": False,
            "allOf": [{"not": {"required": [f"{own}{i % 10}", f"{own}{(i + 1) % 10}"]}} for i in range(11)],
            "minProperties": 8,
        },
        "lookaheads": {"type": "string", "pattern": f"^{''.join(f'(?=.*{own}{x}.{{9}}{y})' for x, y in pairs)}.*$"},
        "deep one of": nested(
            {"type": "integer"}, 6, lambda s: {"oneOf": [s, {"type": "array", "items": s}, {"const": own}]}
        ),
        "patterns at once": {"type": "string", "allOf": [{"pattern": p} for p in between[:9]]},
        "one of patterns": {"oneOf": [{"type": "string", "pattern": p} for p in between[:8]]},
        "names by patterns": {
            "type": "object",
            "patternProperties": {p: {"minLength": i} for i, p in enumerate(between)},
            "additionalProperties": False,
            "minProperties": 3,
        },
        "one of objects": {
            "oneOf": [
                {"type": "object", "properties": {f"{own}{j}": {"minimum": i + j} for j in range(5)}} for i in range(5)
            ]
        },
        "negations": {
            "type": "object",
            "properties": {f"{own}{i}": {"type": "integer"} for i in range(6)},
            "additionalProperties": False,
            "allOf": [{"not": {"properties": {f"{own}{i}": {"minimum": i + j} for i in range(6)}}} for j in range(4)],
        },
        "contains": {
            "type": "array",
            "items": {"type": "integer", "minimum": rng.randrange(10**6)},
            "allOf": [{"contains": {"multipleOf": k}, "minContains": 2} for k in (2, 3, 5)],
        },
        "lookarounds": {"type": "string", "pattern": f"^(?:(?=.*{own[0]}.{{7}}{own[1]}){own[2]}?.)*{own}$"},
        "unique": {"type": "array", "uniqueItems": True, "minItems": 40, "items": {"pattern": f"^[{own}]{{2,9}}$"}},
    }


class Server:
    """Owner of the serving process."""

    def __init__(self, model: str, threads: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        flags = ["--port", str(self.port), "--threads", str(threads), "--speculative-enabled", "off"]
        env = dict(os.environ, PYTHONPATH=str(HERE.parent / "imp"))
        command = [sys.executable, "-c", _SERVE, "serve", "--model", model, "--alias", "m", *flags]
        self._process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + START_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > end:
                raise SystemExit("imp serve didn't get ready")
            time.sleep(0.2)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def engine_pid(self) -> int:
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                if b"imp_server.engine" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        raise SystemExit("the server has no engine")

    def _is_ready(self) -> bool:
        try:
            probe = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            probe.request("GET", "/ready")
            return probe.getresponse().status == 200
        except OSError:
            return False

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


class Load:
    """Owner of the other clients of one phase."""

    def __init__(self, port: int, n_clients: int, seed: int, rate: float | None = None) -> None:
        """`rate` None: hostile ones; else ordinary ones, which together are served so many tokens a second."""
        self._port, self._rate, self._seed = port, rate, seed
        self.answers = Counter[str]()
        self._is_over = threading.Event()
        self._pacing = threading.Lock()
        self._next_s = time.perf_counter()
        """When the next ordinary chat begins, whoever of the clients is free."""
        self._open: set[http.client.HTTPConnection] = set()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(n_clients)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Hang up whatever is still being answered."""
        self._is_over.set()
        for connection in list(self._open):
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        rng = random.Random(f"{self._seed} {number}")
        while not self._is_over.is_set():
            if self._rate is not None and not self._is_due(self._rate):
                continue
            with suppress(OSError, http.client.HTTPException):
                self._chat(rng)

    def _is_due(self, rate: float) -> bool:
        """Wait for the next chat's time: they are spread evenly, so that every while is served alike."""
        with self._pacing:
            begins_s = self._next_s
            self._next_s += N_TOKENS / max(rate, 1e-3)
        return not self._is_over.wait(max(0.0, begins_s - time.perf_counter()))

    def _chat(self, rng: random.Random) -> None:
        body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Write."}], "temperature": 1.0}
        name = "ordinary"
        if self._rate is not None:
            body["ignore_eos"] = True
        else:
            name, schema = rng.choice(list(hostile(rng).items()))
            body |= {"response_format": {"type": "json_schema", "json_schema": {"name": "made", "schema": schema}}}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        self._open.add(connection)
        try:
            headers = {"content-type": "application/json"}
            connection.request("POST", "/v1/chat/completions", json.dumps({**body, "max_tokens": N_TOKENS}), headers)
            response = connection.getresponse()
            response.read()
        finally:
            self._open.discard(connection)
            connection.close()
        self.answers[f"{response.status} {name}"] += 1


class Seen(NamedTuple):
    """By the client that is looked at: tokens/s of free text, tokens of all, and milliseconds to each first token."""

    rate: float
    n_tokens: int
    first_ms: list[float]
    first_constrained_ms: list[float]
    first_new_ms: list[float]


def small(name: str = "size") -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, name: {"type": "integer"}},
        "required": ["name", name],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "small", "schema": schema}}


def looked_at(port: int, seconds: float) -> Seen:
    free = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0.8, "ignore_eos": True, "max_tokens": 48}
    bound = {**free, "ignore_eos": False, "response_format": small()}
    end = time.perf_counter() + seconds
    n_tokens, n_bound, spent_s = 0, 0, 0.0
    firsts: tuple[list[float], ...] = ([], [], [])
    while time.perf_counter() < end or not firsts[2]:
        n, wait_s, took_s = streamed(port, free)
        n_tokens, spent_s = n_tokens + n, spent_s + took_s
        firsts[0].append(1e3 * wait_s)
        is_new = len(firsts[1]) > len(firsts[2])
        n, wait_s, _ = streamed(port, bound | ({"response_format": small(f"n{time.monotonic_ns()}")} if is_new else {}))
        n_bound += n
        firsts[1 + is_new].append(1e3 * wait_s)
    return Seen(n_tokens / spent_s, n_tokens + n_bound, *firsts)


def counted(port: int) -> dict[str, float]:
    """What /metrics counts, by name and labels other than the model's."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    told = connection.getresponse().read().decode()
    connection.close()
    found: dict[str, float] = defaultdict(float)
    for name, labels, value in re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", told, re.MULTILINE):
        others = [label for label in re.findall(r'\w+="[^"]*"', labels) if not label.startswith("model")]
        found[f"{name}{{{','.join(others)}}}" if others else name] += float(value)
    return found


def n_served(port: int) -> int:
    """Tokens to all clients so far."""
    return int(counted(port)[SERVED])


class Shares(NamedTuple):
    """Seconds so far for which the step loop waited for a core, and CPU seconds: of the step loop, the engine's other
    threads, the mask thread, the API process, and of checks, at ordinary and at idle priority. And the time."""

    waited: float
    loop: float
    engine: float
    masks: float
    api: float
    checks: float
    idle_checks: float
    now: float

    def since(self, before: Shares) -> Shares:
        """Parts of one core."""
        seconds = self.now - before.now
        return Shares._make([*((a - b) / seconds for a, b in zip(self[:-1], before[:-1], strict=True)), seconds])

    def __str__(self) -> str:
        names = (
            "waited for by the step loop",
            "step loop",
            "engine's other threads",
            "mask thread",
            "API",
            "checks",
            "checks at idle priority",
        )
        return ", ".join(f"{name} {part:.2f}" for name, part in zip(names, self[:-1], strict=True))


def shares(server: Server) -> Shares:
    told = counted(server.port)
    checks, idle = (told[f'imp_worker_seconds_total{{priority="{p}"}}'] for p in ("ordinary", "idle"))
    masks = sum(told[f'imp_mask_thread_seconds_total{{turns="{turns}"}}'] for turns in ("quick", "sunk"))
    engine = server.engine_pid
    loop = cpu_s(f"/proc/{engine}/task/{engine}/stat")
    waited_s = int(Path(f"/proc/{engine}/task/{engine}/schedstat").read_text().split()[1]) / 1e9
    others = cpu_s(f"/proc/{engine}/stat") - loop - masks
    return Shares(waited_s, loop, others, masks, cpu_s(f"/proc/{server.pid}/stat"), checks, idle, time.perf_counter())


def cpu_s(path: str) -> float:
    fields = Path(path).read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def streamed(port: int, body: dict[str, Any]) -> tuple[int, float, float]:
    """Tokens, seconds to the first one, seconds to the end."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    begun = time.perf_counter()
    told = json.dumps({"model": "m", "stream": True, "stream_options": {"include_usage": True}, **body})
    connection.request("POST", "/v1/chat/completions", told, {"content-type": "application/json"})
    first_s, n_tokens = 0.0, 0
    for line in connection.getresponse():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if not first_s and any(choice["delta"].get("content") for choice in event["choices"]):
            first_s = time.perf_counter() - begun
        n_tokens = (event.get("usage") or {}).get("completion_tokens", n_tokens)
    connection.close()
    return n_tokens, first_s or time.perf_counter() - begun, time.perf_counter() - begun


class Beside(NamedTuple):
    """`served`: tokens/s of the others; `answers`: what they got."""

    seen: Seen
    served: float
    had: Shares
    answers: Counter[str]


def beside(server: Server, options: argparse.Namespace, seed: int, rate: float | None) -> Beside:
    """`rate`: as of a Load."""
    load = Load(server.port, options.clients, seed, rate)
    time.sleep(1)
    before, n_before = shares(server), n_served(server.port)
    seen = looked_at(server.port, options.seconds)
    had = shares(server).since(before)
    served = (n_served(server.port) - n_before - seen.n_tokens) / had.now
    load.end()
    return Beside(seen, served, had, load.answers)


def verdict(hurt: list[Seen], fair: list[Seen]) -> bool:
    """Prints the figures; whether all of them are within the bounds."""
    kept = statistics.median(h.rate / f.rate for h, f in zip(hurt, fair, strict=True))
    print(f"tokens/s {kept:.3f} of the baseline's ({KEEPS} wanted)")
    is_good = kept >= KEEPS
    for what, field, bound in (
        ("first token", "first_ms", FIRST_MS),
        ("first token, constrained", "first_constrained_ms", FIRST_CONSTRAINED_MS),
        ("first token, new schema", "first_new_ms", FIRST_CONSTRAINED_MS),
    ):
        here, there = (
            statistics.median(ms for seen in all_seen for ms in getattr(seen, field)) for all_seen in (hurt, fair)
        )
        limit = max(bound, OR_TIMES * there)
        is_good &= here <= limit
        print(f"{what} {here:.0f} ms beside hostile ones, {there:.0f} ms in the baseline ({limit:.0f} ms wanted)")
    return is_good


def go_ahead() -> None:
    """Give the group of this session more weight than others have."""
    with suppress(OSError):
        os.setsid()
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("-15")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--ahead", action="store_true")
    options = parser.parse_args()
    if options.ahead:
        go_ahead()
    server = Server(options.model, options.threads)
    hurt: list[Beside] = []
    fair: list[Beside] = []
    try:
        looked_at(server.port, 1)
        for seed in range(options.rounds):
            hurt.append(beside(server, options, seed, None))
            fair.append(beside(server, options, seed, hurt[-1].served))
            print(f"round {seed}: others served {hurt[-1].served:.1f} and {fair[-1].served:.1f} tokens/s,", end=" ")
            print(f"client {hurt[-1].seen.rate:.1f} and {fair[-1].seen.rate:.1f} tokens/s")
            print(f"  of a core, beside hostile ones: {hurt[-1].had}")
            print(f"  in the baseline: {fair[-1].had}", flush=True)
    finally:
        server.close()
    is_good = verdict([round.seen for round in hurt], [round.seen for round in fair])
    answers = sum((round.answers for round in hurt), Counter())
    print(f"answers to hostile requests: {dict(sorted(answers.items()))}")
    return int(options.check and not is_good)


if __name__ == "__main__":
    sys.exit(main())
