"""What the templates of published models are known to say: how they think, write calls and end a turn."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Told:
    file: str
    """Of llama.cpp's models/templates, which has them as their makers published them; `tests: NAME` = one that its test
    of templates quotes; `axolotl: NAME` = one of axolotl's."""
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
    Told("openbmb-MiniCPM5-1B", ("llama",), "<think>", "minicpm", "<|im_end|>"),
    Told("axolotl: gemma3", ("gemma3_text",), "", "", "<end_of_turn>"),
    Told("axolotl: gemma3n", ("gemma3n_text",), "", "", "<end_of_turn>"),
    Told("axolotl: llama4", ("llama4_text",), "", "llama3_json", "<|eot|>"),
    Told("axolotl: exaone4", ("exaone4",), "<think>", "hermes", "[|endofturn|]"),
    Told("axolotl: mistral_v1", ("mixtral",), "", "", "</s>"),
    Told("axolotl: mistral_v3_tekken", ("ministral",), "", "mistral", "</s>"),
    Told("tests: DeepSeek-V2", ("deepseek_v2",), "", "", "<｜end▁of▁sentence｜>"),
    Told("tests: ChatGLM4", ("glm4",), "", "", "<|user|>"),
    Told("tests: ibm-granite/granite-3.0-8b-instruct", ("granitemoe",), "", "granite", "<|end_of_text|>", False),
)  # fmt: skip

NAMED = {
    "mistral4": ("mistral-v7-tekken", "</s>"),
    "minicpm": ("chatml", "<|im_end|>"),
}
"""Model types whose published template isn't among those files -> a named one of their form, and what ends a turn."""


@dataclass(frozen=True)
class Rewritten:
    """A published template that no package has, written anew as far as a talk without tools and its own marks go; what
    it makes of that talk is what the published one makes."""

    families: tuple[str, ...]
    template: str
    talk: str
    """Of system "Be kind.", user "Q", assistant "A", user "R", with the next turn begun. Without the system text where
    the published one refuses it."""
    end: str
    thinks: str = ""
    calls: str = ""
    bos: str = ""
    takes_system: bool = True


_TULU = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}"
    "{{ eos_token if m.role == 'assistant' }}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
_TULU_TALK = "<|system|>\nBe kind.\n<|user|>\nQ\n<|assistant|>\nA{}\n<|user|>\nR\n<|assistant|>\n"
_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}MORE<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\nTHINK{% endif %}"
)
_CHATML_TALK = (
    "<|im_start|>system\nBe kind.{}<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n"
    "<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nR<|im_end|>\n<|im_start|>assistant\n{}"
)
_NO_FUNCTIONS = " You do not currently have access to any functions. <functions></functions>"

REWRITTEN = (
    Rewritten(
        ("olmo2", "olmoe"), _TULU, "<|endoftext|>" + _TULU_TALK.format("<|endoftext|>"), "<|endoftext|>",
        bos="<|endoftext|>",
    ),
    Rewritten(
        ("olmoe",), _TULU, "|||IP_ADDRESS|||" + _TULU_TALK.format("|||IP_ADDRESS|||"), "|||IP_ADDRESS|||",
        bos="|||IP_ADDRESS|||",
    ),
    Rewritten(
        ("olmo3",),
        _CHATML.replace("MORE", "{{ '" + _NO_FUNCTIONS + "' if m.role == 'system' }}").replace("THINK", "<think>"),
        _CHATML_TALK.format(_NO_FUNCTIONS, "<think>"), "<|im_end|>", "<think>",
    ),
    Rewritten(
        ("ernie4_5", "ernie4_5_moe"),
        "<|begin_of_sentence|>{% for m in messages %}{% if m.role == 'user' %}User: {{ m.content }}{{ '\n' }}"
        "{% elif m.role == 'assistant' %}Assistant: {{ m.content }}<|end_of_sentence|>{% else %}{{ m.content + '\n' }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}",
        "<|begin_of_sentence|>Be kind.\nUser: Q\nAssistant: A<|end_of_sentence|>User: R\nAssistant: ",
        "<|end_of_sentence|>",
    ),
    Rewritten(
        ("starcoder2",),
        "{{ bos_token }}You are an exceptionally intelligent coding assistant that consistently delivers accurate and "
        "reliable responses to user instructions.\n\n{% for m in messages %}{% if m.role == 'system' %}"
        "{{ raise_exception('no system messages') }}{% elif m.role == 'user' %}### Instruction\n{{ m.content }}\n\n"
        "{% else %}### Response\n{{ m.content + eos_token }}\n\n{% endif %}{% endfor %}{{ '### Response\n' }}",
        "<|endoftext|>You are an exceptionally intelligent coding assistant that consistently delivers accurate and "
        "reliable responses to user instructions.\n\n### Instruction\nQ\n\n### Response\nA<|endoftext|>\n\n"
        "### Instruction\nR\n\n### Response\n",
        "<|endoftext|>", bos="<|endoftext|>", takes_system=False,
    ),
    Rewritten(
        ("nemotron",),
        "{% for m in messages %}{% if m.role == 'system' %}<extra_id_0>System\n{{ m.content + '\n\n' }}"
        "{% else %}<extra_id_1>{{ m.role | capitalize }}\n{{ m.content + '\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<extra_id_1>Assistant\n{{ '' }}{% endif %}",
        "<extra_id_0>System\nBe kind.\n\n<extra_id_1>User\nQ\n<extra_id_1>Assistant\nA\n<extra_id_1>User\nR\n"
        "<extra_id_1>Assistant\n",
        "<extra_id_1>",
    ),
    Rewritten(
        ("qwen2_moe",), _CHATML.replace("MORE", "").replace("THINK", ""), _CHATML_TALK.format("", ""), "<|im_end|>"
    ),
    Rewritten(
        ("hunyuan_v1_moe",),
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}<|eos|>{% elif m.role == 'system' %}"
        "<|startoftext|>{{ m.content }}<|extra_4|>{% else %}{{ '<|startoftext|>' if loop.index0 != 1 }}{{ m.content }}"
        "<|extra_0|>{% endif %}{% endfor %}{% if tools %}<tool_calls>{{ tools | tojson }}</tool_calls>{% endif %}"
        "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n{% endif %}",
        "<|startoftext|>Be kind.<|extra_4|>Q<|extra_0|>A<|eos|><|startoftext|>R<|extra_0|>", "<|eos|>", "<think>",
        "jamba",
    ),
    Rewritten(
        ("hunyuan_v1_dense",),
        "{% for m in messages %}{% if m.role == 'system' %}<｜hy_begin▁of▁sentence｜>{{ m.content }}"
        "<｜hy_place▁holder▁no▁3｜>{% elif m.role == 'user' %}<｜hy_User｜>{{ m.content }}{% else %}<｜hy_Assistant｜>"
        "{{ m.content }}<｜hy_place▁holder▁no▁2｜>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<｜hy_Assistant｜>{% endif %}",
        "<｜hy_begin▁of▁sentence｜>Be kind.<｜hy_place▁holder▁no▁3｜><｜hy_User｜>Q<｜hy_Assistant｜>A"
        "<｜hy_place▁holder▁no▁2｜><｜hy_User｜>R<｜hy_Assistant｜>",
        "<｜hy_place▁holder▁no▁2｜>",
    ),
)  # fmt: skip

UNSEEN = {"arcee", "granitemoeshared"}
"""Model types whose published template we have not seen, or that have none."""
