"""How everything outside an engine talks to one: `EngineClient` and the `Generation` it hands out.

Implementations: ProcessEngine (engine/client/process.py), InlineEngine (engine/client/inline.py), ScriptedEngine
(engine/client/scripted.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Literal, NamedTuple, Protocol

from imp_server.core import GenerateRequest
from imp_server.engine.messages import ModelInfo, ReasoningVerdict, RowDelta, SlotAction, SlotDone

EngineState = Literal["loading", "ready", "restarting", "draining", "stopped", "failed"]
OnLoading = Callable[[str, float], None]
"""(stage of loading, how far in 0..1)."""


class EngineStats(NamedTuple):
    """Counters and gauges by metric name, and one dict per admitted row for /slots."""

    counters: dict[str, float]
    rows: tuple[dict[str, Any], ...]


class Generation(Protocol):
    """An accepted request. Iterating yields the row deltas in order, choices interleaved.

    The iteration ends after the delta with `finish` of the last choice, and raises an ImpError
    (EngineCrashed, EngineFaulted, GrammarDeadEnd ...) if the request fails. All deltas that arrived while
    nobody was waiting come merged, one per choice.
    """

    key: int
    prompt_tokens: int
    cached_tokens: int
    """What the prefix cache held of the prompt when it was accepted; `RowDelta.n_cached` is what it gave."""
    cache_write_tokens: int
    """What would be new in it."""
    arrived_s: float
    """When its latest delta came, in seconds of `time.monotonic`, whether it has been read or not."""

    def __aiter__(self) -> AsyncIterator[RowDelta]: ...

    def cancel(self, choice: int = -1) -> None:
        """Free the rows at once; idempotent, allowed at any stage. The iteration then ends."""
        ...

    async def end_reasoning(self) -> ReasoningVerdict:
        """Close the reasoning of all choices."""
        ...


class EngineClient(Protocol):
    """One loaded (or loading) model."""

    @property
    def state(self) -> EngineState: ...

    @property
    def stalled_s(self) -> float:
        """Seconds for which an engine with work hasn't finished a step; 0.0 while it does, and without work."""
        ...

    @property
    def info(self) -> ModelInfo:
        """Raises ModelLoading before the model is ready."""
        ...

    async def start(self, on_progress: OnLoading | None = None) -> None:
        """Load the model, also again behind `stop`. Returns when ready; raises a UserFault if it can't be loaded."""
        ...

    async def submit(self, request: GenerateRequest) -> Generation:
        """Returns when the engine has accepted the request, so every error before a stream is an exception here.

        Raises ContextLengthExceeded, GrammarRefused, Overloaded, ModelLoading, Draining, EngineCrashed.
        """
        ...

    def new_key(self) -> int:
        """A key no other request of this client has."""
        ...

    async def close_session(self, session_id: str) -> int:
        """Release the session's pins, also those that its running requests would make; blocks that became free."""
        ...

    async def slot_action(self, action: SlotAction) -> SlotDone:
        """What became of it; its ticket is chosen here. Raises as `submit`."""
        ...

    async def load_adapter(self, name: str, path: str) -> None: ...

    async def unload_adapter(self, name: str) -> None: ...

    async def stats(self) -> EngineStats: ...

    async def drain(self, timeout_s: float) -> None:
        """Accept nothing new, finish what runs (at most `timeout_s`), then stop."""
        ...

    async def stop(self) -> None: ...

    def kill(self) -> None:
        """For whoever leaves without waiting: what runs outside of this process ends at once. From any thread."""
        ...
