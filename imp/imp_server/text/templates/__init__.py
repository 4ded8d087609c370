"""The table of chat templates for `--chat-template NAME`: one Jinja file each, found by folder.

Besides what Hugging Face's templates get, ours may ask `special_tokens`, the texts of the vocabulary's
control tokens, where versions of a family differ.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from imp_server.text.templates.named import named_templates


@cache
def builtin_templates() -> dict[str, str]:
    """Jinja source by name."""
    folder = files(__name__)
    return {
        entry.name.removesuffix(".jinja"): entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda e: e.name)
        if entry.name.endswith(".jinja")
    }


_VETTED = frozenset({"10deff9cbf67494c687db783aabee114"})
"""BLAKE2b of templates of model files that were read and are harmless: the default model's."""


def is_ours(source: str) -> bool:
    """It may run in the server's own process: every other template is a stranger's program."""
    digest = hashlib.blake2b(source.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    ours = (builtin_templates(), named_templates())
    return any(source in table.values() for table in ours) or digest in _VETTED
