"""Nobody's reply depends on who else is served, in which order, or on what is kept, guessed or short of memory.

Random requests of all dialects are answered one by one, each by a fresh server that keeps and guesses nothing on one
thread. Then `imp serve` gets all of them at once, in several orders, some clients leaving in the middle, and every
reply must be the same: ids, text, logprobs, ends, counts. A few on a tiny random model in `make test`; more of them,
and SmolLM2, are marked slow.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from imp_server.api.model_text_side import ModelTextSide
from imp_server.backends import choose
from imp_server.config import Config
from imp_server.engine.build import build_engine
from imp_server.engine.client.inline import InlineEngine

from tests.api.live_server import live_server
from tests.live.mixed_requests import Wanted, check_begins, folded, parsed, predicted, reduced, requests
from tests.live.served_model import served, write_model
from tests.real_model import smollm2

pytestmark = pytest.mark.skipif(choose("auto") == "reference", reason="the native library isn't built")
BARE = {
    "prefix_cache.enabled": False,
    "prefix_cache.transcripts": False,
    "speculative.enabled": "off",
    "engine.warmup": False,
    "cpu.threads": 1,
    "cpu.pack_cache": False,
}
EAGER = ["speculative.cost_gate=false", "speculative.min_match=1", "speculative.miss_burst=0"]
SERVERS = {
    "default": [],
    "short of memory, eager to guess": [*EAGER, "kv_cache.max_blocks=80", "scheduler.prefill_chunk=32"],
    "a tier below": ["kv_cache.host_spill_mib=64", "kv_cache.max_blocks=120", "scheduler.prefill_chunk=48"],
    "without a cache": [*EAGER, "prefix_cache.enabled=false", "scheduler.max_rows=12"],
}
Truth = list[tuple[Wanted, Any]]


def ask(url: str, wanted: Wanted) -> Any:
    """The reply, reduced; of a stream, folded."""
    body = {"model": "m"} | wanted.body
    if not wanted.streams:
        patience_s = 600 if wanted.leaves_after is None else 0.05 * wanted.leaves_after
        reply = httpx.post(url + wanted.path, json=body, timeout=patience_s)
        assert reply.status_code == 200, (reply.text, wanted)
        return reduced(reply.json())
    with httpx.stream("POST", url + wanted.path, json=body, timeout=600) as reply:
        assert reply.status_code == 200, (reply.read(), wanted)
        events = []
        for event in parsed(reply.iter_lines()):
            events.append(event)
            if len(events) == wanted.leaves_after:
                break
    return folded(events)


@contextmanager
def alone(model: Path) -> Iterator[str]:
    config = Config.of(BARE)
    build = functools.partial(build_engine, str(model), "m", config.for_engine())
    with live_server(
        lambda: InlineEngine(build), lambda: ModelTextSide.load(str(model), config), settings=BARE
    ) as server:
        yield server.url


def truth_of(model: Path, wanted: list[Wanted]) -> Truth:
    """Each request with its reply, once more with a prediction of that, and some by clients that won't wait."""
    found: Truth = []
    for each in wanted:
        with alone(model) as url:
            reply = ask(url, each)
        found.append((each, reply))
        other = predicted(each, reply)
        if other is not None:
            found.append((other, reply))
    leaving = [(each._replace(leaves_after=1 + at % 4), reply) for at, (each, reply) in enumerate(found)]
    return found + leaving[::4]


def check_server(model: Path, truth: Truth, settings: list[str], orders: list[int]) -> dict[str, float]:
    """The server's counters at the end."""
    # Who has left is in flight until that is noticed, which takes a while where many come at once.
    options = [part for setting in ("server.max_concurrent=500", *settings) for part in ("--set", setting)]
    with served(model, *options) as server:
        for order in orders:
            mixed = list(truth)
            Random(order).shuffle(mixed)
            # In every second order they come one after the other, so that they meet others midway.
            with ThreadPoolExecutor(len(mixed)) as pool:
                asked = [
                    pool.submit(ask_and_compare, server.url, *each, 0.03 * place * (order % 2))
                    for place, each in enumerate(mixed)
                ]
                for each in asked:
                    each.result()
        check_whole(server)
        return server.metrics()


def ask_and_compare(url: str, wanted: Wanted, right: Any, pause_s: float) -> None:
    time.sleep(pause_s)
    try:
        reply = ask(url, wanted)
    except httpx.TimeoutException:
        assert wanted.leaves_after is not None
        return
    if wanted.streams and wanted.leaves_after is not None:
        check_begins(reply, right)
    else:
        assert reply == right, f"in company: {wanted}"


def check_whole(server: Any) -> None:
    """Of those who left, too, nothing is held."""
    until = time.monotonic() + 20
    while (found := server.metrics())["imp_blocks_held"] and time.monotonic() < until:
        time.sleep(0.05)
    assert found["imp_blocks_held"] == found["imp_steps_failed_total"] == found["imp_integrity_faults_total"] == 0


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tiny_truth(tiny: Path) -> Truth:
    return truth_of(tiny, requests(1, 20))


def test_a_few_in_company(tiny: Path, tiny_truth: Truth) -> None:
    found = check_server(tiny, tiny_truth, SERVERS["default"], [1])
    assert found["imp_prefix_cache_hit_tokens_total"] > 0


def test_a_few_short_of_memory_with_drafts(tiny: Path, tiny_truth: Truth) -> None:
    found = check_server(tiny, tiny_truth, SERVERS["short of memory, eager to guess"], [2, 3])
    assert min(found["imp_spec_drafted_total"], found["imp_prefix_cache_evictions_total"]) > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_many_in_company(tiny: Path, seed: int) -> None:
    truth = truth_of(tiny, requests(seed, 60))
    for settings in SERVERS.values():
        check_server(tiny, truth, settings, [seed, seed + 1])


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_default_model_in_company() -> None:
    truth = truth_of(smollm2(), requests(5, 60))
    for settings in SERVERS.values():
        found = check_server(smollm2(), truth, settings, [6, 7])
    assert found["imp_spec_accepted_total"] > 0
