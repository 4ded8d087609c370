"""What llama.cpp's streams tell on the way where they are asked to: progress of the prompt, and timings so far."""

from __future__ import annotations

from typing import Any

from imp_server.core import (
    Accepted,
    CallStart,
    Finish,
    OutputEvent,
    Progress,
    ReasoningDelta,
    TextDelta,
    Timings,
    Usage,
)
from imp_server.dialects.base import ReplyContext
from imp_server.dialects.timings import timings_body

Json = dict[str, Any]
_OUTPUT = (TextDelta, ReasoningDelta, CallStart, Finish)


class _ChoiceProgress:
    """Owner of one choice's counts."""

    def __init__(self) -> None:
        self.total, self.cache, self.told = 0, 0, -1
        self.first_s: float | None = None


class Underway:
    """Owner of what one stream knows of its choices before they have ended; begins when the engine has accepted."""

    def __init__(self, context: ReplyContext) -> None:
        self._clock = context.clock
        self._began_s = context.clock()
        self._tells_progress = bool(context.body.get("return_progress"))
        self._tells_timings = bool(context.body.get("timings_per_token"))
        self._choices: dict[int, _ChoiceProgress] = {}

    def feed(self, event: OutputEvent) -> list[Json]:
        """Fields to be sent before what the event itself makes: `prompt_progress`, from what was cached to all, and
        `timings` as they stand."""
        choice = self._choices.setdefault(event.choice, _ChoiceProgress())
        if isinstance(event, _OUTPUT) and choice.first_s is None:
            choice.first_s = self._clock()
        match event:
            case Accepted():
                choice.total, choice.cache = event.prompt_tokens, event.cached_tokens
                processed = event.cached_tokens
            case Progress():
                choice.total, processed = event.total, event.done
            case _ if isinstance(event, _OUTPUT):
                processed = choice.total
            case _:
                return []
        if not self._tells_progress or processed <= choice.told:
            return []
        choice.told = processed
        time_ms = 1e3 * (self._clock() - self._began_s)
        progress = {"total": choice.total, "cache": choice.cache, "processed": processed, "time_ms": time_ms}
        so_far = Usage(prompt_tokens=processed, cached_tokens=choice.cache)
        took = Timings(prefill_ms=time_ms if processed > choice.cache else 0.0)  # nothing was computed before
        return [{"prompt_progress": progress, "timings": timings_body(so_far, took)}]

    def timings(self, choice: int, n_predicted: int) -> Json:
        """{"timings": ...} as of now, by this side's clock; {} if they weren't asked for."""
        if not self._tells_timings:
            return {}
        one, now_s = self._choices.setdefault(choice, _ChoiceProgress()), self._clock()
        first_s = now_s if one.first_s is None else one.first_s
        usage = Usage(prompt_tokens=one.total, cached_tokens=one.cache, completion_tokens=n_predicted)
        took = Timings(prefill_ms=1e3 * (first_s - self._began_s), decode_ms=1e3 * (now_s - first_s))
        return {"timings": timings_body(usage, took)}
