// Where each field of the shared structs lies, so that Python can refuse a library of another version (abi.py).
#include <cstddef>

#include "plan.h"

using namespace imp;

namespace {

struct Field {
    const char* name;
    int64_t offset;  // of a struct itself: its size; of an error: its number
};

#define SIZE(s) {#s, int64_t(sizeof(s))}
#define ERROR(name) {"Error." #name, int64_t(Error::name)}
#define AT(s, f) {#s "." #f, int64_t(offsetof(s, f))}

const Field kFields[] = {
    ERROR(ok), ERROR(no_memory), ERROR(no_threads), ERROR(unknown_layout), ERROR(unexpected), ERROR(wrong_rows),
    ERROR(wrong_positions), ERROR(wrong_block_table), ERROR(wrong_id), ERROR(beyond_rope), ERROR(wrong_slot),
    SIZE(Matrix),
    AT(Matrix, data), AT(Matrix, panel_bytes), AT(Matrix, format), AT(Matrix, n_out), AT(Matrix, n_in),
    AT(Matrix, n_blocks), AT(Matrix, target),
    SIZE(Norm),
    AT(Norm, weight), AT(Norm, bias),
    SIZE(KvForm),
    AT(KvForm, kind), AT(KvForm, head_size), AT(KvForm, stride), AT(KvForm, keys), AT(KvForm, values),
    AT(KvForm, key_scales), AT(KvForm, value_scales), AT(KvForm, turned), AT(KvForm, turned_scales), AT(KvForm, turned_size),
    SIZE(AttentionPlan),
    AT(AttentionPlan, q), AT(AttentionPlan, k), AT(AttentionPlan, v), AT(AttentionPlan, o), AT(AttentionPlan, q_norm),
    AT(AttentionPlan, k_norm), AT(AttentionPlan, v_norm), AT(AttentionPlan, q_bias), AT(AttentionPlan, k_bias), AT(AttentionPlan, v_bias),
    AT(AttentionPlan, o_bias), AT(AttentionPlan, sinks), AT(AttentionPlan, kv_offset), AT(AttentionPlan, kv),
    AT(AttentionPlan, n_heads), AT(AttentionPlan, n_kv_heads), AT(AttentionPlan, window), AT(AttentionPlan, chunk), AT(AttentionPlan, rope),
    AT(AttentionPlan, rope_dims), AT(AttentionPlan, rope_interleaved), AT(AttentionPlan, qk_norm_whole),
    AT(AttentionPlan, norm_after_rope),
    AT(AttentionPlan, cache_group), AT(AttentionPlan, scale), AT(AttentionPlan, softcap),
    AT(AttentionPlan, temperature), AT(AttentionPlan, temperature_step), AT(AttentionPlan, temperature_offset),
    SIZE(LatentPlan),
    AT(LatentPlan, q_a), AT(LatentPlan, q), AT(LatentPlan, kv_a), AT(LatentPlan, k_b), AT(LatentPlan, v_b), AT(LatentPlan, o),
    AT(LatentPlan, q_a_norm), AT(LatentPlan, kv_a_norm), AT(LatentPlan, q_a_bias), AT(LatentPlan, kv_a_bias),
    AT(LatentPlan, o_bias), AT(LatentPlan, kv_offset), AT(LatentPlan, kv), AT(LatentPlan, n_heads),
    AT(LatentPlan, still_size), AT(LatentPlan, value_size), AT(LatentPlan, rope), AT(LatentPlan, rope_interleaved),
    AT(LatentPlan, cache_group), AT(LatentPlan, scale), AT(LatentPlan, eps), AT(LatentPlan, temperature),
    AT(LatentPlan, temperature_step),
    SIZE(DensePlan),
    AT(DensePlan, gate), AT(DensePlan, up), AT(DensePlan, down), AT(DensePlan, gate_bias), AT(DensePlan, up_bias),
    AT(DensePlan, down_bias), AT(DensePlan, hidden), AT(DensePlan, activation), AT(DensePlan, is_sparse), AT(DensePlan, cutoff),
    SIZE(ExpertsPlan),
    AT(ExpertsPlan, norm), AT(ExpertsPlan, router_norm), AT(ExpertsPlan, post_norm), AT(ExpertsPlan, post_dense_norm),
    AT(ExpertsPlan, expert_scale),
    AT(ExpertsPlan, router), AT(ExpertsPlan, gate), AT(ExpertsPlan, up), AT(ExpertsPlan, down),
    AT(ExpertsPlan, router_bias), AT(ExpertsPlan, selection_bias), AT(ExpertsPlan, gate_bias), AT(ExpertsPlan, up_bias),
    AT(ExpertsPlan, down_bias), AT(ExpertsPlan, shared), AT(ExpertsPlan, shared_router), AT(ExpertsPlan, count),
    AT(ExpertsPlan, top_k), AT(ExpertsPlan, hidden), AT(ExpertsPlan, n_groups),
    AT(ExpertsPlan, top_groups), AT(ExpertsPlan, best_two), AT(ExpertsPlan, gating), AT(ExpertsPlan, normalise),
    AT(ExpertsPlan, weights_on_input), AT(ExpertsPlan, activation), AT(ExpertsPlan, scale), AT(ExpertsPlan, shared_scale),
    AT(ExpertsPlan, jitter),
    SIZE(StreamsPlan),
    AT(StreamsPlan, router), AT(StreamsPlan, router_norm), AT(StreamsPlan, predict), AT(StreamsPlan, correct),
    AT(StreamsPlan, scale),
    SIZE(LaurelPlan),
    AT(LaurelPlan, down), AT(LaurelPlan, up), AT(LaurelPlan, norm),
    SIZE(SaidPlan),
    AT(SaidPlan, gate), AT(SaidPlan, up), AT(SaidPlan, norm), AT(SaidPlan, size), AT(SaidPlan, at),
    SIZE(LayerPlan),
    AT(LayerPlan, attn_norm), AT(LayerPlan, ffn_norm), AT(LayerPlan, post_attn_norm), AT(LayerPlan, post_ffn_norm),
    AT(LayerPlan, mixer), AT(LayerPlan, feed_forward), AT(LayerPlan, scale), AT(LayerPlan, parallel), AT(LayerPlan, attention), AT(LayerPlan, latent), AT(LayerPlan, dense),
    AT(LayerPlan, experts), AT(LayerPlan, streams), AT(LayerPlan, laurel), AT(LayerPlan, said),
    SIZE(ModelPlan),
    AT(ModelPlan, embedding), AT(ModelPlan, head), AT(ModelPlan, final_norm),
    AT(ModelPlan, layer_embedding), AT(ModelPlan, layer_projection), AT(ModelPlan, layer_projection_norm),
    AT(ModelPlan, stream_projection), AT(ModelPlan, stream_merge), AT(ModelPlan, layer_vocab_size), AT(ModelPlan, n_streams),
    AT(ModelPlan, head_bias), AT(ModelPlan, layers), AT(ModelPlan, n_layers), AT(ModelPlan, width),
    AT(ModelPlan, vocab_size), AT(ModelPlan, n_groups), AT(ModelPlan, norm), AT(ModelPlan, norm_eps),
    AT(ModelPlan, embedding_scale), AT(ModelPlan, residual_scale), AT(ModelPlan, logit_scale),
    AT(ModelPlan, logit_softcap),
    SIZE(PoolPlan),
    AT(PoolPlan, data), AT(PoolPlan, block_bytes), AT(PoolPlan, n_blocks),
    SIZE(SamplerPlan),
    AT(SamplerPlan, history), AT(SamplerPlan, bias_ids), AT(SamplerPlan, bias), AT(SamplerPlan, banned),
    AT(SamplerPlan, masks), AT(SamplerPlan, mask_flags), AT(SamplerPlan, drafts), AT(SamplerPlan, tokens),
    AT(SamplerPlan, logprobs), AT(SamplerPlan, ranks), AT(SamplerPlan, top_ids), AT(SamplerPlan, top),
    AT(SamplerPlan, seed), AT(SamplerPlan, position), AT(SamplerPlan, temperature), AT(SamplerPlan, top_p),
    AT(SamplerPlan, min_p), AT(SamplerPlan, presence), AT(SamplerPlan, frequency), AT(SamplerPlan, repetition),
    AT(SamplerPlan, n_history), AT(SamplerPlan, n_prompt), AT(SamplerPlan, repeat_last_n), AT(SamplerPlan, n_bias),
    AT(SamplerPlan, n_banned), AT(SamplerPlan, mask_words), AT(SamplerPlan, mask_patience_us),
    AT(SamplerPlan, n_drafts), AT(SamplerPlan, top_k), AT(SamplerPlan, n_logprobs), AT(SamplerPlan, choice),
    AT(SamplerPlan, first_head), AT(SamplerPlan, keep_logits), AT(SamplerPlan, n_tokens), AT(SamplerPlan, n_accepted),
    AT(SamplerPlan, dead_end), AT(SamplerPlan, not_numbers), AT(SamplerPlan, mask_late), AT(SamplerPlan, mask_wait_us),
    AT(SamplerPlan, n_left_out), AT(SamplerPlan, slot), AT(SamplerPlan, n_ahead), AT(SamplerPlan, ahead),
    SIZE(TableChanges),
    AT(TableChanges, slots), AT(TableChanges, columns), AT(TableChanges, blocks), AT(TableChanges, n),
    SIZE(AdapterTerm),
    AT(AdapterTerm, a), AT(AdapterTerm, b), AT(AdapterTerm, rank), AT(AdapterTerm, scale),
    SIZE(AdapterShare),
    AT(AdapterShare, terms), AT(AdapterShare, scale),
    SIZE(StepPlan),
    AT(StepPlan, ids), AT(StepPlan, positions), AT(StepPlan, row_starts), AT(StepPlan, slots),
    AT(StepPlan, best_heads), AT(StepPlan, table_changes), AT(StepPlan, embedded_tokens), AT(StepPlan, embeddings),
    AT(StepPlan, rope_tables), AT(StepPlan, rope_positions), AT(StepPlan, head_tokens),
    AT(StepPlan, logits), AT(StepPlan, best), AT(StepPlan, hidden_tokens), AT(StepPlan, hidden), AT(StepPlan, samplers),
    AT(StepPlan, adapter_starts), AT(StepPlan, adapters),
    AT(StepPlan, n_tokens), AT(StepPlan, n_rows), AT(StepPlan, n_head), AT(StepPlan, n_hidden),
    AT(StepPlan, n_samplers), AT(StepPlan, n_threads), AT(StepPlan, n_embedded), AT(StepPlan, error),
    AT(StepPlan, is_done), AT(StepPlan, elapsed_ns),
};

}  // namespace

extern "C" {

int32_t imp_cpu_n_fields() { return int32_t(sizeof kFields / sizeof kFields[0]); }

const char* imp_cpu_field(int32_t index, int64_t* offset) {
    *offset = kFields[index].offset;
    return kFields[index].name;
}

}  // extern "C"
