"""What the queue of loads is worked on for, and who is still in memory."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from imp_server.api.router.residency import Residency, Room
from imp_server.core.errand import Errand, current_errand, running


class Host(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def host(**fields: Any) -> Any:
    usual = {"is_queued": False, "on_demand": True, "rest": "", "is_idle": True, "used_s": 0.0, "memory_bytes": 1}
    return Host(**usual | fields, tell=lambda: None, client=SimpleNamespace(state="ready"))


def test_loads_are_done_for_nobody_in_particular(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the leaving of the client that happened to be first would fail those of all others."""

    async def check() -> None:
        errand, seen = Errand(), list[bool]()
        residency = Residency(list, None)  # type: ignore[arg-type]

        async def work() -> None:
            seen.append(current_errand() is errand)

        monkeypatch.setattr(residency, "_work", work)
        with running(errand):
            residency._turn_of(host())
        assert residency._worker is not None
        await residency._worker
        assert seen == [False]

    asyncio.run(check())


def test_who_starts_again_may_go_and_who_goes_still_counts() -> None:
    again, going = host(), host(rest="unloaded")
    again.client.state = "restarting"
    residency = Residency(lambda: [again, going], None, Room(n_models=1))  # type: ignore[arg-type]
    assert not residency._is_full() and residency._longest_idle() is again
    residency._leaving.add(going)
    assert residency._is_full() and residency._longest_idle() is again
