"""The cases themselves: they load, their ids are theirs for ever, their needs are capabilities."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from imp_server.conformance.capabilities import questions
from imp_server.conformance.case import load_cases, load_known_failures
from imp_server.core import ConfigError

CASE = "- {id: a/b/1, requires: r, source: s, steps: [{get: /x, expect: ['status == 200']}]}\n"


def test_there_are_enough_over_all_dialects() -> None:
    cases = load_cases()
    assert len(cases) >= 250
    per_dialect = Counter(case.dialect for case in cases)
    assert per_dialect["openai-chat"] >= 70 and per_dialect["anthropic-messages"] >= 50
    assert per_dialect["openai-responses"] >= 45 and len(per_dialect) >= 9


def test_every_case_asks_something_of_some_reply() -> None:
    capabilities = {name for name, *_ in questions("m")} | {"auth", "suspend"}
    for case in load_cases():
        assert any(step.expect for step in case.steps), case.id
        assert any(step.request for step in case.steps), case.id
        assert set(case.needs) <= capabilities, case.id
        assert case.requires.endswith(".") and case.source, case.id


def test_a_group_is_numbered_from_one_without_gaps() -> None:
    groups: dict[str, list[int]] = {}
    for case in load_cases():
        group, _, number = case.id.rpartition("/")
        groups.setdefault(group, []).append(int(number))
    for group, numbers in groups.items():
        assert numbers == list(range(1, len(numbers) + 1)), group


@pytest.mark.parametrize(
    "text",
    [CASE * 2, CASE.replace("a/b/1", "a/b"), CASE.replace("requires", "wants"), CASE.replace("get:", "x:"), "{"],
)
def test_broken_files_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError):
        load_cases(tmp_path)


def test_known_failures(tmp_path: Path) -> None:
    path = tmp_path / "known.yaml"
    path.write_text("- {id: a/b/1, reason: issue 7}\n")
    assert load_known_failures(path) == {"a/b/1": "issue 7"}
    path.write_text("- {id: a/b/1}\n")
    with pytest.raises(ConfigError):
        load_known_failures(path)
