"""Precedence, names and errors of the configuration."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from imp_server.config import Config
from imp_server.config.compat import FLAG_ALIASES, KEY_ALIASES, NO_EFFECT_FLAGS, REFUSED_FLAGS, VALUE_FLAGS
from imp_server.config.knobs import Knob, knobs, variable_of
from imp_server.config.load import find_file, load, resolve_key
from imp_server.config.names import NOT_YET
from imp_server.config.values import checked, from_text
from imp_server.core import ConfigError


def test_every_source_beats_the_weaker_ones(tmp_path: Path) -> None:
    file = tmp_path / "imp.toml"
    file.write_text("[server]\nport = 1\nmax_n = 2\nmax_tokens = 3\nmax_stop = 4\n[reasoning]\nthink_budget = 0\n")
    loaded = load(
        {"server.port": ["9"]},
        ["server.port=8", "server.max_n=8"],
        {"IMP_PORT": "7", "IMP_MAX_N": "7", "IMP_MAX_TOKENS": "7", "IMP_SET": "server.max_tokens=6 server.max_stop=6"},
        file,
    )
    server = loaded.config.server
    assert (server.port, server.max_n, server.max_tokens, server.max_stop) == (9, 8, 7, 6)
    assert loaded.config.reasoning.think_budget == 0.0
    assert loaded.origins["server.port"] == "--port"
    assert loaded.origins["server.max_n"] == "--set"
    assert loaded.origins["server.max_tokens"] == "IMP_MAX_TOKENS"
    assert loaded.origins["server.max_stop"] == "IMP_SET"
    assert loaded.origins["reasoning.think_budget"] == str(file)
    assert "server.host" not in loaded.origins


def test_defaults_alone_are_the_default_config() -> None:
    loaded = load()
    assert loaded.config == Config()
    assert loaded.origins == {} and loaded.notes == []


def test_plain_form_survives_the_way_to_an_engine() -> None:
    config = Config.of({"server.api_key": ["a", "b"], "kv_cache.dtype": "int8", "scheduler.step_ms": 12.5})
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(config.plain()))
    assert Config.from_plain(wire) == config


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("server.prot", "server.port"),
        ("speculative.min_mach", "speculative.min_match"),
        ("runtime.max_seq_len_", "runtime.max_seq_len"),
        ("engine.k", "speculative.k"),
    ],
)
def test_unknown_key_names_the_nearest(key: str, near: str) -> None:
    with pytest.raises(ConfigError, match=near) as caught:
        load(sets=[f"{key}=1"])
    assert key in caught.value.message and caught.value.exit_code == 1


def test_unknown_key_in_a_file_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "imp.toml"
    file.write_text("[server]\nprot = 1\n")
    with pytest.raises(ConfigError, match=r"imp\.toml: no configuration key server\.prot; did you mean server\.port"):
        load(file=file)
    file.write_text("port = 1\n")
    with pytest.raises(ConfigError, match="outside a"):
        load(file=file)
    file.write_text("[server\n")
    with pytest.raises(ConfigError, match=r"imp\.toml"):
        load(file=file)


@pytest.mark.parametrize("text", ["-3", "30s", "abc", "1.5", "", "0x10", "1e3"])
def test_a_count_takes_only_a_count(text: str) -> None:
    with pytest.raises(ConfigError, match="integer >= 0"):
        load({"responses.store_ttl_s": [text]})


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("server.port", "65536", "<= 65535"),
        ("reasoning.think_budget", "1.01", "<= 1"),
        ("reasoning.think_budget", "nan", "number"),
        ("kv_cache.dtype", "int5", r"int8 \| fp8"),
        ("engine.deterministic", "maybe", "true or false"),
        ("scheduler.step_ms", "0", "> 0"),
    ],
)
def test_a_wrong_value_says_what_is_expected(key: str, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        load(sets=[f"{key}={text}"])


def test_a_secret_is_not_in_the_error() -> None:
    with pytest.raises(ConfigError) as caught:
        checked(knobs()["server.api_key"], 5, "file")
    assert "5" not in caught.value.message


def test_lists_from_repeated_flags_commas_and_toml(tmp_path: Path) -> None:
    assert load({"server.api_key": ["a", "b,c"]}).config.server.api_key == ("a", "b", "c")
    assert load(variables={"IMP_CORS_ORIGINS": "x, y"}).config.server.cors_origins == ("x", "y")
    file = tmp_path / "imp.toml"
    file.write_text('[server]\napi_key = ["a", "b"]\ncors_origins = "*"\n[responses]\nstore = false\n')
    config = load(file=file).config
    assert config.server.api_key == ("a", "b") and config.server.cors_origins == ("*",)
    assert config.responses.store == "off"


def test_names_of_the_original() -> None:
    config = load(
        sets=[
            "constrained.jump_ahead=off",
            "constrained.lenient=on",
            "server.prefix_cache=false",
            "runtime.max_seq_len=512",
            "runtime.prefill_chunk_size=-1",
            "kv_cache.host_spill_mb=5",
            "kv_cache.dtype=fp16",
        ],
        variables={"IMP_KV_INT8": "1", "IMP_THINK_BUDGET": "0.25"},
    ).config
    assert not config.grammar.jump_ahead and config.grammar.lenient and not config.prefix_cache.enabled
    assert config.model.max_seq_len == 512 and config.kv_cache.host_spill_mib == 5
    assert config.kv_cache.dtype == "f16"
    assert config.reasoning.think_budget == 0.25


def test_what_means_nothing_here_is_one_line_and_no_error(tmp_path: Path) -> None:
    file = tmp_path / "imp.conf"
    file.write_text("[vram]\nkv_fraction = 0.8\n")
    loaded = load(sets=["moe.expert_cache_budget_pct=3"], variables={"IMP_MAX_IMAGES_PER_REQUEST": "9"}, file=file)
    assert loaded.config == Config()
    assert len(loaded.notes) == 3 and all("no effect here" in note for note in loaded.notes)


def test_a_mistyped_variable_is_told_and_service_links_are_not() -> None:
    links = {"IMP_PORT": "tcp://10.0.0.1:80", "IMP_SERVICE_HOST": "10.0.0.1", "IMP_PORT_8080_TCP_ADDR": "10.0.0.1"}
    loaded = load(variables={"IMP_PROT": "9", "IMP_HOME": "/x", **links})
    assert loaded.config.server.port == 8080
    assert len(loaded.notes) == 1 and "IMP_PORT" in loaded.notes[0]


def test_where_the_file_is_found(tmp_path: Path) -> None:
    here, user = tmp_path / "here", tmp_path / "user"
    here.mkdir()
    user.mkdir()
    assert find_file("", {}, here, user) is None
    (user / "imp.conf").touch()
    assert find_file("", {}, here, user) == user / "imp.conf"
    (here / "imp.toml").touch()
    assert find_file("", {}, here, user) == here / "imp.toml"
    assert find_file("", {"IMP_CONFIG": str(user / "imp.conf")}, here, user) == user / "imp.conf"
    with pytest.raises(ConfigError, match="no configuration file"):
        find_file(str(tmp_path / "gone"), {}, here, user)


def test_every_knob_is_documented_and_every_name_is_one_knob() -> None:
    flags = [flag for knob in knobs().values() for flag in knob.flags]
    flags += [*VALUE_FLAGS, *NO_EFFECT_FLAGS, *REFUSED_FLAGS]
    assert len(flags) == len(set(flags))
    for knob in knobs().values():
        assert knob.help and knob.help[-1] in ".)", knob.key
        assert from_text(knob, _spelled(knob.default), "test") == knob.default
    for target in [*KEY_ALIASES.values(), *FLAG_ALIASES.values(), *(key for key, _ in VALUE_FLAGS.values())]:
        assert target in knobs(), target
    for alias in KEY_ALIASES:
        assert alias not in knobs(), alias
        assert resolve_key(alias) is not None


def _spelled(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


@given(st.data())
def test_any_text_is_a_value_within_bounds_or_a_config_error(data: st.DataObject) -> None:
    knob: Knob = data.draw(st.sampled_from(list(knobs().values())))
    text = data.draw(st.one_of(st.text(max_size=8), st.integers(-5, 70000).map(str), st.floats().map(str)))
    try:
        value = from_text(knob, text, "test")
    except ConfigError:
        return
    assert Config.of({knob.key: value}).plain()[knob.section][knob.name] == value


def test_a_knob_that_nobody_reads_says_so(repo_root: Path) -> None:
    package = repo_root / "imp" / "imp_server"
    # What only tells of a knob, in a banner or a probe, doesn't heed it.
    tellers = {package / "cli" / "serve.py", package / "cli" / "doctor.py", package / "dialects" / "tgi.py"}
    readers = {package / "config" / "adapters.py"}  # for the server and its engines alike
    code = [p for p in package.rglob("*.py") if p.relative_to(package).parts[0] != "config" or p in readers]
    code = [p for p in code if p not in tellers]
    text = "\n".join(p.read_text() for p in [*code, *(repo_root / "spec").glob("*.yaml")])
    # Backends get their sections as dictionaries.
    quoted = "\n".join(p.read_text() for p in code if p.relative_to(package).parts[0] == "backends")

    waiting = {key.partition(".")[2] for key in NOT_YET}
    named = Counter(knob.name for knob in knobs().values())

    def is_read(key: str, name: str) -> bool:
        # where a name that nobody reads yet belongs to two sections, the section has to stand before it
        read = rf"\b{re.escape(key)}\b" if name in waiting and named[name] > 1 else rf"\.{name}\b"
        return bool(re.search(read, text) or re.search(rf"[\"']{name}[\"']", quoted))

    unread = {key for key, knob in knobs().items() if not is_read(key, knob.name)}
    assert unread <= NOT_YET, f"no code reads {sorted(unread - NOT_YET)}: read them, or add them to NOT_YET"
    assert unread >= NOT_YET, f"take {sorted(NOT_YET - unread)} out of config/names.py NOT_YET: code reads them"
    for key in NOT_YET:
        assert load(sets=[f"{key}=2"]).notes == [f"--set: {key} has no effect yet"]


def test_variables_follow_flags() -> None:
    assert variable_of("--cpu-isa") == "IMP_CPU_ISA"
    assert knobs()["model.path"].flag == "--model" and knobs()["model.path"].variable == "IMP_MODEL"
    assert knobs()["reasoning.think_budget"].flags == ("--reasoning-think-budget", "--think-budget")


def test_a_file_that_begins_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "imp.toml"
    file.write_bytes(b"\xef\xbb\xbf[server]\nport = 9000\n")
    assert load(file=file).config.server.port == 9000


def test_text_that_is_no_utf8_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"--prefix-cache-path: /tmp/caf\\xff isn't UTF-8"):
        load({"prefix_cache.path": ["/tmp/caf\udcff"]})
    assert load({"model.path": ["/tmp/caf\udcff"]}).config.model.path == "/tmp/caf\udcff"
