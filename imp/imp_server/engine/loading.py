"""Loads a model into the configured backend: the served model and a draft model alike."""

from __future__ import annotations

from collections.abc import Callable

from imp_server.backends import make_backend
from imp_server.backends.base import Backend
from imp_server.backends.options import BackendOptions
from imp_server.config import EngineConfig
from imp_server.engine.messages import FromEngine, Loading
from imp_server.models.source import ModelSource

_DEFAULT_ROWS = 8


def load_backend(
    config: EngineConfig, source: ModelSource, emit: Callable[[FromEngine], None], drafter: ModelSource | None = None
) -> Backend:
    """Blocks while weights are read, saying so with Loading messages. `drafter`: of BackendOptions.

    Raises UnsupportedModel, ConfigError.
    """
    deterministic = config.engine.deterministic
    options = BackendOptions(config.cpu, config.cuda, _n_outputs(config), deterministic, drafter)
    return make_backend(config.engine.backend, source, options, lambda value: emit(Loading("read", value)))


def _n_outputs(config: EngineConfig) -> int:
    knobs = config.speculative
    longest = max(knobs.k, knobs.suffix_k_max, knobs.draft_max)
    return rows_at_once(config) * (1 + longest)


def rows_at_once(config: EngineConfig) -> int:
    """That are served at once."""
    return config.scheduler.max_rows or _DEFAULT_ROWS


def kv_dtype(config: EngineConfig, backend: Backend) -> str:
    """`kv_cache.dtype`, which may leave it to the backend."""
    return backend.info.default_kv_dtype if config.kv_cache.dtype == "auto" else config.kv_cache.dtype
