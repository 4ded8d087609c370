"""Chooses the tier under the KV pools: a kept file, a file without a name, host memory, or none."""

from __future__ import annotations

import logging
from pathlib import Path

from imp_server.backends.base import Backend, KvSpec
from imp_server.config import Config
from imp_server.config.environment import imp_home
from imp_server.core import ConfigError
from imp_server.engine.fingerprint import fingerprint, model_name
from imp_server.models.source import ModelSource
from imp_server.schedule.cache import Below
from imp_server.schedule.snapshots import SnapshotLimits
from imp_server.schedule.tiers.file import FileTier
from imp_server.schedule.tiers.host import HostTier
from imp_server.schedule.tiers.opening import open_kept, open_unnamed
from imp_server.schedule.tiers.slab import SlabFile
from imp_server.schedule.tiers.tier import Tier

log = logging.getLogger(__name__)


def lower_tier(config: Config, source: ModelSource, backend: Backend, kv: KvSpec) -> Below | None:
    """None: there is nothing to keep. Raises ConfigError for a path that can't be meant."""
    sizes = backend.block_bytes(kv.dtype)
    if not config.prefix_cache.enabled or not sum(sizes):
        return None
    blocks = sum(size for size, group in zip(sizes, backend.architecture.cache_groups) if group.kind != "state")
    tier = _kept(config, source, backend, kv, blocks) if config.prefix_cache.path and blocks else None
    if tier is None and blocks:
        tier = _spill(config, backend, blocks)
    knobs = config.prefix_cache
    limits = SnapshotLimits(knobs.max_snapshots, knobs.snapshot_mib << 20, knobs.checkpoint_min_step)
    return Below(backend, sizes, tier, limits)


def _kept(config: Config, source: ModelSource, backend: Backend, kv: KvSpec, max_payload: int) -> Tier | None:
    try:
        folder = Path(config.prefix_cache.path).expanduser()
    except RuntimeError:
        named = config.prefix_cache.path
        raise ConfigError(f"--prefix-cache {named}: there is no such home folder; write the path in full") from None
    try:
        mark = fingerprint(source, backend, kv)
    except OSError as error:
        log.warning("the prefix cache won't survive a restart: %s can't be read again", error.filename)
        return None
    fd = open_kept(folder, model_name(source), mark)
    if fd is None:
        return None
    tier = FileTier(SlabFile(fd, mark, max_payload), config.prefix_cache.path_mib << 20, persists=True)
    if tier.n_entries:
        log.info("%d blocks of earlier prompts were found in %s", tier.n_entries, folder)
    return tier


def _spill(config: Config, backend: Backend, max_payload: int) -> Tier | None:
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
