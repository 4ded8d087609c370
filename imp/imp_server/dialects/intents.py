"""imp's own request fields where null means absent, and how a reply is generated, for Messages and Responses.

Bodies are validated against their document before they come here, so types are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imp_server.core import GenerationOptions
from imp_server.dialects.openai.sampling import adapters_of, row_of, speculative_of

Body = Mapping[str, Any]


def present(body: Body, name: str, default: Any = None) -> Any:
    """The field's value, or `default` when it is absent or null."""
    value = body.get(name)
    return default if value is None else value


def options_of(body: Body, logprobs: int | None = None) -> GenerationOptions:
    return GenerationOptions(
        logprobs=logprobs,
        speculative=speculative_of(body.get("speculative")),
        adapters=adapters_of(body),
        priority=int(present(body, "priority", 0)),
        row_preference=row_of(body.get("id_slot")),
    )
