"""The JSON-Schema-Test-Suite 2020-12: every group is right, or an honest refusal; nothing invalid is accepted."""

from __future__ import annotations

import pytest
from imp_server.core import GrammarRefused, GrammarUnsatisfiable
from imp_server.grammar.languages.formats import ENFORCED, format_machine

from tests.grammar.judging import matcher, reads
from tests.grammar.suite import Group, groups, spelled
from tests.grammar.test_regex import accepted

pytestmark = pytest.mark.timeout(180)

REFUSED = {
    # another set of vocabularies, declared in a document that isn't ours to fetch
    "vocabulary": "vocabularies",
    # remote documents are never fetched
    "dynamicRef": "leads outside",
    "refRemote": "leads outside",
}

ANNOTATION = "only an annotation by default"
"""Tests that demand a value which breaks its `format` be accepted: enforcing formats is a documented deviation."""


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
    deviating = {n for n, o in outcomes.items() if n.startswith("format:") and o.endswith(ANNOTATION)}
    assert len(deviating) <= len(ENFORCED)
    wrong = {n: o for n, o in outcomes.items() if o != "right" and not o.startswith("refused") and n not in deviating}
    assert not wrong
    unexpected = {
        n: o
        for n, o in outcomes.items()
        if o.startswith("refused") and REFUSED.get(n.partition(":")[0], "never") not in o
    }
    assert not unexpected
    assert not [o for o in outcomes.values() if "refused at nowhere" in o]
    assert sum(o == "right" for o in outcomes.values()) >= 333


OLDER = {
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft4": "http://json-schema.org/draft-04/schema#",
}


@pytest.mark.parametrize(
    ("draft", "n_right"),
    [
        pytest.param("draft2019-09", 344, marks=pytest.mark.slow),  # nearly all of it stands in the newest one, too
        ("draft7", 243),
        pytest.param("draft6", 220, marks=pytest.mark.slow),  # and all of this in draft 7
        ("draft4", 151),
    ],
)
def test_required_part_of_older_drafts(draft: str, n_right: int) -> None:
    """Their groups name no draft, so each gets its own."""
    outcomes = {}
    for group in groups(draft=draft):
        schema = group.schema
        named = {"$schema": OLDER[draft], **schema} if isinstance(schema, dict) else schema
        outcomes[group.name] = outcome(group._replace(schema=named))
    wrong = {name: o for name, o in outcomes.items() if o != "right" and not o.startswith("refused")}
    assert wrong == {}
    refused = [o for o in outcomes.values() if o.startswith("refused")]
    assert [o for o in refused if "leads outside" not in o and "vocabularies are unknown" not in o] == []
    assert sum(o == "right" for o in outcomes.values()) >= n_right


def test_formats_of_the_optional_part() -> None:
    """Every enforced format, on the suite's own texts. Leap seconds aren't offered: other validators reject them."""
    wrong = []
    n_texts = 0
    for group in groups(optional=True):
        name = group.file.partition("format/")[2]
        if name not in ENFORCED:
            continue
        for test in group.tests:
            if isinstance(test["data"], str):
                n_texts += 1
                if accepted(format_machine(name), test["data"]) != test["valid"]:
                    wrong.append((name, test["data"]))
    assert n_texts > 250
    assert [(name, text) for name, text in wrong if not (name in ("time", "date-time") and ":60" in text)] == []
