#include "activations.h"

#include <algorithm>

#include "four_rows.h"

namespace imp {
namespace {

constexpr int kLanes = 16;  // of a block: half h of row r is lane h * R + r

// Inputs [16 h, 16 h + 16) of rows [first, first + 4); rows past the last one are zero.
template <int R> IMP_INLINE void load_four(const float* x, int64_t stride, int h, int first, Floats* rows) {
    for (int i = 0; i < 4; ++i) rows[i] = first + i < R ? load(x + (first + i) * stride + 16 * h) : zeros();
}

template <int R> void put_quantised(ActivationBlock<R>* to, const float* x, int64_t stride) {
    alignas(64) float amax[kLanes] = {}, inverse[kLanes], d[2 * kLanes] = {}, sums[2 * kLanes] = {}, d_sum[kLanes], both[kLanes];
    Floats rows[4];
    for (int h = 0; h < 2; ++h)
        for (int first = 0; first < R; first += 4) {
            float largest[4];
            load_four<R>(x, stride, h, first, rows);
            for (Floats& row : rows) row = magnitude(row);
            largest_lanes(rows, largest);
            std::memcpy(amax + h * R + first, largest, size_t(std::min(4, R - first)) * sizeof(float));
        }
    const Floats most = load(amax);
    store(d, replace_below(most, 1e-30f, divide(most, splat(127.0f)), 0.0f));
    store(inverse, replace_below(most, 1e-30f, divide(splat(127.0f), most), 0.0f));
    for (int h = 0; h < 2; ++h)
        for (int first = 0; first < R; first += 4) {
            const int n = std::min(4, R - first);
            alignas(64) uint8_t bytes[64];
            alignas(64) int32_t parts[16];
            load_four<R>(x, stride, h, first, rows);
            for (int i = 0; i < n; ++i) rows[i] = mul(rows[i], splat(inverse[h * R + first + i]));
            const Bytes quads = round_to_quads(rows);
            store_bytes(bytes, quads);
            quad_sums(quads, parts);
            for (int l = 0; l < 4; ++l) std::memcpy(&to->quad[4 * h + l][first], bytes + 16 * l, size_t(n) * 4);
            for (int i = 0; i < n; ++i) {
                const int32_t sum = parts[i] + parts[4 + i] + parts[8 + i] + parts[12 + i];
                to->minus_sum[h][first + i] = -sum;
                sums[h * R + first + i] = float(sum);
            }
        }
    const Floats first_sums = mul(load(d), load(sums));
    store(d_sum, first_sums);
    store(both, fused(load(d + R), load(sums + R), first_sums));
    std::memcpy(to->d, d, sizeof to->d);
    std::memcpy(to->d_sum, d_sum, sizeof to->d_sum);
    std::memcpy(to->d_sum_both, both, sizeof to->d_sum_both);
}

template <int R> void put(const Activations& to, int group, int block, const float* x, int64_t stride) {
    if (to.quantised) put_quantised((ActivationBlock<R>*)to.quantised_group(group) + block, x, stride);
    if (to.floats) {
        float* f = const_cast<float*>(to.float_group(group)) + int64_t(block) * 32 * R;
        for (int i = 0; i < 32; ++i)
            for (int r = 0; r < R; ++r) f[i * R + r] = x[r * stride + i];
    }
}

}  // namespace

void put_block(const Activations& to, int group, int block, const float* x, int64_t stride) {
    switch (to.rows_in(group)) {
        case 1: return put<1>(to, group, block, x, stride);
        case 2: return put<2>(to, group, block, x, stride);
        case 3: return put<3>(to, group, block, x, stride);
        case 4: return put<4>(to, group, block, x, stride);
        case 5: return put<5>(to, group, block, x, stride);
        case 6: return put<6>(to, group, block, x, stride);
        case 7: return put<7>(to, group, block, x, stride);
        default: return put<8>(to, group, block, x, stride);
    }
}

void put_group(const Activations& to, int group, const float* x, int64_t stride, int n_in) {
    const int whole = n_in / 32;
    for (int block = 0; block < whole; ++block) put_block(to, group, block, x + 32 * block, stride);
    if (n_in % 32 == 0) return;
    alignas(64) float tail[kGroupRows * 32] = {};
    for (int r = 0; r < to.rows_in(group); ++r)
        for (int i = 0; i < n_in % 32; ++i) tail[32 * r + i] = x[r * stride + 32 * whole + i];
    put_block(to, group, whole, tail, 32);
}

}  // namespace imp
