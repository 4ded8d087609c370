"""The C structs of kernels/cpu/engine (plan.h, tiles.h) and the library's functions."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_double, c_float, c_int32, c_int64, c_uint64, c_void_p
from functools import cache

from imp_server.backends.cpu.errors import KernelError
from imp_server.core import UnsupportedModel
from imp_server.native import MEND, compiled_fields, load_library, refuse_difference, shared_fields


class Matrix(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("panel_bytes", c_int64),
        ("format", c_int32),
        ("n_out", c_int32),
        ("n_in", c_int32),
        ("n_blocks", c_int32),
        ("target", c_int32),
    ]


class Norm(ctypes.Structure):
    _fields_ = [("weight", c_void_p), ("bias", c_void_p)]


class KvForm(ctypes.Structure):
    _fields_ = [
        ("kind", c_int32),
        ("head_size", c_int32),
        *((name, c_int64) for name in ("stride", "keys", "values", "key_scales", "value_scales")),
        ("turned", c_int64),
        ("turned_scales", c_int64),
        ("turned_size", c_int32),
    ]


class AttentionPlan(ctypes.Structure):
    _fields_ = [
        *((name, Matrix) for name in ("q", "k", "v", "o")),
        *((name, Norm) for name in ("q_norm", "k_norm", "v_norm")),
        *((name, c_void_p) for name in ("q_bias", "k_bias", "v_bias", "o_bias", "sinks")),
        ("kv_offset", c_int64),
        ("kv", KvForm),
        *((name, c_int32) for name in ("n_heads", "n_kv_heads", "window", "chunk")),
        *(
            (name, c_int32)
            for name in ("rope", "rope_dims", "rope_interleaved", "qk_norm_whole", "norm_after_rope", "cache_group")
        ),
        ("scale", c_float),
        ("softcap", c_float),
        ("temperature", c_float),
        ("temperature_step", c_int32),
        ("temperature_offset", c_int32),
    ]


class LatentPlan(ctypes.Structure):
    _fields_ = [
        *((name, Matrix) for name in ("q_a", "q", "kv_a", "k_b", "v_b", "o")),
        *((name, Norm) for name in ("q_a_norm", "kv_a_norm")),
        *((name, c_void_p) for name in ("q_a_bias", "kv_a_bias", "o_bias")),
        ("kv_offset", c_int64),
        ("kv", KvForm),
        *((name, c_int32) for name in ("n_heads", "still_size", "value_size")),
        *((name, c_int32) for name in ("rope", "rope_interleaved", "cache_group")),
        *((name, c_float) for name in ("scale", "eps", "temperature")),
        ("temperature_step", c_int32),
    ]


class DensePlan(ctypes.Structure):
    _fields_ = [
        *((name, Matrix) for name in ("gate", "up", "down")),
        *((name, c_void_p) for name in ("gate_bias", "up_bias", "down_bias")),
        ("hidden", c_int32),
        ("activation", c_int32),
        ("is_sparse", c_int32),
        ("cutoff", c_float),
    ]


class ExpertsPlan(ctypes.Structure):
    _fields_ = [
        *((name, Norm) for name in ("norm", "router_norm", "post_norm", "post_dense_norm")),
        ("expert_scale", c_void_p),
        *((name, Matrix) for name in ("router", "gate", "up", "down")),
        *((name, c_void_p) for name in ("router_bias", "selection_bias", "gate_bias", "up_bias", "down_bias")),
        ("shared", DensePlan),
        ("shared_router", Matrix),
        *((name, c_int32) for name in ("count", "top_k", "hidden")),
        *((name, c_int32) for name in ("n_groups", "top_groups", "best_two", "gating", "normalise")),
        *((name, c_int32) for name in ("weights_on_input", "activation")),
        *((name, c_float) for name in ("scale", "shared_scale", "jitter")),
    ]


class StreamsPlan(ctypes.Structure):
    _fields_ = [
        ("router", Matrix),
        ("router_norm", Norm),
        *((name, c_void_p) for name in ("predict", "correct", "scale")),
    ]


class LaurelPlan(ctypes.Structure):
    _fields_ = [("down", Matrix), ("up", Matrix), ("norm", Norm)]


class SaidPlan(ctypes.Structure):
    _fields_ = [("gate", Matrix), ("up", Matrix), ("norm", Norm), ("size", c_int32), ("at", c_int32)]


LAYER_NORMS = ("attn_norm", "ffn_norm", "post_attn_norm", "post_ffn_norm")


class LayerPlan(ctypes.Structure):
    """`mixer` and `feed_forward` say which of the plans below is filled in."""

    _fields_ = [
        *((name, Norm) for name in LAYER_NORMS),
        ("mixer", c_int32),
        ("feed_forward", c_int32),
        ("scale", c_float),
        ("parallel", c_int32),
        ("attention", AttentionPlan),
        ("latent", LatentPlan),
        ("dense", DensePlan),
        ("experts", ExpertsPlan),
        ("streams", StreamsPlan),
        ("laurel", LaurelPlan),
        ("said", SaidPlan),
    ]


class ModelPlan(ctypes.Structure):
    _fields_ = [
        *((name, Matrix) for name in ("embedding", "head", "layer_embedding", "layer_projection")),
        ("layer_projection_norm", Norm),
        *((name, Matrix) for name in ("stream_projection", "stream_merge")),
        ("final_norm", Norm),
        ("head_bias", c_void_p),
        ("layers", POINTER(LayerPlan)),
        ("n_layers", c_int32),
        ("width", c_int32),
        ("vocab_size", c_int32),
        ("n_groups", c_int32),
        ("layer_vocab_size", c_int32),
        ("n_streams", c_int32),
        ("norm", c_int32),
        ("norm_eps", c_float),
        ("embedding_scale", c_float),
        ("residual_scale", c_float),
        ("logit_scale", c_float),
        ("logit_softcap", c_float),
    ]


class PoolPlan(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("block_bytes", c_int64), ("n_blocks", c_int64)]


class SamplerPlan(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("history", "bias_ids", "bias", "banned", "masks", "mask_flags", "drafts")),
        *((name, c_void_p) for name in ("tokens", "logprobs", "ranks", "top_ids", "top")),
        ("seed", c_uint64),
        ("position", c_int64),
        *((name, c_double) for name in ("temperature", "top_p", "min_p")),
        *((name, c_float) for name in ("presence", "frequency", "repetition")),
        *((name, c_int32) for name in ("n_history", "n_prompt", "repeat_last_n", "n_bias", "n_banned", "mask_words")),
        ("mask_patience_us", c_int32),
        *((name, c_int32) for name in ("n_drafts", "top_k", "n_logprobs", "choice", "first_head", "keep_logits")),
        *((name, c_int32) for name in ("slot", "n_ahead", "ahead")),
        *((name, c_int32) for name in ("n_tokens", "n_accepted", "dead_end", "not_numbers")),
        *((name, c_int32) for name in ("mask_late", "mask_wait_us", "n_left_out")),
    ]


class TableChanges(ctypes.Structure):
    _fields_ = [("slots", c_void_p), ("columns", c_void_p), ("blocks", c_void_p), ("n", c_int64)]


class AdapterTerm(ctypes.Structure):
    _fields_ = [("a", c_void_p), ("b", c_void_p), ("rank", c_int32), ("scale", c_float)]


class AdapterShare(ctypes.Structure):
    _fields_ = [("terms", c_void_p), ("scale", c_float)]


class StepPlan(ctypes.Structure):
    _fields_ = [
        ("ids", c_void_p),
        ("positions", c_void_p),
        ("row_starts", c_void_p),
        ("slots", c_void_p),
        ("best_heads", c_void_p),
        ("table_changes", POINTER(TableChanges)),
        ("embedded_tokens", c_void_p),
        ("embeddings", c_void_p),
        ("rope_tables", c_void_p),
        ("rope_positions", c_void_p),
        ("head_tokens", c_void_p),
        ("logits", c_void_p),
        ("best", c_void_p),
        ("hidden_tokens", c_void_p),
        ("hidden", c_void_p),
        ("samplers", POINTER(SamplerPlan)),
        ("adapter_starts", c_void_p),
        ("adapters", c_void_p),
        ("n_tokens", c_int32),
        ("n_rows", c_int32),
        ("n_head", c_int32),
        ("n_hidden", c_int32),
        ("n_samplers", c_int32),
        ("n_threads", c_int32),
        ("n_embedded", c_int32),
        ("error", c_int32),
        ("is_done", c_int32),
        ("elapsed_ns", c_int64),
    ]


SHARED = (
    Matrix,
    Norm,
    KvForm,
    AttentionPlan,
    LatentPlan,
    DensePlan,
    ExpertsPlan,
    StreamsPlan,
    LaurelPlan,
    SaidPlan,
    LayerPlan,
    ModelPlan,
    PoolPlan,
    SamplerPlan,
    TableChanges,
    AdapterTerm,
    AdapterShare,
    StepPlan,
)


def fields_here() -> dict[str, int]:
    """Everything that Python and the library share, as Python has it."""
    return shared_fields(SHARED) | {f"Error.{error.name}": error.value for error in KernelError}


def fields_there(loaded: ctypes.CDLL) -> dict[str, int]:
    """The same as the library was compiled."""
    return compiled_fields(loaded, "imp_cpu")


def refuse_another_version(there: dict[str, int]) -> None:
    """Raises UnsupportedModel."""
    refuse_difference("CPU", fields_here(), there)


@cache
def library(isa: str | None = None) -> ctypes.CDLL:
    """The engine library of this instruction set, its functions typed.

    Raises UnsupportedModel if it isn't built (the caller may fall back) or was built from other sources.
    """
    loaded = load_library("engine", isa)
    if loaded is None:
        raise UnsupportedModel(
            f"the native library isn't built: {MEND}; without one, --backend reference runs slowly on torch"
        )
    refuse_another_version(fields_there(loaded))
    loaded.imp_cpu_panel_bytes.argtypes = [c_int32, c_int32]
    loaded.imp_cpu_panel_bytes.restype = c_int64
    loaded.imp_cpu_open.argtypes = [POINTER(ModelPlan), c_int32, c_int32, POINTER(c_void_p)]
    loaded.imp_cpu_close.argtypes = [c_void_p]
    loaded.imp_cpu_set_pools.argtypes = [c_void_p, POINTER(PoolPlan)]
    loaded.imp_cpu_launch.argtypes = [c_void_p, POINTER(StepPlan)]
    loaded.imp_cpu_launch.restype = c_int32
    loaded.imp_cpu_collect.argtypes = [c_void_p, POINTER(StepPlan)]
    loaded.imp_cpu_collect.restype = c_int32
    loaded.imp_cpu_copy_blocks.argtypes = [c_void_p, c_int32, c_void_p, c_int32]
    loaded.imp_cpu_copy_blocks.restype = c_int32
    loaded.imp_cpu_finish.argtypes = [c_void_p]
    loaded.imp_cpu_waited_ns.argtypes = [c_void_p]
    loaded.imp_cpu_waited_ns.restype = c_int64
    loaded.imp_cpu_panels_evaluated.argtypes = [c_void_p]
    loaded.imp_cpu_panels_evaluated.restype = c_int32
    loaded.imp_cpu_masked_panels.argtypes = [c_void_p]
    loaded.imp_cpu_masked_panels.restype = c_int32
    loaded.imp_cpu_multiply.argtypes = [POINTER(Matrix), c_void_p, c_int32, c_void_p]
    loaded.imp_cpu_multiply.restype = c_int32
    loaded.imp_cpu_plane_best.argtypes = [POINTER(Matrix), c_void_p, c_int32, POINTER(c_int32), POINTER(c_int32)]
    loaded.imp_cpu_plane_best.restype = c_int32
    loaded.imp_cpu_dequantise.argtypes = [POINTER(Matrix), c_int64, c_int64, c_void_p]
    loaded.imp_cpu_sample.argtypes = [POINTER(SamplerPlan), c_void_p, c_int32]
    loaded.imp_cpu_read_all.argtypes = [c_void_p, c_int64]
    loaded.imp_cpu_read_all.restype = c_uint64
    loaded.imp_cpu_pack.argtypes = [c_int32, c_void_p, c_int64, c_int32, c_void_p]
    loaded.imp_cpu_pack.restype = c_int32
    loaded.imp_cpu_digest.argtypes = [c_void_p, c_int64]
    loaded.imp_cpu_digest.restype = c_uint64
    loaded.imp_cpu_read_loop.argtypes = [c_int32, c_void_p, c_int64]
    loaded.imp_cpu_dot_registers.argtypes = [c_int64, POINTER(c_int32)]
    loaded.imp_cpu_dot_registers.restype = c_int64
    loaded.imp_cpu_repeat.argtypes = [POINTER(Matrix), c_void_p, c_int32, c_int64]
    return loaded
