#include "activations.h"

namespace imp {
namespace {

template <int R> void put_quantised(ActivationBlock<R>* to, int r, const float* x) {
    for (int half = 0; half < 2; ++half) {
        const Floats values = load(x + 16 * half);
        const float amax = largest_lane(magnitude(values));
        alignas(16) int8_t q[16] = {};
        float d = 0.0f;
        if (amax >= 1e-30f) {
            d = amax / 127.0f;
            round_to_int8(mul(values, splat(127.0f / amax)), q);
        }
        int32_t sum = 0;
        for (const int8_t value : q) sum += value;
        for (int i = 0; i < 4; ++i) std::memcpy(&to->quad[4 * half + i][r], q + 4 * i, 4);
        to->d[half][r] = d;
        to->minus_sum[half][r] = -sum;
        to->d_sum[half][r] = d * float(sum);
    }
    to->d_sum_both[r] = fused_scalar(to->d[1][r], float(-to->minus_sum[1][r]), to->d_sum[0][r]);
}

template <int R> void put(const Activations& to, int group, int r, int block, const float* x) {
    if (to.quantised) put_quantised((ActivationBlock<R>*)to.quantised_group(group) + block, r, x);
    if (to.floats) {
        float* f = const_cast<float*>(to.float_group(group)) + int64_t(block) * 32 * R + r;
        for (int i = 0; i < 32; ++i) f[i * R] = x[i];
    }
}

}  // namespace

void put_block(const Activations& to, int row, int block, const float* x) {
    const int group = row / kGroupRows, r = row % kGroupRows;
    switch (to.rows_in(group)) {
        case 1: return put<1>(to, group, r, block, x);
        case 2: return put<2>(to, group, r, block, x);
        case 3: return put<3>(to, group, r, block, x);
        case 4: return put<4>(to, group, r, block, x);
        case 5: return put<5>(to, group, r, block, x);
        case 6: return put<6>(to, group, r, block, x);
        case 7: return put<7>(to, group, r, block, x);
        default: return put<8>(to, group, r, block, x);
    }
}

void put_row(const Activations& to, int row, const float* x, int n_in) {
    const int whole = n_in / 32;
    for (int block = 0; block < whole; ++block) put_block(to, row, block, x + 32 * block);
    if (n_in % 32 == 0) return;
    alignas(64) float tail[32] = {};
    for (int i = 0; i < n_in % 32; ++i) tail[i] = x[32 * whole + i];
    put_block(to, row, whole, tail);
}

}  // namespace imp
