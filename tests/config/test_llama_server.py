"""llama-server's command line: every flag of that project's own list is known, and does what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest
from imp_server.cli.llama_server import configuration
from imp_server.config.knobs import knobs
from imp_server.config.llama_server import FLAGS, HABITS, flags_by_name, translated
from imp_server.config.llama_server_page import page, usage
from imp_server.core import ConfigError

LISTED = [line for line in (Path(__file__).parent / "llama_server_flags.txt").read_text().splitlines() if line]
"""Names and variable of every flag, as the README of that project's server lists them."""


def test_every_flag_of_that_server_is_known_by_every_name_and_variable() -> None:
    known = flags_by_name()
    assert len(LISTED) > 250
    for line in LISTED:
        names, _, variable = line.partition(" = ")
        for name in names.split():
            assert name in known, name
        if variable:
            variables = {known[name][0].env for name in names.split()}
            assert variable in variables, line


def test_no_flag_is_made_up_and_each_sets_something_that_is_there() -> None:
    listed = {name for line in LISTED for name in line.partition(" = ")[0].split()}
    assert set(flags_by_name()) <= listed
    keys = {target.partition("=")[0] for flag in FLAGS if "." in flag.knob for target in flag.knob.split()}
    assert keys and keys | set(HABITS) <= set(knobs())
    assert all(flag.why for flag in FLAGS if flag.verdict != "served")


@pytest.mark.parametrize(
    ("line", "knobs_set"),
    [
        ("-m a.gguf -c 4096 -np -1", {"model.path": "a.gguf", "model.max_seq_len": "4096", "scheduler.max_rows": "0"}),
        ("-hf org/repo:Q8_0", {"model.path": "hf:org/repo:Q8_0"}),
        ("-hf org/repo:Q8_0 -hff x.gguf", {"model.path": "hf:org/repo:x.gguf"}),
        ("--host 0.0.0.0,/run/a.sock", {"server.host": "0.0.0.0,unix:/run/a.sock"}),
        ("-md d.gguf", {}),
        ("-md d.gguf --spec-type draft-simple,ngram-mod",
         {"speculative.draft_model": "d.gguf", "speculative.drafters": "forced,ngram,model",
          "speculative.enabled": "on", "speculative.cost_gate": "false"}),
        ("-c 512 -np 2", {"model.max_seq_len": "256", "scheduler.max_rows": "2"}),
        ("-c 512 -np 2 -kvu", {"model.max_seq_len": "512", "scheduler.max_rows": "2"}),
        ("-c 512 -np 2 -kvu -no-kvu", {"model.max_seq_len": "256", "scheduler.max_rows": "2"}),
        ("-c 0 -np 2", {"model.max_seq_len": "0", "scheduler.max_rows": "2"}),
        ("-n 64", {"server.max_tokens": "64", "server.most_tokens": "64"}),
        ("-a b,a", {"model.alias": "a,b"}),
        ("--context-shift --keep 5", {"model.context_shift": "true", "model.keep_tokens": "5"}),
        ("--no-jinja --no-ui --props", {"server.tools": "false", "server.ui": "false", "server.props": "true"}),
        ("--no-prefill-assistant --slot-save-path d",
         {"server.prefill_assistant": "false", "prefix_cache.slots_path": "d"}),
        ("--repeat-last-n -1 --mirostat 1 --xtc-probability 0.5",
         {"sampling.repeat_last_n": "0", "sampling.mirostat": "1", "sampling.xtc_probability": "0.5"}),
        ("--reasoning-format deepseek-legacy --embedding",
         {"reasoning.format": "deepseek-legacy", "server.only_embeddings": "true"}),
        ("--cors-methods GET --no-cors-credentials", {"server.cors_methods": "GET", "server.cors_credentials": "off"}),
        ("--spec_type none", {"speculative.drafters": "forced"}),
        ("-to 600", {"server.send_timeout_s": "600", "server.body_timeout_s": "600"}),
        ("--no-cache-prompt --no-warmup", {"prefix_cache.enabled": "false", "engine.warmup": "false"}),
        ("-v", {"log.level": "debug", "server.verbose_replies": "true"}),
        ("--models-dir d --models-max 2 --no-models-autoload",
         {"router.models_dir": "d", "router.models_max": "2", "router.models_autoload": "false"}),
        ("--sleep-idle-seconds 30 --tags a,b", {"engine.idle_unload_s": "30", "model.tags": "a,b"}),
        ("-lv 2 --log-jsonl", {"log.level": "warning", "log.format": "json"}),
        ("--reasoning-budget 0", {"reasoning.budget_tokens": "0"}),
        ("-rea auto", {}),
        ("--pooling mean", {"model.pooling": "mean"}),
        ('--chat-template-kwargs {"enable_thinking":false}',
         {"model.chat_template_kwargs": '{"enable_thinking":false}'}),
        ('--chat-template-kwargs {"a":1} --reasoning-effort high',
         {"model.chat_template_kwargs": '{"reasoning_effort": "high", "a": 1}'}),
        ("--reasoning-effort default", {}),
        ("--embd-normalize 3", {"server.embd_normalize": "3"}),
        ("-ctk q8_0 -ctv q8_0", {"kv_cache.dtype": "int8"}),
        ("--samplers penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature", {}),
    ],
)  # fmt: skip
def test_what_is_served_sets_our_knobs(line: str, knobs_set: dict[str, str]) -> None:
    assert translated(line.split(), {}).knobs == knobs_set


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--rope-scale 2", "--rope-scale isn't served: it would change what the model computes"),
        ("--tools all", "don't belong in a model server"),
        ("-ctk q4_0", "-ctk q4_0 isn't served: it can be f32, f16, bf16, q8_0"),
        ("-ctk f16 -ctv q8_0", "keys and values have one type here"),
        ("--ignore-eos", "send it in the request"),
        ("--repeat-last-n 0", "is --repeat-penalty 1"),
        ("--pooling cls", "cls and rank are of encoders, which come later"),
        ("--pooling rank", "cls and rank are of encoders, which come later"),
        ("--nonsense", "no option of llama-server"),
        ("-c", "-c wants a value"),
        ("-fa --metrics", "-fa wants a value before --metrics"),
        ("--control-vector-layer-range 1 -v", "wants 2 values before -v"),
        ("-hff x.gguf", "give that with -hf"),
        ("--spec-type draft-eagle3", "draft-eagle3 isn't served"),
    ],
)
def test_what_is_refused_says_why(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        translated(line.split(), {})


def test_a_template_of_words_is_jinja_and_a_word_is_a_name() -> None:
    assert translated(["--chat-template", "no Jinja in it"], {}).knobs == {"model.chat_template": "{##}no Jinja in it"}
    assert translated(["--chat-template", "chatml"], {}).knobs == {"model.chat_template": "chatml"}
    assert translated(["--chat-template-file", "a b.jinja"], {}).knobs == {"model.chat_template": "a b.jinja"}


def test_what_has_no_effect_is_named() -> None:
    (note,) = translated(["-ngl", "99"], {}).notes
    assert note == "-ngl has no effect here: a model is whole where its backend is"


def test_variables_hold_and_the_command_line_is_stronger() -> None:
    variables = {"LLAMA_ARG_CTX_SIZE": "1024", "LLAMA_ARG_N_PARALLEL": "3", "LLAMA_ARG_CACHE_PROMPT": "off"}
    found = translated(["-c", "2048"], variables).knobs
    assert found == {"model.max_seq_len": "682", "scheduler.max_rows": "3", "prefix_cache.enabled": "false"}
    assert translated(["--offline", "-hft", "t"], {}).variables == {"HF_HUB_OFFLINE": "1", "HF_TOKEN": "t"}
    with pytest.raises(ConfigError, match="LLAMA_ARG_TOOLS"):
        translated([], {"LLAMA_ARG_TOOLS": "all"})
    with pytest.raises(ConfigError, match="LLAMA_ARG_JINJA=perhaps isn't valid"):
        translated([], {"LLAMA_ARG_JINJA": "perhaps"})
    assert translated([], {"LLAMA_ARG_NO_UI": "1"}).knobs == {"server.ui": "false"}
    told = translated([], {"LLAMA_ARG_NO_WEBUI": "1", "LLAMA_ARG_PROPS": "", "PATH": "x"}).notes
    assert [note.partition(" ")[0] for note in told] == ["LLAMA_ARG_NO_WEBUI", "LLAMA_ARG_PROPS"]


def test_habits_are_weaker_than_whatever_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("IMP_TEMPERATURE", "0.3")
    (tmp_path / "imp.toml").write_text("[sampling]\ntop_k = 7\n")
    config = configuration(translated(["-m", "a.gguf", "--min-p", "0.2"], {})).config
    sampling = config.sampling
    assert (sampling.temperature, sampling.top_k, sampling.min_p, sampling.top_p) == (0.3, 7, 0.2, 0.95)
    assert config.server.model_names == "any"


def test_the_page_is_made_of_the_table(repo_root: Path) -> None:
    assert (repo_root / "docs" / "llama-server.md").read_text() == page(), "make docs"
    assert all(flag.names[0] in usage() for flag in FLAGS)


def test_no_model_means_all_that_were_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("IMP_HOME", str(tmp_path))
    several = configuration(translated([], {})).config
    assert several.router.models_dir == str(tmp_path / "models") and several.server.model_names == "strict"


def test_several_models_have_names_that_mean_them(tmp_path: Path) -> None:
    """A server of one takes any name, as that one does; with several a name must be one of theirs, as there."""
    one = configuration(translated(["-m", "a.gguf"], {})).config
    several = configuration(translated(["--models-dir", str(tmp_path), "--sleep-idle-seconds", "-1"], {})).config
    assert (one.server.model_names, several.server.model_names) == ("any", "strict")
    assert several.engine.idle_unload_s == 0 and several.router.models_max == 4
