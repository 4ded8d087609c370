"""`speculative: false` in any dialect switches drafts off for that request alone; usage and timings say so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from imp_server.backends import choose

from tests.live.served_model import Json, Served, served, write_model

pytestmark = pytest.mark.skipif(choose("auto") == "reference", reason="the native library isn't built")
LOOP = "red blue " * 12
ROUTES: dict[str, tuple[str, Json]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": LOOP}], "max_tokens": 48}),
    "completions": ("/v1/completions", {"prompt": LOOP, "max_tokens": 48}),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": LOOP}], "max_tokens": 48}),
    "responses": ("/v1/responses", {"input": LOOP, "max_output_tokens": 48}),
    "native": ("/completion", {"prompt": LOOP, "n_predict": 48}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    knobs = ("cost_gate=false", "min_match=1", "max_match=2", "miss_burst=0", "give_up_after=0")
    options = [word for knob in knobs for word in ("--set", f"speculative.{knob}")]
    with served(write_model(tmp_path_factory.mktemp("tiny")), *options) as found:
        yield found


def text_of(reply: Json) -> Any:
    return next(reply[name] for name in ("choices", "content", "output") if name in reply)


def without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_ids(each) for name, each in value.items() if name != "id"}
    return [without_ids(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("route", ROUTES)
def test_off_for_one_request(server: Served, route: str) -> None:
    path, body = ROUTES[route]
    body = body | {"temperature": 0, "ignore_eos": True}
    replies = {wish: server.post(path, body | {"speculative": wish}) for wish in (True, False)}
    assert without_ids(text_of(replies[True])) == without_ids(text_of(replies[False]))
    timings = replies[True]["timings"]
    assert timings["draft_n"] >= timings["draft_n_accepted"] and timings["draft_n"] > 0
    assert sum(timings["draft_accepted_per_position"]) == timings["draft_n_accepted"]
    assert not any(name.startswith("draft_") for name in replies[False]["timings"])
    assert "draft_n" not in replies[False]["timings"]
    if "usage" in replies[True]:
        names = ("completion_tokens_details", "output_tokens_details")
        details = [next(reply["usage"][n] for n in names if n in reply["usage"]) for reply in replies.values()]
        assert details[0]["imp_spec_drafted"] == timings["draft_n"]
        assert details[0]["imp_spec_accepted"] == timings["draft_n_accepted"]
        assert not any(name.startswith("imp_spec") for name in details[1])
