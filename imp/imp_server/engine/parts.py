"""What an engine is made of, handed to whoever works on its rows."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from imp_server.backends.base import Backend
from imp_server.core import GrammarRefused
from imp_server.engine.acceptance import Limits
from imp_server.engine.adapters import Adapters
from imp_server.engine.constrained.constraint import Constraint, MakeConstraint
from imp_server.engine.drafting.speculation import Speculation
from imp_server.engine.live import LiveRequests
from imp_server.engine.messages import FromEngine
from imp_server.engine.row_rules import RowRules
from imp_server.engine.slot_files import SlotStore
from imp_server.schedule.scheduler import Scheduler
from imp_server.vocab.table import Vocabulary


class GrammarReady(NamedTuple):
    """The mask thread has started a request's grammar (or refused it); goes to the loop's own inbox."""

    key: int
    constraint: Future[Constraint]


def _refuse(_plan: object) -> Any:
    raise GrammarRefused("this engine has no grammar support")


@dataclass(slots=True)
class EngineParts:
    """`emit` takes what goes to the client; `post` puts a message into the loop's own inbox from any thread."""

    backend: Backend
    scheduler: Scheduler
    vocabulary: Vocabulary
    limits: Limits
    emit: Callable[[FromEngine], None]
    post: Callable[[GrammarReady], None]
    rules: RowRules = field(default_factory=RowRules)
    make_constraint: MakeConstraint = _refuse
    speculation: Speculation = field(default_factory=Speculation)
    note_running: Callable[[Collection[int]], None] | None = None
    """Hears the keys of the requests in a step before it runs."""
    adapters: Adapters | None = None
    """Loaded with the model; None = none are."""
    slot_store: SlotStore | None = None
    """None: what slots held isn't kept in files."""
    clock: Callable[[], float] = time.monotonic
    live: LiveRequests = field(default_factory=LiveRequests)
    counters: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
