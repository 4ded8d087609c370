"""imp's own request fields, the same in every dialect: sampling extras, cache, adapter, priority, drafts.

Bodies are validated against their document before they come here, so types are known; null means absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from imp_server.core import CacheIntent, SamplingIntent
from imp_server.dialects.openai.sampling import cache_of, row_of, sampling_of, speculative_of

Body = Mapping[str, Any]


class Extensions(TypedDict):
    """The keyword arguments of ChatRequest that these fields fill."""

    sampling: SamplingIntent
    cache: CacheIntent
    speculative: bool | None
    length_steering: bool
    adapter: str
    priority: int
    row_preference: int | None
    template_kwargs: Mapping[str, Any]


def present(body: Body, name: str, default: Any = None) -> Any:
    """The field's value, or `default` when it is absent or null."""
    value = body.get(name)
    return default if value is None else value


def extensions(body: Body) -> Extensions:
    return Extensions(
        sampling=sampling_of(body),
        cache=cache_of(body),
        speculative=speculative_of(body.get("speculative")),
        length_steering=present(body, "length_steering", True),
        adapter=present(body, "lora", ""),
        priority=int(present(body, "priority", 0)),
        row_preference=row_of(body.get("id_slot")),
        template_kwargs=present(body, "chat_template_kwargs", {}),
    )
