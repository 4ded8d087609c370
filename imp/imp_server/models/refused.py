"""Families that are known and not supported, with the reason; their GGUF names and config.json's model types."""

from __future__ import annotations

_SPARSE = "its attention chooses the positions that it sees (sparse attention), which isn't supported"
_RECURRENT = "it has layers with a recurrent state, which aren't supported yet"
_ENCODER = "it is no decoder"

REASONS: dict[str, str] = {
    **dict.fromkeys(("deepseek32", "deepseek_v32", "glm-dsa", "glm_moe_dsa", "deepseek4", "deepseek_v4"), _SPARSE),
    **dict.fromkeys(
        (
            "qwen3next", "qwen3_next", "qwen35", "qwen3_5", "qwen3_5_text", "qwen35moe", "qwen3_5_moe",
            "qwen3_5_moe_text", "mamba",
            "mamba2", "jamba", "falcon-h1", "falcon_h1", "granitehybrid", "nemotron_h",
            "nemotron_h_moe",
            "lfm2", "lfm2moe", "lfm2_moe", "kimi-linear", "kimi_linear", "rwkv6", "rwkv7", "bamba", "zamba2",
        ),
        _RECURRENT,
    ),
    **dict.fromkeys(("bert", "nomic-bert", "nomic_bert", "modernbert", "modern-bert", "jina-bert-v2", "t5"), _ENCODER),
}  # fmt: skip


def reason(name: str) -> str:
    """Why the family of this name isn't supported; "" = nobody knows it."""
    return REASONS.get(name, "")
