#include "tiles.h"

namespace imp {
namespace {

template <FormatId Id> constexpr int kElementBytes = Id == FormatId::f32 ? 4 : 2;

template <FormatId Id> IMP_INLINE Floats weights(const uint8_t* at) {
    if constexpr (Id == FormatId::f16) return load_halves((const uint16_t*)at);
    if constexpr (Id == FormatId::bf16) return load_bf16((const uint16_t*)at);
    return load((const float*)at);
}

// Both panels of a unit advance together: with few rows a single chain would wait for the latency of the addition.
template <FormatId Id, int R, int P>
void multiply_together(const uint8_t* panels, int64_t panel_bytes, int n_in, const float* x, float* out) {
    Floats acc[P][R];
    for (int p = 0; p < P; ++p)
        for (int r = 0; r < R; ++r) acc[p][r] = zeros();
    for (int k = 0; k < n_in; ++k, x += R) {
            IMP_UNROLL
        for (int p = 0; p < P; ++p) {
            const Floats w = weights<Id>(panels + p * panel_bytes + int64_t(k) * 16 * kElementBytes<Id>);
            IMP_UNROLL
            for (int r = 0; r < R; ++r) acc[p][r] = fused(w, splat(x[r]), acc[p][r]);
        }
    }
    for (int p = 0; p < P; ++p)
        for (int r = 0; r < R; ++r) store(out + r * kUnitColumns + p * kPanelRows, acc[p][r]);
}

template <FormatId Id, int R>
void multiply_floats(const uint8_t* panels, int64_t panel_bytes, int n_panels, int n_blocks, const void* rows, float* out) {
    if (n_panels == 2) return multiply_together<Id, R, 2>(panels, panel_bytes, n_blocks * kBlock, (const float*)rows, out);
    multiply_together<Id, R, 1>(panels, panel_bytes, n_blocks * kBlock, (const float*)rows, out);
}

template <FormatId Id> TileKernel for_rows(int n_rows) {
    switch (n_rows) {
        case 1: return multiply_floats<Id, 1>;
        case 2: return multiply_floats<Id, 2>;
        case 3: return multiply_floats<Id, 3>;
        case 4: return multiply_floats<Id, 4>;
        case 5: return multiply_floats<Id, 5>;
        case 6: return multiply_floats<Id, 6>;
        case 7: return multiply_floats<Id, 7>;
        default: return multiply_floats<Id, 8>;
    }
}

}  // namespace

TileKernel float_kernel(FormatId id, int n_rows) {
    switch (id) {
        case FormatId::f16: return for_rows<FormatId::f16>(n_rows);
        case FormatId::bf16: return for_rows<FormatId::bf16>(n_rows);
        case FormatId::f32: return for_rows<FormatId::f32>(n_rows);
        default: return nullptr;
    }
}

}  // namespace imp
