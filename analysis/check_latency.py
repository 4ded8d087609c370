"""What the check of a request's tools costs until the first token, beside the same request with tool_choice none.

    python analysis/check_latency.py MODEL

Starts `imp serve MODEL`, sends 20 tools of 8 properties, and prints medians of milliseconds over the request that asks
nothing: tools never seen before, one changed of twenty, and all seen before. The prompts are cached in each case.
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


def tool(name: str, seed: int, n_properties: int) -> dict[str, Any]:
    draw = random.Random(seed)
    properties = {f"field_{seed}_{i}": draw.choice(KINDS) for i in range(n_properties)}
    schema = {"type": "object", "properties": properties, "required": [f"field_{seed}_0"]}
    return {"type": "function", "function": {"name": name, "description": "Does a thing", "parameters": schema}}


def tools(first_seed: int, n_tools: int = 20, n_properties: int = 8) -> list[dict[str, Any]]:
    return [tool(f"tool_{i}", first_seed + i, n_properties) for i in range(n_tools)]


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


def measure(client: httpx.Client, n_rounds: int) -> dict[str, list[float]]:
    """Milliseconds over the request that asks nothing, by case."""
    found: dict[str, list[float]] = {"first time": [], "one of twenty new": [], "seen before": []}
    for i in range(n_rounds + 1):
        offered = tools(1000 * (i + 1))
        changed = [*offered[:-1], tool("tool_19", 1000 * (i + 1) + 999, 8)]
        for own in (offered, changed):
            first_token_ms(client, own, "none")  # its prompt is cached
        for case, own in (("first time", offered), ("seen before", offered), ("one of twenty new", changed)):
            plain = min(first_token_ms(client, own, "none") for _ in range(3))
            constrained = first_token_ms(client, own, "auto")
            if i:  # the first round warms up
                found[case].append(constrained - plain)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=7)
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
            for case, values in measure(client, asked.rounds).items():
                middle = statistics.median(values)
                print(
                    f"{case:<18} {middle:6.1f} ms over tool_choice none (from {min(values):.1f} to {max(values):.1f})"
                )
    finally:
        server.terminate()
        server.wait(70)


if __name__ == "__main__":
    main()
