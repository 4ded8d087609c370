"""The JSON-Schema-Test-Suite 2020-12: every group is right, or an honest refusal; nothing invalid is accepted."""

from __future__ import annotations

import pytest
from imp_server.core import GrammarRefused, GrammarUnsatisfiable

from tests.grammar.judging import matcher, reads
from tests.grammar.suite import Group, groups, spelled

pytestmark = pytest.mark.timeout(180)

REFUSED = {
    # another set of vocabularies, declared in a document that isn't ours to fetch
    "vocabulary": "vocabularies",
    # remote documents are never fetched
    "dynamicRef": "leads outside",
    "refRemote": "leads outside",
    "ref": "leads outside",
    "defs": "leads outside",
}


def outcome(group: Group) -> str:
    """right | refused | a description of the first wrong answer."""
    try:
        m = matcher(group.schema, integers="any")
    except GrammarUnsatisfiable:
        valid = [t["description"] for t in group.tests if t["valid"]]
        return f"called unsatisfiable, but valid: {valid}" if valid else "right"
    except GrammarRefused as refusal:
        return f"refused at {refusal.pointer or 'nowhere'}: {refusal.message}"
    for test in group.tests:
        if reads(m, spelled(test["data"])) != test["valid"]:
            return ("false reject" if test["valid"] else "false accept") + f": {test['description']}"
    return "right"


def test_required_part() -> None:
    outcomes = {g.name: outcome(g) for g in groups()}
    assert len(outcomes) >= 365
    wrong = {n: o for n, o in outcomes.items() if o != "right" and not o.startswith("refused")}
    assert not wrong
    unexpected = {
        n: o
        for n, o in outcomes.items()
        if o.startswith("refused") and REFUSED.get(n.partition(":")[0], "never") not in o
    }
    assert not unexpected
    assert not [o for o in outcomes.values() if "refused at nowhere" in o]
    assert sum(o == "right" for o in outcomes.values()) >= 315
