"""What a server's /metrics tells of drafts, by the names that servers have for it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from imp_server.serving_bench.exchange import BenchTarget

_NAMES = (
    ("imp_spec_drafted_total", "imp_spec_accepted_total"),
    ("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"),
)
_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{[^}]*\})?\s+([0-9.eE+-]+)", re.M)


@dataclass(frozen=True, slots=True)
class Drafts:
    n_drafted: float = 0.0
    n_accepted: float = 0.0

    def share_since(self, before: Drafts) -> float | None:
        """Accepted of drafted meanwhile; None if nothing was drafted, or nobody tells."""
        drafted = self.n_drafted - before.n_drafted
        return (self.n_accepted - before.n_accepted) / drafted if drafted > 0 else None


async def drafts(target: BenchTarget) -> Drafts:
    status, body = await target.get("/metrics")
    return told(body.decode(errors="replace")) if status == 200 else Drafts()


def told(text: str) -> Drafts:
    """All labels of a name are added up."""
    sums: dict[str, float] = {}
    for name, value in _LINE.findall(text):
        sums[name] = sums.get(name, 0.0) + float(value)
    for drafted, accepted in _NAMES:
        if drafted in sums:
            return Drafts(sums[drafted], sums.get(accepted, 0.0))
    return Drafts()
