"""/metrics needs the key like every route, unless metrics.public opens it."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from tests.api.live_server import live_server


@pytest.mark.parametrize(("public", "status"), [(False, 401), (True, 200)])
def test_metrics_and_the_key(public: bool, status: int) -> None:
    settings = {"server.api_key": ["k"], "metrics.public": public}
    with live_server(None, settings=settings) as server:
        try:
            found = urllib.request.urlopen(f"{server.url}/metrics").status
        except urllib.error.HTTPError as error:
            found = error.code
        assert found == status
        operation = server.hub.document()["paths"]["/metrics"]["get"]
        assert (operation["security"] == []) == public
