// Products of packed weights with 9 to 64 rows of activations, on tensor cores; what follows them as in gemv.cu: MODE 0 a
// bias, 1 the gate of a feed-forward, 2 the head's scale and cap.
//
// A warp takes 16 rows of the matrix (MODE 1: and 16 of the other), 8 x COLUMNS tokens. Weights are whole numbers, which
// bfloat16 holds exactly, activations are rounded to it; each block of inputs under one scale is summed by itself and then
// added in float32. Of the 16 inputs of a product, lane t of four holds four neighbours: products don't care for the order
// of inputs as long as both sides have the same.
#include "activations.h"
#include "weights.h"

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kTokens = 8 * COLUMNS;
constexpr int kChunk = 256;  // inputs that are staged at once
constexpr int kRow = kChunk + 8;
constexpr bool kGated = MODE == 1;
constexpr int kSides = kGated ? 2 : 1;
constexpr int kWide = 32;  // inputs of a block of weights; floats go by as many

// Four neighbouring inputs of a row as two pairs of bfloat16: those from 4 `quad` on of block `block`.
DEVICE U32x2 weight_pairs(const Matrix& m, i64 row, i32 block, i32 n_blocks, i32 quad) {
#if FLOATS == 2
    return load_as<U32x2>(cast<const bf16>(m.codes) + (row * m.n_in + block * kWide + 4 * quad));
#else
    static_assert(FLOATS == 0, "of floats only bfloat16 goes over tensor cores");
    i64 at = row * n_blocks + block;
    u32 bytes;
    if constexpr (kLow == 8) bytes = load_as<u32>(m.codes + (32 * at + 4 * quad));
    if constexpr (kLow == 4) bytes = load_as<u32>(m.codes + (16 * at + 4 * (quad % 4))) >> 4 * (quad / 4) & 0x0F0F0F0Fu;
    if constexpr (kLow == 2) bytes = load_as<u32>(m.codes + (8 * at + 4 * (quad % 2))) >> 2 * (quad / 2) & 0x03030303u;
    if constexpr (kHigh == 1) bytes |= ((load_as<u32>(m.high + 4 * at) >> 4 * quad & 15) * 0x00204081u & 0x01010101u) << kLow;
    if constexpr (kHigh == 2) bytes |= (load_as<u32>(m.high + (8 * at + 4 * (quad % 2))) >> 2 * (quad / 2) & 0x03030303u) << kLow;
    f32 numbers[4];
    bytes_to_floats(bytes, numbers);
    return {{pack_bf16(numbers[0], numbers[1]), pack_bf16(numbers[2], numbers[3])}};
#endif
}

// out [n_tokens, n_out]; grid (n_out / 64, token groups).
BUSY_KERNEL(128, 2) gemm(Global<const u8> a_codes, Global<const u8> a_high, Global<const u8> a_scale, Global<const u8> a_minimum, Global<const u8> a_sub_scale, Global<const u8> a_sub_minimum, f32 a_whole, Global<const u8> b_codes,
                 Global<const u8> b_high, Global<const u8> b_scale, Global<const u8> b_minimum, Global<const u8> b_sub_scale, Global<const u8> b_sub_minimum, f32 b_whole, i32 n_out, i32 n_in, Global<const f32> x, i64 x_stride,
                 i32 n_tokens, Global<const f32> bias, Global<const f32> up_bias, i32 activation, f32 scale, f32 softcap, Global<f32> out, i64 out_stride) {
    SHARED(bf16, staged, kTokens* kRow);
    SHARED(f32, sums, MINIMUM ? kTokens * kChunk / GROUP : 1);
    Matrix matrices[kSides];
    matrices[0] = {a_codes, a_high, a_scale, a_minimum, a_sub_scale, a_sub_minimum, a_whole, n_out, n_in};
    if constexpr (kGated) matrices[1] = {b_codes, b_high, b_scale, b_minimum, b_sub_scale, b_sub_minimum, b_whole, n_out, n_in};
    i32 lane = i32(lane_index()), g = lane / 4, t = lane % 4, n_blocks = n_in / kWide;
    i32 first_row = (i32(block_x()) * kWarps + i32(warp_index())) * 16, first_token = i32(block_y()) * kTokens;
    i64 rows[2];
    UNROLL for (int h = 0; h < 2; h++) rows[h] = first_row + g + 8 * h < n_out ? first_row + g + 8 * h : n_out - 1;
    f32 acc[kSides][COLUMNS][4];
    UNROLL for (int side = 0; side < kSides; side++) {
        UNROLL for (int c = 0; c < COLUMNS; c++) {
            UNROLL for (int i = 0; i < 4; i++) acc[side][c][i] = 0.0f;
        }
    }
    for (i32 first = 0; first < n_in; first += kChunk) {
        i32 n = n_in - first < kChunk ? n_in - first : kChunk;
        barrier();
        for (i32 i = i32(thread_index()); i < kTokens * (kChunk / 2); i += kThreads) {
            i32 token = i / (kChunk / 2), k = i % (kChunk / 2) * 2;
            if (k >= n) continue;
            bool is_there = first_token + token < n_tokens;
            i64 at = (first_token + token) * x_stride + first + k;
            store_as(staged + (token * kRow + k), is_there ? pack_bf16(x[at], x[at + 1]) : 0u);
        }
        barrier();
        if constexpr (MINIMUM) {
            constexpr i32 kParts = kChunk / GROUP;
            for (i32 i = i32(thread_index()); i < kTokens * kParts; i += kThreads) {
                i32 token = i / kParts, part = i % kParts;
                if (part * GROUP >= n) continue;
                f32 sum = 0.0f;
                for (i32 k = 0; k < GROUP; k++) sum += to_float(bf16(staged[token * kRow + part * GROUP + k]));
                sums[i] = sum;
            }
            barrier();
        }
        for (i32 block = 0; block < n / kWide; block++) {
            i32 whole = first / kWide + block;
            UNROLL for (int side = 0; side < kSides; side++) {
                const Matrix& m = matrices[side];
                U32x4 a[2];
                UNROLL for (int step = 0; step < 2; step++) {
                    UNROLL for (int h = 0; h < 2; h++) {
                        U32x2 pairs = weight_pairs(m, rows[h], whole, n_blocks, 4 * step + t);
                        a[step].v[h] = pairs.v[0];
                        a[step].v[2 + h] = pairs.v[1];
                    }
                }
                f32 scales[kGroups][2], minima[kGroups][2];
                UNROLL for (int part = 0; part < kGroups; part++) {
                    UNROLL for (int h = 0; h < 2; h++) {
                        scales[part][h] = scale_of(m, rows[h], whole, n_blocks, part);
                        minima[part][h] = 0.0f;
                        if constexpr (MINIMUM) minima[part][h] = minimum_of(m, rows[h], whole, n_blocks, part);
                    }
                }
                UNROLL for (int c = 0; c < COLUMNS; c++) {
                    f32 d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                    UNROLL for (int step = 0; step < 2; step++) {
                        U32x2 b = load_as<U32x2>(staged + ((8 * c + g) * kRow + block * kWide + 16 * step + 4 * t));
                        mma_bf16(d, a[step], b.v[0], b.v[1]);
                        if (step == 1 || kGroups == 2) {
                            int part = kGroups == 2 ? step : 0;
                            UNROLL for (int i = 0; i < 4; i++) {
                                f32& sum = acc[side][c][i];
                                sum = fused(scales[part][i / 2], d[i], sum);
                                if constexpr (MINIMUM) sum = fused(minima[part][i / 2], sums[(8 * c + 2 * t + i % 2) * (kChunk / GROUP) + block * kGroups + part], sum);
                                d[i] = 0.0f;
                            }
                        }
                    }
                }
            }
        }
    }
    UNROLL for (int c = 0; c < COLUMNS; c++) {
        UNROLL for (int i = 0; i < 4; i++) {
            i32 row = first_row + g + 8 * (i / 2), token = first_token + 8 * c + 2 * t + i % 2;
            if (row >= n_out || token >= n_tokens) continue;
            f32 value = acc[0][c][i];
            if (bias) value += bias[row];
            if constexpr (kGated) {
                f32 up = acc[kSides - 1][c][i];
                if (bias) up += up_bias[row];
                value = activated(activation, value, up);
            }
            if constexpr (MODE == 2) {
                value *= scale;
                if (softcap != 0.0f) value = softcap * hyperbolic_tangent(quotient(value, softcap));
            }
            out[token * out_stride + row] = value;
        }
    }
}
EXPORT(gemm);
