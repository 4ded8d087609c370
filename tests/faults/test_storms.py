"""Many clients, and an engine that is killed under them: nothing is lost, nothing is left, and no byte is wrong."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.api.live_server import LiveServer
from tests.faults.storm import (
    N_BLOCKS,
    SETTINGS,
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
from tests.models.tiny_gguf import write_tiny_llama

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with storm_server(tmp_path_factory.mktemp("model")) as live:
        yield live


def strike(live: LiveServer, how: signal.Signals) -> None:
    pid = engine_of(live).pid
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, how)


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
    counters, _ = live.wait(live.services.stats())
    assert counters["blocks_free"] + counters["blocks_cached"] == N_BLOCKS
    assert counters["integrity_faults_total"] == counters["steps_failed_total"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "n_kills", "n_requests", "n_clients"), [(1, 2, 30, 6), (2, 25, 600, 24), (3, 25, 600, 24)]
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
            strike(live, signal.SIGKILL)

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


@pytest.mark.slow
def test_an_engine_that_hangs_is_replaced_under_load(tmp_path: Path) -> None:
    """It is stopped, not killed: the watchdog ends it, and who has heard nothing is served by the next one."""
    wanted = asks(4, 60, most_tokens=150)
    with storm_server(tmp_path, engine__watchdog_s=5.0) as live:
        right = truths(live.url, wanted)
        before = until_peace(live, left(live))

        def stop() -> None:
            time.sleep(0.3)
            strike(live, signal.SIGSTOP)

        outcomes = storm(live.url, wanted, 12, meanwhile=stop, tries=2000)
        assert len(outcomes) == len(wanted) and faults_of(outcomes, right, statuses=(200, 500)) == []
        assert engine_of(live).n_crashes == 1
        print(f"\nhang: of 60 {sum(one.is_whole for one in outcomes)} whole")
        wait_ready(live)
        until_peace(live, before)


@pytest.mark.slow
def test_sigterm_under_load_ends_with_0_and_every_answer_is_whole(tmp_path: Path) -> None:
    """What runs when the signal comes is finished; what comes behind it is told 503, or finds nobody there.

    A connection that nobody has taken yet is reset when the listener closes.
    """
    path = write_tiny_llama(tmp_path / "tiny.gguf", context=4096)
    command = [sys.executable, "-m", "imp_server.cli.main", "serve", "--port", "0", "--model", str(path)]
    for name, value in (SETTINGS | {"server.drain_timeout_s": 20}).items():
        command += ["--set", f"{name}={value}"]
    command += ["--set", f"responses.store_path={tmp_path / 'responses.sqlite'}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        url = next(line for line in process.stdout if line.startswith("Server listening")).split()[-1]
        wanted = asks(5, 24, most_tokens=300)
        right = truths(url, wanted)

        def end() -> None:
            limit = time.monotonic() + 20
            while httpx.get(f"{url}/health", timeout=10).json()["queue_depth"] < 4:
                assert time.monotonic() < limit
            process.terminate()

        outcomes = storm(url, wanted, 8, meanwhile=end)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate(timeout=30)
    began = [one for one in outcomes if one.status == 200]
    assert began and all(one.is_whole and one.text == right[one.ask] for one in began)
    others = [one for one in outcomes if one.status != 200]
    assert {one.status for one in others} <= {0, 503}, others
    nobody = ("ConnectError", "ReadError", "RemoteProtocolError('Server disconnected without")
    assert all(one.broken.startswith(nobody) for one in others if one.status == 0), others
    print(f"\nSIGTERM: {len(began)} of {len(outcomes)} whole, the rest refused")
