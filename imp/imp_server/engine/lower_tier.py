"""Chooses the tier under the KV pools: a kept file, a file without a name, host memory, or none."""

from __future__ import annotations

import logging
from pathlib import Path

from imp_server.backends.base import Backend, KvSpec
from imp_server.config import EngineConfig
from imp_server.config.environment import imp_home
from imp_server.core import ConfigError
from imp_server.engine.fingerprint import fingerprint, model_name
from imp_server.models.source import ModelSource
from imp_server.schedule.cache import Offload
from imp_server.schedule.snapshots import SnapshotLimits
from imp_server.schedule.tiers.file import FileTier
from imp_server.schedule.tiers.host import HostTier
from imp_server.schedule.tiers.opening import STATES, open_kept, open_unnamed
from imp_server.schedule.tiers.slab import SlabFile
from imp_server.schedule.tiers.tier import Tier
from imp_server.schedule.tree import TOKEN_BYTES

log = logging.getLogger(__name__)


def lower_tier(config: EngineConfig, source: ModelSource, backend: Backend, kv: KvSpec) -> Offload | None:
    """None: there is nothing to keep. Raises ConfigError for a path that can't be meant."""
    sizes = backend.block_bytes(kv.dtype)
    if not config.prefix_cache.enabled or not sum(sizes):
        return None
    groups = backend.architecture.cache_groups
    blocks = sum(size for size, group in zip(sizes, groups) if group.kind != "state")
    states = sum(sizes) - blocks
    knobs = config.prefix_cache
    kept = _Folder(config, source, backend, kv) if knobs.path else None
    tier = kept.open(blocks, knobs.path_mib << 20, ".kv", "blocks of earlier prompts") if kept and blocks else None
    if tier is None and blocks:
        tier = _spill(config, backend, blocks)
    state_tier = None
    if kept and states and knobs.max_snapshots:
        most = states + TOKEN_BYTES * backend.architecture.context_length
        state_tier = kept.open(most, knobs.snapshot_mib << 20, STATES, "states of earlier prompts")
    limits = SnapshotLimits(knobs.max_snapshots, knobs.snapshot_mib << 20, knobs.checkpoint_min_step)
    return Offload(backend, sizes, tier, limits, state_tier)


class _Folder:
    """The folder of `prefix_cache.path`, and what ties its files to this model and machine. Raises ConfigError."""

    def __init__(self, config: EngineConfig, source: ModelSource, backend: Backend, kv: KvSpec) -> None:
        named = config.prefix_cache.path
        try:
            self._folder = Path(named).expanduser()
        except RuntimeError:
            raise ConfigError(f"--prefix-cache {named}: there is no such home folder; write the path in full") from None
        self._model, self._mark = model_name(source), b""
        try:
            self._mark = fingerprint(source, backend, kv)
        except OSError as error:
            log.warning("the prefix cache won't survive a restart: %s can't be read again", error.filename)

    def open(self, max_payload: int, cap_bytes: int, suffix: str, what: str) -> Tier | None:
        """None: it can't be had, and the log says why."""
        fd = open_kept(self._folder, self._model, self._mark, suffix) if self._mark else None
        if fd is None:
            return None
        tier = FileTier(SlabFile(fd, self._mark, max_payload), cap_bytes, persists=True)
        if tier.n_entries:
            log.info("%d %s were found in %s", tier.n_entries, what, self._folder)
        return tier


def _spill(config: EngineConfig, backend: Backend, max_payload: int) -> Tier | None:
    cap = config.kv_cache.host_spill_mib << 20
    if not cap:
        return None
    if backend.info.has_device_memory:
        return HostTier(cap)
    folder = imp_home() / "spill"
    try:
        fd = open_unnamed(folder)
    except OSError as error:
        log.warning("evicted prefixes can't be kept in %s (%s): they will be computed again", folder, error.strerror)
        return None
    return FileTier(SlabFile(fd, bytes(32), max_payload), cap, persists=False)
