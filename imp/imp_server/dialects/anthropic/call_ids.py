"""Ids of calls in Anthropic's alphabet (letters, digits, _ and -), and back to what the model called them.

Some models name their calls, as Kimi's `functions.NAME:0`, and their templates show those names again.
"""

from __future__ import annotations

import base64
import binascii
import re

_PLAIN = re.compile(r"(?!imp_)[A-Za-z0-9_-]+")
_SPELLED = "toolu_imp_"


def tool_use_id(call_id: str) -> str:
    name = call_id.removeprefix("call_")
    if _PLAIN.fullmatch(name):
        return f"toolu_{name}"
    return _SPELLED + base64.urlsafe_b64encode(call_id.encode()).decode().rstrip("=")


def call_id_of(tool_use: str) -> str:
    """What the model called it; the id itself where it comes from elsewhere."""
    text = tool_use.removeprefix(_SPELLED)
    if text == tool_use:
        return tool_use
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return tool_use
