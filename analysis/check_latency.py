"""What the check of a request's tools costs until the first token, beside the same request with tool_choice none.

    python analysis/check_latency.py MODEL [--rounds 7] [--again 7]

Starts `imp serve MODEL`, sends 20 tools of 8 properties, and prints medians of milliseconds over the request that asks
nothing: tools never seen before, one changed of twenty, and all seen before; once with properties that are told at once
(grammar/plain.py), and once with others among them, whose proofs run in processes. The prompts are cached in each case.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import httpx

KINDS: tuple[dict[str, Any], ...] = (
    {"type": "string", "description": "The path of the file to be read"},
    {"type": "integer", "minimum": 0, "maximum": 1000},
    {"type": "boolean"},
    {"type": "string", "enum": ["celsius", "fahrenheit"]},
    {"type": "array", "items": {"type": "string"}},
    {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "string"}}, "required": ["x"]},
)

PROVED: tuple[dict[str, Any], ...] = (
    {"type": "string", "pattern": "^[a-z][a-z0-9-]{0,30}$"},
    {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
    {"type": "number", "multipleOf": 0.5},
)
"""Kinds of properties that a proof has to be made for, in a process of its own."""


def tool(name: str, seed: int, kinds: Sequence[dict[str, Any]], n_properties: int = 8) -> dict[str, Any]:
    draw = random.Random(seed)
    properties = {f"field_{seed}_{i}": draw.choice(kinds) for i in range(n_properties)}
    schema = {"type": "object", "properties": properties, "required": [f"field_{seed}_0"]}
    return {"type": "function", "function": {"name": name, "description": "Does a thing", "parameters": schema}}


def tools(first_seed: int, kinds: Sequence[dict[str, Any]] = KINDS, n_tools: int = 20) -> list[dict[str, Any]]:
    return [tool(f"tool_{i}", first_seed + i, kinds) for i in range(n_tools)]


def first_token_ms(client: httpx.Client, offered: list[dict[str, Any]], choice: str) -> float:
    body = {
        "model": client.headers["x-model"],
        "messages": [{"role": "user", "content": "Say hello."}],
        "tools": offered,
        "tool_choice": choice,
        "max_tokens": 4,
        "temperature": 0,
        "stream": True,
    }
    began = time.perf_counter()
    with client.stream("POST", "/v1/chat/completions", content=json.dumps(body)) as reply:
        if reply.status_code != 200:
            raise SystemExit(reply.read().decode())
        for line in reply.iter_lines():
            if '"content"' in line or '"tool_calls"' in line:
                return 1e3 * (time.perf_counter() - began)
    raise SystemExit("a reply without a token")


def over_plain_ms(client: httpx.Client, offered: list[dict[str, Any]], n: int) -> float:
    """The median of `n` requests over the median of as many that ask nothing, in turn: neither comes behind the other's
    work alone."""
    plain, constrained = [], []
    for _ in range(n):
        plain.append(first_token_ms(client, offered, "none"))
        constrained.append(first_token_ms(client, offered, "auto"))
    return statistics.median(constrained) - statistics.median(plain)


def measure(
    client: httpx.Client, n_rounds: int, n_again: int, kinds: Sequence[dict[str, Any]]
) -> dict[str, list[float]]:
    """Milliseconds over the request that asks nothing, by case. Each round has schemas of its own."""
    found: dict[str, list[float]] = {"first time": [], "one of twenty new": [], "seen before": []}
    for i in range(n_rounds + 1):
        offered = tools(1000 * (i + 1), kinds)
        changed = [*offered[:-1], tool("tool_19", 1000 * (i + 1) + 999, kinds)]
        for case, own in (("first time", offered), ("one of twenty new", changed)):
            plain = statistics.median(first_token_ms(client, own, "none") for _ in range(n_again))
            first_ms = first_token_ms(client, own, "auto") - plain
            if i:  # the first round warms up
                found[case].append(first_ms)
        if i:
            found["seen before"].append(over_plain_ms(client, offered, n_again))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=7, help="first times, of each kind")
    parser.add_argument("--again", type=int, default=7, help="requests that a median is taken of")
    asked = parser.parse_args()
    command = [sys.executable, "-m", "imp_server.cli.main", "serve", asked.model, "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    try:
        url = next(found[1] for line in server.stdout if (found := re.match(r"Server listening on (\S+)", line)))
        model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
        with httpx.Client(
            base_url=url, timeout=120, headers={"content-type": "application/json", "x-model": model}
        ) as client:
            for kind, kinds in (("plain", KINDS), ("proved", KINDS + PROVED)):
                for case, values in measure(client, asked.rounds, asked.again, kinds).items():
                    told = f"{statistics.median(values):6.1f} ms over tool_choice none"
                    print(f"{kind:<7} {case:<18} {told} (from {min(values):.1f} to {max(values):.1f})", flush=True)
    finally:
        server.terminate()
        server.wait(70)


if __name__ == "__main__":
    main()
