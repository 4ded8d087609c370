// What the threads of a block do together. All sums have a fixed order.
#pragma once

#include "device.h"

// The same for all threads; `partial` has a float for each warp.
DEVICE f32 block_sum(f32 x, Shared<f32> partial) {
    x = warp_sum(x);
    barrier();
    if (lane_index() == 0) partial[warp_index()] = x;
    barrier();
    f32 total = 0.0f;
    for (u32 w = 0; w < n_threads() / 32; w++) total += partial[w];
    return total;
}

// v[i] summed over the lanes, for N values at once (a power of two up to 32): lane l gets that of index l / (32 / N).
template <int N>
DEVICE f32 scattered_sum(f32 (&v)[N]) {
    u32 lane = lane_index();
    constexpr int kSteps = N >= 32 ? 5 : N >= 16 ? 4 : N >= 8 ? 3 : N >= 4 ? 2 : N >= 2 ? 1 : 0;
    UNROLL for (int step = 0; step < kSteps; step++) {
        const int half = N >> (step + 1);
        const u32 flip = 16 >> step;
        bool upper = lane & flip;
        UNROLL for (int i = 0; i < N / 2; i++) {
            if (i < half) {
                f32 kept = upper ? v[i + half] : v[i], sent = upper ? v[i] : v[i + half];
                v[i] = kept + shuffle_xor(sent, flip);
            }
        }
    }
    f32 sum = v[0];
    UNROLL for (int step = kSteps; step < 5; step++) sum += shuffle_xor(sum, 16 >> step);
    return sum;
}

DEVICE f32 exponential(f32 x) { return exp2_approx(x * 1.44269504f); }
DEVICE f32 sigmoid(f32 x) { return quotient(1.0f, 1.0f + exponential(-x)); }
DEVICE f32 hyperbolic_tangent(f32 x) {
    f32 e = exponential(-2.0f * magnitude(x)), t = quotient(1.0f - e, 1.0f + e);
    return x < 0.0f ? -t : t;
}

// Keys that order as (number descending, id ascending) does when they descend; a NaN comes before all.
DEVICE u64 order_key(f32 x, u32 id) {
    u32 bits = bits_of(x + 0.0f);
    u32 rising = x != x ? 0xFFFFFFFFu : bits >> 31 ? ~bits : bits | 0x80000000u;
    return u64(rising) << 32 | (0xFFFFFFFFu - id);
}

DEVICE u32 id_of_key(u64 key) { return 0xFFFFFFFFu - u32(key); }
