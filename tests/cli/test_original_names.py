"""Every name of imp-server is known: it sets something, is told to have no effect, or is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from imp_server.cli.main import run
from imp_server.config.compat import FLAG_ALIASES, FORMER, NO_EFFECT, VALUE_FLAGS
from imp_server.config.knobs import knobs
from imp_server.config.names import NOT_YET

# Flag -> (a value, or "" for a switch; the key that it sets, "" = no effect here, "refused").
FLAGS: dict[str, tuple[str, str]] = {
    "--model": ("x.gguf", "model.path"),
    "--revision": ("v1", "model.revision"),
    "--host": ("0.0.0.0", "server.host"),
    "--port": ("1", "server.port"),
    "--max-tokens": ("5", "server.max_tokens"),
    "--max-batch": ("4", "scheduler.max_rows"),
    "--max-seq-len": ("512", "model.max_seq_len"),
    "--min-kv-tokens": ("100", "kv_cache.min_tokens"),
    "--gpu-layers": ("0", "cuda.gpu_layers"),
    "--chat-template": ("chatml", "model.chat_template"),
    "--lora": ("a=b", "adapters.lora"),
    "--no-cuda-graphs": ("", "cuda.graphs"),
    "--ssm-fp16": ("", ""),
    "--kv-fp8": ("", "kv_cache.dtype"),
    "--kv-int8": ("", "kv_cache.dtype"),
    "--kv-int4": ("", "kv_cache.dtype"),
    "--kv-nvfp4": ("", "kv_cache.dtype"),
    "--kv-mxfp4": ("", "kv_cache.dtype"),
    "--kv-fp16": ("", "kv_cache.dtype"),
    "--prefill-chunk-size": ("256", "scheduler.prefill_chunk"),
    "--prefix-cache": ("file", "prefix_cache.path"),
    "--decode-nvfp4": ("", ""),
    "--decode-nvfp4-only": ("", ""),
    "--no-nvfp4": ("", ""),
    "--mxfp4-prefill": ("", ""),
    "--dual-path-quant": ("", ""),
    "--mmproj": ("x", "refused"),
    "--models-dir": ("models", "router.models_dir"),
    "--api-key": ("k", "server.api_key"),
    "--metrics-require-auth": ("", "metrics.require_auth"),
    "--cors-origins": ("*", "server.cors_origins"),
    "--allow-remote-images": ("", "refused"),
    "--reasoning-format": ("none", "reasoning.format"),
    "--vram-budget": ("100", "cuda.memory_mib"),
    "--think-budget": ("0.1", "reasoning.think_budget"),
    "--max-concurrent": ("3", "server.max_concurrent"),
    "--max-queued-tokens": ("3", "server.max_queued_tokens"),
    "--request-timeout": ("3", "server.request_timeout_s"),
    "--rate-limit": ("3", "server.rate_limit"),
    "--trusted-proxy": ("10.0.0.1", "server.trusted_proxy"),
    "--max-input-tokens": ("3", "server.max_input_tokens"),
    "--max-n": ("3", "server.max_n"),
    "--max-batch-items": ("3", "server.max_batch_items"),
    "--max-logit-bias": ("3", "server.max_logit_bias"),
    "--max-images-per-request": ("3", ""),
    "--http-read-timeout": ("3", "server.body_timeout_s"),
    "--http-write-timeout": ("3", "server.send_timeout_s"),
    "--http-keep-alive-max": ("3", ""),
    "--log-requests": ("/tmp/x", "log.requests"),
    "--idle-unload-seconds": ("3", "engine.idle_unload_s"),
    "--responses-store-ttl": ("3", "responses.store_ttl_s"),
    "--responses-store-max-entries": ("3", "responses.store_max_entries"),
    "--responses-store-max-mib": ("3", "responses.store_max_mib"),
}
VARIABLES = {
    "IMP_MODEL": ("x.gguf", "model.path"),
    "IMP_HOST": ("0.0.0.0", "server.host"),
    "IMP_PORT": ("1", "server.port"),
    "IMP_API_KEY": ("k", "server.api_key"),
    "IMP_MODELS_DIR": ("d", "router.models_dir"),
    "IMP_MAX_TOKENS": ("5", "server.max_tokens"),
    "IMP_GPU_LAYERS": ("0", "cuda.gpu_layers"),
    "IMP_DEVICE": ("1", "cuda.device"),
    "IMP_CHAT_TEMPLATE": ("chatml", "model.chat_template"),
    "IMP_PREFILL_CHUNK_SIZE": ("5", "scheduler.prefill_chunk"),
    "IMP_THINK_BUDGET": ("0.1", "reasoning.think_budget"),
    "IMP_KV_FP8": ("1", "kv_cache.dtype"),
    "IMP_KV_INT8": ("1", "kv_cache.dtype"),
    "IMP_DECODE_NVFP4": ("1", ""),
    "IMP_NO_CUDA_GRAPHS": ("1", "cuda.graphs"),
    "IMP_SET": ("server.port=1", "server.port"),
}
KEYS = """
runtime.deterministic=true runtime.deterministic_gemm=true runtime.max_seq_len=5 runtime.max_batch_size=5
runtime.vram_budget_mb=5 runtime.warmup=false runtime.graph_prewarm=true runtime.cuda_graphs=never
runtime.decode_burst=5 runtime.prefill_chunk_size=-1 runtime.prefill_chunk_decode_cap=5
runtime.prefill_cap_fairness=4 runtime.prefill_batch_decode_cap=0 runtime.prefill_batch=true
runtime.prefill_mixed_decode=true runtime.prefill_overlap=false runtime.hybrid_decode_quantum=5
runtime.decode_pipeline=false runtime.think_answer_reserve=5 runtime.vision_max_patches=5 kv_cache.dtype=fp16
kv_cache.growable=true kv_cache.growable_initial_pct=25 kv_cache.max_blocks=5 kv_cache.host_spill_mb=5
kv_cache.swa_sizing=auto kv_cache.swa_snapshot_mb=0 rope.scaling=yarn rope.factor=2 vram.kv_fraction=0.8
attention.sparse_topk_tokens=-1 server.prefix_cache=false server.prefix_pin_budget_pct=5 server.session_ttl_s=5
server.model_swap=true server.model_swap_drain_ms=5 server.agent_scan_limit=5 server.recurrent_snapshot_mb=5
server.recurrent_snapshot_host_mb=5 server.snapshot_min_prompt_tokens=5 server.transcript_snapshot=true
server.transcript_token_reuse=false server.green_contexts=false server.otlp_endpoint=x server.otlp_service_name=x
warm_cache.enabled=false warm_cache.dir=x suspend.device_reset=true moe.expert_cache_budget_pct=0
constrained.jump_ahead=false constrained.jump_min_run=4 speculative.ngram=false speculative.suffix=false
speculative.suffix_k_max=5 speculative.k=5 speculative.min_match=5 speculative.max_match=5
speculative.give_up_after=5 speculative.burst=5 speculative.miss_burst=5 speculative.burst_rearm=false
speculative.draft_ctx_cap=0 speculative.shallow_draft_ctx=5 speculative.min_history=0 speculative.batch_rr=true
speculative.token_recycling=false speculative.recycle_slots=8 speculative.ngram_corpus=x speculative.mtp_k=-1
"""


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def changed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], str]:
    """(exit code, keys that aren't the default, stderr) of `imp config show`."""
    code = run(["config", "show", "--changed", "--json", *arguments])
    out = capsys.readouterr()
    keys = [f"{section}.{key}" for section, values in json.loads(out.out or "{}").items() for key in values]
    return code, keys, out.err


@pytest.mark.parametrize("flag", FLAGS)
def test_flags(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    value, key = FLAGS[flag]
    code, keys, err = changed(capsys, flag, *([value] if value else []))
    if key == "refused":
        assert code == 1 and "aren't supported yet" in err and len(err.splitlines()) == 1
    elif key:
        assert (code, keys) == (0, [key])
        assert (err == "") == (key not in NOT_YET)
    else:
        assert (code, keys, err) == (0, [], f"imp: {flag} has no effect here: {NO_EFFECT[flag]}\n")


def test_one_table_has_every_name_that_differs() -> None:
    rows = {row.name: row for row in FORMER}
    assert len(rows) == len(FORMER)
    for flag, (_, key) in FLAGS.items():
        is_same = key not in ("", "refused") and flag in knobs()[key].flags and flag not in FLAG_ALIASES
        assert is_same or flag in VALUE_FLAGS or rows[flag].ours == (key if key != "refused" else ""), flag
    for row in FORMER:
        assert bool(row.ours) != bool(row.why), row.name
        assert not row.ours or row.ours in knobs(), row.name
        assert row.is_flag or row.name not in knobs(), row.name


@pytest.mark.parametrize("variable", VARIABLES)
def test_variables(variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    value, key = VARIABLES[variable]
    monkeypatch.setenv(variable, value)
    code, keys, err = changed(capsys)
    assert code == 0 and keys == ([key] if key else [])
    assert ("no effect here" in err) == (not key)


@pytest.mark.parametrize("assignment", KEYS.split())
def test_keys(assignment: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, keys, err = changed(capsys, "--set", assignment)
    assert code == 0
    if "no effect here" in err:
        assert keys == []
    else:
        assert len(keys) == 1 and (err == "") == (keys[0] not in NOT_YET)
