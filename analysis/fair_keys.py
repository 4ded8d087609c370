"""What a key with one request at a time waits for beside a key with a hundred at once, on a live server.

    PYTHONPATH=. python analysis/fair_keys.py MODEL [--n 100] [--tokens 64]

Starts a server with two keys on a free port and prints, for the modest key alone and beside the greedy one: the time
to the first token and tokens per second of its requests, as medians. A fair server makes the modest key wait no longer
than a row of the other's takes to make place.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

KEYS = {"greedy": "key-of-many", "modest": "key-of-one"}


@contextmanager
def server(model: str, rows: int, extra: list[str]) -> Iterator[str]:
    command = [sys.executable, "-m", "imp_server.cli.main", "serve", "--model", model, "--port", "0", "--alias", "m"]
    command += [part for key in KEYS.values() for part in ("--api-key", key)]
    command += ["--max-batch", str(rows), "--max-concurrent", "0", *extra]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        line = next((text for text in process.stdout if text.startswith("Server listening on ")), "")
        if not line:
            raise SystemExit("the server didn't start")
        yield line.split()[-1]
    finally:
        process.terminate()
        process.communicate(timeout=60)


class Account:
    """Owner of what a key had to wait for."""

    def __init__(self) -> None:
        self.first_s: list[float] = []
        self.rates: list[float] = []


def _has_text(line: str) -> bool:
    return line.startswith("data: {") and bool(json.loads(line[6:])["choices"][0]["delta"].get("content"))


def ask(http: httpx.Client, account: Account, key: str, n_tokens: int, number: int) -> None:
    message = {"role": "user", "content": f"{number}: tell me a story about a river and its towns."}
    body: dict[str, Any] = {"model": "m", "messages": [message], "max_tokens": n_tokens, "ignore_eos": True}
    began = time.monotonic()
    headers = {"authorization": f"Bearer {key}"}
    with http.stream("POST", "/v1/chat/completions", json=body | {"stream": True}, headers=headers) as reply:
        if reply.status_code != 200:
            raise SystemExit(f"{reply.status_code} {reply.read()[:200]!r}")
        own = [time.monotonic() for line in reply.iter_lines() if _has_text(line)]
    account.first_s.append(own[0] - began)
    if own[-1] > own[0]:
        account.rates.append((len(own) - 1) / (own[-1] - own[0]))


def modest(url: str, n_requests: int, n_tokens: int) -> Account:
    account = Account()
    with httpx.Client(base_url=url, timeout=600) as http:
        for number in range(n_requests):
            ask(http, account, KEYS["modest"], n_tokens, number)
    return account


def greedy(url: str, n: int, n_tokens: int) -> tuple[Account, list[threading.Thread]]:
    account = Account()
    limits = httpx.Limits(max_connections=None)
    http = httpx.Client(base_url=url, timeout=600, limits=limits)
    threads = [
        threading.Thread(target=ask, args=(http, account, KEYS["greedy"], n_tokens, 1000 + i), daemon=True)
        for i in range(n)
    ]
    for thread in threads:
        thread.start()
    return account, threads


def told(name: str, account: Account) -> None:
    first, rate = statistics.median(account.first_s), statistics.median(account.rates or [0.0])
    print(
        f"{name:<34} first token {1000 * first:7.0f} ms (worst {1000 * max(account.first_s):.0f}), {rate:6.1f} tokens/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--n", type=int, default=100, help="requests of the greedy key, all at once")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--requests", type=int, default=8, help="of the modest key, one after the other")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    extra = [part for one in options.set for part in ("--set", one)]
    with server(options.model, options.rows, extra) as url:
        modest(url, 2, options.tokens)
        told("modest key alone", modest(url, options.requests, options.tokens))
        _, one = greedy(url, 1, options.tokens * options.requests)
        told("beside one request of another", modest(url, options.requests, options.tokens))
        for thread in one:
            thread.join(600)
        many, threads = greedy(url, options.n, options.tokens)
        time.sleep(1.0)
        account = modest(url, options.requests, options.tokens)
        told(f"beside {options.n} requests of another", account)
        print(
            f"behind it {sum(thread.is_alive() for thread in threads)} of the greedy key's requests still ran or waited"
        )
        for thread in threads:
            thread.join(600)
        print(
            f"all {len(many.first_s)} of them were answered, "
            f"the last one's first token came after {max(many.first_s):.1f} s"
        )


if __name__ == "__main__":
    main()
