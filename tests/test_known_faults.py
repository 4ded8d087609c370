"""docs/known-faults.md names a proof for each kind of fault, and every proof it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from imp_server.conformance.case import load_cases

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "known-faults.md").read_text()
ROWS = re.findall(r"^\| (?!kind|---)(.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
CASES = {case.id for case in load_cases()}


def functions(path: Path) -> set[str]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)}


@pytest.mark.parametrize(("kind", "proofs"), ROWS, ids=[kind for kind, _ in ROWS])
def test_every_proof_exists(kind: str, proofs: str) -> None:
    for proof in proofs.split(", "):
        file, _, function = proof.partition("::")
        if function:
            assert function in functions(TESTS / file), f"{kind}: {proof}"
        else:
            assert proof in CASES, f"{kind}: {proof}"


def test_no_kind_is_there_twice() -> None:
    kinds = [kind for kind, _ in ROWS]
    assert len(kinds) == len(set(kinds)) >= 100


def test_parts_that_are_not_here() -> None:
    families = (TESTS.parent / "imp" / "imp_server" / "models" / "families").glob("*.py")
    assert not [path.stem for path in families if re.search("mamba|rwkv|recurrent|delta", path.stem)]
