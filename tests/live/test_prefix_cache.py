"""The prefix cache's ship gate: over HTTP, cold = warm = evicted = restarted, ids and text, with 8 clients at once.

Every leg is compared with a server that keeps nothing. On a tiny random model in `make test`; SmolLM2 is marked slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from imp_server.backends import choose

from tests.live.served_model import Json, Served, flood, reuse, served, write_model
from tests.real_model import smollm2

pytestmark = pytest.mark.skipif(choose("auto") == "reference", reason="the native library isn't built")
N_CLIENTS = 8
SHARED = "".join(f"Rule {i}: never feed animal number {i * 7 % 101} before noon. " for i in range(9))
"""About 450 tokens of the tiny model."""
CACHE = "--prefix-cache"


class Said(NamedTuple):
    """What a client got, and how much of its prompt came from the cache."""

    answers: tuple[Any, ...]
    cached: int
    prompt: int


class Gate(NamedTuple):
    model: Path
    few_blocks: str
    """A pool that holds one long row and little more: it can't keep what eight clients asked for."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    return Gate(write_model(tmp_path_factory.mktemp("tiny")), "72")


def client(server: Served, number: int) -> Said:
    """A client's requests: raw ids, a text, a chat and a message, greedy for even numbers, sampled for odd ones."""
    sampling = {"temperature": 0.9 * (number % 2), "seed": number}
    cut = SHARED[: len(SHARED) - 12 * number]
    question = f"{cut} Client {number} asks why."
    turns = [{"role": "system", "content": SHARED}, {"role": "user", "content": question[-120:]}]
    native = {"return_tokens": True, "n_predict": 16, "n_probs": 2} | sampling
    raw = server.post("/completion", {"prompt": [5 + number, *range(20, 150)]} | native)
    text = server.post("/completion", {"prompt": question} | native)
    chat = server.post("/v1/chat/completions", {"messages": turns, "max_tokens": 16} | sampling)
    message = server.post("/v1/messages", {"messages": turns[1:], "system": SHARED, "max_tokens": 16} | sampling)
    found = [reuse(body) for body in (raw, text, chat, message)]
    answers = (
        *((body["tokens"], body["content"], body["completion_probabilities"]) for body in (raw, text)),
        chat["choices"][0]["message"]["content"],
        message["content"],
    )
    return Said(answers, sum(each.cached for each in found), sum(each.prompt for each in found))


def everybody(server: Served) -> list[Said]:
    with ThreadPoolExecutor(N_CLIENTS) as pool:
        return list(pool.map(lambda number: client(server, number), range(N_CLIENTS)))


def answers(said: list[Said]) -> list[tuple[Any, ...]]:
    return [each.answers for each in said]


def check_whole(server: Served, n_blocks: float) -> None:
    """Nothing is held when nobody is served, and no block is lost."""
    found = server.metrics()
    assert found["imp_blocks_held"] == 0
    assert found["imp_blocks_free"] + found["imp_blocks_cached"] == n_blocks
    assert found["imp_grammar_dead_ends_total"] == found["imp_steps_failed_total"] == 0


def pass_gate(gate: Gate, folder: Path) -> None:
    with served(gate.model, "--no-prefix-cache") as server:
        truth = answers(everybody(server))
        n_blocks = server.metrics()["imp_blocks_free"]
    kept = folder / "prefixes"
    with served(gate.model, CACHE, str(kept)) as server:
        cold, warm = everybody(server), everybody(server)
        check_whole(server, n_blocks)
    assert answers(cold) == truth, "cold"
    assert answers(warm) == truth, "warm"
    for said in warm:
        assert said.cached == said.prompt - 4, "four identical requests: one token of each is run again"
    with served(gate.model, CACHE, str(kept)) as server:
        again = everybody(server)
        check_whole(server, n_blocks)
    assert answers(again) == truth, "restarted"
    for said in again:
        assert said.cached > 0.9 * said.prompt, "hardly anything was kept over the restart"
    evicted = in_a_small_pool(gate, truth)
    spilled = in_a_small_pool(gate, truth, "--set", "kv_cache.host_spill_mib=256")
    assert spilled > 0.9 > evicted, "what was evicted didn't come back from the tier below"


def in_a_small_pool(gate: Gate, truth: list[tuple[Any, ...]], *options: str) -> float:
    """The cached share of a second round, after others have used the whole pool and more."""
    with served(gate.model, "--set", f"kv_cache.max_blocks={gate.few_blocks}", *options) as server:
        assert answers(everybody(server)) == truth, "cold in a small pool"
        flood(server, range(6), 600)
        again = everybody(server)
        assert answers(again) == truth, f"evicted {options}"
        assert server.metrics()["imp_prefix_cache_evictions_total"] > 40
        check_whole(server, float(gate.few_blocks))
    return sum(said.cached for said in again) / sum(said.prompt for said in again)


def test_cold_warm_evicted_restarted(tiny: Gate, tmp_path: Path) -> None:
    pass_gate(tiny, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_cold_warm_evicted_restarted_with_the_default_model(tmp_path: Path) -> None:
    pass_gate(Gate(smollm2(), "72"), tmp_path)


@pytest.fixture(scope="module")
def small_pool(tiny: Gate) -> Iterator[Served]:
    """16 blocks: 256 tokens, less than the model's context."""
    with served(tiny.model, "--set", "kv_cache.max_blocks=16") as server:
        yield server


def test_pool_pressure_hits_one_request_not_all(small_pool: Served) -> None:
    """Eight requests that fit one at a time: rows that can't grow wait for the oldest, and all are answered."""

    def ask(number: int) -> Json:
        body = {"prompt": [number, *range(30, 130)], "n_predict": 100, "return_tokens": True, "temperature": 0}
        return small_pool.post("/completion", body | {"ignore_eos": True})

    alone = [ask(number)["tokens"] for number in range(N_CLIENTS)]
    for _ in range(10):  # on a busy machine the requests may come one after the other
        with ThreadPoolExecutor(N_CLIENTS) as pool:
            together = list(pool.map(ask, range(N_CLIENTS)))
        assert [body["tokens"] for body in together] == alone
        assert all(body["tokens_predicted"] == 100 for body in together)
        if small_pool.metrics()["imp_preemptions_total"] > 0:
            break
    else:
        raise AssertionError("there was no pressure")
    check_whole(small_pool, 16.0)


def test_what_can_never_fit_is_refused_before_it_starts(small_pool: Served) -> None:
    too_long = {"prompt": list(range(20, 290)), "n_predict": 4}
    refused = small_pool.post("/completion", too_long, status=400)
    assert refused["error"]["code"] == "context_length_exceeded" and "256" in refused["error"]["message"]
    streamed = small_pool.post("/completion", too_long | {"stream": True}, status=400)
    assert streamed["error"]["code"] == "context_length_exceeded"
    chat = {"messages": [{"role": "user", "content": "x" * 400}], "max_tokens": 4, "stream": True}
    assert small_pool.post("/v1/chat/completions", chat, status=400)["error"]["code"] == "context_length_exceeded"


def test_a_prefix_under_way_is_computed_once(tiny: Gate) -> None:
    """Eight clients send one long prompt at the same moment: seven of them wait for the first."""
    with served(tiny.model, "--set", "scheduler.prefill_chunk=32") as server:
        body = {"prompt": [i * 3 % 290 for i in range(900)], "n_predict": 8, "temperature": 0, "return_tokens": True}
        with ThreadPoolExecutor(N_CLIENTS) as pool:
            replies = list(pool.map(lambda _: server.post("/completion", body), range(N_CLIENTS)))
        assert len({str(reply["tokens"]) for reply in replies}) == 1
        computed = sum(reuse(reply).written for reply in replies)
        assert computed < 900 + 8 * 16, "a shared prefix was computed more than once"
