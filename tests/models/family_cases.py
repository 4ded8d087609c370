"""One tiny model of each family, at least one whole pattern of its layers each."""

from __future__ import annotations

from tests.models.cases_dense import DENSE
from tests.models.cases_experts import MIXTURES
from tests.models.cases_later import LATER
from tests.models.oracle import Case

CASES: dict[str, Case] = DENSE | MIXTURES | LATER
