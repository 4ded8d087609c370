"""Finds the tool formats of this folder and chooses one by the chat template."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import cast

import imp_server.text.tools
from imp_server.text.tools.base import ToolFormat

# Asked in this order: a template that teaches two notations is of the more special one.
_ORDER = (
    "harmony", "deepseek", "kimi", "mistral", "cohere", "gemma", "glm", "seed", "minimax", "minicpm", "qwen_xml", "phi",
    "granite", "llama3_function", "jamba", "hermes", "llama3_json",
)  # fmt: skip


@cache
def all_formats() -> dict[str, ToolFormat]:
    """Every format by name."""
    found: dict[str, ToolFormat] = {}
    for entry in pkgutil.iter_modules(imp_server.text.tools.__path__):
        module = importlib.import_module(f"imp_server.text.tools.{entry.name}")
        if hasattr(module, "teaches"):
            found[module.name] = cast(ToolFormat, module)
    return found


def choose_format(template: str) -> ToolFormat:
    """The format that the template teaches; hermes if it teaches none (the prompt then has to)."""
    formats = all_formats()
    return next((formats[n] for n in _ORDER if formats[n].teaches(template)), formats["hermes"])
