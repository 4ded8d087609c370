"""The whole configuration as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from imp_server.config.generating import (
    AdapterSettings,
    GrammarSettings,
    ModelSettings,
    ReasoningSettings,
    SamplingSettings,
)
from imp_server.config.running import (
    CpuSettings,
    CudaSettings,
    EngineSettings,
    KvCacheSettings,
    PrefixCacheSettings,
    SchedulerSettings,
    SpeculativeSettings,
)
from imp_server.config.serving import (
    LogSettings,
    MetricsSettings,
    ResponsesSettings,
    RouterSettings,
    ServerSettings,
    StreamSettings,
)
from imp_server.core import ConfigError


class EngineConfig(msgspec.Struct, frozen=True):
    """What an engine knows of the configuration: its own sections, and no key of a client or an operator."""

    model: ModelSettings = ModelSettings()
    engine: EngineSettings = EngineSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    kv_cache: KvCacheSettings = KvCacheSettings()
    prefix_cache: PrefixCacheSettings = PrefixCacheSettings()
    speculative: SpeculativeSettings = SpeculativeSettings()
    grammar: GrammarSettings = GrammarSettings()
    cpu: CpuSettings = CpuSettings()
    cuda: CudaSettings = CudaSettings()
    adapters: AdapterSettings = AdapterSettings()
    log: LogSettings = LogSettings()
    max_input_tokens: int = 0
    """server.max_input_tokens: the engine checks it, too."""
    models_dir: str = ""
    """router.models_dir: a draft model is looked up in it."""


class Config(msgspec.Struct, frozen=True):
    """All sections, as the API process and the commands have them."""

    server: ServerSettings = ServerSettings()
    model: ModelSettings = ModelSettings()
    engine: EngineSettings = EngineSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    kv_cache: KvCacheSettings = KvCacheSettings()
    prefix_cache: PrefixCacheSettings = PrefixCacheSettings()
    speculative: SpeculativeSettings = SpeculativeSettings()
    grammar: GrammarSettings = GrammarSettings()
    reasoning: ReasoningSettings = ReasoningSettings()
    sampling: SamplingSettings = SamplingSettings()
    cpu: CpuSettings = CpuSettings()
    cuda: CudaSettings = CudaSettings()
    adapters: AdapterSettings = AdapterSettings()
    router: RouterSettings = RouterSettings()
    responses: ResponsesSettings = ResponsesSettings()
    streams: StreamSettings = StreamSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Config:
        """Defaults overlaid with {"section.key": value}. Raises ConfigError for a wrong key or value."""
        plain: dict[str, dict[str, Any]] = {}
        for key, value in values.items():
            section, _, name = key.partition(".")
            known = cls.__struct_fields__
            if section not in known or name not in getattr(cls(), section).__struct_fields__:
                raise ConfigError(f"no configuration key {key}")
            plain.setdefault(section, {})[name] = value
        return cls.from_plain(plain)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Mapping[str, Any]]) -> Config:
        """The inverse of `plain`. Raises ConfigError."""
        try:
            return msgspec.convert(plain, cls)
        except msgspec.ValidationError as error:
            raise ConfigError(str(error)) from None

    def for_engine(self) -> EngineConfig:
        own = {name: getattr(self, name) for name in EngineConfig.__struct_fields__ if name in self.__struct_fields__}
        return EngineConfig(**own, max_input_tokens=self.server.max_input_tokens, models_dir=self.router.models_dir)

    def plain(self) -> dict[str, dict[str, Any]]:
        """Sections as dicts of numbers, strings, booleans and tuples."""
        data: dict[str, dict[str, Any]] = msgspec.to_builtins(self)
        return data
