"""Building blocks of a decoder's description, read from a header: what families have in common.

A family (models/families/) calls them with what is its own. Each value has a name in GGUF and one in config.json; a
family's own values are asked for by both.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from imp_server.core import InvalidModel, UnsupportedModel
from imp_server.models.architecture import Architecture, Layer, grouped
from imp_server.models.feed_forwards import Activation, Dense
from imp_server.models.hyperparameters import Hyperparameters
from imp_server.models.mixers import Attention
from imp_server.models.rotation import Rope
from imp_server.weights.header import ModelHeader

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "relu2": "relu2",
}


class Reader(ABC):
    """One header, with the tensors that lie beside it. Every method raises InvalidModel for what contradicts itself."""

    format: ClassVar[Literal["gguf", "checkpoint"]]

    def __init__(self, header: ModelHeader) -> None:
        self.header = header
        self.keys = Hyperparameters(header)
        self.kind = header.architecture
        """GGUF's `general.architecture`, config.json's `model_type`."""
        self.n_layers = self.integer("block_count", "num_hidden_layers", high=4096)
        if self.n_layers > self.n_tensors:  # before anything of that size is made
            name = "block_count" if self.format == "gguf" else "num_hidden_layers"
            raise self.keys.wrong(name, self.n_layers, f"what {self.n_tensors} tensors can be")
        self.width = self.integer("embedding_length", "hidden_size")

        self.n_draft_layers = 0
        """Layers behind the model's own that aren't read."""
        self._left_out: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """What an error begins with."""
        return self.header.path.name

    @property
    @abstractmethod
    def n_tensors(self) -> int: ...

    @abstractmethod
    def has(self, name: str, layer: int = 0, config_stem: str = "") -> bool:
        """A tensor of this canonical name (models/source.py) is there, under the name that most families give it, or
        under `config_stem` of a checkpoint's layer.
        """

    @abstractmethod
    def rope(
        self,
        head_size: int,
        *,
        permuted: bool = False,
        interleaved: bool = False,
        turning: float = 1.0,
        own: tuple[str, ...] = (),
    ) -> Rope:
        """`permuted`: GGUF's converter orders the rows of q and k anew for this family, so that neighbours turn;
        `interleaved`: they do so in both kinds of file. `turning`: the share of a head that turns where the header
        doesn't say. `own`: keys of the rope's object that the family itself reads.
        """

    @abstractmethod
    def local_rope(self, rope: Rope, default_base: float = 0.0) -> Rope:
        """That of layers with a window: without context extension, with a base of its own where the header has one.
        `default_base`: where it has none, 0 = that of `rope`.
        """

    @abstractmethod
    def windows(self, every: int) -> list[int]:
        """Of each layer, 0 = all is seen. As the header's list has it, else each `every`-th layer sees all."""

    @abstractmethod
    def vocab_size(self) -> int: ...

    @abstractmethod
    def rows(self, tensor: str) -> int:
        """Of a matrix of the file, by its name there."""

    @abstractmethod
    def tied_head(self) -> bool: ...

    def leave_out_draft_layers(self, *prefixes: str) -> None:
        """Layers that guess further ids (MTP), behind the model's own, aren't read. `prefixes`: how further tensors of
        theirs begin.
        """
        self._left_out = prefixes
        n = self.integer("nextn_predict_layers", "num_nextn_predict_layers", 0, low=0, high=self.n_layers)
        self.n_draft_layers = n
        if self.format == "gguf":  # which counts them among its blocks
            self.n_layers -= n

    def leave_out(self, *prefixes: str) -> None:
        """Tensors of the file that begin so aren't read."""
        self._left_out += prefixes

    def is_left_out(self, tensor: str) -> bool:
        """A tensor of the file, by its name there, belongs to a layer that isn't read."""
        if self._left_out and tensor.startswith(self._left_out):
            return True
        found = re.match(r"(?:model\.layers|blk)\.(\d+)\.", tensor)
        return found is not None and self.n_layers <= int(found[1]) < self.n_layers + self.n_draft_layers

    @abstractmethod
    def finish(self) -> None:
        """Raises UnsupportedModel for the first key that would change the model and wasn't asked for."""

    def integer(self, gguf: str, config: str, default: int | None = None, *, low: int = 1, high: int = 1 << 20) -> int:
        """The value under its name in this format; an empty name: only the default."""
        name = gguf if self.format == "gguf" else config
        if not name and default is not None:
            return default
        return self.keys.integer(name, default, low=low, high=high)

    def number(self, gguf: str, config: str, default: float | None = None) -> float:
        name = gguf if self.format == "gguf" else config
        if not name and default is not None:
            return default
        return self.keys.number(name, default)

    def positive(self, gguf: str, config: str, default: float | None = None) -> float:
        """A number that is divided by, or whose root is taken."""
        name = gguf if self.format == "gguf" else config
        return self.keys.positive(name, default) if name or default is None else default

    def attention(self, **fields: Any) -> Attention:
        """`fields`: what is the family's own."""
        n_heads = self.integer("attention.head_count", "num_attention_heads", high=4096)
        n_kv_heads = self.integer("attention.head_count_kv", "num_key_value_heads", n_heads, high=4096)
        if n_heads % n_kv_heads:
            raise InvalidModel(f"{self.where}: {n_heads} heads can't share {n_kv_heads} key heads")
        head_size = self.head_size()
        own: dict[str, Any] = {"value_head_size": self.integer("attention.value_length", "", head_size)}
        if "qkv_bias" not in fields:
            own["qkv_bias"] = self.has_bias("q", "attention_bias")
        if "out_bias" not in fields:
            own["out_bias"] = self.has_bias("o", "attention_bias")
        if "rope" not in fields:
            own["rope"] = self.rope(head_size)
        return Attention(n_heads, n_kv_heads, head_size, **{**own, **fields})

    def head_size(self) -> int:
        n_heads = self.integer("attention.head_count", "num_attention_heads", high=4096)
        return self.integer("attention.key_length", "head_dim", self.width // n_heads, low=2)

    def window(self) -> int:
        """Positions that a layer with a window sees; 0 = the header has none."""
        return self.integer("attention.sliding_window", "sliding_window", 0, low=0, high=1 << 30)

    def has_window(self) -> bool:
        return self.window() > 0

    def windowed(self, is_windowed: Sequence[bool]) -> list[int]:
        """The header's window for these layers."""
        if not any(is_windowed):
            return [0] * self.n_layers
        window = self.integer("attention.sliding_window", "sliding_window", high=1 << 30)
        return [window if windowed else 0 for windowed in is_windowed]

    def dense(self, **fields: Any) -> Dense:
        """`fields`: what is the family's own."""
        own: dict[str, Any] = {}
        if "bias" not in fields:
            own["bias"] = self.has_bias("up", "mlp_bias")
        if "activation" not in fields:
            own["activation"] = self.activation()
        return Dense(self.integer("feed_forward_length", "intermediate_size"), **{**own, **fields})

    def activation(self, default: Activation = "silu") -> Activation:
        """As config.json says it; GGUF files leave it to the family. `default`: the family's."""
        if self.format == "gguf":
            return default
        self.keys.note("hidden_act", "hidden_activation")
        key = "hidden_activation" if "hidden_activation" in self.keys else "hidden_act"
        name = self.keys.text(key, default)
        if name not in ACTIVATIONS:
            raise UnsupportedModel(f"{self.where}: '{key}' is {name!r}, which isn't supported for this family")
        return ACTIVATIONS[name]

    @abstractmethod
    def has_bias(self, name: str, key: str) -> bool:
        """Whether the first layer's tensor `name` has a bias, which config.json's `key` may say, too."""

    def architecture(self, family: str, layers: Sequence[Layer], **fields: Any) -> Architecture:
        """Cache groups are made of the layers. `fields`: what is the family's own."""
        placed, groups = grouped(layers)
        if "norm_eps" not in fields:
            fields["norm_eps"] = self.number("attention.layer_norm_rms_epsilon", "rms_norm_eps")
        return Architecture(
            family=family,
            n_layers=self.n_layers,
            width=self.width,
            vocab_size=self.vocab_size(),
            context_length=self.integer("context_length", "max_position_embeddings", high=1 << 30),
            layers=placed,
            cache_groups=groups,
            tied_head=self.tied_head(),
            pooling=self._pooling(),
            **fields,
        )

    def _pooling(self) -> Literal["none", "mean"]:
        """As GGUF numbers them: 0 it doesn't say, 1 mean, 2 the first position, 3 the last one, 4 a rank."""
        if self.header.pooling not in ("", "last", "mean"):
            raise UnsupportedModel(f"{self.where}: {self.header.pooling} isn't supported")
        if self.header.pooling == "mean":
            return "mean"
        kind = self.integer("pooling_type", "", 0, low=0, high=4)
        if kind in (2, 4):
            raise UnsupportedModel(f"{self.where}: 'pooling_type' is {kind}, as encoders have it, which come later")
        return "mean" if kind == 1 else "none"
