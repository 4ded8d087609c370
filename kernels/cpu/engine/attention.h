// Attention over the paged cache, read in its own form.
//
// Arithmetic (twin.attend), a function of the query's own position alone:
//   score = fused chain over the head's dimensions in order, times scale (int8: times the key's scale first), soft cap
//   tiles of 64 positions aligned to 0: m = max, p = e^(score - m), l = sum p (lane sums over the four 16s, folded),
//     o = fused chain of p v over the positions in order (int8: p times the value's scale first)
//   spans of 512 positions aligned to 0: tiles merged in order; then spans merged in order, by `merge`.
//
// Cache forms, per block of 16 positions, layer and KV head (slot = position % 16):
//   bf16: K[d / 2][slot][d % 2], V[slot / 2][d][slot % 2]
//   int8: K[d][slot], V[slot][d], float K scale[slot], V scale[slot]; value = scale * q, scale = amax / 127
//   latents: both parts as V is. A score is then 16 lane sums over dimensions, folded; bf16: the latent's dimensions and
//   then the turned ones; int8: each part by itself, fused(turned, its scale, latent * its scale)
// Where each of these begins is told (KvForm).
#pragma once

#include <cstdint>

#include "simd.h"

namespace imp {

enum class KvKind : int32_t { bf16, int8 };

constexpr int kKvBlock = 16;
constexpr int kTile = 64;
constexpr int kSpan = 512;
constexpr int kMaxHead = 512;    // of a value
constexpr int kMaxQuery = 640;   // of a key
// Query vectors handled at once: as many as the registers hold beside what they meet.
#if IMP_LANES_512
constexpr int kVectors = 12;
#else
constexpr int kVectors = 8;
#endif

// How a layer's keys and values lie in a block, as backends/kv_layout.py has it: bytes from the layer's first, of head 0.
struct KvForm {
    KvKind kind;
    int32_t head_size;
    int64_t stride;           // from one head to the next
    int64_t keys, values;
    int64_t key_scales, value_scales;
    int64_t turned, turned_scales;
    int32_t turned_size;      // > 0: latents. The values are the keys' first part, laid out as values are, this the rest
};

// One layer's cache of one row and KV head.
struct KvView {
    const uint8_t* pool;      // + block * block_bytes = the data of this layer and head
    int64_t block_bytes;
    const int32_t* table;     // block of positions [16 i, 16 i + 16)
    KvForm form;

    // A block that was given back lies outside every window: any readable block serves, its weights are 0.
    const uint8_t* block(int i) const { return pool + int64_t(table[i] < 0 ? 0 : table[i]) * block_bytes; }
};

struct AttentionRule {
    float scale;
    float softcap;  // 0 = none
    int window;     // 0 = all
    int chunk;      // a query sees its own chunk of so many positions; 0 = there are none

    // The first position that a query sees; it may be below 0.
    int first_seen(int position) const {
        if (chunk) return position / chunk * chunk;
        return window ? position - window + 1 : 0;
    }
};

// Up to kVectors query vectors of head_size floats and what they have seen so far.
struct Queries {
    int n;
    int positions[kVectors];
    alignas(64) float q[kVectors][kMaxQuery];
};

struct Partial {
    float m[kVectors], l[kVectors];
    alignas(64) float o[kVectors][kMaxHead];
};

// Spans that some query of the group sees.
IMP_INLINE int first_span(const Queries& queries, const AttentionRule& rule) {
    int lowest = queries.positions[0];
    for (int v = 1; v < queries.n; ++v) lowest = queries.positions[v] < lowest ? queries.positions[v] : lowest;
    const int first = rule.first_seen(lowest);
    return first <= 0 ? 0 : first / kSpan;
}
IMP_INLINE int end_span(const Queries& queries) {
    int highest = queries.positions[0];
    for (int v = 1; v < queries.n; ++v) highest = queries.positions[v] > highest ? queries.positions[v] : highest;
    return highest / kSpan + 1;
}

// The attention of all queries over one span; a query that sees nothing of it has m = -inf.
void attend_span(const KvView& kv, const AttentionRule& rule, const Queries& queries, int span, Partial& out);

// into := into merged with next. A query unseen by `next` stays as it is.
void merge(Partial& into, const Partial& next, int n, int head_size);

// o / l to out[v]; a sink joins the sum first.
void finish(Partial& partial, int v, int head_size, const float* sink, float* out);

// Writes one position's key and value of one head into its block; `block` is where the head's data begin.
void write_kv(const KvForm& form, uint8_t* block, int slot, const float* key, const float* value);
void write_latent(const KvForm& form, uint8_t* block, int slot, const float* latent, const float* turned);

}  // namespace imp
