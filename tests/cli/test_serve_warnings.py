"""What `imp serve` says of settings that are allowed, but seldom meant."""

from __future__ import annotations

import pytest
from imp_server.cli.serve import addresses, warnings
from imp_server.config import Config


@pytest.mark.parametrize(("share", "warns"), [(1.0, True), (0.99, False), (0.5, False)])
def test_thinking_that_may_take_everything(share: float, warns: bool) -> None:
    said = list(warnings(Config.of({"reasoning.think_budget": share})))
    assert any("--think-budget" in line for line in said) is warns


@pytest.mark.parametrize(
    ("hosts", "keys", "warns"),
    [
        (("0.0.0.0",), (), True),
        (("127.0.0.1", "::"), (), True),
        (("192.168.1.4",), (), True),
        (("example.org",), (), True),
        (("0.0.0.0",), ("k",), False),
        (("127.0.0.1", "127.0.0.2", "::1", "localhost", "unix:/run/imp.sock"), (), False),
    ],
)
def test_a_server_that_is_open_to_everybody(hosts: tuple[str, ...], keys: tuple[str, ...], warns: bool) -> None:
    said = list(warnings(Config.of({"server.host": hosts, "server.api_key": keys})))
    assert any("--api-key" in line for line in said) is warns


def test_addresses_that_work() -> None:
    assert addresses("http://127.0.0.1:8080") == ["http://127.0.0.1:8080"]
    first, *others = addresses("http://0.0.0.0:8080")
    assert first == "http://127.0.0.1:8080" and len(others) <= 1
    assert all(one.startswith("http://") and one.endswith(":8080") and "0.0.0.0" not in one for one in others)
    assert addresses("http://[::]:1")[0] == "http://[::1]:1"
