"""Imports point one way (docs/map.md); torch and the environment are touched in their own places only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "imp" / "imp_server"

# What each package imports of ours, besides itself: no more, and no less.
ARROWS: dict[str, set[str]] = {
    "core": set(),
    "resources": {"core"},
    "config": {"core"},
    "logs": {"config"},
    "plan_walk": {"core"},
    "weights": {"core", "config"},
    "models": {"core", "weights"},
    "vocab": {"core", "weights"},
    "native": {"core", "resources", "config"},
    "grammar": {"core", "vocab", "native"},
    "workers": {"core", "config"},
    "decode": {"core"},
    "schedule": {"core", "decode", "backends", "models"},
    "backends": {"core", "config", "models", "decode", "native", "resources"},
    "engine": {"core", "config", "logs", "plan_walk", "vocab", "grammar", "decode", "schedule", "backends", "models"}
    | {"weights"},
    "text": {"core", "config", "plan_walk", "vocab", "weights", "grammar", "workers"},
    "ui": {"core", "workers"},
    "dialects": {"core", "config", "ui"},
    "conformance": {"core", "resources"},
    "degeneration": set(),
    "validating": {"degeneration"},
    "serving_bench": {"core", "degeneration"},
    "api": {"core", "config", "resources", "dialects", "text", "engine", "vocab", "grammar", "workers"}
    | {"ui"},
}  # fmt: skip
# Of some packages others see a part only.
SEEN: dict[tuple[str, str], tuple[str, ...]] = {
    ("api", "engine"): ("client.base", "messages"),
    ("api", "grammar"): ("proving", "whole_schema"),
    ("schedule", "backends"): ("base",),
    ("api", "ui"): ("renderer",),
    ("dialects", "ui"): ("files",),
    ("ui", "workers"): ("child", "client", "jobs", "lasting", "wire"),
    ("text", "weights"): ("header",),
    ("vocab", "weights"): ("header", "key_rules"),
}


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


@cache
def modules() -> tuple[tuple[Path, str, tuple[str, ...]], ...]:
    """Each file of ours with its package and the names it imports."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        names: list[str] = []
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                names += [*inner, *([] if all(map(is_module, inner)) else [node.module or ""])]
        found.append((path, here, tuple(names)))
    return tuple(found)


def arrows(here: str) -> Iterator[tuple[Path, str, str]]:
    """(file, package of ours, what follows its name) for each import that leaves the package."""
    for path, package, names in modules():
        for name in names if package == here else ():
            top, _, rest = name.partition(".")
            there, _, part = rest.partition(".")
            if top == "imp_server" and there not in {"", here, "__version__"}:
                yield path.relative_to(PACKAGE), there, part


def is_of(part: str, seen: str) -> bool:
    """`part` is the module or package that may be seen, within it, or on the way to it."""
    return f"{part}.".startswith(f"{seen}.") or f"{seen}.".startswith(f"{part}." if part else "")


@pytest.mark.parametrize("here", sorted(ARROWS))
def test_arrows(here: str) -> None:
    found: dict[str, set[str]] = {}
    for path, there, part in arrows(here):
        found.setdefault(there, set()).add(str(path))
        seen = SEEN.get((here, there))
        assert seen is None or any(is_of(part, one) for one in seen), f"{path} imports {there}.{part}, not of {seen}"
    assert not (new := {there: found[there] for there in found.keys() - ARROWS[here]}), f"{here} may not import: {new}"
    assert not (gone := ARROWS[here] - found.keys()), f"{here} doesn't import {gone} any more: take the arrows out"


def test_one_file_of_the_engine_knows_grammars() -> None:
    assert {str(path) for path, there, _ in arrows("engine") if there == "grammar"} == {
        "engine/constrained/grammars.py"
    }


def test_the_rooms_of_the_grammar_import_downwards_only() -> None:
    """What a room may import: itself and the rooms named before it; files beside the rooms import all of them."""
    rooms = ["machines", "languages", "values", "frames", "masks"]
    found = []
    for path, package, names in modules():
        here = path.relative_to(PACKAGE).parts[1] if package == "grammar" else ""
        below = rooms[: rooms.index(here) + 1] if here in rooms else rooms
        parts = [n.split(".")[2] for n in names if n.startswith("imp_server.grammar.")]
        beside = {p.stem for p in (PACKAGE / "grammar").glob("*.py")}
        if here in rooms:
            found += [(str(path), part) for part in parts if part not in below and part in {*rooms, *beside}]
    assert found == []


@pytest.mark.parametrize("package", ["schedule", "engine"])
def test_files_of_a_package_import_in_no_circle(package: str) -> None:
    """Not even for types."""
    own = {
        str(path.relative_to(PACKAGE).with_suffix("")).replace("/", "."): names
        for path, here, names in modules()
        if here == package
    }
    left = {name: {n.removeprefix("imp_server.") for n in names} & own.keys() - {name} for name, names in own.items()}
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    assert not left, f"these import each other, or what does: {sorted(left)}"


def test_every_package_has_its_arrows() -> None:
    found = {here for _, here, _ in modules()} - {"__init__", "__main__", "cli", "_native", "_data"}
    assert found == set(ARROWS)


WITH_TORCH = {("backends", "reference"), ("backends", "cuda")}


def test_nothing_imports_cli_and_only_backends_import_torch() -> None:
    for path, here, names in modules():
        for name in names:
            assert here == "cli" or not name.startswith("imp_server.cli"), path
            if name == "torch" or name.startswith("torch."):
                assert path.relative_to(PACKAGE).parts[:2] in WITH_TORCH, path


def test_only_config_reads_the_environment() -> None:
    for path, here, _ in modules():
        text = path.read_text()
        if here != "config":
            assert "os.environ" not in text and "getenv" not in text, path


def files() -> dict[Path, str]:
    """Each file with the name of its module."""
    found = {}
    for path, _, _ in modules():
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[path] = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return found


def in_circles(graph: dict[str, set[str]]) -> set[str]:
    """Files that import each other by way of others, and those that lie between such circles."""
    left = set(graph)
    while True:
        imported = set[str]().union(*(graph[name] & left for name in left))
        inner = {name for name in left & imported if graph[name] & left}
        if inner == left:
            return left
        left = inner


def test_no_files_import_each_other() -> None:
    known = files()
    graph: dict[str, set[str]] = {name: set() for name in known.values()}
    for path, _, names in modules():
        graph[known[path]] = {name for name in names if name in graph} - {known[path]}
    assert len(graph) > 500 and sum(map(len, graph.values())) > 2000
    assert in_circles(graph) == set()


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"f"}, "f": {"g"}, "g": {"e"}, "h": {"d"}}
    assert in_circles(graph) == set("bcefg")
