"""analysis/wheel_tags.py: a wheel's name may promise less than its libraries keep, never more."""

from __future__ import annotations

import pytest

from analysis.wheel_tags import fault

TOLD = 'x.whl is consistent with\nthe following platform tag: "{}".'


@pytest.mark.parametrize(
    ("tag", "needs", "words"),
    [
        ("manylinux_2_27_x86_64", "manylinux_2_27_x86_64", ""),
        ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", ""),
        ("manylinux_2_17_x86_64", "manylinux_2_27_x86_64", "promises more"),
        ("linux_x86_64", "manylinux_2_27_x86_64", "promises more"),
        ("manylinux_2_27_x86_64", "manylinux_2_27_aarch64", "promises more"),
        ("manylinux_2_34_x86_64", "manylinux_2_34_x86_64", "2.28 is promised"),
        ("linux_x86_64", "linux_x86_64", "no manylinux tag"),
    ],
)
def test_a_name_is_held_against_what_the_libraries_need(tag: str, needs: str, words: str) -> None:
    found = fault(tag, TOLD.format(needs))
    assert words in found and bool(words) == bool(found)
