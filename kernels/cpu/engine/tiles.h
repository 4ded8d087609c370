// The matrix kernels: up to 8 rows of activations against panels of 16 outputs.
//
// Arithmetic (twin.TwinMatrix.multiply), the same for every number of rows: per half block of 16 an exact int32 dot less
// zero * sum; then, blocks in the order of k,
//   weight groups of 32: t = fused(dot 1, d 1, dot 0 * d 0); acc = fused(scale, t, acc); acc = fused(minimum, d_sum_both, acc)
//   weight groups of 16: for each half acc = fused(scale, dot * d, acc); acc = fused(minimum, d_sum, acc)
// Float formats: acc = fused(weight, x, acc) in the order of k.
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
    int32_t target;  // its number among those that adapters may add to; 0 = none

    bool present() const { return data != nullptr; }
    FormatId id() const { return FormatId(format); }
    int n_panels() const { return (n_out + kPanelRows - 1) / kPanelRows; }
};

constexpr int kUnitColumns = 32;  // outputs of one call: two panels

// Outputs [32 unit, 32 unit + 32) of all rows of one group, to out[r][32]. Columns past n_out are undefined.
void multiply_unit(const Matrix& matrix, const Activations& activations, int group, int unit, float* out);

// Outputs [16 panel, 16 panel + 16) of a single row, bit for bit as multiply_unit gives them.
void multiply_panel(const Matrix& matrix, const Activations& activations, int panel, float* out);

// Row `index` of the matrix as floats (embedding lookup): n_in values.
void dequantise_row(const Matrix& matrix, int64_t index, float* out);

int64_t format_panel_bytes(FormatId id, int n_blocks);

// Kernel tables, by format and number of rows - 1: a file for each width of values, so that they compile side by side,
// filled in tiles_narrow.cpp, tiles_four.cpp, tiles_middle.cpp, tiles_wide.cpp, tiles_float.cpp.
using TileKernel = void (*)(const uint8_t* panels, int64_t panel_bytes, int n_panels, int n_blocks, const void* rows, float* out);
TileKernel narrow_kernel(FormatId id, int n_rows);
TileKernel four_kernel(FormatId id, int n_rows);
TileKernel middle_kernel(FormatId id, int n_rows);
TileKernel wide_kernel(FormatId id, int n_rows);
TileKernel float_kernel(FormatId id, int n_rows);

// Quads 4 H .. 4 H + 3 of a block's weights.
template <class F, int H> IMP_INLINE void half_values(const uint8_t* payload, const uint8_t* rest, Bytes* w) {
    w[0] = quad_values<F, 4 * H>(payload, rest);
    w[1] = quad_values<F, 4 * H + 1>(payload, rest);
    w[2] = quad_values<F, 4 * H + 2>(payload, rest);
    w[3] = quad_values<F, 4 * H + 3>(payload, rest);
}

// The exact dot of half h of a block: 16 inputs of row r with 16 outputs.
template <class F, int R> IMP_INLINE Floats half_dot(const Bytes* w, const ActivationBlock<R>& x, int h, int r) {
    constexpr bool kOffset = F::kZeroShift >= 0 && !(F::kWide && kWideIsSigned);
    const Ints zero = kOffset ? shift_left<(F::kZeroShift > 0 ? F::kZeroShift : 0)>(int_splat(x.minus_sum[h][r])) : int_zeros();
    return to_floats(dot16<F::kWide, F::kValueBits>(zero, w, &x.quad[4 * h][r], R));
}

template <class F, int R>
IMP_INLINE void multiply_block(const BlockScales<F>& scales, const uint8_t* payload, const uint8_t* rest,
                               const ActivationBlock<R>& x, Floats* acc) {
    Bytes w[4];
    Floats scaled[R];
    half_values<F, 0>(payload, rest, w);
    IMP_UNROLL
    for (int r = 0; r < R; ++r) {
        const Floats dot = mul(half_dot<F, R>(w, x, 0, r), splat(x.d[0][r]));
        if constexpr (F::kGroups == 1) {
            scaled[r] = dot;
        } else {
            acc[r] = fused(scales.scale[0], dot, acc[r]);
            if constexpr (F::kMinimum) acc[r] = fused(scales.minimum[0], splat(x.d_sum[0][r]), acc[r]);
        }
    }
    half_values<F, 1>(payload, rest, w);
    IMP_UNROLL
    for (int r = 0; r < R; ++r) {
        const Floats dot = half_dot<F, R>(w, x, 1, r), d = splat(x.d[1][r]);
        if constexpr (F::kGroups == 1) {
            acc[r] = fused(scales.scale[0], fused(dot, d, scaled[r]), acc[r]);
            if constexpr (F::kMinimum) acc[r] = fused(scales.minimum[0], splat(x.d_sum_both[r]), acc[r]);
        } else {
            acc[r] = fused(scales.scale[1], mul(dot, d), acc[r]);
            if constexpr (F::kMinimum) acc[r] = fused(scales.minimum[1], splat(x.d_sum[1][r]), acc[r]);
        }
    }
}

// Prefetch distance in bytes of the weight stream: 4-8 KiB read a tenth faster than 2 KiB or the hardware alone, however many
// rows there are. The two streams of a split layout jump from panel to panel, which the hardware doesn't foresee: without a
// prefetch 8 rows read it at a quarter of the speed, and at this distance alone a panel's second stream comes too late.
constexpr int kAhead = 6144;
template <class F> constexpr int kDistance = F::kSplit ? 2 * kAhead : kAhead;

template <class F, int R>
void multiply_panels(const uint8_t* panels, int64_t panel_bytes, int n_panels, int n_blocks, const void* rows, float* out) {
    constexpr int kLines = (F::kPayload + int(F::header_bytes(F::kSpan)) / F::kSpan + 63) / 64;
    for (int p = 0; p < n_panels; ++p) {
        const uint8_t* at = panels + p * panel_bytes;
        const uint8_t* rest = at + F::stream_bytes(n_blocks);
        const auto* x = (const ActivationBlock<R>*)rows;
        Floats acc[R];
        for (int r = 0; r < R; ++r) acc[r] = zeros();
        for (int first = 0; first < n_blocks; first += F::kSpan) {
            const uint8_t* header = at;
            const int count = n_blocks - first < F::kSpan ? n_blocks - first : F::kSpan;
            at += F::header_bytes(count);
            for (int i = 0; i < count; ++i, ++x, at += F::kPayload, rest += F::kRest) {
                IMP_UNROLL
                for (int line = 0; line < kLines; ++line) prefetch(at + kDistance<F> + 64 * line);
                IMP_UNROLL
                for (int line = 0; line < F::kRest; line += 64) prefetch(rest + kDistance<F> + line);
                multiply_block<F, R>(block_scales<F>(header, i), at, rest, *x, acc);
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
