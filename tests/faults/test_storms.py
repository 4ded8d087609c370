"""Many clients, and an engine that is killed under them: nothing is lost, nothing is left, and no byte is wrong."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.api.live_server import LiveServer
from tests.faults.storm import (
    N_BLOCKS,
    asks,
    engine_of,
    faults_of,
    left,
    storm,
    storm_server,
    truths,
    until_peace,
    wait_ready,
)
from tests.faults.watched import taken

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with storm_server(tmp_path_factory.mktemp("model")) as live:
        yield live


def kill(live: LiveServer) -> None:
    pid = engine_of(live).pid
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("n_requests", "n_clients"),
    [(40, 8), pytest.param(1000, 64, marks=pytest.mark.slow)],
)
def test_every_request_of_many_clients_gets_its_answer(live: LiveServer, n_requests: int, n_clients: int) -> None:
    wanted = asks(12, n_requests)
    right = truths(live.url, wanted)
    storm(live.url, wanted[: n_requests // 2], n_clients)
    before = until_peace(live, left(live))
    mib = taken(os.getpid())
    began = time.monotonic()
    outcomes = storm(live.url, wanted, n_clients)
    took_s = time.monotonic() - began
    after = until_peace(live, before)
    assert len(outcomes) == n_requests and faults_of(outcomes, right) == []
    assert {one.status for one in outcomes} == {200}
    now = taken(os.getpid())
    print(f"\n{n_requests} requests of {n_clients} clients: {took_s:.1f} s; before {before}, after {after}")
    print(f"MiB: process {mib.api_mib:.0f} -> {now.api_mib:.0f}, engine {mib.engine_mib:.0f} -> {now.engine_mib:.0f}")
    assert now.api_mib < mib.api_mib + 60 and now.engine_mib < mib.engine_mib + 60
    counters, _ = live.wait(live.hub.stats())
    assert counters["blocks_free"] + counters["blocks_cached"] == N_BLOCKS
    assert counters["integrity_faults_total"] == counters["steps_failed_total"] == 0


@pytest.mark.parametrize(
    ("seed", "n_kills", "n_requests", "n_clients"),
    [(1, 2, 30, 6), *(pytest.param(seed, 25, 600, 24, marks=pytest.mark.slow) for seed in (2, 3))],
)
def test_kill_9_at_random_moments_loses_and_falsifies_nothing(
    live: LiveServer, seed: int, n_kills: int, n_requests: int, n_clients: int
) -> None:
    """While loading, in prefill, in the middle of answers: whoever has heard nothing is served by the next engine.

    Clients that are told to come again do so; the rest ends in the error of its dialect, or in its stream's.
    """
    wanted = asks(seed, n_requests, most_tokens=150)
    right = truths(live.url, wanted)
    before = until_peace(live, left(live))
    chance = random.Random(seed)
    crashes = engine_of(live).n_crashes

    def kills() -> None:
        for _ in range(n_kills):
            time.sleep(chance.uniform(0.02, 2.5))
            kill(live)

    outcomes = storm(live.url, wanted, n_clients, meanwhile=kills, tries=2000)
    assert len(outcomes) == n_requests
    assert faults_of(outcomes, right, statuses=(200, 500)) == []
    good, cut = sum(one.is_whole for one in outcomes), sum(one.status == 200 and not one.is_whole for one in outcomes)
    codes = {str((one.error or {}).get("code") or (one.error or {}).get("type")) for one in outcomes if one.error}
    print(f"\nseed {seed}: {n_kills} kills; of {n_requests} {good} whole, {cut} cut with an error; codes {codes}")
    assert good > n_requests // 3
    assert engine_of(live).n_crashes > crashes
    wait_ready(live)
    until_peace(live, before)
    again = storm(live.url, wanted[:8], 4)
    assert faults_of(again, right) == [] and all(one.is_whole for one in again)
