// Behind the projections of q, k and v: norms by head, rotation, and keys and values into their blocks. One warp for a head
// of a token. KV_TYPE: KvType.
#include "kv.h"

constexpr i32 kWarps = 4, kMaxHead = 512;

struct Turning {
    Global<const f32> table;  // [positions, dims], cosines and then sines; null = none turns
    i32 dims;
    bool interleaved;
};

DEVICE void normalise(Shared<f32> x, i32 size, Global<const f32> weight, f32 eps) {
    i32 lane = i32(lane_index());
    f32 squares = 0.0f;
    for (i32 i = lane; i < size; i += 32) {
        f32 y = x[i];
        squares = fused(y, y, squares);
    }
    f32 scale = quotient(1.0f, square_root(quotient(warp_sum(squares), f32(size)) + eps));
    for (i32 i = lane; i < size; i += 32) x[i] = weight ? x[i] * scale * weight[i] : x[i] * scale;
}

DEVICE void turn(Shared<f32> x, const Turning& turning, i64 position) {
    if (!turning.table) return;
    warp_barrier();
    i32 half = turning.dims / 2;
    auto at = turning.table + position * turning.dims;
    for (i32 i = i32(lane_index()); i < half; i += 32) {
        i32 first = turning.interleaved ? 2 * i : i, second = turning.interleaved ? 2 * i + 1 : half + i;
        f32 a = x[first], b = x[second], cosine = at[i], sine = at[half + i];
        x[first] = a * cosine - b * sine;
        x[second] = a * sine + b * cosine;
    }
    warp_barrier();
}

// qkv [T, q_width + ...], T = rows x width; grid (units / 4, T), a unit a head of q, k or v.
BUSY_KERNEL(128, 8) qkv_epilogue(Global<const f32> qkv, i64 qkv_stride, i32 n_heads, i32 n_kv_heads, i32 head_size, i32 value_size, i32 gated, i32 keys_are_values, i32 rope_first, Global<const f32> q_weight, f32 q_eps,
                         Global<const f32> k_weight, f32 k_eps, i32 k_normed, f32 v_eps, i32 v_normed, i32 q_normed, Global<const f32> table, i32 dims, i32 interleaved, f32 share, i32 step, i32 offset, i32 width,
                         Global<const i32> starts, Global<const i32> counts, Global<const i32> blocks, i32 columns, Global<u8> pool, i64 block_bytes, i64 k_values, i64 k_scales, i64 k_stride, i64 v_values,
                         i64 v_scales, i64 v_stride, Global<f32> q, Global<f32> gate) {
    SHARED(f32, heads, kWarps* kMaxHead);
    auto x = heads + warp_index() * kMaxHead;
    i32 lane = i32(lane_index()), unit = i32(block_x()) * kWarps + i32(warp_index());
    i32 token = i32(block_y()), row = token / width, j = token % width;
    i32 n_units = n_heads + (pool ? 2 * n_kv_heads : 0);
    if (unit >= n_units || j >= counts[row]) return;
    i64 position = starts[row] + j;
    Turning turning{table, dims, interleaved != 0};
    auto from = qkv + token * qkv_stride;
    i32 q_width = n_heads * head_size * (gated ? 2 : 1);
    bool is_query = unit < n_heads, is_key = !is_query && unit < n_heads + n_kv_heads;
    i32 head = is_query ? unit : is_key ? unit - n_heads : unit - n_heads - n_kv_heads;
    i32 size = is_query || is_key ? head_size : value_size;
    if (is_query) {
        from = from + i64(head) * head_size * (gated ? 2 : 1);
    } else {
        from = from + q_width + (is_key || keys_are_values ? i64(head) * head_size : i64(n_kv_heads) * head_size + i64(head) * value_size);
    }
    for (i32 i = lane; i < size; i += 32) x[i] = from[i];
    if (is_query || is_key) {
        bool normed = is_query ? q_normed : k_normed;
        auto weight = is_query ? q_weight : k_weight;
        f32 eps = is_query ? q_eps : k_eps;
        if (normed && !rope_first) normalise(x, size, weight, eps);
        turn(x, turning, position);
        if (normed && rope_first) normalise(x, size, weight, eps);
    } else if (v_normed) {
        normalise(x, size, {}, v_eps);
    }
    if (!is_query) {
        i64 block = blocks[i64(row) * columns + position / kBlockTokens];
        if (block < 0) return;
        KvPart part = is_key ? KvPart{pool, block_bytes, k_values, k_scales, k_stride} : KvPart{pool, block_bytes, v_values, v_scales, v_stride};
        store_vector<KV_TYPE>(part, block, head, i32(position % kBlockTokens), x, size);
        return;
    }
    f32 heat = 1.0f;
    if (share != 0.0f) heat = f32(1.0 + f64(share) * log_f64(1.0 + f64((position + offset) / step)));
    i64 to = (i64(token) * n_heads + head) * head_size;
    for (i32 i = lane; i < size; i += 32) {
        q[to + i] = x[i] * heat;
        if (gated) gate[to + i] = from[head_size + i];
    }
}
EXPORT(qkv_epilogue);
