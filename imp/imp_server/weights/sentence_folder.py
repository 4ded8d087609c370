"""What a folder for sentence-transformers says of its vectors: `modules.json`, `1_Pooling/config.json`."""

from __future__ import annotations

import json
from typing import Any

from imp_server.core import InvalidModel
from imp_server.weights.hf_folder import HfFolder

_POOLING = "1_Pooling/config.json"
_FLAGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"}
_NAMES = {"mean": "mean", "lasttoken": "last"}
_MODULES = ("Transformer", "Pooling", "Normalize")
_MAX_MODULES_BYTES = 1 << 20


def pooling_of(folder: HfFolder) -> str:
    """`mean` or `last`; "" = the folder doesn't say; anything else names what isn't among these.

    Raises InvalidModel for files that can't be read.
    """
    others = [name for name in _modules(folder) if name not in _MODULES]
    if others:
        return f"the module {others[0]!r} in modules.json"
    config = folder.optional_json(_POOLING)
    if config.get("include_prompt") is False:
        return f"'include_prompt': false in {_POOLING}"
    stated = config.get("pooling_mode")
    if isinstance(stated, str):
        return _NAMES.get(stated, f"'pooling_mode': {stated!r} in {_POOLING}")
    modes = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    if not modes:
        return ""
    return _FLAGS[modes[0]] if len(modes) == 1 and modes[0] in _FLAGS else f"{', '.join(modes)} in {_POOLING}"


def _modules(folder: HfFolder) -> list[str]:
    path = folder.path / "modules.json"
    if not path.is_file():
        return []
    if path.stat().st_size > _MAX_MODULES_BYTES:
        raise InvalidModel(f"{path.name}: larger than {_MAX_MODULES_BYTES >> 20} MiB")
    try:
        listed: Any = json.loads(path.read_text(encoding="utf-8"))
        return [str(module["type"]).rpartition(".")[2] for module in listed]
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        raise InvalidModel("modules.json isn't a list of modules with a type") from None
