"""/metrics: every promised name from the start, right numbers, and no series of a client's choosing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import httpx
import pytest
from imp_server.api.reports.measures import ENDPOINTS, Distribution, Measures
from imp_server.api.reports.reply import ReplyReport
from imp_server.backends.base import BLOCK_TOKENS
from imp_server.core import EngineFaulted, GenerateRequest
from imp_server.engine.client.base import EngineStats
from imp_server.engine.client.generation import LiveGeneration, Requests
from imp_server.engine.client.script import Action, Emit, Fail, Prefilled, Wait, text_ids
from imp_server.engine.messages import RowDelta
from prometheus_client.parser import text_string_to_metric_families

from tests.api.live_server import LiveServer, live_server
from tests.live.toy_server import toy_server

CHAT = "/v1/chat/completions"
BODY = {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}
_ORIGINALS = """
imp_uptime_seconds imp_requests_total imp_requests_failed_total imp_requests_rejected_total
imp_requests_cancelled_total imp_requests_timed_out_total imp_requests_reasoning_exhausted_total
imp_tokens_prompt_total imp_tokens_completion_total imp_tokens_cached_total imp_last_request_duration_ms
imp_last_ttft_ms imp_model_loads_total imp_queue_depth imp_queue_waiting imp_queue_running imp_queued_prompt_tokens
imp_decode_batch_steps_total imp_decode_batch_rows_total imp_decode_batch_max imp_decode_batch_last_rows
imp_mixed_decode_steps_total imp_kv_pressure_rejections_total imp_kv_pool_growths_total imp_kv_blocks_reserved
imp_kv_pool_bandwidth_gbps imp_kv_sessions imp_kv_session_pinned_blocks imp_kv_host_spill_bytes
imp_kv_host_spill_blocks imp_streaming_kv_auto_enables_total imp_prefix_cache_evictions_total
imp_think_end_requests_total imp_spec_drafted_total imp_spec_accepted_total imp_spec_verify_steps_total
imp_spec_miss_steps_total imp_spec_mtp_verify_steps_total imp_spec_mtp_drafted_total imp_spec_mtp_accepted_total
imp_spec_mtp_emitted_total imp_spec_mtp_verify_wall_ms_total imp_spec_ngram_verify_steps_total
imp_spec_ngram_drafted_total imp_spec_ngram_accepted_total imp_spec_ngram_emitted_total
imp_spec_ngram_verify_wall_ms_total imp_responses_store_entries imp_responses_store_bytes
imp_responses_store_evictions_total imp_responses_store_expired_total imp_vram_untracked_bytes
llamacpp:prompt_tokens_total llamacpp:prompt_tokens_cached_total llamacpp:prompt_seconds_total
llamacpp:tokens_predicted_total llamacpp:tokens_predicted_seconds_total llamacpp:n_decode_total
llamacpp:n_tokens_max llamacpp:spec_decode_num_draft_tokens_total llamacpp:spec_decode_num_accepted_tokens_total
llamacpp:spec_decode_num_drafts_total llamacpp:prompt_tokens_seconds llamacpp:predicted_tokens_seconds
llamacpp:requests_processing llamacpp:requests_deferred llamacpp:n_busy_slots_per_decode
"""
ORIGINALS = _ORIGINALS.split()
"""Without labels."""
_VLLM = """
vllm:num_requests_running vllm:num_requests_waiting vllm:kv_cache_usage_perc vllm:prefix_cache_queries_total
vllm:prefix_cache_hits_total vllm:time_to_first_token_seconds_count vllm:inter_token_latency_seconds_count
vllm:time_per_output_token_seconds_count vllm:e2e_request_latency_seconds_count vllm:request_success_total
vllm:cache_config_info
"""
VLLM = _VLLM.split()
"""With the label model_name."""
HISTOGRAMS = ("request_duration", "ttft", "inter_token", "queue_time")
OF_THE_ENGINE = {
    "blocks_held": 3.0,
    "blocks_cached": 1.0,
    "blocks_free": 8.0,
    "kv_block_tokens": float(BLOCK_TOKENS),
    "rows_running": 2.0,
    "requests_waiting": 5.0,
    "prefix_cache_queried_tokens_total": 100.0,
    "prefix_cache_hit_tokens_total": 60.0,
    "requests_total": 99.0,
}


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: str) -> Samples:
    samples: Samples = {}
    # The parser adds _total to what is called a counter; llama.cpp calls a gauge so.
    for family in text_string_to_metric_families(text.replace("n_tokens_max counter", "n_tokens_max gauge")):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in samples, f"{key} twice"
            samples[key] = sample.value
    return samples


def scraped(live: LiveServer) -> Samples:
    return parsed(httpx.get(f"{live.url}/metrics", timeout=20).text)


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


@pytest.fixture
def live() -> Iterator[LiveServer]:
    with toy_server() as live:
        yield live


def post(live: LiveServer, path: str = CHAT, **more: object) -> httpx.Response:
    return httpx.post(live.url + path, json=BODY | more, timeout=20)


def test_requests_by_what_became_of_them(live: LiveServer) -> None:
    live.engine.play(*text_ids("ok"))
    post(live)
    live.engine.play(*text_ids("ok"))
    post(live, stream=True)
    post(live, temperature=9)
    live.engine.play(*text_ids("o"), Fail(EngineFaulted("no")))
    assert post(live).status_code == 500
    live.engine.play(*text_ids("o"), Fail(EngineFaulted("no")))
    post(live, stream=True)
    actions: list[Action] = [text_ids("x"), Wait(0.02)]
    live.engine.play(*actions * 99)
    with httpx.stream("POST", live.url + CHAT, json=BODY | {"stream": True, "max_tokens": 500}) as stream:
        next(line for line in stream.iter_lines() if '"x"' in line)
    httpx.get(live.url + "/v1/models")
    httpx.post(live.url + "/tokenize", json={"content": "x"})
    end = time.monotonic() + 5
    while value(samples := scraped(live), "imp_requests_total") < 6:
        assert time.monotonic() < end
    named = {name: value(samples, f"imp_requests_{name}_total") for name in ("failed", "rejected", "cancelled")}
    assert named == {"failed": 2, "rejected": 1, "cancelled": 1}
    assert value(samples, "imp_endpoint_requests_total", endpoint="chat_completions") == 6
    assert value(samples, "imp_endpoint_requests_total", endpoint="messages") == 0
    assert value(samples, "vllm:request_success_total", model_name="toy", finished_reason="stop") == 2
    assert value(samples, "imp_request_duration_seconds_count") == 2


def test_every_path_feeds_every_histogram(live: LiveServer) -> None:
    """One observation per token after a choice's first; the queue's time ends with the first step."""
    asked: dict[str, dict[str, object]] = {
        "chat_completions": {"path": CHAT},
        "completions": {"path": "/v1/completions", "prompt": "hi"},
        "messages": {"path": "/v1/messages"},
        "responses": {"path": "/v1/responses", "input": "hi"},
    }
    for more in asked.values():
        for stream in (False, True):
            live.engine.play(Prefilled(1, 0), Wait(0.01), Emit(text_ids("ab")), Wait(0.03), Emit(text_ids("cde")))
            path, own = str(more["path"]), {k: v for k, v in more.items() if k != "path"}
            assert post(live, path, stream=stream, **own).status_code == 200
    samples = scraped(live)
    n_tokens = 6  # the one that ends it included
    for endpoint in asked:
        for name, wanted in (
            ("request_duration", 2),
            ("ttft", 2),
            ("queue_time", 2),
            ("inter_token", 2 * (n_tokens - 1)),
        ):
            metric = f"imp_endpoint_{name}_seconds"
            assert value(samples, f"{metric}_count", endpoint=endpoint) == wanted, (endpoint, name)
            assert value(samples, f"{metric}_bucket", endpoint=endpoint, le="+Inf") == wanted
            assert value(samples, f"{metric}_bucket", endpoint=endpoint, le="10.0") == wanted
        gaps = value(samples, "imp_endpoint_inter_token_seconds_sum", endpoint=endpoint)
        assert 0.05 < gaps < 1, "two pauses of 30 ms"
    for name in HISTOGRAMS:
        parts = [value(samples, f"imp_endpoint_{name}_seconds_count", endpoint=e) for e in ENDPOINTS]
        assert value(samples, f"imp_{name}_seconds_count") == sum(parts)
    for ours, theirs in (("ttft", "time_to_first_token"), ("inter_token", "inter_token_latency")):
        for part in ("count", "sum"):
            found = value(samples, f"vllm:{theirs}_seconds_{part}", model_name="toy")
            assert found == pytest.approx(value(samples, f"imp_{ours}_seconds_{part}"))
    assert value(samples, "vllm:e2e_request_latency_seconds_count", model_name="toy") == 8
    assert value(samples, "imp_tokens_completion_total") == 8 * n_tokens
    assert value(samples, "imp_tokens_prompt_total") == value(samples, "vllm:prompt_tokens_total", model_name="toy") > 8
    assert value(samples, "imp_last_ttft_ms") >= 10


def test_a_slow_reader_is_no_slow_model() -> None:
    """Tokens count from when they came, not from when they were read."""

    async def run() -> None:
        requests = Requests(lambda _message: None)
        generation = LiveGeneration(GenerateRequest(1, b""), requests)
        generation.receive(RowDelta(1, 0, b"1234"))
        await asyncio.sleep(0.05)
        generation.receive(RowDelta(1, 0, b"1234"))
        came_s = time.monotonic()
        await asyncio.sleep(0.1)
        delta = await anext(generation)
        assert len(delta.ids) == 8 and came_s - 0.02 < generation.arrived_s <= came_s

    asyncio.run(run())
    measures = Measures()
    report = ReplyReport(measures, "messages", "m", began_s=100.0)
    for choice, n, at_s in ((0, 1, 101.0), (1, 1, 101.5), (0, 4, 102.0), (1, 1, 101.75)):
        report.note_tokens(choice, n, at_s)
    gaps = measures.of("messages", "m").gap
    assert sum(gaps.counts) == 5 and gaps.total == pytest.approx(1.0 + 0.25)
    assert measures.of("messages", "m").ttft.total == pytest.approx(1.0)


def test_every_name_is_there_from_the_start(live: LiveServer) -> None:
    samples = scraped(live)
    names = {name for name, _ in samples}
    engine = {"imp_spec_", "imp_model_loads", "imp_prefix_cache", "imp_kv_session", "imp_decode_batch", "imp_mixed"}
    missing = [n for n in ORIGINALS if n not in names and not any(n.startswith(part) for part in engine)]
    assert not missing, "of this process; the engine's own are in tests/live"
    for name in VLLM:
        assert [labels for found, labels in samples if found == name and ("model_name", "toy") in labels], name
    for name in HISTOGRAMS:
        assert value(samples, f"imp_{name}_seconds_count") == 0
        assert {dict(labels)["endpoint"] for n, labels in samples if n == f"imp_endpoint_{name}_seconds_count"} == {
            *ENDPOINTS
        }
    assert value(samples, "imp_model_loads_total") == 1


def test_the_engines_numbers_under_vllms_names(live: LiveServer) -> None:
    async def stats() -> EngineStats:
        return EngineStats(OF_THE_ENGINE, ())

    live.engine.stats = stats  # type: ignore[method-assign]
    samples = scraped(live)
    found = {name: value(samples, name, model_name="toy") for name in VLLM[:5]}
    assert found == {
        "vllm:num_requests_running": 2,
        "vllm:num_requests_waiting": 5,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:prefix_cache_queries_total": 100,
        "vllm:prefix_cache_hits_total": 60,
    }
    assert value(samples, "vllm:cache_config_info", model_name="toy", block_size="16", num_gpu_blocks="12") == 1
    assert value(samples, "imp_engine_requests_total") == 99 and value(samples, "imp_requests_total") == 0
    assert (value(samples, "imp_queue_running"), value(samples, "imp_queue_waiting")) == (2, 5)


def test_without_a_model_there_are_metrics_all_the_same() -> None:
    with live_server(None) as live:
        samples = scraped(live)
        assert value(samples, "imp_requests_total") == 0 and value(samples, "imp_ttft_seconds_count") == 0
        assert not [labels for name, labels in samples if name.startswith("vllm:") and "model_name" in dict(labels)]


def test_a_clients_words_make_no_series(live: LiveServer) -> None:
    before = {name for name, _ in scraped(live)}, len(scraped(live))
    for word in ("zanzibar", "x" * 300, 'q"} 1\n'):
        headers = {"x-request-id": "zanzibar", "user-agent": "zanzibar"}
        body = BODY | {"model": word, "user": word}
        httpx.post(live.url + CHAT, json=body, headers=headers)
        httpx.get(f"{live.url}/zanzibar")
    after = scraped(live)
    assert ({name for name, _ in after}, len(after)) == before
    assert "zanzibar" not in httpx.get(f"{live.url}/metrics").text


def test_the_law_of_a_histogram() -> None:
    found = Distribution((0.1, 1.0))
    for seconds, n in ((0.1, 1), (0.05, 2), (0.5, 3), (9.0, 1)):
        found.observe(seconds, n)
    assert found.buckets() == [("0.1", 3.0), ("1.0", 6.0), ("+Inf", 7.0)]
    assert found.total == pytest.approx(0.1 + 0.1 + 1.5 + 9.0)
