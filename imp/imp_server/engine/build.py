"""Builds an engine from a path and the configuration: header -> family -> Architecture -> backend -> loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import msgspec

from imp_server.backends.base import BLOCK_TOKENS, Backend, KvSpec
from imp_server.backends.machine import available_bytes, resident_bytes
from imp_server.config import EngineConfig
from imp_server.config.running import PrefixCacheSettings as PrefixCacheKnobs
from imp_server.core import CapacityExceeded, readable
from imp_server.engine.acceptance import Limits
from imp_server.engine.adapters import Adapters, load_adapters
from imp_server.engine.constrained.grammars import Grammars
from imp_server.engine.drafting.drafters import (
    DraftModel,
    draft_source,
    load_draft_model,
    make_model_drafter,
    make_speculation,
)
from imp_server.engine.fingerprint import fingerprint
from imp_server.engine.loading import kv_dtype, load_backend, rows_at_once
from imp_server.engine.loop import EngineLoop
from imp_server.engine.lower_tier import lower_tier
from imp_server.engine.messages import FromEngine, Loading, ModelInfo
from imp_server.engine.model_files import open_with_tokenizer
from imp_server.engine.overlapped import OverlappedLoop
from imp_server.engine.parts import EngineParts, GrammarReady
from imp_server.engine.row_rules import RowRules
from imp_server.engine.slot_files import SlotStore
from imp_server.engine.warming import measure_drafts, warm_up
from imp_server.models.architecture import Architecture
from imp_server.models.source import ModelSource
from imp_server.schedule.cache import Offload, PrefixCache
from imp_server.schedule.cost import CostTable, VerifyCosts
from imp_server.schedule.prefix import MakeIndex
from imp_server.schedule.scheduler import ScheduleLimits, Scheduler
from imp_server.vocab.table import Vocabulary
from imp_server.vocab.tokenizer import Tokenizer

_MEMORY_SHARE = 0.25
"""Of the free memory, for keys and values, when the configuration leaves it to us."""


@dataclass(slots=True)
class BuiltEngine:
    loop: EngineLoop
    info: ModelInfo


def build_engine(
    path: str,
    model_id: str,
    config: EngineConfig,
    emit: Callable[[FromEngine], None],
    post: Callable[[GrammarReady], None],
    note_running: Callable[[Collection[int]], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> BuiltEngine:
    """Blocks until the model is loaded, saying so with Loading messages. Raises UserFaults.

    `note_running`, `clock`: of EngineParts.
    """
    before = resident_bytes()
    source, tokenizer, backend, adapters = _load(path, config, emit)
    vocabulary, architecture = tokenizer.vocabulary, backend.architecture
    n_rows = rows_at_once(config)
    wanted = min(config.model.max_seq_len or architecture.context_length, architecture.context_length)
    draft = load_draft_model(config, architecture, vocabulary, emit)
    kv = plan_memory(backend, architecture, config, n_rows, wanted, draft.block_bytes if draft else 0)
    backend.allocate(kv)
    context = min(wanted, _capacity(architecture, kv))
    limits = _limits(architecture, config, n_rows, context)
    costs, decode_costs = CostTable(), VerifyCosts()
    drafter = make_model_drafter(draft, config, max(kv.n_blocks), prefix_index(config.prefix_cache))
    speculation = make_speculation(config, architecture, tokenizer, decode_costs, drafter)
    if config.engine.warmup:
        warm_up(backend, kv, costs, context)
        if speculation.is_on:
            measure_drafts(backend, kv, decode_costs, context)
        if drafter is not None:
            drafter.measure()
        emit(Loading("measure", 1.0))
    scheduler = Scheduler(
        _schedule_limits(config, n_rows, context),
        architecture.cache_groups,
        kv.n_blocks,
        costs=costs,
        decode_costs=decode_costs,
        make_index=prefix_index(config.prefix_cache, lower_tier(config, source, backend, kv)),
    )
    loop = choose_loop(config.engine.overlap, backend)(
        EngineParts(
            backend,
            scheduler,
            vocabulary,
            limits,
            emit=emit,
            post=post,
            rules=_row_rules(config),
            make_constraint=_grammars(config, vocabulary),
            speculation=speculation,
            note_running=note_running,
            adapters=adapters,
            slot_store=_slot_store(config, source, backend, scheduler, kv),
            clock=clock,
        )
    )
    return BuiltEngine(loop, _measured(_model_info(source, backend, kv, limits, model_id, draft), before))


def choose_loop(overlap: str, backend: Backend) -> type[EngineLoop]:
    """`overlap`: engine.overlap."""
    wins = backend.info.overlaps if overlap == "auto" else overlap == "on"
    return OverlappedLoop if wins else EngineLoop


def _slot_store(
    config: EngineConfig, source: ModelSource, backend: Backend, scheduler: Scheduler, kv: KvSpec
) -> SlotStore | None:
    """None = slots aren't kept in files."""
    index = scheduler.index
    if not (config.prefix_cache.slots_path and isinstance(index, PrefixCache) and index.files is not None):
        return None
    sizes = sum(backend.block_bytes(kv.dtype))
    return SlotStore(index.files, partial(fingerprint, source, backend, kv), sizes)


def _measured(info: ModelInfo, before: int) -> ModelInfo:
    """`before`: bytes of the process without its model. What of weights and pools wasn't touched yet counts, too."""
    wanted = before + info.weight_bytes + info.kv_bytes
    return msgspec.structs.replace(info, memory_bytes=max(resident_bytes(), wanted))


def _limits(architecture: Architecture, config: EngineConfig, n_rows: int, context: int) -> Limits:
    return Limits(
        context_length=context,
        vocab_size=architecture.vocab_size,
        n_rows=n_rows,
        tasks=("embed",) if architecture.is_encoder else ("generate", "embed", "score", "rank"),
        max_prompt=config.max_input_tokens,
    )


def _schedule_limits(config: EngineConfig, n_rows: int, context: int) -> ScheduleLimits:
    knobs = config.scheduler
    return ScheduleLimits(n_rows, context, knobs.step_ms, knobs.step_alone_ms, knobs.prefill_chunk)


def _grammars(config: EngineConfig, vocabulary: Vocabulary) -> Grammars:
    knobs = config.grammar
    return Grammars(vocabulary, max_whitespace=knobs.max_whitespace, memory_mib=config.grammar.memory_mib)


def _row_rules(config: EngineConfig) -> RowRules:
    return RowRules(
        length_steering=config.grammar.length_steering,
        takes_only=config.grammar.jump_ahead,
        checkpoint_min_step=config.prefix_cache.checkpoint_min_step,
    )


def _load(
    path: str, config: EngineConfig, emit: Callable[[FromEngine], None]
) -> tuple[ModelSource, Tokenizer, Backend, Adapters]:
    emit(Loading("open", 0.0))
    source, tokenizer = open_with_tokenizer(path, config.model.max_seq_len)
    emit(Loading("open", 1.0))
    backend = load_backend(config, source, emit, draft_source(config))
    return source, tokenizer, backend, load_adapters(config, backend, emit)


def prefix_index(knobs: PrefixCacheKnobs, offload: Offload | None = None) -> MakeIndex | None:
    """None: prompts are not reused."""
    if not knobs.enabled:
        return None
    return partial(
        PrefixCache, pin_budget=knobs.pin_budget_pct / 100, session_ttl_s=knobs.session_ttl_s, offload=offload
    )


def plan_memory(
    backend: Backend,
    architecture: Architecture,
    config: EngineConfig,
    n_rows: int,
    context: int,
    drafter_block_bytes: int = 0,
) -> KvSpec:
    """Blocks per group: as configured, else enough for every row at full length within a share of free memory.
    `drafter_block_bytes`: what a draft model keeps beside each block.

    Raises CapacityExceeded if not even `kv_cache.min_tokens` (or a few blocks) fit, or what is configured is more than
    the device has.
    """
    dtype = kv_dtype(config, backend)
    sizes = backend.block_bytes(dtype)
    if not sum(sizes):
        return KvSpec((), dtype)
    per_block = sum(sizes) + drafter_block_bytes
    full = n_rows * -(-context // BLOCK_TOKENS)
    if config.kv_cache.max_blocks:
        n_blocks = config.kv_cache.max_blocks
    elif config.kv_cache.size_mib:
        n_blocks = (config.kv_cache.size_mib << 20) // per_block
    else:
        n_blocks = min(full, _usable_bytes(backend) // per_block)
    _refuse_more_than_there_is(backend, n_blocks * per_block)
    least = max(2, -(-config.kv_cache.min_tokens // BLOCK_TOKENS))
    if n_blocks < least:
        raise CapacityExceeded(
            f"keys and values get {n_blocks * BLOCK_TOKENS} tokens of memory, {least * BLOCK_TOKENS} are needed: "
            f"raise kv_cache.size_mib ({-(-per_block * least >> 20)} MiB hold them) or lower kv_cache.min_tokens"
        )
    return KvSpec(tuple(_group_blocks(group.kind, n_blocks, n_rows) for group in architecture.cache_groups), dtype)


def _usable_bytes(backend: Backend) -> int:
    """For keys and values."""
    on_device = backend.info.kv_memory_bytes
    return int(available_bytes() * _MEMORY_SHARE) if on_device is None else on_device


def _refuse_more_than_there_is(backend: Backend, n_bytes: int) -> None:
    if backend.info.kv_memory_bytes is None:
        return
    usable = _usable_bytes(backend)
    if n_bytes > usable:
        raise CapacityExceeded(
            f"kv_cache asks for {n_bytes >> 20} MiB of keys and values, and {usable >> 20} MiB of the device are left "
            "for them: lower kv_cache.size_mib (or max_blocks), or leave it to the server"
        )


def _group_blocks(kind: str, n_blocks: int, n_rows: int) -> int:
    # A state group needs a slot per row and one for each copy under way.
    return 2 * n_rows if kind == "state" else n_blocks


def _capacity(architecture: Architecture, kv: KvSpec) -> int:
    """Positions that one row can hold when it has the pools for itself."""
    full = [n for group, n in zip(architecture.cache_groups, kv.n_blocks) if group.kind == "full"]
    return min(full) * BLOCK_TOKENS if full else architecture.context_length


def _model_info(
    source: ModelSource, backend: Backend, kv: KvSpec, limits: Limits, model_id: str, draft: DraftModel | None
) -> ModelInfo:
    header, architecture = source.header, backend.architecture
    kv_bytes = sum(n * size for n, size in zip(kv.n_blocks, backend.block_bytes(kv.dtype)))
    draft_weights = 0
    if draft is not None:
        kv_bytes += max(kv.n_blocks) * draft.block_bytes
        draft_weights = draft.backend.info.weight_bytes
    return ModelInfo(
        id=model_id,
        family=architecture.family,
        path=readable(header.path),
        context_length=limits.context_length,
        trained_context=architecture.context_length,
        vocab_size=architecture.vocab_size,
        width=architecture.width,
        n_parameters=header.n_parameters,
        quantisation=header.quantisation,
        tasks=limits.tasks,
        n_rows=limits.n_rows,
        n_blocks=kv.n_blocks,
        backend=backend.info.name,
        backend_detail=backend.info.detail,
        kv_dtype=kv.dtype,
        weight_bytes=backend.info.weight_bytes + draft_weights,
        kv_bytes=kv_bytes,
        file_bytes=header.file_bytes,
    )
