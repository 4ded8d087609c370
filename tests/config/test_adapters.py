"""Which adapters a configuration names, under which names and numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from imp_server.config import Config
from imp_server.config.adapters import lora_entries
from imp_server.config.llama_server import translated
from imp_server.config.load import load
from imp_server.config.presets import read_presets
from imp_server.core import ConfigError


def entries(**settings: object) -> list[tuple[str, str, float]]:
    config = Config.of({f"adapters.{name}": value for name, value in settings.items()})
    return [(entry.name, entry.path, entry.scale) for entry in lora_entries(config.adapters)]


def test_names_and_scales() -> None:
    assert entries(lora=("a=x/b.gguf", "y/c.gguf"), lora_scaled=("y/c.gguf:0.5", "d=z:-2")) == [
        ("a", "x/b.gguf", 0.0),
        ("c", "y/c.gguf", 0.0),
        ("c-2", "y/c.gguf", 0.5),
        ("d", "z", -2.0),
    ]
    assert entries(lora_scaled=("c:d/e.gguf:1e1",), init_without_apply=True) == [("e", "c:d/e.gguf", 0.0)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lora": ("=b",)}, "names no adapter"),
        ({"lora": ("a=",)}, "names no adapter"),
        ({"lora": ("a=b", "a=c")}, "two adapters are called 'a'"),
        ({"lora_scaled": ("b",)}, "isn't PATH:SCALE"),
        ({"lora_scaled": ("b:much",)}, "isn't PATH:SCALE"),
        ({"lora_scaled": ("b:nan",)}, "isn't PATH:SCALE"),
        ({"lora_scaled": ("b:1e39",)}, "a number from -1000 to 1000"),
        ({"lora": ("a=b", "b=c"), "max_loaded": 1}, "more than adapters.max_loaded allows (1)"),
    ],
)
def test_what_is_wrong(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        entries(**settings)
    assert words in caught.value.message


def test_llama_servers_flags() -> None:
    """Numbers are in the order of the command line."""
    found = translated(["--lora", "a.gguf,b.gguf", "--lora-scaled", "c.gguf:0.5", "--lora", "d.gguf"], {}).knobs
    assert found == {"adapters.lora_scaled": "a.gguf:1,b.gguf:1,c.gguf:0.5,d.gguf:1"}
    assert translated(["--lora-init-without-apply"], {}).knobs == {"adapters.init_without_apply": "true"}


def test_each_model_of_a_preset_file_has_its_own(tmp_path: Path) -> None:
    text = "[a]\nlora = tone=a.gguf\nlora-scaled = b.gguf:0.5\n[b]\n[c]\nlora-scaled = b.gguf\n"
    (tmp_path / "models.ini").write_text(text)
    found = read_presets(tmp_path / "models.ini", load({})).sections
    assert [tuple(one) for one in lora_entries(found["a"].config.adapters)] == [
        ("tone", "a.gguf", 0.0),
        ("b", "b.gguf", 0.5),
    ]
    assert lora_entries(found["b"].config.adapters) == ()
    assert "isn't PATH:SCALE" in found["c"].problem, "one broken section stops nobody else"
    theirs = load({"server.habits": ["llama-server"]})
    (tmp_path / "models.ini").write_text("[a]\nlora = a.gguf,b.gguf\n")
    found = read_presets(tmp_path / "models.ini", theirs).sections
    assert [entry.scale for entry in lora_entries(found["a"].config.adapters)] == [1.0, 1.0]
