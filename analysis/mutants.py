"""How many small faults the tests notice: a seeded sample of mutants, each run against the tests nearest to it.

    python analysis/mutants.py --count 60 --seed 1 [--only grammar/] [--jobs 2]

A mutant is one changed place of one file: a comparison turned, a constant moved by one, a condition negated, `and` for
`or`, a statement's value dropped. The package and its tests are copied, so the checkout stays as it is. Survivors are
listed with file and line; somebody has to look which of them mean the same as the original.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("imp/imp_server")
CARRIED = ("imp", "tests", "spec", "kernels", "conformance", "analysis", "docs", "pyproject.toml", "README.md")
CARRIED_TOO = ("build_native.py", "Makefile", "LICENSE", ".github")
LIMIT_S = 600
"""A mutant that takes longer hangs: its tests have noticed it."""

TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
SWAPPED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    path: Path
    """Relative to the checkout."""
    line: int
    change: str
    text: str
    """The whole file, changed."""


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Each way to change this node alone: (in words, the node instead)."""
    new = deepcopy(node)
    if isinstance(new, ast.Compare) and type(new.ops[0]) in TURNED:
        was = type(new.ops[0])
        new.ops[0] = TURNED[was]()
        yield f"{was.__name__} -> {TURNED[was].__name__}", new
    elif isinstance(new, ast.BinOp) and type(new.op) in SWAPPED:
        was_op = type(new.op)
        new.op = SWAPPED[was_op]()
        yield f"{was_op.__name__} -> {SWAPPED[was_op].__name__}", new
    elif isinstance(new, ast.BoolOp):
        new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
        yield "and <-> or", new
    elif isinstance(new, ast.Constant) and isinstance(new.value, bool):
        new.value = not new.value
        yield f"{not new.value} -> {new.value}", new
    elif isinstance(new, ast.Constant) and isinstance(new.value, int):
        new.value += 1
        yield f"{new.value - 1} -> {new.value}", new
    elif isinstance(new, ast.If | ast.While | ast.IfExp):
        new.test = ast.UnaryOp(ast.Not(), new.test)
        yield "condition negated", new
    elif isinstance(new, ast.Return) and new.value is not None:
        new.value = ast.Constant(None)
        yield "returns None", new
    elif isinstance(new, ast.Expr) and isinstance(new.value, ast.Call):
        yield "call left out", ast.Pass()


class Exchange(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return ast.copy_location(self.new, node) if node is self.old else self.generic_visit(node)


def places(tree: ast.Module) -> list[ast.AST]:
    """Nodes inside functions: a changed default or table at module level is another kind of fault."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(n): n for function in functions for statement in function.body for n in ast.walk(statement)}
    return [node for node in inside.values() if hasattr(node, "lineno") and any(True for _ in changes(node))]


def sample(count: int, seed: int, only: str) -> list[Mutant]:
    """Files are drawn by how many places they have, so every place is as likely as any other."""
    chance = random.Random(seed)
    files = [p for p in sorted((ROOT / PACKAGE).rglob("*.py")) if only in str(p.relative_to(ROOT / PACKAGE))]
    trees = {path: ast.parse(path.read_text()) for path in files}
    all_places = [(path, index) for path, tree in trees.items() for index in range(len(places(tree)))]
    found = []
    for path, index in chance.sample(all_places, min(count, len(all_places))):
        tree = deepcopy(trees[path])
        node = places(tree)[index]
        change, new = chance.choice(list(changes(node)))
        line = getattr(node, "lineno", 0)
        text = ast.unparse(ast.fix_missing_locations(Exchange(node, new).visit(tree)))
        found.append(Mutant(path.relative_to(ROOT), line, change, text))
    return found


def nearest_tests(path: Path) -> list[str]:
    """The test file that is named after the module, and the folder that mirrors its package."""
    below = path.relative_to(PACKAGE)
    folder = Path("tests", *below.parts[:-1])
    while not (ROOT / folder).is_dir():
        folder = folder.parent
    named = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob(f"test_{path.stem}.py"))
    return [*named, "tests" if folder == Path("tests") else str(folder)]


def is_noticed(mutant: Mutant, tree: Path) -> bool:
    target = tree / mutant.path
    original = target.read_text()
    target.write_text(mutant.text)
    path = os.pathsep.join([str(tree / "imp"), str(tree)])
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--durations=0"]
    try:
        done = subprocess.run(
            [*command, *nearest_tests(mutant.path)],
            cwd=tree, env={**os.environ, "PYTHONPATH": path}, capture_output=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        return done.returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        target.write_text(original)


def copied(into: Path) -> Path:
    for name in (*CARRIED, *CARRIED_TOO):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, into / name, ignore=shutil.ignore_patterns("__pycache__", ".mypy_cache"))
        elif source.exists():
            shutil.copy(source, into / name)
    return into


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="files whose path holds this")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    mutants = sample(asked.count, asked.seed, asked.only)
    survivors = []
    with tempfile.TemporaryDirectory() as scratch:
        trees: Queue[Path] = Queue()
        for job in range(asked.jobs):
            trees.put(copied(Path(scratch) / str(job)))

        def run(mutant: Mutant) -> bool:
            tree = trees.get()
            try:
                return is_noticed(mutant, tree)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(asked.jobs) as pool:
            for mutant, noticed in zip(mutants, pool.map(run, mutants), strict=True):
                place = f"{mutant.path}:{mutant.line}: {mutant.change}"
                print(f"{'noticed ' if noticed else 'SURVIVED'} {place}", flush=True)
                survivors += [] if noticed else [place]
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} noticed; survivors:", *survivors, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
