"""Mixers: the half of a layer in which positions meet.

A kind says here which tensors it has and what it keeps of a position; how it runs is said in a table of each backend
(backends/NAME/mixers.py). So a further kind is a further class and a further entry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal

from imp_server.models.rotation import Rope

Shapes = dict[str, tuple[int, ...]]
CacheKind = Literal["full", "window", "state", "none"]


@dataclass(frozen=True, slots=True)
class CachedPart:
    """`heads` vectors of `size` numbers, kept of each position; of each sequence in a group of kind `state`."""

    name: str
    heads: int
    size: int


@dataclass(frozen=True, slots=True)
class Mixer(ABC):
    """What every kind says of itself."""

    @property
    @abstractmethod
    def cache(self) -> tuple[CacheKind, int]:
        """Kind of its cache group, and the group's window (0 = none)."""

    @abstractmethod
    def cached(self) -> tuple[CachedPart, ...]:
        """What it keeps, in the order in which a block holds it."""

    @abstractmethod
    def tensors(self, width: int) -> Shapes:
        """Name below `layers.N.` -> shape, of every tensor that it can't do without."""

    def ropes(self) -> tuple[Rope, ...]:
        """The rotary positions that it uses."""
        return ()


@dataclass(frozen=True, slots=True)
class Temperature:
    """Queries are multiplied with 1 + share ln(1 + (position + offset) / step), the quotient rounded down."""

    share: float
    step: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Attention(Mixer):
    """Softmax attention of query heads that share key heads; sizes in elements."""

    n_heads: int
    n_kv_heads: int
    head_size: int
    value_head_size: int = 0
    """0 = head_size."""
    window: int = 0
    """Positions a query sees, itself included; 0 = all."""
    chunk: int = 0
    """The text is cut into chunks of so many positions, and a query sees its own alone; 0 = it isn't cut."""
    causal: bool = True
    rope: Rope | None = None
    qk_norm: Literal["none", "per_head", "per_head_after_rope", "whole"] = "none"
    bare_qk_norm: bool = False
    """That norm has no weights."""
    v_norm: bool = False
    """Values are normalised by heads, without weights."""
    keys_are_values: bool = False
    """There is no projection of values: they are the keys before these are normalised and turned."""
    shares: int = -1
    """The layer whose keys and values it sees instead of some of its own; -1 = none."""
    temperature: Temperature | None = None
    scale: float = 0.0
    """Multiplies q.k; 0 = 1/sqrt(head_size)."""
    softcap: float = 0.0
    sinks: bool = False
    """A learned logit per head joins the softmax denominator."""
    qkv_bias: bool = False
    out_bias: bool = False
    gated: bool = False
    """The q projection carries a sigmoid gate of the same width."""

    def seeing(self, window: int) -> Attention:
        """The same with this window; 0 = all is seen."""
        return replace(self, window=window)

    @property
    def value_size(self) -> int:
        return self.value_head_size or self.head_size

    @property
    def cache(self) -> tuple[CacheKind, int]:
        seen = self.chunk or self.window
        return ("window", seen) if seen else ("full", 0)

    def cached(self) -> tuple[CachedPart, ...]:
        if self.shares >= 0:
            return ()
        keys = CachedPart("k", self.n_kv_heads, self.head_size)
        return keys, CachedPart("v", self.n_kv_heads, self.value_size)

    def tensors(self, width: int) -> Shapes:
        q = self.n_heads * self.head_size
        shapes: Shapes = {
            "q": (2 * q if self.gated else q, width),
            "k": (self.n_kv_heads * self.head_size, width),
            "v": (self.n_kv_heads * self.value_size, width),
            "o": (width, self.n_heads * self.value_size),
        }
        if self.qkv_bias:
            shapes |= {f"{name}.bias": shapes[name][:1] for name in ("q", "k", "v")}
        if self.out_bias:
            shapes["o.bias"] = (width,)
        if self.qk_norm.startswith("per_head"):
            shapes |= {"q_norm": (self.head_size,), "k_norm": (self.head_size,)}
        elif self.qk_norm == "whole":
            shapes |= {"q_norm": (q,), "k_norm": shapes["k"][:1]}
        if self.sinks:
            shapes["sinks"] = (self.n_heads,)
        without = {"q_norm", "k_norm"} if self.bare_qk_norm else set()
        if self.shares >= 0:
            without |= {"k", "v", "k.bias", "v.bias", "k_norm"}
        elif self.keys_are_values:
            without |= {"v", "v.bias"}
        return {name: shape for name, shape in shapes.items() if name not in without}

    def ropes(self) -> tuple[Rope, ...]:
        return () if self.rope is None else (self.rope,)


@dataclass(frozen=True, slots=True)
class LatentAttention(Mixer):
    """Softmax attention whose keys and values are made of one compressed vector, the latent, which is all that is kept
    of a position beside one key that turns (DeepSeek's MLA).

    It runs in its absorbed form: of a head with queries `(q, turned q)`, the score of a position is
    (k_b q) . latent + turned q . turned k, and the head's output v_b (sum of weights times latents).
    """

    n_heads: int
    rank: int
    """Size of the latent."""
    still_size: int
    """Dimensions of a head that don't turn; those of `rope` follow them."""
    value_size: int
    rope: Rope
    q_rank: int = 0
    """Size to which queries are compressed; 0 = they aren't."""
    bias: bool = False
    """Of what compresses, and of the output."""
    scale: float = 0.0
    """Multiplies q.k; 0 = 1/sqrt(size of a head)."""
    temperature: Temperature | None = None
    latent_eps: float = 1e-6
    """Of the norms of what is compressed."""

    @property
    def head_size(self) -> int:
        return self.still_size + self.rope.dims

    @property
    def cache(self) -> tuple[CacheKind, int]:
        return "full", 0

    def cached(self) -> tuple[CachedPart, ...]:
        return CachedPart("latent", 1, self.rank), CachedPart("turned", 1, self.rope.dims)

    def tensors(self, width: int) -> Shapes:
        shapes: Shapes = {
            "kv_a": (self.rank + self.rope.dims, width),
            "kv_a_norm": (self.rank,),
            "k_b": (self.n_heads, self.rank, self.still_size),
            "v_b": (self.n_heads, self.value_size, self.rank),
            "o": (width, self.n_heads * self.value_size),
        }
        q = self.n_heads * self.head_size
        if self.q_rank:
            shapes |= {"q_a": (self.q_rank, width), "q_a_norm": (self.q_rank,), "q_b": (q, self.q_rank)}
        else:
            shapes["q"] = (q, width)
        if self.bias:
            shapes |= {f"{name}.bias": shapes[name][:1] for name in ("q_a", "kv_a", "o") if name in shapes}
        return shapes

    def ropes(self) -> tuple[Rope, ...]:
        return (self.rope,)
