"""Which files of a repository are one model."""

from __future__ import annotations

import pytest
from imp_server.core import ModelFileMissing, UnsupportedModel
from imp_server.weights.file_sets import choose, sidecars, split_parts

QUANTISED = [
    "README.md",
    "Model-7B-BF16.gguf",
    "Model-7B-IQ4_XS.gguf",
    "Model-7B-Q4_K_M.gguf",
    "Model-7B-Q8_0.gguf",
    "imatrix.gguf",
    "mmproj-Model-7B-BF16.gguf",
    "mmproj-Model-7B-F16.gguf",
]


@pytest.mark.parametrize(
    ("wanted", "main"),
    [
        ("", "Model-7B-Q4_K_M.gguf"),
        ("Q8_0", "Model-7B-Q8_0.gguf"),
        ("q8_0", "Model-7B-Q8_0.gguf"),
        ("iq4_xs", "Model-7B-IQ4_XS.gguf"),
        ("Model-7B-BF16.gguf", "Model-7B-BF16.gguf"),
    ],
)
def test_by_quantisation_by_name_or_the_preferred(wanted: str, main: str) -> None:
    found, files = choose(QUANTISED, wanted, "hf:x/y")
    assert found == main
    own = "mmproj-Model-7B-BF16.gguf" if "BF16" in main else "mmproj-Model-7B-F16.gguf"
    assert files == [main, own]


def test_what_is_not_there_names_what_is() -> None:
    with pytest.raises(ModelFileMissing, match="has no Q2_K; it has BF16, IQ4_XS, Q4_K_M, Q8_0"):
        choose(QUANTISED, "Q2_K", "hf:x/y")
    with pytest.raises(UnsupportedModel, match="no model that imp can read"):
        choose(["README.md", "model.onnx"], "", "hf:x/y")
    with pytest.raises(ModelFileMissing, match=r"no \.gguf files"):
        choose(["config.json", "model.safetensors"], "Q8_0", "hf:x/y")


def test_sub_folders() -> None:
    names = ["Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf", "mtp-m.gguf", "Q8_0/mtp-m.gguf"]
    main, files = choose(names, "Q8_0", "hf:x/y")
    assert main == names[0] and files == [names[0], names[1], "Q8_0/mtp-m.gguf"]


def test_split_parts_in_order_whichever_is_named() -> None:
    names = [f"m-{part:05d}-of-00003.gguf" for part in (3, 1, 2)]
    assert split_parts(names[0], names) == sorted(names)
    assert split_parts("m.gguf", []) == ["m.gguf"]
    with pytest.raises(ModelFileMissing, match="3 parts"):
        split_parts(names[0], names[:2])


def test_a_sidecar_has_no_sidecars() -> None:
    assert sidecars("mtp-m.gguf", ["mtp-m.gguf", "mtp-n.gguf"]) == []


def test_a_safetensors_folder_takes_what_a_model_needs() -> None:
    names = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "consolidated.safetensors",
        "original/model.safetensors",
        "pytorch_model.bin",
        "flax_model.msgpack",
        "assets/picture.png",
    ]
    main, files = choose(names, "", "hf:x/y")
    assert main == "" and set(files) == set(names[:8])
