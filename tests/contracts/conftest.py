"""The seed of the long runs: `make fuzz` takes another one each day, and says which where something fails."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz-seed", type=int, default=2, help="of the long runs of tests/contracts")


@pytest.fixture
def fuzz_seed(request: pytest.FixtureRequest) -> int:
    # the option is unknown where pytest wasn't started on this folder
    seed: int = request.config.getoption("--fuzz-seed", default=2)
    return seed
