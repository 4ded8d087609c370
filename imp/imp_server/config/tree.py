"""The whole configuration as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from imp_server.config.generating import Adapters, Grammar, Model, Reasoning, Sampling
from imp_server.config.running import Cpu, Cuda, Engine, KvCache, PrefixCache, Scheduler, Speculative
from imp_server.config.serving import Log, Metrics, Responses, Router, Server, Streams
from imp_server.core import ConfigError


class Config(msgspec.Struct, frozen=True):
    server: Server = Server()
    model: Model = Model()
    engine: Engine = Engine()
    scheduler: Scheduler = Scheduler()
    kv_cache: KvCache = KvCache()
    prefix_cache: PrefixCache = PrefixCache()
    speculative: Speculative = Speculative()
    grammar: Grammar = Grammar()
    reasoning: Reasoning = Reasoning()
    sampling: Sampling = Sampling()
    cpu: Cpu = Cpu()
    cuda: Cuda = Cuda()
    adapters: Adapters = Adapters()
    router: Router = Router()
    responses: Responses = Responses()
    streams: Streams = Streams()
    log: Log = Log()
    metrics: Metrics = Metrics()

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
        """The inverse of `plain`: what an engine process makes of the sections in its Start message."""
        try:
            return msgspec.convert(plain, cls)
        except msgspec.ValidationError as error:
            raise ConfigError(str(error)) from None

    def plain(self) -> dict[str, dict[str, Any]]:
        """Sections as dicts of numbers, strings, booleans and tuples."""
        data: dict[str, dict[str, Any]] = msgspec.to_builtins(self)
        return data
