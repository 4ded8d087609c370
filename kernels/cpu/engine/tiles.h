// The matrix kernels: up to 8 rows of activations against panels of 16 outputs.
//
// Arithmetic (twin.matmul), the same for every number of rows: per block and group an exact int32 dot, then
//   acc = fused(float(dot - zero * sum), scale * d, acc), and with a minimum acc = fused(minimum, d * sum, acc),
// blocks in the order of k, groups within a block in order. Float formats: acc = fused(weight, x, acc) in the order of k.
#pragma once

#include <cstdint>

#include "activations.h"
#include "formats.h"

namespace imp {

// One packed matrix. `data` is 64-byte aligned.
struct Matrix {
    const uint8_t* data;
    int64_t panel_bytes;
    int32_t format;
    int32_t n_out;
    int32_t n_in;
    int32_t n_blocks;

    bool present() const { return data != nullptr; }
    FormatId id() const { return FormatId(format); }
    int n_panels() const { return (n_out + kPanelRows - 1) / kPanelRows; }
};

constexpr int kUnitColumns = 32;  // outputs of one call: two panels

// Outputs [32 unit, 32 unit + 32) of all rows of one group, to out[r][32]. Columns past n_out are undefined.
void multiply_unit(const Matrix& matrix, const Activations& activations, int group, int unit, float* out);

// Row `index` of the matrix as floats (embedding lookup): n_in values.
void dequantise_row(const Matrix& matrix, int64_t index, float* out);

int64_t format_panel_bytes(FormatId id, int n_blocks);

// Kernel tables, by format and number of rows - 1. Filled in tiles_q4.cpp, tiles_q8.cpp, tiles_float.cpp.
using TileKernel = void (*)(const uint8_t* panels, int64_t panel_bytes, int n_panels, int n_blocks, const void* rows, float* out);
TileKernel q4_kernel(FormatId id, int n_rows);
TileKernel q8_kernel(FormatId id, int n_rows);
TileKernel float_kernel(FormatId id, int n_rows);

template <class F, int R>
IMP_INLINE void multiply_block(const BlockScales<F>& scales, const uint8_t* payload, const ActivationBlock<R>& x, Floats* acc) {
    constexpr int kQuads = 8 / F::kGroups;
    constexpr bool kOffset = F::kZeroShift >= 0 && !(F::kWide && kWideIsSigned);
    for (int g = 0; g < F::kGroups; ++g) {
        Ints dot[R];
        for (int r = 0; r < R; ++r) {
            const int32_t minus = F::kGroups == 1 ? x.minus_sum[r] : x.minus_sum_half[g][r];
            dot[r] = kOffset ? shift_left<(F::kZeroShift > 0 ? F::kZeroShift : 0)>(int_splat(minus)) : int_zeros();
        }
            IMP_UNROLL
        for (int i = 0; i < kQuads; ++i) {
            const int quad = F::kGroups == 1 ? (i & 1) * 4 + i / 2 : g * kQuads + i;
            const Bytes w = quad_values<F>(payload, quad);
            IMP_UNROLL
            for (int r = 0; r < R; ++r) dot[r] = dot4<F::kWide>(dot[r], w, x.quad[quad][r]);
        }
        for (int r = 0; r < R; ++r) {
            acc[r] = fused(to_floats(dot[r]), mul(scales.scale[g], splat(x.d[r])), acc[r]);
            if constexpr (F::kMinimum)
                acc[r] = fused(scales.minimum[g], splat(F::kGroups == 1 ? x.d_sum[r] : x.d_sum_half[g][r]), acc[r]);
        }
    }
}

// Prefetch distance in bytes of the weight stream.
constexpr int kAhead = 2048;

template <class F, int R>
void multiply_panels(const uint8_t* panels, int64_t panel_bytes, int n_panels, int n_blocks, const void* rows, float* out) {
    for (int p = 0; p < n_panels; ++p) {
        const uint8_t* at = panels + p * panel_bytes;
        const auto* x = (const ActivationBlock<R>*)rows;
        Floats acc[R];
        for (int r = 0; r < R; ++r) acc[r] = zeros();
        for (int first = 0; first < n_blocks; first += F::kSpan) {
            const uint8_t* header = at;
            at += F::kHeader;
            const int count = n_blocks - first < F::kSpan ? n_blocks - first : F::kSpan;
            for (int i = 0; i < count; ++i, ++x, at += F::kPayload) {
                if constexpr (R <= 2) {
            IMP_UNROLL
                    for (int line = 0; line < F::kPayload + F::kHeader / F::kSpan; line += 64) prefetch(at + kAhead + line);
                }
                multiply_block<F, R>(block_scales<F>(header, i), at, *x, acc);
            }
        }
        for (int r = 0; r < R; ++r) store(out + r * kUnitColumns + p * kPanelRows, acc[r]);
    }
}

template <class F> TileKernel kernel_for_rows(int n_rows) {
    switch (n_rows) {
        case 1: return multiply_panels<F, 1>;
        case 2: return multiply_panels<F, 2>;
        case 3: return multiply_panels<F, 3>;
        case 4: return multiply_panels<F, 4>;
        case 5: return multiply_panels<F, 5>;
        case 6: return multiply_panels<F, 6>;
        case 7: return multiply_panels<F, 7>;
        default: return multiply_panels<F, 8>;
    }
}

}  // namespace imp
