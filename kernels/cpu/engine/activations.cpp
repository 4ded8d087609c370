#include "activations.h"

namespace imp {
namespace {

template <int R> void put_quantised(ActivationBlock<R>* to, int r, const float* x) {
    const Floats a = load(x), b = load(x + 16);
    const float amax = largest_lane(larger(magnitude(a), magnitude(b)));
    alignas(64) int8_t q[32] = {};
    float d = 0.0f;
    if (amax >= 1e-30f) {
        d = amax / 127.0f;
        const Floats inverse = splat(127.0f / amax);
        round_to_int8(mul(a, inverse), q);
        round_to_int8(mul(b, inverse), q + 16);
    }
    int32_t sums[2] = {0, 0};
    for (int i = 0; i < 32; ++i) sums[i / 16] += q[i];
    for (int i = 0; i < 8; ++i) std::memcpy(&to->quad[i][r], q + 4 * i, 4);
    to->d[r] = d;
    to->d_sum[r] = d * float(sums[0] + sums[1]);
    to->minus_sum[r] = -(sums[0] + sums[1]);
    for (int h = 0; h < 2; ++h) {
        to->d_sum_half[h][r] = d * float(sums[h]);
        to->minus_sum_half[h][r] = -sums[h];
    }
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
