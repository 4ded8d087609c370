"""By how much each adapter of a model counts in requests that don't choose; it outlives the model's sleep."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from imp_server.config.adapters import LoraEntry, lora_entries
from imp_server.config.generating import AdapterSettings
from imp_server.core import AdapterUse, ChatRequest, InvalidRequest, PromptRequest
from imp_server.dialects.handler import ListedAdapter


class AdapterScales:
    """Owner of the scales of one model. Every method raises ConfigError where the configuration is wrong."""

    def __init__(self, settings: AdapterSettings) -> None:
        self._settings = settings
        self._changed: tuple[float, ...] | None = None
        """None = as they are configured, which the engine knows."""

    @property
    def _entries(self) -> tuple[LoraEntry, ...]:
        return lora_entries(self._settings)

    def listed(self) -> tuple[ListedAdapter, ...]:
        entries = self._entries
        scales = self._changed or tuple(entry.scale for entry in entries)
        return tuple(ListedAdapter(entry.name, entry.path, scale) for entry, scale in zip(entries, scales, strict=True))

    def change(self, scales: Mapping[int, float]) -> None:
        """By number; those that aren't named count 0. Raises InvalidRequest for a number that no adapter has."""
        n = len(self._entries)
        for number in scales:
            if not 0 <= number < n:
                has = f"there are 0 to {n - 1}" if n else "none is loaded"
                raise InvalidRequest(f"there is no adapter {number}: {has}", param="id", code="lora_not_found")
        self._changed = tuple(scales.get(number, 0.0) for number in range(n))

    def applied(self, request: ChatRequest | PromptRequest) -> ChatRequest | PromptRequest:
        """With what is in force now, if it doesn't choose."""
        if self._changed is None or request.options.adapters is not None:
            return request
        uses = tuple(AdapterUse(number, scale) for number, scale in enumerate(self._changed))
        options = msgspec.structs.replace(request.options, adapters=uses)
        return msgspec.structs.replace(request, options=options)
