// What Python hands over: the model, lowered once at load, and one step. Mirrored field by field in backends/cpu/abi.py.
#pragma once

#include <cstdint>

#include "adapters.h"
#include "attention.h"
#include "error.h"
#include "layer_math.h"
#include "sampling.h"
#include "tiles.h"

namespace imp {

// The mixers and feed-forwards that there are: a layer names its own, and fills in that plan alone.
enum class MixerKind : int32_t { attention, latent };
enum class FeedForwardKind : int32_t { dense, experts, dense_and_experts };
enum class GatingKind : int32_t { softmax, sigmoid, sparse_mixer };

struct AttentionPlan {
    Matrix q, k, v, o;                           // v absent: values are the keys before these are normalised and turned;
                                                 // k and v absent: those of another layer, where kv_offset points
    Norm q_norm, k_norm, v_norm;
    const float *q_bias, *k_bias, *v_bias, *o_bias, *sinks;
    int64_t kv_offset;                           // of this layer's data in a block
    KvForm kv;
    int32_t n_heads, n_kv_heads, window, chunk;
    int32_t rope;                                // index of the step's table; -1 = none
    int32_t rope_dims, rope_interleaved;
    int32_t qk_norm_whole;                       // q_norm and k_norm span all heads
    int32_t norm_after_rope;
    int32_t cache_group;
    float scale, softcap;
    float temperature;                           // queries times 1 + temperature ln(1 + position / temperature_step)
    int32_t temperature_step, temperature_offset;  // the position and this over the step, rounded down

    int head_size() const { return kv.head_size; }
    int q_width() const { return n_heads * kv.head_size; }
    int kv_width() const { return n_kv_heads * kv.head_size; }
    int row_width() const { return q_width() + 2 * kv_width(); }
};

// Attention over latents, absorbed: of a head, q times k_b meets the latents themselves, and v_b follows.
struct LatentPlan {
    Matrix q_a, q;                               // q_a absent: queries aren't compressed, q is made of x
    Matrix kv_a;
    Matrix k_b, v_b;                             // of all heads, one after the other by rows
    Matrix o;
    Norm q_a_norm, kv_a_norm;                    // root mean squares, with an eps of their own
    const float *q_a_bias, *kv_a_bias, *o_bias;
    int64_t kv_offset;
    KvForm kv;                                   // head_size: of the latent
    int32_t n_heads, still_size, value_size;
    int32_t rope, rope_interleaved, cache_group;
    float scale, eps;
    float temperature;
    int32_t temperature_step;

    int rank() const { return kv.head_size; }
    int turned() const { return kv.turned_size; }
    int key_width() const { return rank() + turned(); }                   // of a latent key, and of a query that meets it
    int head_size() const { return still_size + turned(); }
    int q_rank() const { return q_a.present() ? q_a.n_out : 0; }
    // A row of numbers: queries in the latents' space, key, queries, compressed queries.
    int key_at() const { return n_heads * key_width(); }
    int q_at() const { return key_at() + key_width(); }
    int q_a_at() const { return q_at() + n_heads * head_size(); }
    int row_width() const { return q_a_at() + q_rank(); }
};

struct DensePlan {
    Matrix gate, up, down;                       // gate absent: a plain FFN
    const float *gate_bias, *up_bias, *down_bias;
    int32_t hidden;
    ActivationKind activation;
    int32_t is_sparse;                           // of the gate only what exceeds its mean and `cutoff` deviations counts
    float cutoff;
};

struct ExpertsPlan {
    Norm norm, router_norm, post_norm;           // beside a dense half: the experts' own, that of the router, that of their sum
    Norm post_dense_norm;                        // and that of what the dense half says
    const float* expert_scale;                   // of each one's weight, or null
    Matrix router;
    Matrix gate, up, down;                       // of all experts, one after the other by rows
    const float *router_bias, *selection_bias, *gate_bias, *up_bias, *down_bias;
    DensePlan shared;                            // absent: its `up` is
    Matrix shared_router;                        // a single row, or absent
    int32_t count, top_k, hidden;
    int32_t n_groups, top_groups, best_two;      // best_two: a group is as strong as its two best, not its best
    GatingKind gating;
    int32_t normalise;
    int32_t weights_on_input;                    // an expert's input is weighted, not its output
    ActivationKind activation;
    float scale, shared_scale;
    float jitter;                                // of sparse_mixer
};

// What a layer does with the streams of a position (AltUp): it works on the first one of those that it predicts, and what
// it changes there corrects all of them.
struct StreamsPlan {
    Matrix router;                               // n_streams rows
    Norm router_norm;
    const float *predict, *correct;              // [n_streams^2, n_streams] and [n_streams, n_streams]
    const float* scale;                          // [width]: of the first stream, where what ids say meets it
};

// A second way around the mixer, through `rank` numbers.
struct LaurelPlan {
    Matrix down, up;                             // absent: there is none
    Norm norm;
};

// What ids say to this layer, behind its feed-forward.
struct SaidPlan {
    Matrix gate, up;
    Norm norm;
    int32_t size;                                // 0 = nothing
    int32_t at;                                  // where it begins in what is said to all layers
};

struct LayerPlan {
    Norm attn_norm, ffn_norm, post_attn_norm, post_ffn_norm;
    MixerKind mixer;
    FeedForwardKind feed_forward;
    float scale;                                 // x times this when the layer is through
    int32_t parallel;                            // the feed-forward reads what came in, not what the mixer has added to
    AttentionPlan attention;
    LatentPlan latent;
    DensePlan dense;
    ExpertsPlan experts;
    StreamsPlan streams;
    LaurelPlan laurel;
    SaidPlan said;
};

struct ModelPlan {
    Matrix embedding, head;
    Matrix layer_embedding, layer_projection;    // what ids say to all layers, and what x does; or absent
    Norm layer_projection_norm;
    Matrix stream_projection, stream_merge;      // of all streams but the first, one after the other by rows; or absent
    Norm final_norm;
    const float* head_bias;
    const LayerPlan* layers;
    int32_t n_layers, width, vocab_size, n_groups;
    int32_t layer_vocab_size;                    // further ids say what id 0 does
    int32_t n_streams;                           // 1 = x alone
    NormKind norm;
    float norm_eps, embedding_scale, residual_scale, logit_scale, logit_softcap;
};

// One cache group's pool: n_blocks * block_bytes.
struct PoolPlan {
    uint8_t* data;
    int64_t block_bytes;
    int64_t n_blocks;
};

// Of one cache group: columns of slots' block tables that are other blocks from this step on.
struct TableChanges {
    const int32_t *slots, *columns, *blocks;
    int64_t n;
};

// An id that means: what the row's slot sampled last.
constexpr int32_t kLastSampled = -1;

// What a row takes of an adapter.
struct AdapterShare {
    const AdapterTerm* terms;         // by Matrix.target
    float scale;
};

struct StepPlan {
    const int32_t *ids, *positions, *row_starts;
    const int32_t* slots;             // [n_rows]: where a row's tables and its last id are kept; no two alike
    const int32_t* best_heads;        // [n_rows]: index of the head token whose best id is what the row samples; -1 = none
    const TableChanges* table_changes;  // [n_groups]
    const int32_t* embedded_tokens;   // tokens whose input isn't that of their id
    const float* embeddings;          // [n_embedded, width]: their inputs
    const float* const* rope_tables;  // [n_ropes]: [position][dims]: cosines, then sines
    const int32_t* rope_positions;    // positions each table holds
    const int32_t* head_tokens;       // tokens of the step whose logits are wanted, ascending
    float* const* logits;             // [n_head]: where a token's logits go; null = only its best id is wanted
    int32_t* best;                    // [n_head]: the best id, the lowest one on ties
    const int32_t* hidden_tokens;     // ascending
    float* hidden;                    // [n_hidden, width]: after the final norm
    SamplerPlan* samplers;            // of the rows that want ids
    const int32_t* adapter_starts;    // [n_rows + 1]: where a row's begin among `adapters`; null = no row has any
    const AdapterShare* adapters;
    int32_t n_tokens, n_rows, n_head, n_hidden, n_samplers, n_threads, n_embedded;
    Error error;                      // out
    int32_t is_done;                  // out, read under the queue's lock
    int64_t elapsed_ns;               // out
};

}  // namespace imp
