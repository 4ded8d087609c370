"""What is known of one reply while it is made: its times for the metrics, its texts where a file wants them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from imp_server.api.reports.measures import Measures
from imp_server.core import Accepted, CallArgs, CallStart, Finish, OutputEvent, ReasoningDelta, TextDelta, Timings

_MOST_TEXT = 1 << 20
"""Characters of an answer that a file gets."""


class ReplyReport:
    """Owner of it. Told by Generations."""

    def __init__(
        self,
        measures: Measures,
        endpoint: str,
        model: str,
        began_s: float,
        reply_id: str = "",
        *,
        keeps_text: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`endpoint`: "" for a reply that metrics don't count. `began_s`: when its request came, on `clock`."""
        self.measures, self.endpoint, self.model, self.began_s = measures, endpoint, model, began_s
        self.id = reply_id
        self._durations = measures.of(endpoint, model) if endpoint else None
        self.submitted_s = began_s
        self.timings: Timings | None = None
        """Of its first choice."""
        self.streamed = False
        self.has_failed = self.was_cut = self.is_over = False
        self.prompts: tuple[str, ...] = ()
        self._clock = clock
        self._n_open = 0
        self._last_s: dict[int, float] = {}
        """When tokens of a choice came last."""
        self._has_begun = self._knows_prompt = False
        self._text: list[str] | None = [] if keeps_text else None
        self._n_text = 0
        self._when_over: list[Callable[[], None]] = []

    def begin(self, prompts: Sequence[str], n_choices: int) -> None:
        """It is about to be submitted."""
        self.submitted_s = self._clock()
        self._n_open = n_choices
        if self._text is not None:
            self.prompts = tuple(prompts)

    def note_tokens(self, choice: int, n_tokens: int, at_s: float) -> None:
        """Tokens of a choice came together: each gets an equal part of the time since those before."""
        durations = self._durations
        if durations is None:
            return
        if not self._has_begun:
            self._has_begun = True
            self.measures.note_first_token(self.endpoint, self.model, at_s - self.began_s)
        before_s = self._last_s.get(choice)
        n_gaps = n_tokens if before_s is not None else n_tokens - 1
        if n_gaps:
            gap_s = (at_s - before_s) / n_gaps if before_s is not None else 0.0
            durations.gap.observe(max(0.0, gap_s), n_gaps)
        self._last_s[choice] = at_s
        self.measures.note_completion(self.model, n_tokens)

    def note_events(self, batch: Sequence[OutputEvent]) -> None:
        for event in batch:
            match event:
                case Accepted() if not event.choice:
                    self._note_prompt(event.prompt_tokens, event.cached_tokens)
                case Finish():
                    self._note_finish(event)
                case _ if self._text is not None:
                    self._keep(event)

    def _note_prompt(self, n_tokens: int, n_cached: int) -> None:
        self._knows_prompt = True
        if self.endpoint:
            self.measures.note_prompt(self.model, n_tokens, n_cached)

    def _note_finish(self, event: Finish) -> None:
        self._n_open -= 1
        if not self._knows_prompt and event.usage.prompt_tokens:
            self._note_prompt(event.usage.prompt_tokens, event.usage.cached_tokens)
        if self.timings is None:
            self.timings = event.timings
            if self._durations is not None:
                self._durations.queue.observe(event.timings.queue_ms / 1e3)
        if self.endpoint:
            self.measures.note_finish(self.model, event.reason)
            if event.detail == "timed_out":
                self.measures.note_timeout()

    def _keep(self, event: OutputEvent) -> None:
        assert self._text is not None
        piece = event.text if isinstance(event, TextDelta | ReasoningDelta | CallArgs) else ""
        if isinstance(event, CallStart):
            piece = f"\n{event.name} "
        if piece and self._n_text < _MOST_TEXT:
            self._text.append(piece[: _MOST_TEXT - self._n_text])
            self._n_text += len(piece)

    def end(self) -> None:
        """Nothing more comes. Idempotent."""
        if self.is_over:
            return
        self.is_over = True
        self.was_cut = self._n_open > 0 and not self.has_failed
        if self._durations is not None and not (self.was_cut or self.has_failed):
            self._durations.request.observe(self._clock() - self.began_s)
        actions, self._when_over = self._when_over, []
        for action in actions:
            action()

    def when_over(self, action: Callable[[], None]) -> None:
        """Called at once if it is over."""
        if self.is_over:
            action()
        else:
            self._when_over.append(action)

    def texts(self) -> dict[str, Any]:
        """For a file that wants them."""
        if self._text is None:
            return {}
        prompt: Any = self.prompts[0] if len(self.prompts) == 1 else list(self.prompts)
        return {"prompt": prompt, "response": "".join(self._text)}
