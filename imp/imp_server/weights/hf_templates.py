"""The chat templates of a Hugging Face folder, wherever its age put them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imp_server.core import InvalidModel
from imp_server.weights.hf_folder import read_json

_MAX_TEMPLATE_BYTES = 4 << 20


def chat_templates(folder: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """By name. Files of their own win over tokenizer_config.json."""
    templates = _listed(tokenizer_config.get("chat_template"))
    if (folder / "chat_template.json").is_file():
        templates |= _listed(read_json(folder / "chat_template.json").get("chat_template"))
    if (folder / "chat_template.jinja").is_file():
        templates["default"] = _text(folder / "chat_template.jinja")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = _text(path)
    return templates


def _listed(value: Any) -> dict[str, str]:
    """One template, or a list of {name, template}."""
    if isinstance(value, str):
        return {"default": value}
    if not isinstance(value, list):
        return {}
    pairs = ((e.get("name"), e.get("template")) for e in value if isinstance(e, dict))
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}


def _text(path: Path) -> str:
    if path.stat().st_size > _MAX_TEMPLATE_BYTES:
        raise InvalidModel(f"{path.name}: larger than {_MAX_TEMPLATE_BYTES >> 20} MiB")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidModel(f"{path.name} isn't UTF-8") from None
