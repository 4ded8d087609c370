"""Every knob is exercised by a test other than those that only parse it, and none is read by a banner alone.

The knobs below have no server of their own in a test: what they set is tested as a parameter of the part that takes it,
and here that the configuration's value is what that part is given.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from imp_server.api import endpoint, responses_kept
from imp_server.backends.cpu import backend as cpu_backend
from imp_server.backends.cpu import factory
from imp_server.backends.options import BackendOptions
from imp_server.config import Config
from imp_server.config.knobs import knobs
from imp_server.config.load import load
from imp_server.config.names import NOT_YET
from imp_server.config.running import CpuSettings
from imp_server.config.tree import EngineConfig
from imp_server.engine import build, child, lower_tier
from imp_server.engine.client import process
from imp_server.engine.drafting import drafters
from imp_server.grammar.check import Rules
from imp_server.schedule.snapshots import SnapshotLimits
from imp_server.text import model as text_model
from imp_server.text.plan import think_budget

TESTS = Path(__file__).resolve().parent.parent
PARSING = {"config/test_config_load.py", "config/test_llama_server.py", "cli/test_original_names.py"}


def configured(key: str, value: Any) -> Config:
    return load({key: [str(value)]}).config


class Taken(Exception):
    """Stands for a part, and carries what it was given."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args)
        self.given = given
        raise self

    @classmethod
    def by(cls, call: Callable[..., Any], *args: Any) -> Taken:
        with pytest.raises(cls) as caught:
            call(*args)
        return caught.value


def engine_of(config: Config) -> EngineConfig:
    return process._own(config)


def test_slow_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "BodyLimits", Taken)
    services: Any = SimpleNamespace(config=configured("server.min_body_kib_s", 9))
    operation: Any = SimpleNamespace(parameters=(), body_pointers={}, response_pointers={})
    taken = Taken.by(endpoint.Endpoint, services, operation, None)
    assert taken.args[2] == 9 * 1024


def test_stuck_mask_threads() -> None:
    config = engine_of(configured("engine.stuck_mask_s", 7))
    asked: list[float] = []
    loop: Any = SimpleNamespace(requests=SimpleNamespace(find_stuck=asked.append))
    child._leave_if_lost(loop, SimpleNamespace(), config.engine.stuck_mask_s)  # type: ignore[arg-type]
    assert asked == [7]


def test_the_longest_pause_between_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    engine = process.ProcessEngine("x", "x", configured("engine.restart_backoff_max_s", 3))
    engine._n_crashes_in_row, engine._started_s = 20, float("inf")
    asyncio.run(engine._restart())
    assert slept == [3]


def test_pins_and_marks() -> None:
    index: Any = build.prefix_index(configured("prefix_cache.pin_budget_pct", 40).prefix_cache)
    assert index.keywords["pin_budget"] == 0.4
    assert build._row_rules(engine_of(configured("prefix_cache.checkpoint_min_step", 77))).checkpoint_min_step == 77


def test_snapshots_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    monkeypatch.setattr(lower_tier, "_Folder", lambda *_: SimpleNamespace(open=lambda *a: opened.append(a)))
    monkeypatch.setattr(lower_tier, "_spill", lambda *_: None)
    monkeypatch.setattr(lower_tier, "Offload", lambda *args: args)
    groups = [SimpleNamespace(kind="full"), SimpleNamespace(kind="state")]
    backend: Any = SimpleNamespace(
        block_bytes=lambda _: (8, 4), architecture=SimpleNamespace(cache_groups=groups, context_length=1)
    )
    kv: Any = SimpleNamespace(dtype="bf16")
    flags = {
        "prefix_cache.path": ["kept"], "prefix_cache.path_mib": ["5"], "prefix_cache.max_snapshots": ["6"],
        "prefix_cache.snapshot_mib": ["7"],
    }  # fmt: skip
    offload: Any = lower_tier.lower_tier(engine_of(load(flags).config), None, backend, kv)  # type: ignore[arg-type]
    assert [size for _, size, *_ in opened] == [5 << 20, 7 << 20]
    assert offload[3] == SnapshotLimits(6, 7 << 20, Config().prefix_cache.checkpoint_min_step)
    off = engine_of(load({**flags, "prefix_cache.max_snapshots": ["0"]}).config)
    opened.clear()
    lower_tier.lower_tier(off, None, backend, kv)  # type: ignore[arg-type]
    assert [size for _, size, *_ in opened] == [5 << 20]


def test_transcripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_model, "Transcripts", Taken)
    config = load({"prefix_cache.max_transcripts": ["3"], "prefix_cache.transcripts_mib": ["4"]}).config
    tokenizer: Any = SimpleNamespace(vocabulary=SimpleNamespace(token_bytes=None, end_ids=()))
    assert Taken.by(text_model._transcripts, tokenizer, config).given == {"max_entries": 3, "max_bytes": 4 << 20}


def test_draft_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafters, "ModelDrafter", Taken)
    config = load({"speculative.draft_max": ["5"], "speculative.draft_p_min": ["0.25"]}).config
    backend = SimpleNamespace(architecture=SimpleNamespace(cache_groups=()))
    draft: Any = SimpleNamespace(backend=backend, kv_dtype="bf16", n_ids=9)
    given = Taken.by(drafters.make_model_drafter, draft, engine_of(config), 1).given
    assert (given["k"], given["p_min"]) == (5, 0.25)


def test_grammars() -> None:
    def rules(key: str, value: str) -> Rules:
        model: Any = SimpleNamespace(config=configured(key, value))
        return text_model.TextModel._rules(model)

    usual = rules("grammar.key_order", "any")
    assert not usual.extra_properties and rules("grammar.extra_properties", "allow").extra_properties
    assert build._row_rules(engine_of(configured("grammar.jump_ahead", "off"))).takes_only is False
    assert build._row_rules(engine_of(configured("grammar.length_steering", "off"))).length_steering is False
    grammars: Any = build._grammars(engine_of(configured("grammar.max_whitespace", 3)), None)  # type: ignore[arg-type]
    assert grammars._max_whitespace == 3


def test_what_thinking_leaves_to_the_answer() -> None:
    intent: Any = SimpleNamespace(budget_tokens=None, budget_fraction=None, effort=None)
    budgets = [
        think_budget(intent, configured("reasoning.answer_reserve", reserve).reasoning, 600) for reserve in (0, 400)
    ]
    assert budgets == [300, 300]  # a reserve takes half at most, and half is the share
    wide = load({"reasoning.answer_reserve": ["200"], "reasoning.think_budget": ["0.9"]}).config.reasoning
    assert think_budget(intent, wide, 600) == 400


def test_the_cpu_backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpu_backend, "CpuBackend", Taken)
    options = BackendOptions(CpuSettings(pack_cache_path=str(tmp_path), spin_us=12, huge_pages=False))
    source: Any = None
    given = Taken.by(factory.make, source, options, None).given
    assert (given["pack_folder"], given["spin_us"], given["huge_pages"]) == (tmp_path, 12, False)


def test_the_store_of_responses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = str(tmp_path / "kept.sqlite")
    monkeypatch.setattr(responses_kept, "ResponsesStore", Taken)
    config = load({"responses.store_max_mib": ["3"], "responses.store_path": [path]}).config
    assert Taken.by(responses_kept.response_shelf, config).given["max_bytes"] == 3 << 20
    responses_kept.response_shelf(configured("responses.store_max_mib", 0))  # off: no store is made


def test_every_knob_is_in_a_test() -> None:
    texts = [p.read_text() for p in TESTS.rglob("*.py") if str(p.relative_to(TESTS)) not in PARSING]
    words = {word for text in texts for word in re.findall(r"\w+|--[\w-]+", text)}
    unproved = []
    for key, knob in knobs().items():
        spellings = {key.partition(".")[2], key.replace(".", "__"), knob.flag, *knob.aliases}
        if key not in NOT_YET and not spellings & words:
            unproved.append(key)
    assert len(knobs()) > 150 and unproved == []
