"""While a model is loaded on demand for it, a named stream is parked: it can be stopped, and it outlives its client."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.api import raw_http
from tests.api.live_server import LiveServer
from tests.api.resumable.streams import DIALECTS, code_of, read, stop, until
from tests.api.router.several import ScriptedCatalogue, several, statuses


def begin(live: LiveServer, name: str, path: str, **more: Any) -> Any:
    sock = raw_http.connect(live.url)
    asked = {"model": "a"} | DIALECTS[path] | more
    sock.sendall(raw_http.posted(asked, f"x-conversation-id: {name}", path=path))
    return sock


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/completion"])
def test_a_parked_request(path: str) -> None:
    with several(ScriptedCatalogue("a", "b", load_seconds=2.5)) as live:
        stays, stopped = begin(live, "stays", path), begin(live, "stopped", path)
        begin(live, "left", path).close()
        for name in ("stays", "stopped", "left"):
            until(lambda: read(live, name).status_code == 503)  # noqa: B023
            early = read(live, name)
            assert (early.headers["retry-after"], code_of(early)) == ("2", "stream_not_begun")
        assert stop(live, "stopped") == 204
        status, _, data = raw_http.answer(stopped)
        assert status == 400 and b"cancelled" in data and read(live, "stopped").status_code == 404
        assert stays.recv(12) == b"HTTP/1.1 200"
        for name in ("stays", "left"):
            until(lambda: read(live, name).status_code == 200, 10)  # noqa: B023
            assert b"a" in read(live, name).content
        until(lambda: all(host.n_leases == 0 for host in live.services.models))


def test_a_stop_takes_the_claim_for_the_model_along() -> None:
    catalogue = ScriptedCatalogue("a", "b", load_seconds=0.5)
    with several(catalogue) as live:
        sock = begin(live, "stopped", "/v1/chat/completions")
        until(lambda: statuses(live)["a"] == "loading")
        assert stop(live, "stopped") == 204
        assert json.loads(raw_http.answer(sock)[2])["error"]["code"] == "request_cancelled"
        until(lambda: live.services.admission.gate.n_taken == 0)
        assert all(host.n_leases == 0 for host in live.services.models)
        refused = httpx.post(
            f"{live.url}/v1/chat/completions",
            json={"model": "nobody", "stream": True, "messages": [{"role": "user", "content": "x"}]},
            headers={"x-conversation-id": "stopped"},
        )
        assert refused.status_code == 404 and read(live, "stopped").status_code == 404
