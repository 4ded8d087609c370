"""The sizes and names that keep files readable: each file one idea, each function on a screen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 59
NAMES_OF_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc"}


@lru_cache
def sources(folder: str) -> tuple[Path, ...]:
    found = tuple(sorted((ROOT / folder).rglob("*.py")))
    assert found, f"{folder} has no sources"
    return found


def long_files(path: Path, text: str) -> Iterator[str]:
    n_lines = len(text.splitlines())
    if n_lines > MAX_FILE_LINES:
        yield f"{path}: {n_lines} lines"


def long_functions(path: Path, text: str) -> Iterator[str]:
    todo: list[ast.AST] = [ast.parse(text)] if len(text.splitlines()) > MAX_FUNCTION_LINES else []
    while todo:
        node = todo.pop()
        n_lines = getattr(node, "end_lineno", 1 << 30) - getattr(node, "lineno", 0) + 1
        if n_lines <= MAX_FUNCTION_LINES:
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{path}:{node.lineno} {node.name}: {n_lines} lines"
        todo += ast.iter_child_nodes(node)


def names_of_nothing(path: Path, text: str) -> Iterator[str]:
    if NAMES_OF_NOTHING & {part.strip("_").removesuffix(".py") for part in path.parts}:
        yield str(path)


def missing_docstrings(path: Path, text: str) -> Iterator[str]:
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    first = next(lines, None)
    if first is not None and not first.lstrip("r").startswith(('"""', "'''")):
        yield str(path)


CODE = ("imp", "tests", "analysis")
RULES = {
    long_files: CODE,
    long_functions: CODE,
    names_of_nothing: CODE,
    missing_docstrings: ("imp",),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: object) -> None:
    assert callable(rule)
    broken = [
        line
        for folder in RULES[rule]
        for path in sources(folder)
        for line in rule(path.relative_to(ROOT), path.read_text(encoding="utf-8"))
    ]
    assert not broken, "\n".join(broken)


def test_the_rules_find_what_they_forbid() -> None:
    body = "\n".join(f"    x = {i}" for i in range(59))
    assert list(long_functions(Path("a.py"), f"def f():\n{body}\n")) == ["a.py:1 f: 60 lines"]
    assert list(long_functions(Path("a.py"), "def f():\n    pass\n")) == []
    assert list(long_files(Path("a.py"), "\n" * 601)) == ["a.py: 601 lines"]
    assert list(long_files(Path("a.py"), "\n" * 600)) == []
    assert list(names_of_nothing(Path("imp/_helpers.py"), "")) == ["imp/_helpers.py"]
    assert list(names_of_nothing(Path("imp/utils/x.py"), "")) == ["imp/utils/x.py"]
    assert list(names_of_nothing(Path("imp/useful.py"), "")) == []
    assert list(missing_docstrings(Path("a.py"), "x = 1\n")) == ["a.py"]


# Classes that share a name, and why.
TWINS = {
    "AdapterShare": "what a row takes, and its mirror in native memory",
    "Alt": "a node of an envelope and of a regex: each notation's tree has its own",
    "End": "a node of an envelope and of a regex",
    "Ref": "a node of an envelope and of a Lark grammar",
    "Repeat": "a node of an envelope and of a regex",
    "TableChanges": "a step's part, and its mirror in native memory: such mirrors are called as the library calls them",
}


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path in sources("imp"):
        for name in re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), flags=re.M):
            places.setdefault(name, []).append(str(path.relative_to(ROOT)))
    twins = {name: found for name, found in places.items() if len(found) > 1}
    assert len(places) > 900
    assert {name: found for name, found in twins.items() if name not in TWINS} == {}
    assert TWINS.keys() <= twins.keys()
