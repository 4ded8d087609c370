"""Imports point one way (docs/map.md); torch and the environment are touched in their own places only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "imp" / "imp_server"

# What each package may import of ours, besides itself.
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "resources": {"core"},
    "config": {"core", "resources"},
    "logs": {"config"},
    "output": {"core"},
    "weights": {"core", "config", "resources"},
    "models": {"core", "weights"},
    "vocab": {"core", "weights"},
    "native": {"core", "resources", "config"},
    "grammar": {"core", "vocab", "native"},
    "decode": {"core", "vocab", "native"},
    "schedule": {"core", "config", "output", "decode", "grammar", "vocab", "backends", "models"},
    "backends": {"core", "config", "resources", "models", "weights", "decode", "native"},
    "engine": {"core", "config", "resources", "output", "vocab", "grammar", "decode", "schedule", "backends"}
    | {"models", "weights", "logs"},
    "text": {"core", "config", "output", "vocab", "weights", "grammar", "resources"},
    "dialects": {"core", "text", "config"},
    "conformance": {"core", "resources"},
    "api": {"core", "config", "resources", "dialects", "text", "engine", "vocab", "weights", "grammar", "output"},
}  # fmt: skip
ENGINE_FOR_API = ("imp_server.engine.client", "imp_server.engine.messages")


def modules() -> Iterator[tuple[Path, str, list[str]]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        names: list[str] = []
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                names.append(node.module or "")
                names += [f"{node.module}.{alias.name}" for alias in node.names]
        yield path, here, names


@pytest.mark.parametrize("here", sorted(MAY_IMPORT))
def test_arrows(here: str) -> None:
    wrong = []
    for path, package, names in modules():
        if package != here:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] != "imp_server" or len(parts) < 2:
                continue
            there = parts[1]
            if there not in MAY_IMPORT[here] | {here, "__version__"}:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
            if here == "api" and there == "engine" and not name.startswith(ENGINE_FOR_API):
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}: only EngineClient is for api")
    assert not wrong


def test_every_package_has_its_arrows() -> None:
    found = {here for _, here, _ in modules()} - {"__init__", "__main__", "cli", "_native", "_data"}
    assert found <= set(MAY_IMPORT), found - set(MAY_IMPORT)


def test_nothing_imports_cli_and_only_backends_import_torch() -> None:
    for path, here, names in modules():
        for name in names:
            assert here == "cli" or not name.startswith("imp_server.cli"), path
            if name == "torch" or name.startswith("torch."):
                assert path.relative_to(PACKAGE).parts[:2] in {("backends", "reference"), ("backends", "cuda")}, path


def test_only_config_reads_the_environment() -> None:
    for path, here, _ in modules():
        text = path.read_text()
        if here != "config":
            assert "os.environ" not in text and "getenv" not in text, path
