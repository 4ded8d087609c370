"""The configured drafters: which there are, in which order, and the draft model among them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from imp_server.backends.base import Backend, KvSpec
from imp_server.config import EngineConfig
from imp_server.core import ConfigError, HostOutOfMemory, ImpError
from imp_server.decode.drafter import Drafter
from imp_server.decode.forced import ForcedDrafter
from imp_server.decode.ngram import NgramDrafter, NgramKnobs
from imp_server.decode.recall import RecallDrafter
from imp_server.engine.drafting.draft_model import ModelDrafter
from imp_server.engine.drafting.speculation import Speculation
from imp_server.engine.loading import kv_dtype, load_backend
from imp_server.engine.messages import FromEngine
from imp_server.engine.model_files import open_with_tokenizer
from imp_server.models.architecture import Architecture
from imp_server.models.feed_forwards import Experts
from imp_server.models.opening import open_model
from imp_server.models.source import ModelSource
from imp_server.schedule.cost import CostTable
from imp_server.schedule.prefix import MakeIndex
from imp_server.vocab.table import Vocabulary
from imp_server.vocab.tokenizer import Tokenizer
from imp_server.weights.catalogue import find

log = logging.getLogger(__name__)

_NAMES = ("forced", "ngram", "model", "recall", "mtp")


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A loaded draft model whose KV memory isn't allocated yet."""

    backend: Backend
    n_ids: int
    """Ids that its tokenizer shares with the large model's."""
    kv_dtype: str
    block_bytes: int
    """Of one block of all its layers."""


def check_names(config: EngineConfig) -> None:
    """Raises ConfigError for a drafter that there isn't."""
    names = config.speculative.drafters
    unknown = [name for name in names if name not in _NAMES]
    if unknown:
        raise ConfigError(f"speculative.drafters: there is no {unknown[0]!r}, only {', '.join(_NAMES)}")
    if "mtp" in names:
        raise ConfigError("speculative.drafters: no model here has heads for 'mtp' yet; leave it out of the list")


def load_draft_model(
    config: EngineConfig, architecture: Architecture, vocabulary: Vocabulary, emit: Callable[[FromEngine], None]
) -> DraftModel | None:
    """None: there is no draft model, or nobody would ask it. Raises UserFaults."""
    check_names(config)
    knobs = config.speculative
    if not knobs.draft_model:
        return None
    if "model" not in knobs.drafters:
        log.warning("a draft model is given, but speculative.drafters doesn't list 'model': it isn't loaded")
        return None
    if not _can_draft(config, architecture):
        log.warning("a draft model is given, but nothing is drafted for this model: it isn't loaded")
        return None
    with _named(config):
        return _load(config, vocabulary, emit)


def draft_source(config: EngineConfig) -> ModelSource | None:
    """What load_draft_model will load, where it is on this machine and readable; it raises what is wrong."""
    knobs = config.speculative
    if not knobs.draft_model or "model" not in knobs.drafters:
        return None
    try:
        wanted = find(knobs.draft_model, config.models_dir)
        return open_model(wanted.local) if wanted is not None and wanted.local is not None else None
    except ImpError:
        return None


@contextmanager
def _named(config: EngineConfig) -> Iterator[None]:
    """The model's own errors say the same of the same kinds of files: which of the two is meant must be plain."""
    name = f"--draft-model {config.speculative.draft_model}"
    try:
        yield
    except ImpError as error:
        raise type(error)(f"{name}: {error.message}", code=error.code) from error
    except MemoryError as error:
        message = "there isn't enough memory for it; lower kv_cache.size_mib, or leave it out"
        raise HostOutOfMemory(f"{name}: {message}") from error


def _load(config: EngineConfig, vocabulary: Vocabulary, emit: Callable[[FromEngine], None]) -> DraftModel:
    name = config.speculative.draft_model
    wanted = find(name, config.models_dir)
    if wanted is None or wanted.local is None:
        raise ConfigError(f"it isn't on this machine; fetch it with: imp pull {name}")
    source, tokenizer = open_with_tokenizer(wanted.local, config.model.max_seq_len)
    if any(group.kind == "state" for group in source.architecture.cache_groups) or source.architecture.is_encoder:
        raise ConfigError("only a decoder without recurrent layers can draft")
    if difference := vocabulary_difference(vocabulary, tokenizer.vocabulary):
        raise ConfigError(f"its tokenizer isn't the model's: {difference}; take one of the same family")
    backend = load_backend(config, source, emit)
    dtype = kv_dtype(config, backend)
    return DraftModel(backend, vocabulary.size, dtype, sum(backend.block_bytes(dtype)))


def vocabulary_difference(model: Vocabulary, draft: Vocabulary) -> str:
    """What differs in what the ids write; "" = nothing."""
    for token_id, (ours, theirs) in enumerate(zip(model.token_bytes, draft.token_bytes)):
        if ours != theirs:
            one, other = _shown(model, token_id), _shown(draft, token_id)
            return f"id {token_id} writes {one} in the model and {other} in the draft model"
    if model.size != draft.size:
        return f"the model's has {model.size} ids and the draft model's {draft.size}"
    return ""


def make_speculation(
    config: EngineConfig,
    architecture: Architecture,
    tokenizer: Tokenizer,
    decode_costs: CostTable,
    model: ModelDrafter | None = None,
) -> Speculation:
    """The configured drafters in order. Raises ConfigError for a name that there isn't."""
    check_names(config)
    knobs = config.speculative
    if not _can_draft(config, architecture):
        return Speculation()
    drafters: list[Drafter] = []
    for name in knobs.drafters:
        if name == "forced" and config.grammar.jump_ahead and not tokenizer.is_foreign:  # it cuts texts on the loop
            drafters.append(ForcedDrafter(tokenizer.encode, tokenizer.vocabulary.token_bytes))
        elif name == "ngram" and knobs.ngram:
            names = NgramKnobs.__dataclass_fields__
            drafters.append(NgramDrafter(NgramKnobs(**{field: getattr(knobs, field) for field in names})))
        elif name == "model" and model is not None:
            drafters.append(model)
        elif name == "recall":
            drafters.append(RecallDrafter())
    has_experts = any(isinstance(layer.feed_forward, Experts) for layer in architecture.layers)
    return Speculation(
        drafters,
        costs=decode_costs if knobs.cost_gate else None,
        on_by_default=knobs.enabled == "on" or not has_experts,
        longest_step_ms=config.scheduler.step_ms,
    )


def make_model_drafter(
    draft: DraftModel | None, config: EngineConfig, n_blocks: int, make_index: MakeIndex | None = None
) -> ModelDrafter | None:
    """Allocates the draft model's KV: as many blocks as the large model has. `make_index`: of its own prefix cache."""
    if draft is None:
        return None
    knobs = config.speculative
    kv = KvSpec((n_blocks,) * len(draft.backend.architecture.cache_groups), draft.kv_dtype)
    with _named(config):
        return ModelDrafter(
            draft.backend,
            kv,
            draft.n_ids,
            k=knobs.draft_max,
            p_min=knobs.draft_p_min,
            catch_up_ms=config.scheduler.step_ms / 2,
            make_index=make_index,
        )


def _can_draft(config: EngineConfig, architecture: Architecture) -> bool:
    # A recurrent state can't be rolled back to the last accepted token.
    return config.speculative.enabled != "off" and all(group.kind != "state" for group in architecture.cache_groups)


def _shown(vocabulary: Vocabulary, token_id: int) -> str:
    return repr(vocabulary.plain_bytes(token_id).decode("utf-8", "replace"))
