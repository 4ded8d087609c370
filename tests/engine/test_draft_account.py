"""A draft model that doesn't pay costs a bounded share of the time; one that pays isn't held up. On a fake device.

The device's clock moves by what steps, drafts and reading cost; tokens are accepted with a known probability.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from imp_server.core import CacheMarks, GenerationOptions, SamplingParams
from imp_server.decode.drafter import ANY_ROWS, Draft, DraftedRow, Float32s, RowDrafter
from imp_server.engine.choice import Counts
from imp_server.engine.drafting.speculation import Speculation
from imp_server.engine.live import LiveRow
from imp_server.schedule.cost import CostTable


class Facts(SimpleNamespace):
    """What speculation looks at of a row."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class Clock:
    """Seconds."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def take(self, ms: float) -> None:
        self.now_s += ms / 1e3


class FakeRow:
    silent_until = 0

    def __init__(self, n_prompt: int) -> None:
        self.n_unread = n_prompt

    def propose(self, limit: int) -> Draft:
        raise AssertionError

    def settle(self, n_drafted: int, n_accepted: int) -> None:
        return None

    def take_hidden(self, position: int, hidden: Float32s) -> None:
        return None

    def close(self) -> None:
        return None


@dataclass
class FakeModel:
    """A small model: `price` ms per drafted token, `reading` ms per prompt token, 25 ms of that in a step at most."""

    clock: Clock
    price: float
    reading: float = 0.1
    n_prompt: int = 100
    k: int = 8
    name: str = "model"
    confidence: float = 0.7
    wants_hidden: bool = False
    most_rows: int = ANY_ROWS
    n_drafted: int = 0

    def start(self, row: DraftedRow) -> RowDrafter:
        return FakeRow(self.n_prompt)

    def price_ms(self, n_rows: int) -> float:
        return self.price

    def behind_ms(self, row: RowDrafter) -> float:
        assert isinstance(row, FakeRow)
        return row.n_unread * self.reading

    def propose_all(self, asked: Sequence[tuple[RowDrafter, int]]) -> list[Draft]:
        drafts = []
        for row, n in asked:
            assert isinstance(row, FakeRow)
            read = min(row.n_unread, int(25 / self.reading))
            row.n_unread -= read
            self.clock.take(read * self.reading)
            n = 0 if row.n_unread else n
            self.clock.take(n * self.price)
            self.n_drafted += n
            drafts.append(Draft(np.ones(n, dtype=np.int32)))
        return drafts

    def counters(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        return None


@dataclass
class Device:
    """Plays requests one after another; a plain step takes 20 ms, a drafted position a tenth of that."""

    accept: float
    price: float
    n_prompt: int = 100
    reading: float = 0.1
    random: random.Random = field(default_factory=lambda: random.Random(1))

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.costs = CostTable()
        for n in (1, 2, 4, 8, 16):
            self.costs.observe(n, 18.0 + 2.0 * n)
        self.model = FakeModel(self.clock, self.price, self.reading, self.n_prompt)
        self.speculation = Speculation([self.model], costs=self.costs, clock=self.clock)

    def speed(self, n_requests: int, n_tokens: int) -> float:
        """Of these requests: plain time over theirs."""
        began = self.clock.now_s
        for _ in range(n_requests):
            self._request(n_tokens)
        return n_requests * n_tokens * 20.0 / (1e3 * (self.clock.now_s - began))

    def _request(self, n_tokens: int) -> None:
        request = Facts(options=GenerationOptions(), prediction=b"", cache=CacheMarks())
        sampler = Facts(position=0, length=0, n_prompt=0, params=SamplingParams())
        row = Facts(drafts=np.empty(0, np.int32), sampler=sampler)
        output = Facts(counts=Counts(), request=request, room_left=n_tokens)
        live = cast(LiveRow, Facts(row=row, output=output, grammar=None, drafting=None))
        while output.room_left > 0:
            n_done = self._step(live, row)
            output.room_left -= n_done
            sampler.position += n_done

    def _step(self, live: LiveRow, row: Any) -> int:
        self.speculation.propose([live])
        n = len(row.drafts)
        ms = self.costs.estimate_ms(1 + n)
        self.clock.take(ms)
        self.speculation.note_verified([live] if n else [], ms)
        if not n:
            return 1
        n_accepted = next((i for i in range(n) if self.random.random() > self.accept), n)
        self.speculation.settle(live, n, n_accepted)
        return 1 + n_accepted


@pytest.mark.parametrize("accept", [0.0, 0.2, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("price", [0.5, 4.0, 10.0, 20.0])
@pytest.mark.parametrize(("n_prompt", "n_tokens"), [(100, 200), (4000, 30)])
def test_never_below_0_97(accept: float, price: float, n_prompt: int, n_tokens: int) -> None:
    """Price 20 is the model itself. Long prompts for short replies are read in vain."""
    device = Device(accept, price, n_prompt)
    first = device.speed(30, n_tokens)
    assert first > 1.0 - 0.025 - 1000.0 / (30 * n_tokens * 20.0), "but for the second that every start may lose"
    assert device.speed(60, n_tokens) >= 0.97


def test_a_good_draft_model_gains() -> None:
    device = Device(accept=0.8, price=2.0)
    assert device.speed(5, 200) > 1.6, "from the first request on"
    assert device.speed(20, 200) > 1.6
    cheap = Device(accept=0.9, price=0.5)
    assert cheap.speed(20, 200) > 2.5


def test_a_long_prompt_is_read_where_the_reply_is_long() -> None:
    device = Device(accept=0.8, price=1.0, n_prompt=4000)
    assert device.speed(20, 800) > 1.5


def test_the_model_itself_is_never_asked_to_draft() -> None:
    device = Device(accept=1.0, price=20.0)
    assert device.speed(10, 200) == pytest.approx(1.0)
    assert not device.model.n_drafted and device.speculation.counters()["spec_model_draft_wall_ms_total"] == 0
    assert device.speculation.counters()['spec_declined_total{reason="cost"}'] > 1000


def test_reading_that_the_longest_reply_can_not_repay_is_not_begun() -> None:
    device = Device(accept=1.0, price=0.5, n_prompt=4000)
    assert device.speed(3, 8) == pytest.approx(1.0)


def test_what_is_asked_may_change() -> None:
    device = Device(accept=0.9, price=1.0)
    assert device.speed(20, 200) > 1.5
    device.accept = 0.0
    device.speed(20, 200)
    assert device.speed(40, 200) >= 0.97
    device.accept = 0.9
    device.speed(20, 200)
    assert device.speed(40, 200) > 1.5, "and back"
