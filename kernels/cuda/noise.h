// Noise of the sampling law: Philox4x32-10 (Salmon et al., SC11), its first word as a number in (0, 1), Gumbel noise of it.
#pragma once

#include "blocks.h"

struct Noise {
    u32 seed_low, seed_high, position, choice;
};

DEVICE u32 noise_word(const Noise& noise, u32 id) {
    u32 c0 = noise.position, c1 = 0, c2 = id, c3 = noise.choice, k0 = noise.seed_low, k1 = noise.seed_high;
    UNROLL for (int round = 0; round < 10; round++) {
        u32 high0 = high_product(c0, 0xD2511F53u), high1 = high_product(c2, 0xCD9E8D57u);
        u32 low0 = c0 * 0xD2511F53u, low1 = c2 * 0xCD9E8D57u;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c0;
}

// By the law, in float64.
DEVICE f64 gumbel(u32 word) { return -log_f64(-log_f64((f64(word) + 0.5) * (1.0 / 4294967296.0))); }

// The same within 1e-4, without float64: what can't win is passed over by it.
DEVICE f32 rough_gumbel(u32 word) {
    constexpr f32 kLn2 = 0.693147181f;
    f32 rest = (f32(0xFFFFFFFFu - word) + 0.5f) * 2.32830644e-10f;  // 1 - u, exact where u is near 1
    f32 surprise = rest < 0.015625f ? rest * (1.0f + rest * (0.5f + rest * 0.333333333f)) : -kLn2 * log2_approx(1.0f - rest);
    if (rest > 0.999f) surprise = -kLn2 * log2_approx((f32(word) + 0.5f) * 2.32830644e-10f);
    return -kLn2 * log2_approx(surprise);
}
