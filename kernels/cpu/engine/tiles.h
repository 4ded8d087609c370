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

// Panels that eight rows of many meet side by side: where there are registers enough, an activation that is loaded meets two.
// Minima leave none. Weights that come from memory come faster one panel after another.
template <class F> constexpr int kPanelsAtOnce = IMP_LANES_512 && !F::kMinimum ? 2 : 1;

// The number of rows that stands for eight of many, which find the weights in a cache.
constexpr int kOneGroupOfMany = kGroupRows + 1;

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

// The exact dots of half h of a block: 16 inputs of row r with 16 outputs of each panel.
template <class F, int R, int P>
IMP_INLINE void half_dots(const Bytes (*w)[4], const ActivationBlock<R>& x, int h, int r, Floats* dots) {
    constexpr bool kOffset = F::kZeroShift >= 0 && !(F::kWide && kWideIsSigned);
    const Ints zero = kOffset ? shift_left<(F::kZeroShift > 0 ? F::kZeroShift : 0)>(int_splat(x.minus_sum[h][r])) : int_zeros();
    if constexpr (P == 1) {
        dots[0] = to_floats(dot16<F::kWide, F::kValueBits>(zero, w[0], &x.quad[4 * h][r], R));
    } else {
        Ints sums[P];
        for (Ints& sum : sums) sum = zero;
        IMP_UNROLL
        for (int i = 0; i < 4; ++i) {
            const int32_t quad = x.quad[4 * h + i][r];
            IMP_UNROLL
            for (int p = 0; p < P; ++p) sums[p] = dot4<F::kWide>(sums[p], w[p][i], quad);
        }
        for (int p = 0; p < P; ++p) dots[p] = to_floats(sums[p]);
    }
}

// `before`: of a group of both halves, what the first has left for the second.
template <class F, int H, int R, int P>
IMP_INLINE void multiply_half(const BlockScales<F>* scales, const uint8_t* const* payload, const uint8_t* const* rest,
                              const ActivationBlock<R>& x, Floats (*before)[R], Floats (*acc)[R]) {
    Bytes w[P][4];
    for (int p = 0; p < P; ++p) half_values<F, H>(payload[p], rest[p], w[p]);
    IMP_UNROLL
    for (int r = 0; r < R; ++r) {
        Floats dots[P];
        half_dots<F, R, P>(w, x, H, r, dots);
        const Floats d = splat(x.d[H][r]);
        IMP_UNROLL
        for (int p = 0; p < P; ++p) {
            const BlockScales<F>& s = scales[p];
            if constexpr (F::kGroups == 2) {
                acc[p][r] = fused(s.scale[H], mul(dots[p], d), acc[p][r]);
                if constexpr (F::kMinimum) acc[p][r] = fused(s.minimum[H], splat(x.d_sum[H][r]), acc[p][r]);
            } else if constexpr (H == 0) {
                before[p][r] = mul(dots[p], d);
            } else {
                acc[p][r] = fused(s.scale[0], fused(dots[p], d, before[p][r]), acc[p][r]);
                if constexpr (F::kMinimum) acc[p][r] = fused(s.minimum[0], splat(x.d_sum_both[r]), acc[p][r]);
            }
        }
    }
}

// How far ahead of the weights that are multiplied others are prefetched, in bytes: a tenth faster than 2 KiB or the
// hardware alone, however many rows there are.
constexpr int64_t kAhead = 8192;

// What lies in each panel and is read in turn. Panels aren't read as they lie: the streams of a split layout jump over each
// other, two panels that are read side by side over their neighbour.
struct Stream {
    int64_t bytes;     // in a panel
    int64_t jump;      // from its end to where it is read next
    int64_t distance;  // of the prefetch

    Stream(int64_t bytes, int64_t panel_bytes, int n_panels)
        : bytes(bytes), jump(n_panels * panel_bytes - bytes), distance(kAhead / n_panels < bytes ? kAhead / n_panels : bytes) {}

    int64_t ahead(int64_t at) const { return at + distance + (at + distance < bytes ? 0 : jump); }
};

// P panels side by side.
template <class F, int R, int P = 1>
void multiply_panels(const uint8_t* panels, int64_t panel_bytes, int n_panels, int n_blocks, const void* rows, float* out) {
    constexpr int kHeaderLines = int(F::header_bytes(F::kSpan)) / 64;
    const Stream upper(F::stream_bytes(n_blocks), panel_bytes, P), lower(int64_t(n_blocks) * F::kRest, panel_bytes, P);
    for (int first_panel = 0; first_panel < n_panels; first_panel += P) {
        const uint8_t *begin[P], *rests[P];
        for (int p = 0; p < P; ++p) {  // a panel without a neighbour is its own
            begin[p] = panels + (first_panel + p < n_panels ? first_panel + p : first_panel) * panel_bytes;
            rests[p] = begin[p] + upper.bytes;
        }
        const auto* x = (const ActivationBlock<R>*)rows;
        Floats acc[P][R];
        for (auto& of_panel : acc)
            for (Floats& sum : of_panel) sum = zeros();
        int64_t at = 0, rest = 0;
        for (int first = 0; first < n_blocks; first += F::kSpan) {
            const int64_t header = at;
            const int count = n_blocks - first < F::kSpan ? n_blocks - first : F::kSpan;
            const int64_t header_ahead = upper.ahead(at);
            for (int p = 0; p < P; ++p) {
                IMP_UNROLL
                for (int line = 0; line < kHeaderLines; ++line) prefetch(begin[p] + header_ahead + 64 * line);
            }
            at += F::header_bytes(count);
            for (int i = 0; i < count; ++i, ++x, at += F::kPayload, rest += F::kRest) {
                const int64_t ahead = upper.ahead(at), rest_ahead = lower.ahead(rest);
                BlockScales<F> scales[P];
                const uint8_t *payload[P], *rest_of[P];
                Floats before[P][R];
                for (int p = 0; p < P; ++p) {
                    payload[p] = begin[p] + at;
                    rest_of[p] = rests[p] + rest;
                    scales[p] = block_scales<F>(begin[p] + header, i);
                    IMP_UNROLL
                    for (int line = 0; line < F::kPayload; line += 64) prefetch(begin[p] + ahead + line);
                    IMP_UNROLL
                    for (int line = 0; line < F::kRest; line += 64) prefetch(rests[p] + rest_ahead + line);
                }
                multiply_half<F, 0, R, P>(scales, payload, rest_of, *x, before, acc);
                multiply_half<F, 1, R, P>(scales, payload, rest_of, *x, before, acc);
            }
        }
        for (int p = 0; p < P && first_panel + p < n_panels; ++p)
            for (int r = 0; r < R; ++r) store(out + r * kUnitColumns + (first_panel + p) * kPanelRows, acc[p][r]);
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
        case 8: return multiply_panels<F, 8>;
        default: return multiply_panels<F, 8, kPanelsAtOnce<F>>;
    }
}

}  // namespace imp
