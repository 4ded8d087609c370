"""Which files belong together: the parts of a split model, its sidecars, and the choice among quantisations."""

from __future__ import annotations

import re
from collections.abc import Sequence

from imp_server.core import ModelFileMissing, UnsupportedModel

_SPLIT = re.compile(r"^(?P<stem>.*)-(?P<part>\d{5})-of-(?P<parts>\d{5})(?P<suffix>\.(?i:gguf))$")
PREFERRED = ("Q4_K_M", "Q4_1", "Q4_0", "Q4_K_S", "Q5_K_M", "IQ4_XS", "MXFP4", "Q6_K", "Q8_0", "BF16", "F16", "F32")
"""Quantisations in the order in which one is taken when the user names none."""
_QUANTISATION = re.compile(r"(?i)(?:^|[-._])(I?Q\d(?:_(?:\d|K|[SML]|XL|XS|XXS|NL))*|MXFP4|NVFP4|BF16|F16|F32)(?=[-._])")
SIDECARS = ("mtp-", "mmproj-")
FOLDER_FILES = re.compile(
    r"(?:.*\.safetensors|.*\.safetensors\.index\.json|config\.json|generation_config\.json|tokenizer[^/]*"
    r"|special_tokens_map\.json|added_tokens\.json|vocab\.(?:txt|json)|merges\.txt|chat_template\.[^/]+|modules\.json"
    r"|sentence_bert_config\.json|1_Pooling/config\.json|LICENSE[^/]*|adapter_config\.json)"
)
"""Files of a safetensors folder that are taken."""


def split_parts(name: str, available: Sequence[str]) -> list[str]:
    """All parts of the split model that `name` is a part of; [name] if it isn't split.

    Raises ModelFileMissing if a part isn't available.
    """
    match = _SPLIT.match(name)
    if not match:
        return [name]
    parts = int(match["parts"])
    names = [f"{match['stem']}-{part:05d}-of-{match['parts']}{match['suffix']}" for part in range(1, parts + 1)]
    missing = [part for part in names if part not in set(available)]
    if missing:
        raise ModelFileMissing(f"{name} is one of {parts} parts and {missing[0]} is missing")
    return names


def sidecars(main: str, available: Sequence[str]) -> list[str]:
    """One mtp-* and one mmproj-* file in the folder of `main`, those of its own precision first."""
    folder, _, base = main.rpartition("/")
    prefix = f"{folder}/" if folder else ""
    chosen = []
    for kind in SIDECARS:
        if base.startswith(kind):
            continue
        found = [n for n in available if n.startswith(prefix + kind) and n.lower().endswith(".gguf")]
        found.sort(key=lambda n: (_quantisation(n) != _quantisation(base), _quantisation(n) != "F16", n))
        if found:
            chosen += split_parts(found[0], available)
    return chosen


def _is_sidecar(name: str) -> bool:
    return name.rpartition("/")[2].startswith((*SIDECARS, "imatrix"))


def _quantisation(name: str) -> str:
    match = _QUANTISATION.search(name.rpartition("/")[2])
    return match[1].upper() if match else ""


def choose(available: Sequence[str], wanted: str, source: str) -> tuple[str, list[str]]:
    """(main, every file to take) out of the files of a repository or folder.

    `wanted`: a file name, a quantisation (Q8_0), or "" for the preferred one. `main` is "" for a safetensors
    folder. Raises ModelFileMissing if nothing matches, UnsupportedModel if there is no model in it.
    """
    ggufs = [name for name in available if name.lower().endswith(".gguf") and not _is_sidecar(name)]
    if wanted and wanted not in available:
        matches = [name for name in ggufs if _quantisation(name) == wanted.upper()]
        if not matches:
            offers = sorted({_quantisation(name) or name for name in ggufs})
            raise ModelFileMissing(f"{source} has no {wanted}; it has {', '.join(offers) or 'no .gguf files'}")
        main = min(matches, key=lambda name: (name.count("/"), name))
    elif wanted:
        main = wanted
    elif ggufs:
        main = min(ggufs, key=_preference)
    else:
        return "", _folder(available, source)
    parts = split_parts(main, available)
    return parts[0], parts + (sidecars(main, available) if main.lower().endswith(".gguf") else [])


def _preference(name: str) -> tuple[int, int, str]:
    kind = _quantisation(name)
    return PREFERRED.index(kind) if kind in PREFERRED else len(PREFERRED), name.count("/"), name


def _folder(available: Sequence[str], source: str) -> list[str]:
    if "config.json" not in available or not any(name.endswith(".safetensors") for name in available):
        raise UnsupportedModel(f"{source} holds no model that imp can read (.gguf, or .safetensors with config.json)")
    files = [name for name in available if FOLDER_FILES.fullmatch(name) and "/original/" not in f"/{name}"]
    index = "model.safetensors.index.json"
    if index in files and "consolidated.safetensors" in files:
        files.remove("consolidated.safetensors")
    return files
