"""`engine.backend=auto` goes to the reference backend, saying so once, where the cpu backend can't serve."""

from __future__ import annotations

import shlex
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import imp_server.backends as backends
import pytest
from imp_server.backends import make_backend
from imp_server.backends.options import BackendOptions
from imp_server.config.running import CpuSettings
from imp_server.core import ConfigError, UnsupportedModel

from tests.backends.array_source import altered
from tests.backends.cpu.synthetic_models import VARIANTS, SyntheticSource

LLAMA = VARIANTS[0]
REPO = Path(__file__).resolve().parents[3]


def source(**changes: Any) -> SyntheticSource:
    made = SyntheticSource(LLAMA.architecture, LLAMA.types)
    layers = tuple(altered(layer, **changes) for layer in LLAMA.architecture.layers)
    made.architecture = replace(LLAMA.architecture, layers=layers)
    return made


def test_auto_takes_cpu() -> None:
    assert make_backend("auto", source(), BackendOptions(CpuSettings(pack_cache=False))).info.name == "cpu"


def test_what_cpu_lacks_goes_to_reference_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    model = source(causal=False)
    assert make_backend("auto", model, BackendOptions()).info.name == "reference"
    assert len(caplog.records) == 1 and "reference" in caplog.text and "causal" in caplog.text
    with pytest.raises(UnsupportedModel, match="causal"):
        make_backend("cpu", model, BackendOptions())


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    real = backends._module
    monkeypatch.setattr(backends, "_module", lambda name: None if name in missing else real(name))


def test_without_the_library_reference_serves_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without(monkeypatch, "cpu", "cuda")
    assert make_backend("auto", source(), BackendOptions()).info.name == "reference"
    assert "isn't built" in caplog.text


def test_without_anything_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "cpu", "cuda", "reference")
    with pytest.raises(ConfigError, match=r"C\+\+ compiler.*pip install 'torch"):
        make_backend("auto", source(), BackendOptions())


def test_a_backend_that_this_imp_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "cuda")
    with pytest.raises(ConfigError, match="this imp has no backend 'cuda': use --backend auto"):
        make_backend("cuda", source(), BackendOptions())


def test_the_advice_names_what_the_extras_hold() -> None:
    extras = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, packages in backends.NEEDS.items():
        assert shlex.split(packages) == extras[name]
