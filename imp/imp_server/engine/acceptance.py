"""The checks a request passes before an engine accepts it; every failure is an HTTP status before a stream begins."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from imp_server.core import ContextLengthExceeded, GenerateRequest, InvalidRequest, Overloaded

_MOST_SHIFTS = 16
"""Of a context for as many tokens as it holds: each computes nearly all of it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one engine can hold. `context_length`: positions of one row, prompt and completion together."""

    context_length: int
    vocab_size: int
    n_rows: int = 8
    max_queue: int = 128
    tasks: tuple[str, ...] = ("generate",)
    max_prompt: int = 0
    """Ids of a prompt; 0 = what the context holds."""
    max_logprobs: int = 1024


def check_request(
    request: GenerateRequest, limits: Limits, *, n_queued: int = 0, adapters: Container[str | int] = ()
) -> NDArray[np.int32]:
    """The prompt's ids; raises InvalidRequest, ContextLengthExceeded or Overloaded."""
    if request.task not in limits.tasks:
        raise InvalidRequest(f"this model can't {request.task}: it can {', '.join(limits.tasks)}", param="model")
    ids = _checked_prompt(request, limits)
    _check_counts(request, limits)
    _check_ids(request, limits)
    for adapter in (use.adapter for use in request.options.adapters or ()):
        if adapter not in adapters:
            raise InvalidRequest(f"adapter {adapter!r:.200} isn't loaded", param="lora", code="lora_not_loaded")
    if n_queued >= limits.max_queue:
        raise Overloaded(f"{n_queued} requests are waiting; try again later", retry_after_s=1.0)
    return ids


def _checked_prompt(request: GenerateRequest, limits: Limits) -> NDArray[np.int32]:
    noun = "input" if request.task == "embed" else "prompt"
    if len(request.ids) % 4:
        raise InvalidRequest(f"{noun} ids must be int32", param=noun)
    ids = np.frombuffer(request.ids, dtype="<i4")
    if not len(ids):
        raise InvalidRequest(f"the {noun} is empty: send at least one token", param=noun, code="empty_prompt")
    _check_range(ids, limits.vocab_size, noun)
    param = "messages" if request.spans else noun
    more = "" if request.task == "embed" else ", completion included"
    room = 0 if request.task != "generate" or request.plan.max_tokens == 0 else 1
    if len(ids) + room > limits.context_length:
        raise ContextLengthExceeded(
            f"this model's maximum context length is {limits.context_length} tokens{more}, and the {noun} has "
            f"{len(ids)}: shorten it",
            param=param,
        ).sized(len(ids), limits.context_length)
    if 0 < limits.max_prompt < len(ids):
        raise ContextLengthExceeded(
            f"this server takes {noun}s of at most {limits.max_prompt} tokens (server.max_input_tokens), and this one "
            f"has {len(ids)}: shorten it",
            param=param,
        ).sized(len(ids), limits.max_prompt)
    return ids


def _check_range(ids: NDArray[np.int32], vocab_size: int, param: str) -> None:
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= vocab_size):
        bad = int(ids[(ids < 0) | (ids >= vocab_size)][0])
        message = f"token id {bad} isn't in the vocabulary (0 to {vocab_size - 1})"
        raise InvalidRequest(message, param=param, code="unknown_token")


def _check_counts(request: GenerateRequest, limits: Limits) -> None:
    if not 1 <= request.options.n <= limits.n_rows:
        raise InvalidRequest(f"n must be between 1 and {limits.n_rows} (scheduler.max_rows)", param="n")
    row = request.options.row_preference
    if row is not None and not 0 <= row < limits.n_rows:
        raise InvalidRequest(
            f"there is no slot {row}: this engine has 0 to {limits.n_rows - 1}, and -1 is any",
            param="id_slot",
            code="unknown_slot",
        )
    shift, least = request.shift, -(-limits.context_length // _MOST_SHIFTS)
    if shift is not None and 0 < shift.discard < least:
        raise InvalidRequest(
            f"n_discard must be 0, which is half, or at least {least} here, a {_MOST_SHIFTS}th of the context: what "
            "stays is computed anew",
            param="n_discard",
        )
    if request.plan.max_tokens < 0:
        raise InvalidRequest("max_tokens must not be negative", param="max_tokens")
    for name, value in (("logprobs", request.options.logprobs), ("prompt_logprobs", request.options.prompt_logprobs)):
        if value is not None and not 0 <= value <= limits.max_logprobs:
            raise InvalidRequest(f"{name} must be between 0 and {limits.max_logprobs}", param=name)


def _check_ids(request: GenerateRequest, limits: Limits) -> None:
    plan, sampling = request.plan, request.sampling
    named = (
        ("logit_bias", [i for i, _ in sampling.logit_bias]),
        ("banned_ids", list(sampling.banned_ids)),
        ("held_ids", list(sampling.held_ids)),
        ("end_ids", list(plan.end_ids)),
        ("shown_ids", list(plan.shown_ids)),
    )
    for param, values in named:
        _check_range(np.asarray(values, dtype=np.int64).astype(np.int32), limits.vocab_size, param)
    for param, packed in (
        ("think_closer", plan.think_closer),
        ("prediction", request.prediction),
        ("score_ids", request.score_ids),
    ):
        if len(packed) % 4:
            raise InvalidRequest(f"{param} must be int32 ids", param=param)
        _check_range(np.frombuffer(packed, dtype="<i4"), limits.vocab_size, param)
