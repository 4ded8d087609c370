"""/metrics needs no key, unless metrics.require_auth asks for one."""

from __future__ import annotations

import httpx
import pytest

from tests.api.live_server import live_server


@pytest.mark.parametrize(("require_auth", "status"), [(True, 401), (False, 200)])
def test_metrics_and_the_key(require_auth: bool, status: int) -> None:
    settings = {"server.api_key": ["k"], "metrics.require_auth": require_auth}
    with live_server(None, settings=settings) as server:
        assert httpx.get(f"{server.url}/metrics").status_code == status
        assert httpx.get(f"{server.url}/metrics", headers={"x-api-key": "k"}).status_code == 200
        operation = server.services.document()["paths"]["/metrics"]["get"]
        assert (operation["security"] == []) == (not require_auth)
