"""Prediction services of clouds say by AIP_* where a container listens, and under which paths."""

from __future__ import annotations

import pytest
from imp_server.config import Config
from imp_server.config.prediction import for_predictions
from imp_server.core import ConfigError

OURS = Config.of({"server.port": 7000, "server.predict_route": "/ours", "server.health_route": "/well"})


@pytest.fixture(autouse=True)
def no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODE", "HTTP_PORT", "PREDICT_ROUTE", "HEALTH_ROUTE"):
        monkeypatch.delenv(f"AIP_{name}", raising=False)


def heeded(config: Config, monkeypatch: pytest.MonkeyPatch, **said: str) -> tuple[int, str, str]:
    for name, value in said.items():
        monkeypatch.setenv(f"AIP_{name}", value)
    server = for_predictions(config).server
    return server.port, server.predict_route, server.health_route


def test_the_service_knows_better(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"HTTP_PORT": "8085", "PREDICT_ROUTE": "/v1/m:predict", "HEALTH_ROUTE": "v1/m/"}
    assert heeded(OURS, monkeypatch, MODE="PREDICTION", **said) == (8085, "/v1/m:predict", "/v1/m")


def test_what_it_leaves_open_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert heeded(OURS, monkeypatch, MODE="PREDICTION") == (7000, "/ours", "/well")
    assert heeded(Config(), monkeypatch, MODE="PREDICTION")[1:] == ("/predict", "")


@pytest.mark.parametrize("mode", ["", "TRAINING"])
def test_elsewhere_nothing_of_it_counts(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert heeded(OURS, monkeypatch, MODE=mode, HTTP_PORT="x", PREDICT_ROUTE="/p") == (7000, "/ours", "/well")


@pytest.mark.parametrize("port", ["x", "-1", "65536"])
def test_no_port(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="AIP_HTTP_PORT"):
        heeded(OURS, monkeypatch, MODE="PREDICTION", HTTP_PORT=port)
