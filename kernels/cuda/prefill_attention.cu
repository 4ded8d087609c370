// Attention of many ids of a row over the paged cache, what lies before them included, on tensor cores.
//
// A block takes 64 of the (id, query head) pairs that share a KV head, a warp 16 of them, and walks the positions in tiles
// aligned to position 0. Queries and weights are rounded to bfloat16, keys and values are what the cache has (int8: without
// their scales, which go to scores and weights), sums are float32. Tiles in which a query sees nothing change nothing.
// HEAD: size of keys and values, a multiple of 16 up to 256; KV_TYPE: KvType, not f32; SOFTCAP, LIMITED (a window or
// chunks): 0 or 1.
#include "kv.h"

using Form = KvForm<KV_TYPE>;
constexpr int kWarps = 4, kPairs = 16 * kWarps;
constexpr int kTile = HEAD <= 64 ? 64 : HEAD <= 128 ? 32 : 16;  // positions
constexpr int kRow = HEAD + 8;  // of a tile in shared memory: rows begin at different banks
constexpr int kSteps = HEAD / 16;  // of a product over a vector
constexpr int kLoads = HEAD / Form::kPerLoad;  // of 16 bytes, in a vector
constexpr bool kCopied = KV_TYPE == kKvBf16;  // tiles are what the cache has, bit by bit

struct Tile {
    Shared<bf16> keys, values;
    Shared<f32> key_scales, value_scales;
};

DEVICE void load_part(const KvPart& part, i32 head, Global<const i32> blocks, i32 first, i32 end, Shared<bf16> to, Shared<f32> scales) {
    for (i32 i = i32(thread_index()); i < kTile * kLoads; i += kWarps * 32) {
        i32 t = i / kLoads, load = i % kLoads, position = first + t;
        i32 block = position < end ? i32(blocks[position / kBlockTokens]) : -1;
        i64 at = block < 0 ? 0 : block * part.block_bytes + head * part.stride;
        i32 slot = position % kBlockTokens;
        auto from = part.pool + (at + part.values + slot * vector_bytes<KV_TYPE>(HEAD) + 16 * load);
        auto target = to + (t * kRow + load * Form::kPerLoad);
        if constexpr (kCopied) {
            copy_async(target, Global<const u8>(from), block >= 0);
        } else {
            U32x4 packed{{0, 0, 0, 0}};
            if (block >= 0) packed = load_as<U32x4>(from);
            f32 numbers[Form::kPerLoad];
            unpack<KV_TYPE>(packed, numbers);
            if (block >= 0) apply_scales<KV_TYPE>(part.pool + (at + part.scales), slot, HEAD, load * Form::kPerLoad, numbers);
            UNROLL for (int half = 0; half < Form::kPerLoad / 8; half++) {
                U32x4 made;
                UNROLL for (int w = 0; w < 4; w++) made.v[w] = block < 0 ? 0 : pack_bf16(numbers[8 * half + 2 * w], numbers[8 * half + 2 * w + 1]);
                store_as(target + 8 * half, made);
            }
            if constexpr (Form::kScaled)
                if (load == 0) scales[t] = block < 0 ? 0.0f : f32(cast<f32>(part.pool + (at + part.scales))[slot]);
        }
    }
}

struct Rule {
    f32 scale, softcap;
    i32 window, chunk;
};

// q [T, n_heads, HEAD] -> out, alike; grid (pairs / 64, n_kv_heads, rows).
BUSY_KERNEL(128, 2) prefill_attention(Global<const f32> q, i32 n_heads, i32 n_kv_heads, i32 width, Global<const i32> starts, Global<const i32> counts, Global<const i32> table, i32 columns, Global<u8> pool, i64 block_bytes, i64 k_values,
                              i64 k_scales, i64 k_stride, i64 v_values, i64 v_scales, i64 v_stride, f32 scale, i32 window, i32 chunk, f32 softcap, Global<const f32> sinks, Global<const f32> gate, Global<f32> out) {
    SHARED(bf16, keys, 2 * kTile * kRow);
    SHARED(bf16, values, 2 * kTile * kRow);
    SHARED(f32, key_scales, 2 * kTile);
    SHARED(f32, value_scales, 2 * kTile);
    i32 lane = i32(lane_index()), warp = i32(warp_index()), g = lane / 4, t = lane % 4;
    i32 row = i32(block_z()), kv_head = i32(block_y()), group = n_heads / n_kv_heads, first = i32(block_x()) * kPairs;
    i32 n = counts[row], start = starts[row], n_pairs = group * n;
    if (first >= n_pairs) return;
    i32 last = first + kPairs < n_pairs ? first + kPairs - 1 : n_pairs - 1;
    KvPart k{pool, block_bytes, k_values, k_scales, k_stride}, v{pool, block_bytes, v_values, v_scales, v_stride};
    auto blocks = table + i64(row) * columns;

    // Rows g and g + 8 of the warp's 16 are this lane's.
    i32 pairs[2], positions[2];
    i64 places[2];
    UNROLL for (int h = 0; h < 2; h++) {
        pairs[h] = first + 16 * warp + g + 8 * h;
        bool is_there = pairs[h] <= last;
        i32 pair = is_there ? pairs[h] : last;
        positions[h] = is_there ? start + pair / group : -1;
        places[h] = ((i64(row) * width + pair / group) * n_heads + kv_head * group + pair % group) * HEAD;
    }
    U32x4 queries[kSteps];
    UNROLL for (int s = 0; s < kSteps; s++) {
        UNROLL for (int i = 0; i < 4; i++) {
            i64 at = places[i % 2] + 16 * s + 8 * (i / 2) + 2 * t;
            queries[s].v[i] = pack_bf16(q[at], q[at + 1]);
        }
    }
    f32 outs[HEAD / 8][4], tops[2] = {-infinity(), -infinity()}, sums[2] = {0.0f, 0.0f};
    UNROLL for (int d = 0; d < HEAD / 8; d++) {
        UNROLL for (int i = 0; i < 4; i++) outs[d][i] = 0.0f;
    }
    i32 low_position = start + first / group, end = start + last / group + 1, low = 0;
    if (window && low_position - window + 1 > 0) low = low_position - window + 1;
    if (chunk) low = low_position / chunk * chunk;
    low = low / kTile * kTile;

    auto load = [&](i32 at, i32 side) {
        load_part(k, kv_head, blocks, at, end, keys + side * kTile * kRow, key_scales + side * kTile);
        load_part(v, kv_head, blocks, at, end, values + side * kTile * kRow, value_scales + side * kTile);
        commit_copies();
    };
    load(low, 0);
    for (i32 at = low, side = 0; at < end; at += kTile, side ^= 1) {
        if (at + kTile < end) {
            load(at + kTile, side ^ 1);
            await_copies<1>();
        } else {
            await_copies<0>();
        }
        barrier();
        auto own_keys = keys + side * kTile * kRow, own_values = values + side * kTile * kRow;
        f32 scores[kTile / 8][4];
        UNROLL for (int pair = 0; pair < kTile / 16; pair++) {
            UNROLL for (int i = 0; i < 4; i++) scores[2 * pair][i] = scores[2 * pair + 1][i] = 0.0f;
            UNROLL for (int s = 0; s < kSteps; s++) {
                i32 key = 16 * pair + lane / 16 * 8 + lane % 8, d = 16 * s + lane / 8 % 2 * 8;
                U32x4 b = ldmatrix(own_keys + (key * kRow + d));
                mma_bf16(scores[2 * pair], queries[s], b.v[0], b.v[1]);
                mma_bf16(scores[2 * pair + 1], queries[s], b.v[2], b.v[3]);
            }
        }
        constexpr f32 kLog2e = 1.44269504f;
        f32 new_tops[2] = {tops[0], tops[1]};
        UNROLL for (int c = 0; c < kTile / 8; c++) {
            bool is_there = at + 8 * c < end && blocks[(at + 8 * c) / kBlockTokens] >= 0;
            UNROLL for (int i = 0; i < 4; i++) {
                i32 key = 8 * c + 2 * t + i % 2, p = positions[i / 2];
                f32 score = scores[c][i] * scale;
                if constexpr (Form::kScaled) score *= key_scales[side * kTile + key];
                if constexpr (SOFTCAP) score = softcap * hyperbolic_tangent(quotient(score, softcap));
                key += at;
                bool seen = is_there && key <= p && (!LIMITED || (window == 0 || key > p - window)) && (!LIMITED || (chunk == 0 || key >= p / chunk * chunk));
                scores[c][i] = seen ? score * kLog2e : -infinity();
                new_tops[i / 2] = most(new_tops[i / 2], scores[c][i]);
            }
        }
        UNROLL for (int h = 0; h < 2; h++) {
            UNROLL for (u32 flip = 1; flip < 4; flip *= 2) new_tops[h] = most(new_tops[h], shuffle_xor(new_tops[h], flip));
            f32 kept = tops[h] == -infinity() ? 0.0f : exp2_approx(tops[h] - new_tops[h]);
            tops[h] = new_tops[h];
            sums[h] *= kept;
            UNROLL for (int d = 0; d < HEAD / 8; d++) {
                outs[d][2 * h] *= kept;
                outs[d][2 * h + 1] *= kept;
            }
        }
        UNROLL for (int c = 0; c < kTile / 8; c++) {
            UNROLL for (int i = 0; i < 4; i++) {
                f32 weight = scores[c][i] == -infinity() ? 0.0f : exp2_approx(scores[c][i] - tops[i / 2]);
                sums[i / 2] += weight;
                if constexpr (Form::kScaled) weight *= value_scales[side * kTile + 8 * c + 2 * t + i % 2];
                scores[c][i] = weight;
            }
        }
        UNROLL for (int pair = 0; pair < kTile / 16; pair++) {
            auto& left = scores[2 * pair];
            auto& right = scores[2 * pair + 1];
            U32x4 weights{{pack_bf16(left[0], left[1]), pack_bf16(left[2], left[3]), pack_bf16(right[0], right[1]), pack_bf16(right[2], right[3])}};
            UNROLL for (int s = 0; s < kSteps; s++) {
                i32 key = 16 * pair + lane / 8 % 2 * 8 + lane % 8, d = 16 * s + lane / 16 * 8;
                U32x4 b = ldmatrix_transposed(own_values + (key * kRow + d));
                mma_bf16(outs[2 * s], weights, b.v[0], b.v[1]);
                mma_bf16(outs[2 * s + 1], weights, b.v[2], b.v[3]);
            }
        }
        barrier();
    }
    UNROLL for (int h = 0; h < 2; h++) {
        UNROLL for (u32 flip = 1; flip < 4; flip *= 2) sums[h] += shuffle_xor(sums[h], flip);
        if (positions[h] < 0) continue;
        f32 kept = 1.0f, sum = sums[h];
        if (sinks) {
            f32 sink = sinks[kv_head * group + pairs[h] % group] * 1.44269504f, top = most(tops[h], sink);
            kept = tops[h] == -infinity() ? 0.0f : exp2_approx(tops[h] - top);
            sum = sum * kept + exp2_approx(sink - top);
        }
        f32 times = sum > 0.0f ? quotient(kept, sum) : 0.0f;
        UNROLL for (int d = 0; d < HEAD / 8; d++) {
            UNROLL for (int i = 0; i < 2; i++) {
                i64 at = places[h] + 8 * d + 2 * t + i;
                f32 value = outs[d][2 * h + i] * times;
                out[at] = gate ? value * sigmoid(gate[at]) : value;
            }
        }
    }
}
EXPORT(prefill_attention);
