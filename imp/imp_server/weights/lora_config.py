"""What adapter_config.json of PEFT says: which forms of LoRA imp computes, and by how much each part counts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from imp_server.core import InvalidModel, UnsupportedModel

_INERT = frozenset({
    "auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "task_type", "peft_version", "r",
    "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern",
    "rank_pattern", "alpha_pattern", "use_rslora", "peft_type", "bias", "init_lora_weights", "megatron_config",
    "megatron_core", "runtime_config", "ensure_weight_tying", "eva_config", "loftq_config", "fan_in_fan_out",
    "lora_ga_config", "corda_config", "qalora_group_size",
})  # fmt: skip
"""Keys that are read, or say how an adapter was trained, not what it computes."""
_WORDS = {
    "use_dora": "DoRA",
    "modules_to_save": "whole matrices that replace the model's",
    "lora_bias": "biases of adapters",
    "layer_replication": "layers that occur more than once",
    "trainable_token_indices": "new rows of the embedding",
    "alora_invocation_tokens": "adapters that some tokens switch on (aLoRA)",
    "target_parameters": "adapters of experts",
    "use_qalora": "QALoRA",
    "use_bdlora": "block-diagonal LoRA",
    "velora_config": "VeLoRA",
    "arrow_config": "Arrow",
    "monteclora_config": "MonteCLoRA",
}
_PLAIN_INITS = (True, False, None, "gaussian", "eva", "orthogonal")
"""They begin an adapter; others take something out of the model's own matrices, which only their trainer puts back."""
MOST_ALPHA = 1 << 30
"""With either sign; whatever a request makes of it is a number that float32 has."""
_PLAIN_KEY = re.compile(r"\^?[\w.-]+")


class LoraConfig:
    """Raises UnsupportedModel for what imp doesn't compute, InvalidModel for values of the wrong kind."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._where = where
        self._config = config
        self._refuse_what_we_lack()
        self._rank = self._number(config.get("r"), "r")
        self._alpha = self._number(config.get("lora_alpha"), "lora_alpha")
        self._ranks, self._alphas = self._pattern("rank_pattern"), self._pattern("alpha_pattern")
        self._by_root = self._flag("use_rslora")

    def factor(self, module: str, rank: int) -> float:
        """By how much the module's part counts. Raises InvalidModel if the config says another rank."""
        stated = _matched(self._ranks, module, self._rank)
        if stated != rank:
            raise InvalidModel(f"{self._where}: the rank of '{module}' is {stated:g}, its tensors have {rank}")
        return _matched(self._alphas, module, self._alpha) / (math.sqrt(rank) if self._by_root else rank)

    def _refuse_what_we_lack(self) -> None:
        config = self._config
        if config.get("peft_type") != "LORA":
            raise UnsupportedModel(f"{self._where}: 'peft_type' is {config.get('peft_type')!r}; LORA is supported")
        if config.get("bias", "none") not in ("none", None):
            raise UnsupportedModel(
                f"{self._where}: 'bias' is {config['bias']!r}: adapters with biases aren't supported"
            )
        if self._flag("fan_in_fan_out"):
            raise UnsupportedModel(f"{self._where}: 'fan_in_fan_out': adapters of turned matrices aren't supported")
        init = config.get("init_lora_weights", True)
        if init not in _PLAIN_INITS:
            raise UnsupportedModel(
                f"{self._where}: 'init_lora_weights' is {init!r}, which changes the model's own matrices; save the "
                "adapter converted to plain LoRA"
            )
        for key, value in config.items():
            if key not in _INERT and value:
                what = _WORDS.get(key)
                raise UnsupportedModel(
                    f"{self._where}: '{key}': {what} aren't supported"
                    if what
                    else f"{self._where}: '{key}' isn't supported"
                )

    def _flag(self, key: str) -> bool:
        value = self._config.get(key) or False
        if not isinstance(value, bool):
            raise InvalidModel(f"{self._where}: '{key}' is {value!r}, not true or false")
        return value

    def _number(self, value: Any, key: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MOST_ALPHA:
            raise InvalidModel(f"{self._where}: '{key}' is {value!r:.80}, not a number up to {MOST_ALPHA}")
        return float(value)

    def _pattern(self, key: str) -> dict[str, float]:
        """Names of modules, or how they end -> a value. Patterns of a file are never run as regular expressions."""
        patterns = self._config.get(key) or {}
        if not isinstance(patterns, dict):
            raise InvalidModel(f"{self._where}: '{key}' is no object")
        for name in patterns:
            if not _PLAIN_KEY.fullmatch(name):
                raise UnsupportedModel(f"{self._where}: '{key}' has the pattern {name[:80]!r}; plain names are read")
        return {name: self._number(value, f"{key}.{name}") for name, value in patterns.items()}


def _matched(patterns: Mapping[str, float], module: str, default: float) -> float:
    """Of the first pattern that is the module's name or the end of it, from a dot on."""
    for name, value in patterns.items():
        if module == name.removeprefix("^") or (not name.startswith("^") and module.endswith(f".{name}")):
            return value
    return default
