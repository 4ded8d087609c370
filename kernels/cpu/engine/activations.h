// Activations as the matrix kernels read them: rows in groups of up to 8, a group interleaved so that a kernel for R rows
// finds everything at constant distances.
//
// Arithmetic (twin.quantise_rows): per row and half block of 16 inputs, amax = max |x|; below 1e-30 it is zero; else
// d = amax / 127, q = round to nearest even of x * (127 / amax). Sums are exact integers; d times a sum is rounded once,
// the block's sum is fused(d of half 1, its sum, d times sum of half 0).
// Halves, not whole blocks, have a scale: that costs a tenth of a wide product and nearly halves the divergence from
// float32 (KL 0.0016 against 0.0028 per token on the default model).
#pragma once

#include <cstdint>

#include "simd.h"

namespace imp {

constexpr int kGroupRows = 8;

// One block of 32 inputs of R rows. Half h: inputs 16 h .. 16 h + 15.
template <int R> struct ActivationBlock {
    int32_t quad[8][R];  // 4 int8 each
    float d[2][R];
    int32_t minus_sum[2][R];
    float d_sum[2][R];   // d * sum(q)
    float d_sum_both[R];
};

constexpr int64_t kActivationBytes = sizeof(ActivationBlock<1>);  // per row and block
static_assert(sizeof(ActivationBlock<8>) == 8 * kActivationBytes, "no padding");

// Owner: the forward's scratch, or one worker. Row groups follow each other; all but the last hold 8 rows.
struct Activations {
    uint8_t* quantised = nullptr;  // n_rows * n_blocks * kActivationBytes, or null
    float* floats = nullptr;       // n_rows * n_blocks * 32, [k][R] within a group, or null
    int n_rows = 0;
    int n_blocks = 0;

    int n_groups() const { return (n_rows + kGroupRows - 1) / kGroupRows; }
    int rows_in(int group) const { return group + 1 < n_groups() ? kGroupRows : n_rows - group * kGroupRows; }
    const uint8_t* quantised_group(int group) const {
        return quantised + int64_t(group) * kGroupRows * n_blocks * kActivationBytes;
    }
    const float* float_group(int group) const { return floats + int64_t(group) * kGroupRows * n_blocks * 32; }
};

// Puts 32 inputs of every row of a group, row r's at x + r * stride, as block `block` into both forms that are present.
void put_block(const Activations& to, int group, int block, const float* x, int64_t stride);

// Puts n_in inputs of every row of a group; the tail of the last block is zero.
void put_group(const Activations& to, int group, const float* x, int64_t stride, int n_in);

}  // namespace imp
