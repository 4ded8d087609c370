"""What the templates of published models are known to say: how they think, write calls and end a turn."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Told:
    file: str
    """Of llama.cpp's models/templates, which has them as their makers published them."""
    families: tuple[str, ...]
    """config.json's model types of those who publish it."""
    thinks: str
    """What opens a thought; empty = it can't."""
    calls: str
    """Its notation of calls; empty = it teaches none."""
    end: str
    """What ends an assistant's turn."""
    remembers_calls: bool = True
    """It shows the calls of earlier turns in the notation that it teaches; others teach none."""


TOLD = (
    Told("meta-llama-Llama-3.1-8B-Instruct", ("llama",), "", "llama3_json", "<|eot_id|>"),
    Told("meta-llama-Llama-3.2-3B-Instruct", ("llama",), "", "llama3_json", "<|eot_id|>"),
    Told("meta-llama-Llama-3.3-70B-Instruct", ("llama",), "", "llama3_json", "<|eot_id|>"),
    Told("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", ("llama",), "<think>", "deepseek", "<｜end▁of▁sentence｜>", False),
    Told("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", ("qwen2",), "<think>", "deepseek", "<｜end▁of▁sentence｜>", False),
    Told("deepseek-ai-DeepSeek-V3.1", ("deepseek_v3",), "<think>", "deepseek", "<｜end▁of▁sentence｜>", False),
    Told("mistralai-Mistral-Nemo-Instruct-2407", ("mistral",), "", "mistral", "</s>"),
    Told("Mistral-Small-3.2-24B-Instruct-2506", ("mistral",), "", "mistral", "</s>"),
    Told("mistralai-Ministral-3-14B-Reasoning-2512", ("ministral3",), "[THINK]", "mistral", "</s>"),
    Told("Qwen-Qwen2.5-7B-Instruct", ("qwen2",), "", "hermes", "<|im_end|>"),
    Told("Qwen-QwQ-32B", ("qwen2",), "<think>", "hermes", "<|im_end|>"),
    Told("Qwen-Qwen3-0.6B", ("qwen3", "qwen3_moe"), "<think>", "hermes", "<|im_end|>"),
    Told("Qwen3-Coder", ("qwen3_moe",), "", "qwen_xml", "<|im_end|>"),
    Told("google-gemma-2-2b-it", ("gemma2",), "", "", "<end_of_turn>"),
    Told("google-gemma-4-31B-it", ("gemma4_text",), "<|channel>thought", "gemma", "<turn|>"),
    Told("microsoft-Phi-3.5-mini-instruct", ("phi3", "phimoe"), "", "", "<|end|>"),
    Told("ibm-granite-granite-3.3-2B-Instruct", ("granite",), "<think>", "granite", "<|end_of_text|>", False),
    Told("ibm-granite-granite-4.0", ("granite", "granitemoehybrid"), "", "hermes", "<|end_of_text|>"),
    Told("ibm-granite-granite-4.1", ("granite",), "", "hermes", "<|end_of_text|>"),
    Told("HuggingFaceTB-SmolLM3-3B", ("smollm3",), "<think>", "hermes", "<|im_end|>", False),
    Told("ByteDance-Seed-OSS", ("seed_oss",), "<seed:think>", "seed", "<seed:eos>"),
    Told("GLM-4.6", ("glm4_moe",), "<think>", "glm", "<|user|>"),
    Told("GLM-4.7-Flash", ("glm4_moe_lite",), "<think>", "glm", "<|user|>"),
    Told(
        "CohereForAI-c4ai-command-r7b-12-2024-tool_use", ("cohere2",), "<|START_THINKING|>", "cohere",
        "<|END_OF_TURN_TOKEN|>",
    ),
    Told("Cohere2MoE", ("cohere2_moe",), "<|START_THINKING|>", "cohere", "<|END_OF_TURN_TOKEN|>"),
    Told("openai-gpt-oss-120b", ("gpt_oss",), "<|channel|>analysis<|message|>", "harmony", "<|end|>"),
    Told("moonshotai-Kimi-K2", ("kimi_k2",), "", "kimi", "<|im_end|>"),
    Told("Kimi-K2-Instruct", ("kimi_k2",), "", "kimi", "<|im_end|>"),
    Told("Kimi-K2-Thinking", ("kimi_k2",), "<think>", "kimi", "<|im_end|>"),
    Told("MiniMax-M2", ("minimax_m2",), "<think>", "minimax", "[e~["),
    Told("inclusionai-ling-3.0-flash", ("bailing_moe_v2",), "<think>", "glm", "<|role_end|>"),
)  # fmt: skip

NAMED = {
    "gemma3_text": ("gemma", "<end_of_turn>"),
    "gemma3n_text": ("gemma", "<end_of_turn>"),
    "llama4_text": ("llama4", "<|eot|>"),
    "exaone4": ("exaone4", "[|endofturn|]"),
    "hunyuan_v1_dense": ("hunyuan-dense", "<｜hy_place▁holder▁no▁2｜>"),
    "hunyuan_v1_moe": ("hunyuan-moe", "<|eos|>"),
    "mixtral": ("mistral-v1", "</s>"),
    "deepseek_v2": ("deepseek2", "<｜end▁of▁sentence｜>"),
    "mistral4": ("mistral-v7-tekken", "</s>"),
    "glm4": ("chatglm4", "<|user|>"),
    "minicpm": ("chatml", "<|im_end|>"),
}
"""Model types whose published template isn't among those files -> a named one of their form, and what ends a turn."""

UNSEEN = {"ministral", "olmo2", "olmo3", "olmoe", "starcoder2", "nemotron", "ernie4_5", "ernie4_5_moe", "qwen2_moe",
          "granitemoe", "granitemoeshared"}  # fmt: skip
"""Model types of whose published template nothing is at hand here; what their files say holds."""
