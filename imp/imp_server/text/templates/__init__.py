"""The table of chat templates for `--chat-template NAME`: one Jinja file each, found by folder.

Besides what Hugging Face's templates get, ours may ask `special_tokens`, the texts of the vocabulary's
control tokens, where versions of a family differ.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def builtin_templates() -> dict[str, str]:
    """Jinja source by name."""
    folder = files(__name__)
    return {
        entry.name.removesuffix(".jinja"): entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda e: e.name)
        if entry.name.endswith(".jinja")
    }
