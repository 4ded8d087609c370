"""What `imp serve` says of settings that are allowed, but seldom meant."""

from __future__ import annotations

import pytest
from imp_server.cli.serve import warnings
from imp_server.config import Config


@pytest.mark.parametrize(("share", "warns"), [(1.0, True), (0.99, False), (0.5, False)])
def test_thinking_that_may_take_everything(share: float, warns: bool) -> None:
    said = list(warnings(Config.of({"reasoning.think_budget": share})))
    assert any("--think-budget" in line for line in said) is warns
