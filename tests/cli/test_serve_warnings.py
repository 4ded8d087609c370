"""What `imp serve` says of settings that are allowed, but seldom meant."""

from __future__ import annotations

import pytest
from imp_server.cli import serve
from imp_server.cli.main import run
from imp_server.cli.serve import addresses, warnings
from imp_server.config import Config
from imp_server.core import UnsupportedModel


@pytest.mark.parametrize(("share", "warns"), [(1.0, True), (0.99, False), (0.5, False)])
def test_thinking_that_may_take_everything(share: float, warns: bool) -> None:
    said = list(warnings(Config.of({"reasoning.think_budget": share})))
    assert any("--think-budget" in line for line in said) is warns


@pytest.mark.parametrize(
    ("settings", "warns"),
    [
        ({}, False),
        ({"server.host": ("127.0.0.1",)}, False),
        ({"server.host": ("localhost",)}, False),
        ({"server.host": ("[::1]",)}, False),
        ({"server.host": ("unix:/tmp/x",)}, False),
        ({"server.host": ("0.0.0.0",)}, True),
        (
            {
                "server.host": (
                    "127.0.0.1",
                    "192.0.2.7",
                )
            },
            True,
        ),
        ({"server.host": ("::",)}, True),
        ({"server.host": ("0.0.0.0",), "server.api_key": ("k",)}, False),
        ({"server.host": ("0.0.0.0",), "server.api_key_file": "keys"}, False),
    ],
)
def test_open_to_others_without_a_key(settings: dict[str, object], warns: bool) -> None:
    said = list(warnings(Config.of(settings)))
    assert any("--api-key" in line for line in said) is warns, said


def test_addresses_that_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_own_address", lambda family, far: "2001:db8::7" if ":" in far else "192.0.2.7")
    assert addresses("http://0.0.0.0:80") == ("http://127.0.0.1:80", "http://192.0.2.7:80")
    assert addresses("http://[::]:80") == ("http://[::1]:80", "http://[2001:db8::7]:80")
    assert addresses("http://10.0.0.0:80") == ("http://10.0.0.0:80", "")
    monkeypatch.setattr(serve, "_own_address", lambda family, far: "")
    assert addresses("http://0.0.0.0:80") == ("http://127.0.0.1:80", "")


def test_a_grammar_library_of_another_version_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Started with it, each process that checks grammars would end, and the model would load for ever."""

    def refuse() -> None:
        raise UnsupportedModel("the native grammar library is from another version of imp: run 'make native' again")

    monkeypatch.setattr("imp_server.grammar.machines.abi.grammar_library", refuse)
    assert run(["serve", "--port", "0", "--model", "none"]) == 6
    assert "make native" in capsys.readouterr().err
