"""--max-queued-tokens and --max-input-tokens: how much prompt may wait, and how long a prompt may be."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest
from imp_server.api.admission.queued_tokens import QueuedTokens
from imp_server.core import Overloaded
from imp_server.engine.client.scripted import ScriptGate as Hold

from tests.api.byte_text import ByteText
from tests.api.conftest import scripted
from tests.api.live_server import LiveServer, live_server
from tests.api.raw_http import BODY, CHAT
from tests.api.test_streams import gate, new_engine
from tests.live.toy_server import toy_server


def test_the_law() -> None:
    queued = QueuedTokens(100)
    large = queued.take(500)  # nothing waits: any size
    with pytest.raises(Overloaded, match="--max-queued-tokens 100") as refused:
        queued.take(1)
    assert refused.value.retry_after_s == 1.0 and queued.n_tokens == 500, "a refusal counts for nothing"
    large.release(430)
    equal = queued.take(30)  # exactly the limit
    with pytest.raises(Overloaded):
        queued.take(1)
    large.release()
    large.release()
    assert queued.n_tokens == 30
    equal.release(99)
    assert queued.n_tokens == 0
    for _ in range(3):
        QueuedTokens(0).take(1 << 40)


def posted_later(live: LiveServer, **more: Any) -> threading.Thread:
    thread = threading.Thread(target=lambda: httpx.post(live.url + CHAT, json=BODY | more, timeout=20), daemon=True)
    thread.start()
    return thread


def until_queued(live: LiveServer, n_requests: int) -> None:
    end = time.monotonic() + 5
    while len(live.engine.requests_seen) < n_requests:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_prompts_that_wait_are_counted_until_they_are_computed() -> None:
    with live_server(new_engine, ByteText, settings={"server.max_queued_tokens": 1}) as live:
        hold = gate(live)
        live.engine.answer_with(lambda _r, _c: [Hold(hold)])
        first = posted_later(live)  # an empty queue takes any size
        until_queued(live, 1)
        n_waiting = live.services.admission.queued.n_tokens
        assert n_waiting == len(live.engine.requests_seen[0].ids) // 4 > 1
        refused = httpx.post(live.url + CHAT, json=BODY)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "--max-queued-tokens" in refused.json()["error"]["message"]
        assert live.services.admission.queued.n_tokens == n_waiting
        assert f"imp_queued_prompt_tokens {n_waiting}" in httpx.get(live.url + "/metrics").text
        live.on_loop(hold.set)
        first.join(10)
        assert live.services.admission.queued.n_tokens == 0
        assert httpx.post(live.url + CHAT, json=BODY).status_code == 200


def test_a_prompt_that_is_answered_waits_no_more() -> None:
    with live_server(new_engine, ByteText, settings={"server.max_queued_tokens": 1}) as live:
        hold = gate(live)
        live.engine.answer_with(lambda _r, _c: [ord("x"), Hold(hold)])
        with httpx.stream("POST", live.url + CHAT, json=BODY | {"stream": True}) as stream:
            next(line for line in stream.iter_lines() if '"x"' in line)
            assert live.services.admission.queued.n_tokens == 0
            with httpx.stream("POST", live.url + CHAT, json=BODY | {"stream": True}) as second:
                assert second.status_code == 200
        live.on_loop(hold.set)


def test_whoever_leaves_or_fails_waits_no_more() -> None:
    with live_server(new_engine, ByteText, settings={"server.max_queued_tokens": 50}) as live:
        hold = gate(live)
        live.engine.answer_with(lambda _r, _c: [Hold(hold)])
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(live.url + CHAT, json=BODY, timeout=0.3)
        end = time.monotonic() + 5
        while live.services.admission.queued.n_tokens:
            assert time.monotonic() < end
            time.sleep(0.01)
        live.on_loop(hold.set)
    with live_server(scripted, ByteText, settings={"server.max_queued_tokens": 50}) as live:
        for body in (BODY | {"logit_bias": {"99999999": 1}}, BODY | {"max_tokens": 0, "n": 2}, BODY):
            httpx.post(live.url + CHAT, json=body)
            assert live.services.admission.queued.n_tokens == 0


def test_the_longest_input_holds_for_whatever_counts_tokens() -> None:
    text = "x" * 50
    message = {"role": "user", "content": text}
    asked: dict[str, dict[str, Any]] = {
        "/tokenize": {"content": text},
        "/detokenize": {"tokens": [120] * 50},
        "/v1/messages/count_tokens": {"model": "toy", "messages": [message]},
        "/v1/responses/input_tokens": {"model": "toy", "input": text},
        "/v1/chat/completions/input_tokens": {"model": "toy", "messages": [message]},
    }
    for most, status in ((49, 400), (500, 200)):
        with toy_server(settings={"server.max_input_tokens": most}) as live:
            for path, body in asked.items():
                reply = httpx.post(live.url + path, json=body, timeout=20)
                assert reply.status_code == status, (path, reply.text)
                if status == 400:
                    assert "max_input_tokens" in reply.text.replace("-", "_"), path
