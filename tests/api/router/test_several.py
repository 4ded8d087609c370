"""Several models in one server: names, loading on demand, room, the queue, and what is told of all that."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from imp_server.api.router.residency import Room
from imp_server.config import Config
from imp_server.core import ConfigError, InvalidModel
from imp_server.engine.client.scripted import ScriptGate, text_ids

from tests.api.raw_http import BODY, CHAT
from tests.api.router.several import Followed, ScriptedCatalogue, ask, said, several, statuses
from tests.api.test_streams import until


def error_of(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


def test_a_model_is_loaded_when_somebody_asks_for_it() -> None:
    catalogue = ScriptedCatalogue("a", "b", "c")
    with several(catalogue) as live:
        assert statuses(live) == dict.fromkeys("abc", "unloaded") and catalogue.loads == []
        assert httpx.get(live.url + "/health").json()["model_loaded"] is False
        assert (said(live, "b"), said(live, "a"), said(live, "b")) == ("b", "a", "b")
        assert catalogue.loads == ["b", "a"]
        assert statuses(live) == {"a": "loaded", "b": "loaded", "c": "unloaded"}
        health = httpx.get(live.url + "/health").json()
        assert (health["state"], health["model_loaded"], health["models_loaded"]) == ("ready", True, 2)
        assert httpx.get(live.url + "/ready").status_code == 200


def test_every_dialect_loads_its_model() -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/messages": {"max_tokens": 5, "messages": BODY["messages"]},
        "/v1/responses": {"input": "hi"},
        "/v1/completions": {"prompt": "hi"},
        "/completion": {"prompt": "hi"},
        "/v1/embeddings": {"input": "hi"},
        "/embedding": {"content": "hi"},
    }
    with several(ScriptedCatalogue(*(f"m{i}" for i in range(len(bodies))), room=Room(1))) as live:
        for i, (path, body) in enumerate(bodies.items()):
            reply = httpx.post(live.url + path, json={"model": f"m{i}", **body}, timeout=20)
            # the plain text side makes no vectors, which is found out behind the load
            assert reply.status_code == 200 or "embedding" in path, (path, reply.text)
            assert statuses(live)[f"m{i}"] == "loaded", path


def test_names_that_mean_no_model() -> None:
    catalogue = ScriptedCatalogue("a", "b")
    with several(catalogue) as live:
        for path, body in ((CHAT, BODY), ("/completion", {"prompt": "x"}), ("/tokenize", {"content": "x"})):
            nameless = {name: value for name, value in body.items() if name != "model"}
            assert error_of(httpx.post(live.url + path, json=nameless)) == (400, "missing_required_parameter"), path
            unknown = httpx.post(live.url + path, json={**body, "model": "o"})
            assert error_of(unknown) == (404, "model_not_found") and "'a', 'b'" in unknown.text, path
        for path in ("/models/load", "/models/unload"):
            assert error_of(httpx.post(live.url + path, json={"model": "o"})) == (404, "model_not_found")
        for name in ("/etc/passwd", "../a", "./a.gguf", "hf:org/a"):
            assert ask(live, name).status_code == 404
        assert catalogue.loads == []


def test_aliases_and_patterns() -> None:
    catalogue = ScriptedCatalogue()
    catalogue.options = {
        "small": {"aliases": ("fast", "claude-*haiku*", "claude-*"), "tags": ("chat",)},
        "large": {"aliases": ("claude-opus-*", "gpt-?")},
    }
    with several(catalogue) as live:
        meant = {"fast": "small", "claude-3-5-haiku-latest": "small", "claude-sonnet": "small", "small": "small"}
        meant |= {"claude-opus-4": "large", "gpt-5": "large"}
        assert {name: said(live, name) for name in meant} == meant
        assert ask(live, "gpt-55").status_code == 404
        assert ask(live, "claude-" + "x" * 600).status_code == 404
        listed = {m["id"]: m for m in httpx.get(live.url + "/v1/models").json()["data"]}
        assert listed["small"]["aliases"] == ["fast", "claude-*haiku*", "claude-*"]
        assert listed["small"]["tags"] == ["chat"] and listed["large"]["source"] == "folder"
        assert httpx.get(live.url + "/v1/models/fast").json()["id"] == "small"


def test_the_longest_idle_goes_for_the_next() -> None:
    catalogue = ScriptedCatalogue("a", "b", "c", room=Room(n_models=2))
    with several(catalogue) as live:
        for name in ("a", "b", "a"):
            said(live, name)
        assert said(live, "c") == "c"
        assert statuses(live) == {"a": "loaded", "b": "unloaded", "c": "loaded"}
        assert catalogue["b"].state == "stopped"
        assert said(live, "b") == "b" and statuses(live)["a"] == "unloaded"
        assert catalogue.loads == ["a", "b", "c", "b"]


def test_memory_counts_as_it_was_measured() -> None:
    catalogue = ScriptedCatalogue("a", "b", "c", room=Room(n_bytes=250), memory_bytes=100)
    with several(catalogue) as live:
        for name in "abc":
            said(live, name)
        assert statuses(live) == {"a": "unloaded", "b": "loaded", "c": "loaded"}
    catalogue = ScriptedCatalogue("a", "b", room=Room(n_bytes=50), memory_bytes=100)
    with several(catalogue) as live:  # one that is too large may still be alone
        assert (said(live, "a"), said(live, "b")) == ("a", "b")
        assert statuses(live) == {"a": "unloaded", "b": "loaded"}


def test_a_busy_model_never_goes_and_its_place_is_waited_for() -> None:
    catalogue = ScriptedCatalogue("a", "b", room=Room(n_models=1))
    with several(catalogue) as live, ThreadPoolExecutor() as pool:
        said(live, "a")
        gate = ScriptGate(asyncio.Event())
        catalogue["a"].play(text_ids("slow"), gate, text_ids("ly"))
        slow = pool.submit(said, live, "a")
        until(lambda: catalogue["a"].n_running == 1, 20)
        waits = pool.submit(said, live, "b")
        until(lambda: statuses(live)["b"] == "loading", 20)
        assert catalogue["a"].state == "ready" and catalogue.loads == ["a"]
        live.on_loop(gate.event.set)
        assert slow.result(20) == "slowly" and waits.result(20) == "b"
        assert statuses(live) == {"a": "unloaded", "b": "loaded"}


def test_who_waits_is_served_in_turn_and_shares_a_load() -> None:
    catalogue = ScriptedCatalogue("a", "b", "c", "d", room=Room(n_models=1))
    with several(catalogue) as live, ThreadPoolExecutor(12) as pool:
        said(live, "a")
        gate = ScriptGate(asyncio.Event())
        catalogue["a"].play(gate, text_ids("x"))
        running = [pool.submit(said, live, "a")]
        until(lambda: catalogue["a"].n_running == 1, 20)
        for name in "bcd":
            running += [pool.submit(said, live, name) for _ in range(3)]
            until(lambda name=name: statuses(live)[name] == "loading", 20)
            n_waiting = len(running)
            until(lambda n=n_waiting: sum(h.n_leases for h in live.services.models) == n, 20)
        live.on_loop(gate.event.set)
        assert [one.result(20) for one in running] == ["x", *"bbbcccddd"]
        assert catalogue.loads == ["a", "b", "c", "d"]


def test_who_leaves_takes_his_claim_along() -> None:
    catalogue = ScriptedCatalogue("a", "b", "c", room=Room(n_models=1))
    with several(catalogue) as live, ThreadPoolExecutor() as pool:
        said(live, "a")
        gate = ScriptGate(asyncio.Event())
        catalogue["a"].play(gate, text_ids("x"))
        slow = pool.submit(said, live, "a")
        until(lambda: catalogue["a"].n_running == 1, 20)
        with pytest.raises(httpx.TimeoutException):
            httpx.post(live.url + CHAT, json={**BODY, "model": "b"}, timeout=0.2)
        until(lambda: statuses(live)["b"] == "unloaded" and live.services.models.find("b").n_leases == 0, 20)
        last = pool.submit(said, live, "c")
        until(lambda: statuses(live)["c"] == "loading", 20)
        live.on_loop(gate.event.set)
        assert last.result(20) == "c" and slow.result(20) == "x"
        assert catalogue.loads == ["a", "c"]
        assert all(host.n_leases == 0 for host in live.services.models)


def test_a_load_that_fails_is_a_503_and_the_next_is_served() -> None:
    catalogue = ScriptedCatalogue("a", "b")
    catalogue.hosts()
    catalogue["a"].fault = InvalidModel("a.gguf is cut off")
    catalogue["a"].may_load.clear()
    with several(catalogue) as live, ThreadPoolExecutor() as pool:
        failing = [pool.submit(ask, live, "a") for _ in range(2)]
        until(lambda: statuses(live)["a"] == "loading", 20)
        served = pool.submit(said, live, "b")
        until(lambda: sum(host.n_leases for host in live.services.models) == 3, 20)
        live.on_loop(catalogue["a"].may_load.set)
        for one in failing:
            assert error_of(one.result(20)) == (503, "model_load_failed") and "cut off" in one.result().text
        assert served.result(20) == "b"
        told = next(m for m in httpx.get(live.url + "/v1/models").json()["data"] if m["id"] == "a")
        assert told["status"]["failed"] is True and "cut off" in told["status"]["error"]
        assert httpx.get(live.url + "/health").status_code == 200
        catalogue["a"].fault = None
        httpx.post(live.url + "/models/load", json={"model": "a"}).raise_for_status()
        until(lambda: statuses(live)["a"] == "loaded", 20)
        assert said(live, "a") == "a"


@pytest.mark.parametrize("late", [False, True])
def test_nobody_goes_for_a_model_whose_file_is_damaged(late: bool) -> None:
    """Where only the load itself finds the fault, the place has been made before."""
    catalogue = ScriptedCatalogue("a", "b", room=Room(1))
    fault = InvalidModel("b.gguf is cut off")

    def prove() -> None:
        raise fault

    if not late:
        catalogue.options["b"] = {"prove": prove}
    catalogue.hosts()
    catalogue["b"].fault = fault
    with several(catalogue) as live:
        assert said(live, "a") == "a"
        for _ in range(2):
            refused = ask(live, "b")
            assert error_of(refused) == (503, "model_load_failed") and "cut off" in refused.text
        assert statuses(live)["a"] == ("unloaded" if late else "loaded")
        assert catalogue.loads == (["a", "b"] if late else ["a"])
        if not late:
            assert all(not host.is_queued for host in live.services.models)
        assert said(live, "a") == "a"


def test_a_broken_preset_harms_nobody() -> None:
    catalogue = ScriptedCatalogue("a")
    catalogue.options["b"] = {"broken": "[b]: there is no option max-sqe-len"}
    with several(catalogue) as live:
        assert said(live, "a") == "a"
        refused = ask(live, "b")
        assert error_of(refused) == (503, "model_load_failed") and "max-sqe-len" in refused.text
        assert httpx.post(live.url + "/models/load", json={"model": "b"}).status_code == 503
        assert httpx.post(live.url + "/tokenize", json={"model": "b", "content": "x"}).status_code == 503


def test_without_autoload_an_operator_loads() -> None:
    catalogue = ScriptedCatalogue("a", "b")
    with several(catalogue, router__models_autoload=False) as live:
        assert error_of(ask(live, "a")) == (400, "model_not_loaded")
        httpx.post(live.url + "/models/load", json={"model": "a"}).raise_for_status()
        until(lambda: statuses(live)["a"] == "loaded", 20)
        assert said(live, "a") == "a"
        assert httpx.get(live.url + "/props").json()["models_autoload"] is False


def test_load_and_unload_by_hand() -> None:
    catalogue = ScriptedCatalogue("a", "b")
    with several(catalogue) as live, httpx.Client(base_url=live.url) as http:
        assert error_of(http.post("/models/unload", json={"model": "a"})) == (400, "model_not_loaded")
        assert http.post("/models/load", json={"model": "a"}).json() == {"success": True}
        until(lambda: statuses(live)["a"] == "loaded", 20)
        assert error_of(http.post("/models/load", json={"model": "a"})) == (400, "model_already_loaded")
        assert http.post("/models/unload", json={"model": "a"}).json() == {"success": True}
        until(lambda: statuses(live)["a"] == "unloaded" and catalogue["a"].state == "stopped", 20)
        assert live.services.models.find("a").text is None
        assert said(live, "a") == "a"
        assert http.post("/admin/suspend", json={"model": "a"}).json() == {"suspended": True, "models": ["a"]}
        assert statuses(live)["a"] == "sleeping" and error_of(ask(live, "a")) == (503, "suspended")
        assert said(live, "b") == "b"
        assert http.post("/admin/resume").json()["suspended"] is False and said(live, "a") == "a"


def test_a_load_under_way_is_given_up() -> None:
    catalogue = ScriptedCatalogue("a")
    catalogue.hosts()
    catalogue["a"].may_load.clear()
    with several(catalogue) as live, ThreadPoolExecutor() as pool:
        waits = pool.submit(ask, live, "a")
        until(lambda: catalogue.loads == ["a"], 20)
        httpx.post(live.url + "/models/unload", json={"model": "a"}).raise_for_status()
        assert waits.result(20).status_code == 503
        until(lambda: statuses(live)["a"] == "unloaded", 20)


@pytest.mark.parametrize("at_once", [True, False])
def test_who_asks_while_a_load_is_given_up_waits_for_the_next(monkeypatch: pytest.MonkeyPatch, at_once: bool) -> None:
    catalogue = ScriptedCatalogue("a")
    catalogue.hosts()
    engine = catalogue["a"]
    engine.may_load.clear()
    start = engine.start

    async def slow_to_end(on_progress: Any = None) -> None:
        try:
            await start(on_progress)
        except asyncio.CancelledError:
            await asyncio.sleep(0.3)
            raise

    monkeypatch.setattr(engine, "start", slow_to_end)
    with several(catalogue) as live, ThreadPoolExecutor() as pool:
        waits = pool.submit(ask, live, "a")
        until(lambda: catalogue.loads == ["a"], 20)
        httpx.post(live.url + "/models/unload", json={"model": "a"}).raise_for_status()
        if not at_once:
            assert waits.result(20).status_code == 503
        live.on_loop(engine.may_load.set)
        assert said(live, "a") == "a" and catalogue.loads == ["a", "a"]
        assert waits.result(20).status_code == 503


def test_probes_reach_their_model_and_load_none() -> None:
    catalogue = ScriptedCatalogue("a", "b")
    with several(catalogue) as live, httpx.Client(base_url=live.url) as http:
        assert http.get("/props").json()["role"] == "router"
        assert http.get("/props?model=b").json()["model_alias"] == "b"
        assert http.get("/slots?model=b").json() == []
        assert http.get("/lora-adapters?model=b").json() == []
        for path in ("/slots", "/lora-adapters"):
            assert error_of(http.get(path)) == (400, "missing_required_parameter")
        assert http.get("/metrics?model=b").status_code == http.get("/metrics").status_code == 200
        assert http.post("/tokenize", json={"model": "a", "content": "hi"}).json() == {"tokens": [104, 105]}
        count = http.post("/v1/messages/count_tokens", json={**BODY, "model": "a"})
        assert count.status_code == 200 and catalogue.loads == []
        said(live, "a")
        assert len(http.get("/slots?model=a").json()) == 8
        assert http.get("/props?model=a").json()["default_generation_settings"]["n_ctx"] == 8192
        lines = http.get("/metrics").text.splitlines()
        assert 'imp_model_loaded{model="a"} 1' in lines and 'imp_model_loaded{model="b"} 0' in lines
        assert 'vllm:num_requests_running{model_name="a"} 0' in lines, "of each model that is loaded"
        assert 'vllm:time_to_first_token_seconds_count{model_name="a"} 1' in lines
        assert not [line for line in lines if 'model_name="b"' in line]
        for path in ("/props?model=o", "/slots?model=o", "/metrics?model=o", "/lora-adapters?model=o"):
            assert error_of(http.get(path)) == (404, "model_not_found")


def test_events_tell_what_becomes_of_models() -> None:
    catalogue = ScriptedCatalogue("a", "b", load_seconds=0.1)
    with several(catalogue, streams__keep_alive_s=0.2) as live:
        early = Followed(live)
        until(lambda: len(early.events) == 2, 20)
        assert [event["event"] for event in early.events] == ["model_status"] * 2
        said(live, "a")
        until(lambda: early.statuses("a") == ["unloaded", "loading", "loaded"], 20)
        progress = [data["progress"] for data in early.of("a") if "progress" in data]
        assert [p["value"] for p in progress] == [0.0, 1.0] and progress[0]["current"] == "open"
        late = Followed(live)
        until(lambda: late.statuses("a") == ["loaded"] and late.statuses("b") == ["unloaded"], 20)
        httpx.post(live.url + "/models/unload", json={"model": "a"}).raise_for_status()
        until(lambda: late.statuses("a") == ["loaded", "unloaded"], 20)
        until(lambda: early.comments > 0, 20)
    assert early.ended() and late.ended()


def test_what_is_not_for_several() -> None:
    with pytest.raises(ConfigError, match="model-names"), several(ScriptedCatalogue("a"), server__model_names="any"):
        pass


def test_a_model_sleeps_by_its_own_knob() -> None:
    config = Config.of({"engine.idle_unload_s": 1})
    catalogue = ScriptedCatalogue("a", config=config)
    with several(catalogue) as live:
        said(live, "a")
        until(lambda: statuses(live)["a"] == "sleeping", 20)
        assert said(live, "a") == "a"


def test_a_reply_is_ended_by_its_id_alone() -> None:
    catalogue = ScriptedCatalogue("a", "b")
    with several(catalogue) as live, ThreadPoolExecutor() as pool:
        said(live, "b")
        gate = ScriptGate(asyncio.Event())
        catalogue["b"].play(text_ids("x"), gate)
        body = {**BODY, "model": "b"}
        running = pool.submit(httpx.post, live.url + CHAT, json=body, headers={"x-request-id": "mine"}, timeout=20)
        until(lambda: catalogue["b"].n_running == 1, 20)
        control = {"id": "mine", "action": "reasoning_end"}
        told = httpx.post(live.url + "/v1/chat/completions/control", json=control).json()
        assert told["success"] is False and "no reply" not in told["message"]
        live.on_loop(gate.event.set)
        assert running.result(20).status_code == 200


def test_the_server_ends_while_somebody_waits() -> None:
    catalogue = ScriptedCatalogue("a")
    catalogue.hosts()
    catalogue["a"].may_load.clear()
    began_s = time.monotonic()
    with several(catalogue) as live, ThreadPoolExecutor() as pool:
        pool.submit(ask, live, "a")
        until(lambda: catalogue.loads == ["a"], 20)
        live.on_loop(lambda: None)
        live.wait(live.services.residency.close())
    assert time.monotonic() - began_s < 30


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": BODY["messages"]}),
        ("/v1/messages", {"messages": BODY["messages"], "max_tokens": 9}),
        ("/completion", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
    ],
)
def test_a_stream_that_survives_its_client_waits_for_its_model_alone(path: str, body: dict[str, Any]) -> None:
    """Its client leaves while the model loads, and reads all of it later, by the stream's name alone."""
    catalogue = ScriptedCatalogue("a", "b")
    catalogue.hosts()
    catalogue["a"].may_load.clear()
    with several(catalogue) as live, httpx.Client(base_url=live.url, timeout=20) as http:
        asked, named = {**body, "model": "a", "stream": True}, {"x-conversation-id": "chat"}
        with pytest.raises(httpx.TimeoutException):
            httpx.post(live.url + path, json=asked, headers=named, timeout=1.0)
        until(lambda: catalogue.loads == ["a"], 20)
        assert http.get("/v1/stream?conv_id=chat").status_code == 503
        live.on_loop(catalogue["a"].may_load.set)
        until(lambda: http.get("/v1/stream?conv_id=chat").status_code == 200, 20)
        text = http.get("/v1/stream?conv_id=chat").text
        assert '"a"' in text and text.endswith("\n\n") and "error" not in text.replace('"error":null', "")
        until(lambda: all(host.n_leases == 0 for host in live.services.models), 20)


def test_a_stream_that_is_stopped_while_its_model_loads() -> None:
    catalogue = ScriptedCatalogue("a")
    catalogue.hosts()
    catalogue["a"].may_load.clear()
    with several(catalogue) as live, ThreadPoolExecutor() as pool:
        body, named = {**BODY, "model": "a", "stream": True}, {"x-conversation-id": "chat"}
        waits = pool.submit(httpx.post, live.url + CHAT, json=body, headers=named, timeout=20)
        until(lambda: catalogue.loads == ["a"], 20)
        assert httpx.delete(live.url + "/v1/stream?conv_id=chat").status_code == 204
        assert waits.result(20).status_code == 400
        live.on_loop(catalogue["a"].may_load.set)
        until(lambda: statuses(live)["a"] == "loaded", 20)
        assert catalogue["a"].requests_seen == [] and live.services.models.find("a").n_leases == 0
