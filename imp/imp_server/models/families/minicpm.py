"""minicpm: MiniCPM 1 and 4: Llama with three multipliers."""

from __future__ import annotations

import math

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("minicpm",)
HF_MODEL_TYPES = ("minicpm",)


def describe(reader: Reader) -> Architecture:
    """Files of before the keys have those of the first model."""
    rope = reader.rope(reader.head_size(), permuted=True)
    layer = Layer(reader.attention(rope=rope), reader.dense())
    if reader.format == "gguf":
        residual = reader.number("residual_scale", "", 1.4 / math.sqrt(reader.n_layers))
        divided = reader.positive("logit_scale", "", reader.width / 256)
    else:
        residual = reader.number("", "scale_depth") / math.sqrt(reader.n_layers)
        divided = reader.width / reader.positive("", "dim_model_base")
    return reader.architecture(
        "minicpm",
        [layer] * reader.n_layers,
        embedding_scale=reader.number("embedding_scale", "scale_emb", 12.0),
        residual_scale=residual,
        logit_scale=1.0 / divided,
    )
