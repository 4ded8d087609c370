// Norms, rotation and activation functions, one row at a time.
#pragma once

#include <cstdint>

#include "simd.h"

namespace imp {

enum class NormKind : int32_t { rms, layer };
enum class ActivationKind : int32_t { silu, gelu_tanh, gelu, relu2, swiglu_clamped };

// `weight` null = no norm (the row is copied). A bias belongs to layer norms.
struct Norm {
    const float* weight;
    const float* bias;
};

// out = norm(x) over n values. Sums: 16 lane sums over the whole 16s in order, folded, then the tail in order.
void normalise(NormKind kind, float eps, const Norm& norm, const float* x, int n, float* out);

// Of n values; summed as for a norm.
float mean_square(const float* x, int n);

// The mean of n values, and so many of their deviations from it above.
float cutoff_of(const float* x, int n, float deviations);

// Rotates the first `dims` values of a head; `cosine_sine` holds dims / 2 cosines, then dims / 2 sines.
// `interleaved`: pairs are (2 i, 2 i + 1), else (i, i + dims / 2). a' = fused(a, c, -(b s)), b' = fused(b, c, a s).
void rotate(float* head, int dims, bool interleaved, const float* cosine_sine);

// gpt-oss: both halves clamped, the gate's sigmoid steeper, the other half shifted by one.
IMP_INLINE Floats clamped_gate(Floats gate, Floats up) {
    const auto at_most = [](Floats x, float most) { return mul(larger(mul(x, splat(-1.0f)), splat(-most)), splat(-1.0f)); };
    gate = at_most(gate, 7.0f);
    up = larger(at_most(up, 7.0f), splat(-7.0f));
    const Floats open = divide(gate, add(splat(1.0f), exponential(mul(gate, splat(-1.702f)))));
    return mul(open, add(up, splat(1.0f)));
}

IMP_INLINE Floats activate(ActivationKind kind, Floats gate) {
    if (kind == ActivationKind::silu) return divide(gate, add(splat(1.0f), exponential(sub(zeros(), gate))));
    if (kind == ActivationKind::gelu_tanh) {
        const Floats inner = mul(mul(gate, splat(0.7978845608028654f)), fused(mul(gate, splat(0.044715f)), gate, splat(1.0f)));
        return mul(mul(gate, splat(0.5f)), add(splat(1.0f), hyperbolic_tangent(inner)));
    }
    if (kind == ActivationKind::relu2) {
        const Floats positive = larger(gate, zeros());
        return mul(positive, positive);
    }
    float lanes[16];
    store(lanes, gate);
    for (float& g : lanes) g = 0.5f * g * (1.0f + float(std::erf(double(g) * 0.70710678118654752)));
    return load(lanes);
}

}  // namespace imp
