"""The server that `imp validate` and `imp eval` start for themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from imp_server.cli._chat_server import listed_models
from imp_server.cli._own_server import served
from imp_server.core import ModelFileMissing

pytestmark = pytest.mark.slow


def test_it_is_reached_whatever_is_configured(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LOG_FORMAT": "json", "API_KEY": "secret", "API_PREFIX": "/llm", "HOST": "0.0.0.0"}.items():
        monkeypatch.setenv(f"IMP_{name}", value)
    with served(str(smollm2_path)) as url:
        assert url.startswith("http://127.0.0.1:") and len(listed_models(url, "")) == 1


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelFileMissing, match="can't be served"), served(str(tmp_path / "none.gguf")):
        pass
