// Products of packed weights with 1 to TOKENS rows of activations, and what follows them: MODE 0 a bias, 1 the gate of a
// feed-forward, 2 the head's scale and cap, 3 the head's best id, 4 the gate by chosen experts, 5 chosen experts summed up.
//
// A warp takes ROWS rows of the matrix, a lane every 32nd unit of their inputs (weights.h). Activations lie in shared
// memory by quads, so that lanes at neighbouring units read neighbouring 16 bytes. Each lane sums in one chain, lanes are
// summed in one order: a token's numbers depend neither on TOKENS nor on the others.
#include "activations.h"
#include "weights.h"

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kChunk = TOKENS < 4 ? 4096 / TOKENS : 1024;  // inputs that are staged at once: whole turns of a warp
constexpr bool kGated = MODE == 1 || MODE == 4;
constexpr int kValues = ROWS * TOKENS;
constexpr int kTurns = kValues <= 2 && kGroups == 1 ? 2 : 1;
static_assert(kValues <= 32 && (!kGated || ROWS >= 2), "a lane has a value; gates come in pairs");

struct Products {
    Matrix a, b;                 // b: of `up` where there is a gate
    Global<const f32> x;         // rows `stride` apart
    i64 stride;
    i32 n_tokens;
    Shared<f32> staged, sums;
};

// Inputs [first, first + kChunk) of all tokens, times `times`; what isn't there is 0.
DEVICE void stage(const Products& p, i32 first, f32 times) {
    i32 n_units = kChunk / kUnit;
    barrier();
    i32 n = p.a.n_in - first < kChunk ? p.a.n_in - first : kChunk;
    for (i32 token = 0; token < TOKENS; token++) {
        for (i32 k = i32(thread_index()); k < n; k += kThreads) {
            f32 value = token < p.n_tokens ? p.x[token * p.stride + first + k] * times : 0.0f;
            p.staged[token * kChunk + (k % kUnit / 4 * n_units + k / kUnit) * 4 + k % 4] = value;
        }
    }
    barrier();
    if constexpr (MINIMUM) {
        constexpr int kPerUnit = kGroups;
        for (i32 i = i32(thread_index()); i < TOKENS * n_units * kPerUnit; i += kThreads) {
            i32 group = i % kPerUnit, unit = i / kPerUnit % n_units, token = i / kPerUnit / n_units;
            if (first + unit * kUnit >= p.a.n_in) continue;
            f32 sum = 0.0f;
            for (i32 quad = group * kQuads / kPerUnit; quad < (group + 1) * kQuads / kPerUnit; quad++)
                for (i32 j = 0; j < 4; j++) sum += p.staged[token * kChunk + (quad * n_units + unit) * 4 + j];
            p.sums[i] = sum;
        }
        barrier();
    }
}

DEVICE const Matrix& matrix_of(const Products& p, int r) { return kGated && r >= ROWS / 2 ? p.b : p.a; }

// Adds to acc what the inputs that are staged give. `rows`: by r, -1 = none.
DEVICE void multiply(const Products& p, const i64 (&rows)[ROWS], i32 first, f32 (&acc)[kValues]) {
    i32 n_units = p.a.n_in / kUnit, begin = first / kUnit, staged_units = kChunk / kUnit;
    i32 end = begin + staged_units < n_units ? begin + staged_units : n_units;
    UNROLL_BY(kTurns)
    for (i32 unit = begin + i32(lane_index()); unit < end; unit += 32) {
        Packed packed[ROWS];
        UNROLL for (int r = 0; r < ROWS; r++) packed[r] = load_unit(matrix_of(p, r), rows[r], unit, n_units);
        f32 dots[kValues];
        UNROLL for (int v = 0; v < kValues; v++) dots[v] = 0.0f;
        UNROLL for (int i = 0; i < kQuads; i++) {
            U32x4 x[TOKENS];
            UNROLL for (int t = 0; t < TOKENS; t++) x[t] = load_as<U32x4>(p.staged + (t * kChunk + (i * staged_units + unit - begin) * 4));
            UNROLL for (int r = 0; r < ROWS; r++) {
                f32 w[4];
                unpack_quad(packed[r], i, w);
                UNROLL for (int t = 0; t < TOKENS; t++) {
                    UNROLL for (int j = 0; j < 4; j++) dots[r * TOKENS + t] = fused(w[j], float_of(x[t].v[j]), dots[r * TOKENS + t]);
                }
            }
            if ((i + 1) % (kQuads / kGroups)) continue;
            const int g = i / (kQuads / kGroups);  // the group that ends here
            UNROLL for (int r = 0; r < ROWS; r++) {
                f32 scale = scale_of(matrix_of(p, r), rows[r], unit, n_units, g);
                f32 minimum = 0.0f;
                if constexpr (MINIMUM) minimum = minimum_of(matrix_of(p, r), rows[r], unit, n_units, g);
                UNROLL for (int t = 0; t < TOKENS; t++) {
                    f32& sum = acc[r * TOKENS + t];
                    sum = fused(scale, dots[r * TOKENS + t], sum);
                    if constexpr (MINIMUM) sum = fused(minimum, p.sums[(t * staged_units + unit - begin) * kGroups + g], sum);
                    dots[r * TOKENS + t] = 0.0f;
                }
            }
        }
    }
}

struct Epilogue {
    Global<const f32> bias, up_bias;
    i64 first_row;  // of the matrix, that biases begin at, too
    i32 n_rows, activation;
    f32 scale, softcap;
    Global<f32> out;
    i64 out_stride;
};

// The value of this lane, of row `row` below n_rows and token `token` below the number of tokens, if `is_there`.
DEVICE void put(const Epilogue& e, f32 value, i64 row, i32 token, bool is_there) {
    if constexpr (kGated) {
        f32 up = shuffle_xor(value, 16);
        if (!is_there) return;
        f32 gate = value;
        if (e.bias) {
            gate += e.bias[e.first_row + row];
            up += e.up_bias[e.first_row + row];
        }
        e.out[token * e.out_stride + row] = activated(e.activation, gate, up);
    } else if (is_there) {
        if (e.bias) value += e.bias[e.first_row + row];
        if constexpr (MODE == 2) {
            value *= e.scale;
            if (e.softcap != 0.0f) value = e.softcap * hyperbolic_tangent(quotient(value, e.softcap));
        }
        e.out[token * e.out_stride + row] = value;
    }
}

constexpr int kRowsEach = kGated ? ROWS / 2 : ROWS;  // of the output
constexpr int kLanesEach = 32 / kValues;

DEVICE void find_rows(i32 group, i64 first_row, i32 n_rows, i64 (&rows)[ROWS]) {
    i32 base = (group * kWarps + i32(warp_index())) * kRowsEach;
    UNROLL for (int r = 0; r < ROWS; r++) {
        i32 row = base + r % kRowsEach;
        rows[r] = first_row + (row < n_rows ? row : n_rows - 1);  // a row too many is computed and dropped
    }
}

#define PLANES(m) Global<const u8> m##_codes, Global<const u8> m##_high, Global<const u8> m##_scale, Global<const u8> m##_minimum, Global<const u8> m##_sub_scale, Global<const u8> m##_sub_minimum, f32 m##_whole
#define MATRIX(m) Matrix{m##_codes, m##_high, m##_scale, m##_minimum, m##_sub_scale, m##_sub_minimum, m##_whole, n_out, n_in}
#define STAGING \
    SHARED(f32, staged, TOKENS* kChunk); \
    SHARED(f32, sums, MINIMUM ? TOKENS * kChunk / kUnit * kGroups : 1)

#if MODE <= 3
// out [n_tokens, n_out]; grid (groups of rows, token groups). MODE 3: `keys` [n_tokens] hold 0 before.
BUSY_KERNEL(128, kValues >= 16 ? 2 : 3) gemv(PLANES(a), PLANES(b), i32 n_out, i32 n_in, Global<const f32> x, i64 x_stride, i32 n_tokens, Global<const f32> bias, Global<const f32> up_bias, i32 activation, f32 scale, f32 softcap, Global<f32> out, i64 out_stride,
                 Global<u64> keys) {
    STAGING;
    i32 first_token = i32(block_y()) * TOKENS, own_tokens = n_tokens - first_token < TOKENS ? n_tokens - first_token : TOKENS;
    Products p{MATRIX(a), MATRIX(b), x + first_token * x_stride, x_stride, own_tokens, staged, sums};
    Epilogue e{bias, up_bias, 0, n_out, activation, scale, softcap, out + first_token * out_stride, out_stride};
    bool is_whole = n_in <= kChunk;
    if (is_whole) stage(p, 0, 1.0f);
    u64 best = 0;
    i32 value_index = i32(lane_index()) / kLanesEach, token = value_index % TOKENS;
    for (i32 group = i32(block_x()); group * kWarps * kRowsEach < n_out; group += i32(n_blocks_x())) {
        i64 rows[ROWS];
        find_rows(group, 0, n_out, rows);
        f32 acc[kValues];
        UNROLL for (int v = 0; v < kValues; v++) acc[v] = 0.0f;
        for (i32 first = 0; first < n_in; first += kChunk) {
            if (!is_whole) stage(p, first, 1.0f);
            multiply(p, rows, first, acc);
        }
        f32 value = scattered_sum(acc);
        i32 row = (group * kWarps + i32(warp_index())) * kRowsEach + value_index / TOKENS;
        bool is_there = lane_index() % kLanesEach == 0 && value_index / TOKENS < kRowsEach && row < n_out && token < own_tokens;
        if constexpr (MODE == 3) {
            if (bias) value += row < n_out ? f32(bias[row]) : 0.0f;
            value *= scale;
            if (softcap != 0.0f) value = softcap * hyperbolic_tangent(quotient(value, softcap));
            u64 key = is_there ? order_key(value, u32(row)) : 0;
            best = key > best ? key : best;
        } else {
            put(e, value, row, token, is_there);
        }
    }
    if constexpr (MODE == 3) {
        if (best) atomic_max(keys + (first_token + token), best);
    }
}
EXPORT(gemv);

#if MODE == 3
KERNEL(128) clear_keys(Global<u64> keys, i32 n) {
    i32 i = i32(block_x() * n_threads() + thread_index());
    if (i < n) keys[i] = 0;
}
EXPORT(clear_keys);
KERNEL(128) best_ids(Global<const u64> keys, i32 n, Global<i32> out) {
    i32 i = i32(block_x() * n_threads() + thread_index());
    if (i >= n) return;
    u64 key = keys[i];
    out[i] = u32(key >> 32) == 0xFFFFFFFFu ? -1 : i32(0xFFFFFFFFu - u32(key));
}
EXPORT(best_ids);
#endif
#endif

#if MODE == 4
static_assert(TOKENS == 1, "each token has experts of its own");
// out [T, top_k, n_out]; grid (groups of rows, T x top_k). `on_input` [T, top_k] or null.
BUSY_KERNEL(128, 3) experts_gated(PLANES(a), PLANES(b), i32 n_out, i32 n_in, Global<const f32> x, i64 x_stride, i32 top_k, Global<const i32> chosen, Global<const f32> on_input, Global<const f32> bias, Global<const f32> up_bias, i32 activation,
                          Global<f32> out) {
    STAGING;
    i32 pair = i32(block_y());
    Products p{MATRIX(a), MATRIX(b), x + pair / top_k * x_stride, x_stride, 1, staged, sums};
    i64 first_row = i64(chosen[pair]) * n_out;
    Epilogue e{bias, up_bias, first_row, n_out, activation, 1.0f, 0.0f, out + i64(pair) * n_out, n_out};
    f32 times = on_input ? f32(on_input[pair]) : 1.0f;
    bool is_whole = n_in <= kChunk;
    if (is_whole) stage(p, 0, times);
    i32 value_index = i32(lane_index()) / kLanesEach;
    for (i32 group = i32(block_x()); group * kWarps * kRowsEach < n_out; group += i32(n_blocks_x())) {
        i64 rows[ROWS];
        find_rows(group, first_row, n_out, rows);
        f32 acc[kValues];
        UNROLL for (int v = 0; v < kValues; v++) acc[v] = 0.0f;
        for (i32 first = 0; first < n_in; first += kChunk) {
            if (!is_whole) stage(p, first, times);
            multiply(p, rows, first, acc);
        }
        f32 value = scattered_sum(acc);
        i32 row = (group * kWarps + i32(warp_index())) * kRowsEach + value_index;
        put(e, value, row, 0, lane_index() % kLanesEach == 0 && value_index < kRowsEach && row < n_out);
    }
}
EXPORT(experts_gated);
#endif

#if MODE == 5
static_assert(TOKENS == 1, "each token has experts of its own");
// hidden [T, top_k, n_in] -> out [T, n_out], places in order; grid (groups of rows, T). `weights` [T, top_k] or null.
BUSY_KERNEL(128, 3) experts_down(PLANES(a), i32 n_out, i32 n_in, Global<const f32> hidden, i32 top_k, Global<const i32> chosen, Global<const f32> weights, Global<const f32> bias, Global<f32> out) {
    STAGING;
    i32 token = i32(block_y()), value_index = i32(lane_index()) / kLanesEach;
    i32 row = (i32(block_x()) * kWarps + i32(warp_index())) * ROWS + value_index;
    bool is_there = lane_index() % kLanesEach == 0 && row < n_out;
    f32 total = 0.0f;
    for (i32 place = 0; place < top_k; place++) {
        i64 pair = i64(token) * top_k + place, first_row = i64(chosen[pair]) * n_out;
        Products p{MATRIX(a), MATRIX(a), hidden + pair * n_in, n_in, 1, staged, sums};
        i64 rows[ROWS];
        find_rows(i32(block_x()), first_row, n_out, rows);
        f32 acc[kValues];
        UNROLL for (int v = 0; v < kValues; v++) acc[v] = 0.0f;
        for (i32 first = 0; first < n_in; first += kChunk) {
            stage(p, first, 1.0f);
            multiply(p, rows, first, acc);
        }
        f32 value = scattered_sum(acc);
        if (bias && is_there) value += bias[first_row + row];
        total += weights ? weights[pair] * value : value;
    }
    if (is_there) out[i64(token) * n_out + row] = total;
}
EXPORT(experts_down);
#endif
