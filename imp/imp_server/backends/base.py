"""The contract of a backend: `launch(step) -> Pending`, `Pending.collect() -> StepResult`.

A step is a ragged batch: row r owns ids[row_starts[r]:row_starts[r+1]], a chunk of its prefill or one
token of its decode followed by its drafts. Prefill chunks and decode rows mix freely. Everything is
flat numpy on the host; a backend moves what it needs.

Whatever is asked of a backend takes effect in the order in which it was asked: a step reads what the steps and block
moves before it have left, so blocks may change hands while steps are under way. A row has a slot for its life. Under it
the backend keeps its block tables, of which a step brings the changes only, and what it sampled last, which is a legal
id of the next step: so that one can be launched before this one is collected (docs/backends.md).

Rows are independent: on `cpu` and `reference` a row's logits are bitwise a function of its
own ids, positions and adapter, whatever the batch, the chunking and the number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from imp_server.models.architecture import Architecture

if TYPE_CHECKING:
    from imp_server.decode.state import SamplerState

Int32s = NDArray[np.int32]
UInt32s = NDArray[np.uint32]
Float32s = NDArray[np.float32]

BLOCK_TOKENS = 16
"""Positions in one KV block."""

MASK_PATIENCE_S = 0.002
"""Less than a step, more than a common mask takes."""

ON_HOST_REASONS = ("dry", "mirostat", "typical_p", "dynatemp", "top_n_sigma", "xtc", "post_sampling_probs")
"""Parts of the sampling law that a native backend may leave to the host."""

# What a row wants from the step, or-ed. The LM head runs only for WANT_SAMPLE, WANT_LOGITS and WANT_PROMPT_LOGITS.
WANT_NOTHING = 0
WANT_SAMPLE = 1
"""Sample after the last committed id, and verify the drafts if there are any."""
WANT_HIDDEN = 2
"""Last hidden state (after the final norm) of the row's last position that stands: of a row with drafts, the last
accepted one's."""
WANT_POOLED = 4
"""Pooled embedding; for a decoder the hidden state of the last position, for an encoder as the model says."""
WANT_LOGITS = 8
"""Raw logits of `logit_ids` (all of them if None) at the row's last position."""
WANT_PROMPT_LOGITS = 16
"""Raw logits at every position of the row's chunk (prompt_logprobs, golden tests)."""
WANT_ALL_HIDDEN = 32
"""As WANT_HIDDEN, of every position of the row's chunk (embeddings by mean, or of each position)."""

LAST_SAMPLED = -1
"""As a step's id: what the row's slot sampled last, in a step that may be under way yet. Where that sampled nothing the
row's result is void."""


class TableChanges(NamedTuple):
    """Of one cache group: from this step on, column `columns[i]` of the table of slot `slots[i]` is `blocks[i]`.

    Column c is the block that holds positions [16 c, 16 c + 16); -1 = given up. Of what a row before left in the slot
    nothing is read.
    """

    slots: Int32s
    columns: Int32s
    blocks: Int32s


class AdapterShare(NamedTuple):
    """A loaded adapter, and by how much it counts."""

    slot: int
    scale: float


class Embeddings(NamedTuple):
    """`vectors[i]` [width] is the input of ids[tokens[i]] instead of that id's embedding; `tokens` ascend.

    They are taken as they are, not scaled. Provisional: nobody sends any yet (images).
    """

    tokens: Int32s
    vectors: Float32s


@dataclass(slots=True)
class StepRow:
    """What one row asks for. `sampler` is the row's own state; the backend reads it and never advances it.

    A slot that comes with another `sampler` than before belongs to a new row.
    """

    wants: int = WANT_NOTHING
    n_drafts: int = 0
    """The last `n_drafts` ids of the row's chunk are drafts."""
    sampler: SamplerState | None = None
    mask_row: int = -1
    """First of 1 + n_drafts consecutive rows of Step.masks; -1 = unconstrained."""
    n_logprobs: int = -1
    """-1 = none; k = the chosen token and the k best per sampled position."""
    logprobs_as_drawn: bool = False
    """They are those that tokens are drawn with, after temperature and truncations, instead of before these."""
    logit_ids: Int32s | None = None
    adapters: tuple[AdapterShare, ...] = ()
    """What they add is added in this order."""
    slot: int = 0
    """The row's place with the backend: another one for each row that lives, and in each row of a step."""
    n_history: int = -1
    """Ids in front of the one to be sampled, drafts not counted; -1 = all that `sampler` has when the step is launched.
    Its history may grow before the step runs."""
    is_ahead: bool = False
    """The last of these ids is LAST_SAMPLED: `sampler` doesn't have it yet."""


@dataclass(slots=True)
class Step:
    """Made by step_builder.py alone.

    With `table_changes[g]` the tables of group g cover the positions that this step writes. A group of kind
    `state` has one column: the row's state slot. The backend advances the slot over the row's ids. A slot comes
    with whatever it held before: a row whose chunk starts at position 0 begins with the initial state, any other
    with what the slot holds, which the scheduler has put there.
    """

    ids: Int32s
    positions: Int32s
    row_starts: Int32s
    rows: list[StepRow]
    table_changes: tuple[TableChanges, ...]
    masks: UInt32s | None = None
    """[n_mask_rows, ceil(vocab / 32)], bit i of word w allows id 32 w + i."""
    mask_flags: UInt32s | None = None
    """[n_mask_rows], nonzero once that row of `masks` is filled; None = all of them are.

    Other threads fill the rest while the forward runs, or before: those of rows that are ahead once the step before has
    been collected. A backend that `waits_for_masks` waits for them before it samples, MASK_PATIENCE_S at most.
    """
    embeddings: Embeddings | None = None


@dataclass(slots=True)
class SampledLogprobs:
    """Per sampled position: logprob and rank of the token, ids and logprobs of the k best (best first).

    Where fewer could be drawn (StepRow.logprobs_as_drawn) the rest of `top_ids` is -1.
    """

    token: Float32s
    rank: Int32s
    top_ids: Int32s
    top: Float32s


@dataclass(slots=True)
class RowResult:
    """`tokens`: the accepted drafts, then one freshly sampled id (1 + n_accepted long); empty if not sampled."""

    tokens: Int32s
    n_accepted: int = 0
    logprobs: SampledLogprobs | None = None
    logits: Float32s | None = None
    hidden: Float32s | None = None
    """[width], or [positions of the chunk, width] for WANT_ALL_HIDDEN."""
    pooled: Float32s | None = None
    dead_end: bool = False
    """The mask allowed no token at all."""
    mask_late: bool = False
    """The mask wasn't filled in time, so nothing was sampled."""
    n_left_out: int = 0
    """Drafts that weren't looked at, since their masks weren't filled in time."""
    on_host: str = ""
    """One of ON_HOST_REASONS, where a native backend sampled the row on the host."""
    mask_wait_ms: float = 0.0
    """How long sampling waited for the row's masks."""
    mirostat_mus: tuple[float, ...] = ()
    """mu after each of `tokens`, for rows under mirostat; the engine stores in the row's SamplerState that of the last
    token it takes."""


@dataclass(slots=True)
class StepResult:
    rows: list[RowResult]


@dataclass(frozen=True, slots=True)
class KvSpec:
    """KV cache memory: blocks per cache group (state slots for a `state` group) and the element type."""

    n_blocks: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """What a backend says of itself once its model is loaded."""

    name: str
    """reference | cpu | cuda."""
    detail: str
    """What doctor shows: instruction set, threads, device."""
    default_kv_dtype: str
    weight_bytes: int = 0
    """Held in memory."""
    step_bytes: int = 0
    """Of these, what a step reads; 0 = all."""
    arithmetic: str = ""
    """What the bits of keys and values depend on beside the model and the KV type: kernels, instruction set, options.
    Kept prefixes of another arithmetic are never used."""
    has_device_memory: bool = False
    """Blocks live apart from host memory, so host memory is a tier below them."""
    kv_memory_bytes: int | None = None
    """What of the device's memory is left for keys and values; None = they are in the host's."""
    waits_for_masks: bool = False
    """It can be given masks that are still being filled (Step.mask_flags)."""
    overlaps: bool = False
    """Steps run while the host does something else, and that pays: the overlapped loop is the default."""


class DeviceLost(Exception):
    """The device failed in a way that leaves this process no use of it: it has to end, and another one to begin."""


@runtime_checkable
class Counting(Protocol):
    """A backend that counts something for metrics."""

    def counters(self) -> Mapping[str, float]: ...


class Pending(Protocol):
    """A step that was launched."""

    def collect(self) -> StepResult:
        """Wait for it. Called once, and in the order in which steps were launched. Raises EngineFaulted, DeviceLost."""
        ...


class Backend(Protocol):
    """Owner of a model's weights, its KV memory and its slots. Used by one thread, the engine's step loop."""

    architecture: Architecture
    info: BackendInfo

    def block_bytes(self, dtype: str) -> tuple[int, ...]:
        """Bytes of one KV block (or state slot) per cache group. Raises ConfigError for a dtype it lacks."""
        ...

    def allocate(self, kv: KvSpec) -> None:
        """Make the pools. Called before the first step, never while one is under way; contents start undefined, and
        slots know nothing."""
        ...

    def launch(self, step: Step) -> Pending:
        """Begin one forward, writing K and V of every id of the step, drafts included."""
        ...

    def run(self, step: Step) -> StepResult:
        """Launch and collect."""
        ...

    def on_host_reason(self, row: StepRow) -> str:
        """One of ON_HOST_REASONS where the row is sampled on the host, so that its slot doesn't know the id, or ""."""
        ...

    def copy_blocks(self, group: int, pairs: Int32s) -> None:
        """Copy whole blocks: pairs[i] = (source, destination). For copy on write and snapshots."""
        ...

    def read_blocks(self, group: int, block_ids: Int32s) -> bytes:
        """The exact bytes of the blocks, for a lower tier."""
        ...

    def write_blocks(self, group: int, block_ids: Int32s, data: bytes) -> None:
        """The inverse of `read_blocks`, bit for bit."""
        ...

    def load_adapter(self, path: str) -> int:
        """Load a LoRA adapter; its slot, >= 1. Raises ModelFileMissing, InvalidModel or UnsupportedModel, naming what
        doesn't fit the model.
        """
        ...

    def unload_adapter(self, slot: int) -> None:
        """No step that is yet to be launched names it."""
        ...

    def close(self) -> None: ...
