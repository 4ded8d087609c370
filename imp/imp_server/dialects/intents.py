"""Request fields that mean the same in every dialect: sampling, cache, adapter, priority, drafts.

Bodies are validated against their document before they come here, so types are known; null means absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from imp_server.core import CacheIntent, SamplingIntent

Body = Mapping[str, Any]

_SAMPLING = tuple(name for name in SamplingIntent.__struct_fields__ if name not in {"logit_bias", "ignore_eos"})


class Extensions(TypedDict):
    """The keyword arguments of ChatRequest that imp's own fields fill in any dialect."""

    sampling: SamplingIntent
    cache: CacheIntent
    speculative: bool | None
    adapter: str
    priority: int
    row_preference: int | None
    template_kwargs: Mapping[str, Any]


def present(body: Body, name: str, default: Any = None) -> Any:
    """The field's value, or `default` when it is absent or null."""
    value = body.get(name)
    return default if value is None else value


def sampling(body: Body, renamed: Mapping[str, str] | None = None) -> SamplingIntent:
    """`renamed`: our field name -> the dialect's name for it."""
    names = renamed or {}
    values = {ours: body[wire] for ours in _SAMPLING if (body.get(wire := names.get(ours, ours))) is not None}
    bias = present(body, "logit_bias", {})
    return SamplingIntent(
        logit_bias={int(token): float(value) for token, value in bias.items()},
        ignore_eos=present(body, "ignore_eos", False),
        **values,
    )


def speculative(body: Body) -> bool | None:
    """`true`, `false` or an object of options; an object means yes."""
    value = body.get("speculative")
    return value if value is None or isinstance(value, bool) else True


def extensions(body: Body) -> Extensions:
    slot = present(body, "id_slot", -1)
    return Extensions(
        sampling=sampling(body),
        cache=CacheIntent(pin_prompt=present(body, "cache_prompt", False), session_id=body.get("session_id")),
        speculative=speculative(body),
        adapter=present(body, "lora", ""),
        priority=present(body, "priority", 0),
        row_preference=None if slot < 0 else slot,
        template_kwargs=present(body, "chat_template_kwargs", {}),
    )
