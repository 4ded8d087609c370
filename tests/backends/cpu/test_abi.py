"""A library whose shared structs differ from Python's in any field is refused, by the name of that field."""

from __future__ import annotations

import pytest
from imp_server.backends.cpu.abi import fields_here, fields_there, library, refuse_another_version
from imp_server.core import UnsupportedModel


def test_every_field_lies_where_the_library_has_it() -> None:
    there = fields_there(library())
    assert len(there) > 100 and there == fields_here()


@pytest.mark.parametrize(
    "change",
    [
        lambda there: there.update({"StepPlan.ids": there["StepPlan.positions"], "StepPlan.positions": 0}),  # swapped
        lambda there: there.pop("SamplerPlan.top_k"),
        lambda there: there.update({"SamplerPlan.newer": 8}),
        lambda there: there.update({"Matrix": there["Matrix"] + 8}),
        lambda there: there.clear(),
    ],
)
def test_any_difference_is_another_version(change: object) -> None:
    there = fields_here()
    assert callable(change)
    change(there)
    with pytest.raises(UnsupportedModel, match=r"another version of imp \(\w+(\.\w+)? differs\): run 'make native'"):
        refuse_another_version(there)
