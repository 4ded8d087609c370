"""The list of operations: what a forward on the device is made of, and so what a kernel may stand in for.

Each method of `Operations` is one operation. plain/ has all of them in torch; a kernel has the same signature, and
reads and writes the same bytes. Whatever a backend's step needs is said by its arguments, so any subset of kernels
serves beside the plain rest.

What holds for all of them:

* A step is rectangles of R rows times W ids (`Rows`); token t = r W + j is id j of row r, and T = R W. Rows that have
  fewer ids are padded at their end, a rectangle with rows that have none. What is computed for padding is never read;
  it must not fault, and must not be written to blocks or slots of others. Plain operations write it to the scratch
  block (the last of a pool) and the scratch slot (the last of a table of slots); kernels may leave it out.
* Activations are float32, [T, features], rows contiguous; where an argument says "may be a slice", rows are a stride
  apart (a multiple of 4 elements) and only the last dimension is contiguous. Sums are at least float32.
* Shapes depend on the bucket alone: (R, W, columns of the tables, output rows, width of the sampler). Nothing is read
  back to the host, and nothing is allocated by what a tensor holds. Everything is enqueued on the current stream.
* Results go to `out`, which never overlaps an input unless an operation says so. Nothing else is written.
* Ids and positions are int32. Positions are below 2^31.
* Tolerances that a kernel is held to, against its plain twin on the same inputs: 1e-5 of the largest output where it
  only reorders float32 sums, 2^-8 where it rounds activations to bfloat16 first (allowed for W R > 8 in `project`,
  `gated_project`, `experts_*`, `head_logits`, and in `prefill_attention`); ids and integers are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, Protocol

import torch

from imp_server.models.feed_forwards import Activation

Tensor = torch.Tensor


# -- What operations are handed ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A packed matrix [n_out, n_in]; its planes are those of formats.py, on the device.

    Matrices of experts or heads are one matrix of count * n_out rows, expert by expert.
    """

    format: str
    """A key of formats.FORMATS, or one of formats.FLOATS."""
    n_out: int
    n_in: int
    codes: Tensor
    high: Tensor | None = None
    scale: Tensor | None = None
    minimum: Tensor | None = None
    sub_scale: Tensor | None = None
    sub_minimum: Tensor | None = None
    whole_scale: float = 1.0

    @property
    def n_blocks(self) -> int:
        return self.n_in // 32


@dataclass(frozen=True, slots=True)
class NormForm:
    """rms: x / sqrt(mean(x^2) + eps) * weight. `centred`: x - mean(x) first, and `bias` behind, if there is one.

    A weight that counts from one is stored with the one added. `weight` None = all ones.
    """

    eps: float
    weight: Tensor | None
    """float32 [size]."""
    bias: Tensor | None = None
    centred: bool = False


@dataclass(frozen=True, slots=True)
class Rows:
    """One rectangle of a step. `tables[g]` belongs to cache group g."""

    n_rows: int
    width: int
    slots: Tensor
    """int32 [R]; the scratch slot for padding."""
    starts: Tensor
    """int32 [R]: position of the row's first id; 0 for padding."""
    counts: Tensor
    """int32 [R]: ids that the row has, 0 to W; 0 = the row is padding."""
    tables: tuple[Tensor, ...]
    """int32 [R, columns]: column c is the block of positions [16 c, 16 c + 16), -1 = none. Columns cover every position
    below starts + counts that a query may see."""

    @property
    def n_tokens(self) -> int:
        return self.n_rows * self.width


@dataclass(frozen=True, slots=True)
class KvPart:
    """One part of a layer (k, v, latent, turned) in the blocks of its group: of head h of block b, the 16 vectors of
    `size` numbers lie one after the other from byte b * block_bytes + values + h * stride on, and their scales, by
    vectors, from b * block_bytes + scales + h * stride on (-1 = the type has none). Offsets are those of KvLayout, the
    layer's own added; vectors begin at multiples of 16 bytes.
    """

    heads: int
    size: int
    values: int
    scales: int
    stride: int


@dataclass(frozen=True, slots=True)
class LayerKv:
    """A layer's share of its group's pool: uint8 [n_blocks + 1, block_bytes], the last block scratch.

    dtype   f32    the number
            bf16   rounded to nearest, ties to even
            fp8    E4M3 (finite) without a scale, rounded to nearest even, beyond +-448 taken as +-448
            int8   of each vector scale = max|x| / 127 (float32) and round-to-even(x * (127 / max|x|)); both are 0 where
                   max|x| < 1e-30
            int4   of each 32 numbers a float16 scale, max|x| / 7 rounded to nearest (at most 65504), and
                   round-to-even(x / scale) within -8 and 7; both are 0 where the scale is. Byte i has numbers 2 i (low)
                   and 2 i + 1
            nvfp4  of each 16 numbers an E4M3 scale, max|x| / 6 rounded as fp8 is, and |x| / scale as the nearest of 0,
                   0.5, 1, 1.5, 2, 3, 4 and 6, ties to the even place in this row, bit 3 the sign of x < 0; packed alike
    """

    pool: Tensor
    dtype: Literal["f32", "bf16", "fp8", "int8", "int4", "nvfp4"]
    group: int
    parts: tuple[KvPart, KvPart]
    """(k, v), or (latent, turned)."""
    latent: bool = False

    @property
    def block_bytes(self) -> int:
        return self.pool.shape[1]

    @property
    def scratch(self) -> int:
        return self.pool.shape[0] - 1


@dataclass(frozen=True, slots=True)
class Rotation:
    """`table` float32 [positions, dims]: the dims / 2 cosines of a position, then its sines.

    The first `dims` of a vector turn: pair i is (x[i], x[dims/2 + i]), or (x[2 i], x[2 i + 1]) where `interleaved`;
    (a, b) becomes (a cos - b sin, a sin + b cos). The rest passes.
    """

    table: Tensor
    dims: int
    interleaved: bool


@dataclass(frozen=True, slots=True)
class QueryTemperature:
    """Queries of position p are multiplied with 1 + share * ln(1 + floor((p + offset) / step)), float64 until then."""

    share: float
    step: int
    offset: int


@dataclass(frozen=True, slots=True)
class QkvForm:
    """What becomes of q, k and v behind their projections.

    `order`: "norm_first" norm, then rotation; "rope_first" rotation, then norm; "whole" norm over all heads as one
    vector, then rotation. Norms None = none. `v_norm`: by heads, always before anything else happens to v.
    """

    n_heads: int
    n_kv_heads: int
    head_size: int
    value_size: int
    order: Literal["norm_first", "rope_first", "whole"]
    q_norm: NormForm | None = None
    k_norm: NormForm | None = None
    v_norm: NormForm | None = None
    rotation: Rotation | None = None
    temperature: QueryTemperature | None = None
    gated: bool = False
    """Of each head the projection has q, then its gate of the same size."""
    has_kv: bool = True
    """False: another layer's keys and values are seen, and nothing is written."""
    keys_are_values: bool = False
    """The projection has no v: it is k as projected."""

    @property
    def q_width(self) -> int:
        return self.n_heads * self.head_size * (2 if self.gated else 1)

    @property
    def width(self) -> int:
        """Of the projection: q, then k, then v."""
        if not self.has_kv:
            return self.q_width
        values = 0 if self.keys_are_values else self.value_size
        return self.q_width + self.n_kv_heads * (self.head_size + values)


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """Softmax attention of n_heads queries over n_kv_heads keys; query head h sees key head h / (n_heads / n_kv_heads).

    A query at position p sees keys p' <= p whose block isn't -1; with `window` only p' > p - window; with `chunk` only
    p' >= floor(p / chunk) * chunk. Score: q.k * scale, then softcap * tanh(score / softcap) if softcap. `sinks` float32
    [n_heads]: a further score in the denominator. A query that sees nothing (padding) gives zeros or anything finite.
    """

    n_heads: int
    n_kv_heads: int
    scale: float
    window: int = 0
    chunk: int = 0
    softcap: float = 0.0
    sinks: Tensor | None = None


@dataclass(frozen=True, slots=True)
class RouterForm:
    """As models/feed_forwards.py Experts says it."""

    count: int
    top_k: int
    gating: Literal["softmax", "sigmoid", "sparse_mixer"]
    normalise: bool
    scale: float
    selection_bias: Tensor | None = None
    """float32 [count]."""
    expert_scale: Tensor | None = None
    """float32 [count]: an expert's weight is multiplied with its own, at the end."""
    n_groups: int = 1
    top_groups: int = 1
    group_strength: Literal["best", "best_two"] = "best_two"
    jitter: float = 0.0


class Ints(IntEnum):
    """Columns of SampleInputs.ints."""

    N_POSITIONS = 0
    """Positions to sample, 1 + drafts to be looked at; 0 = the row isn't sampled, and its slot is left alone."""
    MASK_FIRST = 1
    """Row of `masks` for position 0, those of the others follow; -1 = unconstrained."""
    N_HISTORY = 2
    N_PROMPT = 3
    REPEAT_LAST_N = 4
    TOP_K = 5
    SEED_LOW = 6
    """Bits 0-31 of the seed as an int32."""
    SEED_HIGH = 7
    CHOICE = 8
    POSITION = 9
    """Output position of position 0: the low word of the noise counter."""
    COUNTS = 10
    """1 = any of the three penalties is on."""


class Floats(IntEnum):
    """Columns of SampleInputs.floats (float64)."""

    TEMPERATURE = 0
    TOP_P = 1
    MIN_P = 2
    REPETITION = 3
    PRESENCE = 4
    FREQUENCY = 5


@dataclass(frozen=True, slots=True)
class SampleInputs:
    """What the sampling law (decode/processors.py, decode/sampling.py) is given, for R rows of up to D positions.

    Position j of row r is row r D + j of the logits; it is sampled as if its j drafts had been taken.
    """

    ints: Tensor
    """int32 [R, len(Ints)]."""
    floats: Tensor
    """float64 [R, len(Floats)]."""
    slots: Tensor
    """int32 [R]."""
    drafts: Tensor
    """int32 [R, D - 1] (D > 1), or [R, 0]; beyond N_POSITIONS - 1 anything."""
    bias_ids: Tensor
    """int32 [R, B]; -1 = none. Bans are biases of -inf."""
    biases: Tensor
    """float32 [R, B]. No id comes twice in a row, but for bans."""
    masks: Tensor
    """int32 [R D or more, ceil(vocab / 32)]: bit i of word w allows id 32 w + i."""
    uses_history: bool
    """Some row has COUNTS; else histories aren't looked at."""
    n_history_read: int
    """Bucket: the longest history that is looked at, drafts not counted; columns of `histories` from 0."""
    draws: bool
    """Some row has a temperature; else all are the best id."""
    n_logprobs: int
    """Bucket: -1 = none are wanted, else best ids for each position."""


@dataclass(frozen=True, slots=True)
class SlotState:
    """What is kept of each slot; the last row of each is scratch."""

    last: Tensor
    """int32 [slots + 1]: the id sampled last, -1 = none."""
    histories: Tensor
    """int32 [slots + 1, capacity]: prompt and output ids; those from N_HISTORY on are what was sampled."""


class Flags(IntEnum):
    """Bits of SampleOutputs.flags."""

    DEAD_END = 1
    """A mask allowed nothing, at the position behind the tokens."""
    NOT_NUMBERS = 2
    """The logits of a position that was reached have a NaN: no tokens."""


@dataclass(frozen=True, slots=True)
class SampleOutputs:
    """For R rows of D positions. A row has n_accepted drafts that were what would have been sampled, and then one more
    id unless there was a dead end. Beyond them `tokens` and logprobs are anything."""

    tokens: Tensor
    """int32 [R, D]."""
    n_tokens: Tensor
    """int32 [R]."""
    n_accepted: Tensor
    """int32 [R]."""
    flags: Tensor
    """int32 [R]."""
    logprobs: Tensor
    """float32 [R, D, 1 + K]: of the token, then of the best ids; log-softmax (float64 sums) of the processed logits, at
    least -9999. K = n_logprobs; [R, D, 0] without."""
    ranks: Tensor
    """int32 [R, D]; 1 = the best, ties by id."""
    top_ids: Tensor
    """int32 [R, D, K] by (logit descending, id ascending)."""


# -- The operations ----------------------------------------------------------------------------------------------------


class Operations(Protocol):
    """All of them; `name` is how an implementation is called in logs."""

    name: str

    def embed(self, ids: Tensor, rows: Rows, slots: SlotState, table: PackedMatrix, scale: float, out: Tensor) -> None:
        """ids int32 [T], -1 = the id that the row's slot sampled last -> out [T, width] = table[id] * scale.

        Ids below 0 after that (nothing was sampled), and those that the table doesn't have, count as 0.
        """
        ...

    def add_norm(self, stream: Tensor, delta: Tensor | None, scale: float, norm: NormForm, out: Tensor) -> None:
        """stream [T, width] += delta * scale, in place, and out = norm(stream). Without `delta` the norm alone.

        stream and delta [T, width].
        """
        ...

    def add(self, stream: Tensor, delta: Tensor, scale: float, opened: Tensor | None = None) -> None:
        """stream += delta * scale, in place; both [T, n], may be slices. With `opened` [T, 1]: delta * sigmoid(opened)
        * scale."""
        ...

    def scale(self, x: Tensor, factor: float) -> None:
        """x *= factor, in place."""
        ...

    def times(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """out [T, n] = x times weight [n]."""
        ...

    def tanh(self, x: Tensor) -> None:
        """In place."""
        ...

    def match_size(self, x: Tensor, like: Tensor) -> None:
        """x [T, n], in place: times the root of mean(like^2), over that of mean(x^2), the latter mean at least 1e-5."""
        ...

    def cut_off(self, x: Tensor, deviations: float) -> None:
        """x [T, n], in place: by how much a number exceeds the mean of the n and so many of their standard deviations
        (divided by n), 0 where it doesn't."""
        ...

    def predict(self, streams: Tensor, shares: Tensor, out: Tensor) -> None:
        """streams [S, T, width], shares [T, S S] -> out [S, T, width]: stream s plus the sum of all, in order, stream i
        times shares[:, S s + i]."""
        ...

    def correct(self, streams: Tensor, made: Tensor, weights: Tensor) -> None:
        """streams [S, T, width], in place: plus (made [T, width] - stream 0 as it was) * (1 + weights[:, s]), weights
        [T, S]."""
        ...

    def norm(self, x: Tensor, norm: NormForm, out: Tensor) -> None:
        """Over the last dimension; x and out [T, size], may be slices and may be the same."""
        ...

    def project(self, x: Tensor, matrix: PackedMatrix, bias: Tensor | None, out: Tensor) -> None:
        """out [T, n_out] = x [T, n_in] times matrix transposed + bias float32 [n_out]. x and out may be slices."""
        ...

    def gated_project(
        self,
        x: Tensor,
        gate: PackedMatrix,
        up: PackedMatrix,
        biases: tuple[Tensor, Tensor] | None,
        act: Activation,
        out: Tensor,
    ) -> None:
        """out [T, hidden] = act(x gate^T + b0) * (x up^T + b1).

        swiglu_clamped: g = min(g, 7), u = clamp(u, -7, 7), g * sigmoid(1.702 g) * (u + 1).
        """
        ...

    def activate(self, x: Tensor, act: Activation, times: Tensor | None, out: Tensor) -> None:
        """out = act(x), times `times` if given; all [T, n], may be slices, out may be x."""
        ...

    def qkv_epilogue(
        self, qkv: Tensor, form: QkvForm, rows: Rows, kv: LayerKv | None, q: Tensor, gate: Tensor | None
    ) -> None:
        """qkv [T, form.width] -> q [T, n_heads, head_size], gate [T, n_heads, head_size] if gated, and K and V of every
        id in their blocks (`kv` None exactly where `has_kv` is False). Token (r, j) is at position starts[r] + j.
        """
        ...

    def latent_epilogue(self, compressed: Tensor, norm: NormForm, rotation: Rotation, rows: Rows, kv: LayerKv) -> None:
        """compressed [T, rank + dims] (may be a slice) -> the normalised latent and the turned key, in their blocks."""
        ...

    def latent_queries(
        self,
        q: Tensor,
        k_b: PackedMatrix,
        rotation: Rotation,
        temperature: QueryTemperature | None,
        rows: Rows,
        out: Tensor,
    ) -> None:
        """q [T, heads, still + dims] -> out [T, heads, rank + dims]: of head h k_b[h] [rank, still] times the still
        part, then the rest turned; both times the temperature."""
        ...

    def by_head(self, x: Tensor, matrix: PackedMatrix, out: Tensor) -> None:
        """x [T, heads, n_in] -> out [T, heads, n_out / heads]: each head by its own rows of `matrix`."""
        ...

    def decode_attention(
        self, q: Tensor, rows: Rows, kv: LayerKv, form: AttentionForm, gate: Tensor | None, out: Tensor
    ) -> None:
        """W up to 8. q [T, n_heads, key size], out [T, n_heads, value size], times sigmoid(gate) if given.

        Parts (k, v): keys and values. Parts (latent, turned): one head whose key is latent | turned and whose value is
        the latent. The keys of this step's ids are in their blocks already. `rows.tables[kv.group]`.
        """
        ...

    def prefill_attention(
        self, q: Tensor, rows: Rows, kv: LayerKv, form: AttentionForm, gate: Tensor | None, out: Tensor
    ) -> None:
        """The same for wider rectangles; what lies before starts[r] is the row's prefix."""
        ...

    def route(self, logits: Tensor, form: RouterForm, chosen: Tensor, weights: Tensor) -> None:
        """logits [T, count] -> chosen int32 [T, top_k], best first, lowest id on ties; weights float32 [T, top_k]."""
        ...

    def experts_gated(
        self,
        x: Tensor,
        chosen: Tensor,
        on_input: Tensor | None,
        gate: PackedMatrix,
        up: PackedMatrix,
        biases: tuple[Tensor, Tensor] | None,
        act: Activation,
        out: Tensor,
    ) -> None:
        """out [T, top_k, hidden]: gated_project of x [T, width] by the chosen expert's rows of gate and up.

        `on_input` [T, top_k]: x is multiplied with it first. biases float32 [count, hidden] each.
        """
        ...

    def experts_down(
        self,
        hidden: Tensor,
        chosen: Tensor,
        weights: Tensor | None,
        down: PackedMatrix,
        bias: Tensor | None,
        out: Tensor,
    ) -> None:
        """hidden [T, top_k, hidden] -> out [T, width]: the sum over places, in order, of weight * (down + bias).

        `weights` None = all 1. bias float32 [count, width].
        """
        ...

    def head_logits(
        self, hidden: Tensor, head: PackedMatrix, bias: Tensor | None, scale: float, softcap: float, out: Tensor
    ) -> None:
        """hidden [M, width] -> out [M, vocab]: (head + bias) * scale, then softcap * tanh(x / softcap) if softcap."""
        ...

    def head_argmax(
        self, hidden: Tensor, head: PackedMatrix, bias: Tensor | None, scale: float, softcap: float, out: Tensor
    ) -> None:
        """out int32 [M]: the id of the largest logit, the lowest on ties, -1 where the row has a NaN. No logits are
        kept."""
        ...

    def take_best(self, best: Tensor, inputs: SampleInputs, slots: SlotState, out: SampleOutputs) -> None:
        """`sample` where the law is the argmax of raw logits: best int32 [R D] from head_argmax. No history is kept."""
        ...

    def sample(self, logits: Tensor, inputs: SampleInputs, slots: SlotState, out: SampleOutputs) -> None:
        """logits [R D, vocab], which it may overwrite, by the law: biases; penalties (repetition over the last
        REPEAT_LAST_N ids of history and drafts before the position, 0 = all; presence and frequency over those of them
        behind the prompt), float32; mask; temperature (float64 from here), top-k, top-p, min-p, each renormalised over
        what the one before left; the best of logit / temperature + Gumbel noise by Philox4x32-10 with key (SEED_LOW,
        SEED_HIGH) and counter (POSITION + j, 0, id, CHOICE), u = (first word + 1/2) / 2^32. Temperature 0: the best id.
        Drafts are walked as decode/verify.py does. Then, of rows with N_POSITIONS > 0: slots.last = the last token, -1
        without one; histories[slot, N_HISTORY + i] = token i (within the capacity).
        """
        ...

    def copy_blocks(self, pool: Tensor, pairs: Tensor) -> None:
        """pairs int32 [n, 2]: block pairs[i, 0] to block pairs[i, 1]; sources are read before any is written."""
        ...

    def gather_kv(self, kv: LayerKv, part: int, blocks: Tensor, out: Tensor) -> None:
        """blocks int32 [R, c] -> out float32 [R, heads, 16 c, size]: what the blocks hold of a part; zeros for -1."""
        ...
