// Attention of up to 8 ids of a row over the paged cache: splits of the row's positions, and their merge.
//
// A block takes one KV head, one split of `split` positions aligned to position 0, and QUERIES of the (query head, id)
// pairs that share the head. 16 bytes of a key are a lane's, so a warp holds some positions at once; each group of lanes
// has a running maximum, sum and output of its own, merged at the end. So what a row computes depends on it alone.
// HEAD: size of keys and values; KV_TYPE: KvType; QUERIES; SOFTCAP, LIMITED (a window or chunks): 0 or 1.
#include "kv.h"

using Form = KvForm<KV_TYPE>;
constexpr int kWarps = 4;
constexpr int kLoads = HEAD / Form::kPerLoad;  // of 16 bytes, in a vector
constexpr int kLanes = kLoads > 16 ? 32 : kLoads > 8 ? 16 : kLoads > 4 ? 8 : kLoads > 2 ? 4 : 2;
constexpr int kChunks = (kLoads + kLanes - 1) / kLanes;
constexpr int kAtOnce = 32 / kLanes;  // positions that a warp holds
constexpr int kOwn = Form::kPerLoad * kChunks;  // numbers of a vector that are a lane's
constexpr int kAhead = kOwn * QUERIES > 32 ? 1 : 2;  // positions of a group of lanes at once
static_assert(HEAD % Form::kPerLoad == 0, "a vector is whole loads");

struct Running {
    f32 top[QUERIES], sum[QUERIES], out[QUERIES][kOwn];
};

DEVICE void start(Running& r) {
    UNROLL for (int q = 0; q < QUERIES; q++) {
        r.top[q] = -infinity();
        r.sum[q] = 0.0f;
        UNROLL for (int i = 0; i < kOwn; i++) r.out[q][i] = 0.0f;
    }
}

// e^(a - b) with powers of two; 0 where nothing was seen.
DEVICE f32 shrink(f32 a, f32 b) { return a == -infinity() ? 0.0f : exp2_approx(a - b); }

// `scales`: of vector 0 of the head, where neighbours share some.
template <int kType>
DEVICE void load_vector(Global<const u8> head, i32 slot, Global<const u8> scales, bool seen, f32 (&out)[kOwn]) {
    auto vector = head + slot * vector_bytes<kType>(HEAD);
    i32 own = i32(lane_index()) % kLanes;
    UNROLL for (int c = 0; c < kChunks; c++) {
        i32 load = c * kLanes + own;
        U32x4 packed{{0, 0, 0, 0}};
        if (seen && load < kLoads) packed = load_as<U32x4>(vector + 16 * load);
        f32 part[Form::kPerLoad];
        unpack<kType>(packed, part);
        if (seen && load < kLoads) apply_scales<kType>(scales, slot, HEAD, load * Form::kPerLoad, part);
        UNROLL for (int i = 0; i < Form::kPerLoad; i++) out[c * Form::kPerLoad + i] = part[i];
    }
}

// q [T, n_heads, HEAD]; grid (splits, n_kv_heads x query groups, rows). Writes of each split, head and id the output so far
// [T, n_heads, splits, HEAD] and (maximum, sum) [T, n_heads, splits, 2], in powers of two.
BUSY_KERNEL(128, 3) decode_attention(Global<const f32> q, i32 n_heads, i32 n_kv_heads, i32 width, Global<const i32> starts, Global<const i32> counts, Global<const i32> table, i32 columns, Global<u8> pool, i64 block_bytes,
                             i64 k_values, i64 k_scales, i64 k_stride, i64 v_values, i64 v_scales, i64 v_stride, f32 scale, i32 window, i32 chunk, f32 softcap, i32 split, Global<f32> outs, Global<f32> tops) {
    SHARED(f32, merged, kWarps* QUERIES* HEAD);
    SHARED(f32, states, kWarps* QUERIES * 2);
    i32 lane = i32(lane_index()), warp = i32(warp_index()), own = lane % kLanes;
    i32 row = i32(block_z()), group = n_heads / n_kv_heads, n_groups = (group * width + QUERIES - 1) / QUERIES;
    i32 kv_head = i32(block_y()) / n_groups, first = i32(block_y()) % n_groups * QUERIES;
    i32 n = counts[row], start_at = starts[row];
    i32 last = first + QUERIES < group * width ? first + QUERIES - 1 : group * width - 1;
    i32 j_low = first / group, j_high = last / group < n - 1 ? last / group : n - 1;
    if (j_low >= n) return;
    i32 low = 0;
    if (window) low = start_at + j_low - window + 1 > 0 ? start_at + j_low - window + 1 : 0;
    if (chunk) low = (start_at + j_low) / chunk * chunk;
    i32 begin = i32(block_x()) * split, end = begin + split;
    if (end > start_at + j_high + 1) end = start_at + j_high + 1;
    if (begin < low) begin = low;

    constexpr f32 kLog2e = 1.44269504f;
    f32 queries[QUERIES][kOwn];
    i32 positions[QUERIES];
    UNROLL for (int i = 0; i < QUERIES; i++) {
        i32 j = (first + i) / group, head = kv_head * group + (first + i) % group;
        bool is_there = first + i <= last && j < n;
        positions[i] = is_there ? start_at + j : -1;
        UNROLL for (int c = 0; c < kOwn; c++) {
            i32 d = (c / Form::kPerLoad * kLanes + own) * Form::kPerLoad + c % Form::kPerLoad;
            queries[i][c] = is_there && d < HEAD ? q[((i64(row) * width + j) * n_heads + head) * HEAD + d] : 0.0f;
        }
    }
    Running r;
    start(r);
    auto blocks = table + i64(row) * columns;
    for (i32 base = begin + warp * kAtOnce * kAhead; base < end; base += kWarps * kAtOnce * kAhead) {
        i64 vectors[kAhead];
        i32 slots[kAhead];
        f32 scores[kAhead][QUERIES];
        UNROLL for (int a = 0; a < kAhead; a++) {
            i32 t = base + a * kAtOnce + lane / kLanes;
            i32 block = t < end ? i32(blocks[t / kBlockTokens]) : -1;
            slots[a] = t % kBlockTokens;
            vectors[a] = block < 0 ? -1 : block * block_bytes;
            f32 key[kOwn];
            load_vector<KV_TYPE>(pool + (vectors[a] + k_values + kv_head * k_stride), slots[a], pool + (vectors[a] + k_scales + kv_head * k_stride), block >= 0, key);
            f32 key_scale = 1.0f;
            if constexpr (Form::kScaled)
                if (block >= 0) key_scale = cast<f32>(pool + (vectors[a] + k_scales + kv_head * k_stride))[slots[a]];
            UNROLL for (int i = 0; i < QUERIES; i++) {
                f32 dot = 0.0f;
                UNROLL for (int c = 0; c < kOwn; c++) dot = fused(queries[i][c], key[c], dot);
                UNROLL for (u32 flip = kLanes / 2; flip; flip /= 2) dot += shuffle_xor(dot, flip);
                dot *= key_scale * scale;
                if constexpr (SOFTCAP) dot = softcap * hyperbolic_tangent(quotient(dot, softcap));
                i32 p = positions[i];
                bool seen = block >= 0 && t <= p && (!LIMITED || (window == 0 || t > p - window)) && (!LIMITED || (chunk == 0 || t >= p / chunk * chunk));
                scores[a][i] = seen ? dot * kLog2e : -infinity();
            }
        }
        f32 weights[kAhead][QUERIES];
        UNROLL for (int i = 0; i < QUERIES; i++) {
            f32 top = r.top[i];
            UNROLL for (int a = 0; a < kAhead; a++) top = most(top, scores[a][i]);
            f32 kept = shrink(r.top[i], top);
            r.top[i] = top;
            r.sum[i] *= kept;
            UNROLL for (int c = 0; c < kOwn; c++) r.out[i][c] *= kept;
            UNROLL for (int a = 0; a < kAhead; a++) {
                weights[a][i] = shrink(scores[a][i], top);
                r.sum[i] += weights[a][i];
            }
        }
        UNROLL for (int a = 0; a < kAhead; a++) {
            f32 value[kOwn];
            load_vector<KV_TYPE>(pool + (vectors[a] + v_values + kv_head * v_stride), slots[a], pool + (vectors[a] + v_scales + kv_head * v_stride), vectors[a] >= 0, value);
            f32 value_scale = 1.0f;
            if constexpr (Form::kScaled)
                if (vectors[a] >= 0) value_scale = cast<f32>(pool + (vectors[a] + v_scales + kv_head * v_stride))[slots[a]];
            UNROLL for (int i = 0; i < QUERIES; i++) {
                f32 weight = weights[a][i] * value_scale;
                UNROLL for (int c = 0; c < kOwn; c++) r.out[i][c] = fused(weight, value[c], r.out[i][c]);
            }
        }
    }
    // The groups of lanes of a warp, then the warps.
    UNROLL for (u32 flip = kLanes; flip < 32; flip *= 2) {
        UNROLL for (int i = 0; i < QUERIES; i++) {
            f32 other = shuffle_xor(r.top[i], flip), top = most(r.top[i], other);
            f32 mine = shrink(r.top[i], top), theirs = shrink(other, top);
            r.sum[i] = r.sum[i] * mine + shuffle_xor(r.sum[i], flip) * theirs;
            r.top[i] = top;
            UNROLL for (int c = 0; c < kOwn; c++) r.out[i][c] = r.out[i][c] * mine + shuffle_xor(r.out[i][c], flip) * theirs;
        }
    }
    if (lane < kLanes) {
        UNROLL for (int i = 0; i < QUERIES; i++) {
            i32 at = warp * QUERIES + i;
            if (lane == 0) {
                states[2 * at] = r.top[i];
                states[2 * at + 1] = r.sum[i];
            }
            UNROLL for (int c = 0; c < kOwn; c++) {
                i32 d = (c / Form::kPerLoad * kLanes + own) * Form::kPerLoad + c % Form::kPerLoad;
                if (d < HEAD) merged[at * HEAD + d] = r.out[i][c];
            }
        }
    }
    barrier();
    for (i32 e = i32(thread_index()); e < QUERIES * HEAD; e += kWarps * 32) {
        i32 i = e / HEAD, d = e % HEAD, j = (first + i) / group, head = kv_head * group + (first + i) % group;
        if (first + i > last || j >= n) continue;
        f32 top = -infinity(), sum = 0.0f, out = 0.0f;
        UNROLL for (int w = 0; w < kWarps; w++) top = most(top, states[2 * (w * QUERIES + i)]);
        UNROLL for (int w = 0; w < kWarps; w++) {
            f32 kept = shrink(states[2 * (w * QUERIES + i)], top);
            sum += kept * states[2 * (w * QUERIES + i) + 1];
            out = fused(kept, merged[(w * QUERIES + i) * HEAD + d], out);
        }
        i64 place = ((i64(row) * width + j) * n_heads + head) * n_blocks_x() + block_x();
        outs[place * HEAD + d] = out;
        if (d == 0) {
            tops[2 * place] = top;
            tops[2 * place + 1] = sum;
        }
    }
}
EXPORT(decode_attention);

// Merges the splits; grid (n_heads, T). Splits that hold nothing of what the row has were never written.
KERNEL(128) merge_splits(Global<const f32> outs, Global<const f32> tops, i32 n_splits, i32 n_heads, i32 width, Global<const i32> starts, Global<const i32> counts, i32 window, i32 chunk, i32 split, Global<const f32> sinks,
                         Global<const f32> gate, Global<f32> out) {
    i32 head = i32(block_x()), token = i32(block_y()), row = token / width, j = token % width;
    if (j >= counts[row]) return;
    i32 p = starts[row] + j, low = window && p - window + 1 > 0 ? p - window + 1 : 0;
    if (chunk) low = p / chunk * chunk;
    i64 place = i64(token) * n_heads + head;
    auto own = tops + 2 * place * n_splits;
    f32 top = -infinity();
    for (i32 s = low / split; s <= p / split; s++) top = most(top, own[2 * s]);
    if (sinks) top = most(top, sinks[head] * 1.44269504f);
    f32 sum = sinks ? shrink(sinks[head] * 1.44269504f, top) : 0.0f;
    for (i32 s = low / split; s <= p / split; s++) sum = fused(shrink(own[2 * s], top), own[2 * s + 1], sum);
    for (i32 d = i32(thread_index()); d < HEAD; d += i32(n_threads())) {
        f32 total = 0.0f;
        for (i32 s = low / split; s <= p / split; s++) total = fused(shrink(own[2 * s], top), outs[(place * n_splits + s) * HEAD + d], total);
        total = sum > 0.0f ? quotient(total, sum) : 0.0f;
        if (gate) total *= sigmoid(gate[place * HEAD + d]);
        out[place * HEAD + d] = total;
    }
}
EXPORT(merge_splits);
