"""What the README's examples import is installed with imp, or the README says how before it is needed."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = {name: (ROOT / name).read_text() for name in ("README.md", "docs/clients.md")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OWN = {re.split(r"[<>=\[;]", line)[0].strip() for line in PROJECT["dependencies"]} | set(sys.stdlib_module_names)
MADE_OF = {
    "pydantic": "openai",
    "agents": "openai-agents",
    "langchain_openai": "langchain-openai",
    "langchain_anthropic": "langchain-anthropic",
}
"""What is imported -> the package that brings it."""


def imported(page: str) -> list[tuple[str, int]]:
    """(package, where the page has its example), of every import of a Python block."""
    blocks = re.finditer(r"```python\n(.*?)```", page, re.DOTALL)
    return [(name, b.start()) for b in blocks for name in re.findall(r"(?m)^(?:from|import) (\w+)", b.group(1))]


@pytest.mark.parametrize("name", PAGES)
def test_an_example_can_be_run_by_who_followed_the_page(name: str) -> None:
    page = PAGES[name]
    found = imported(page)
    assert found
    for package, place in found:
        if package in OWN:
            continue
        told = re.findall(r"pip install ([\w \-\[\]']+)", page[:place])
        assert MADE_OF.get(package, package) in " ".join(told).split(), package
