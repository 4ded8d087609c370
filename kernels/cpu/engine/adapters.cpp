#include "adapters.h"

#include <cstring>

#include "simd.h"

namespace imp {
namespace {

constexpr int kLanes = 16, kUnit = 32;
constexpr int kRanks = 4;  // at a time: each load of x meets so many rows of a

template <int R> void low_of(const float* a, int64_t stride, const float* x, int n_in, float* low) {
    Floats acc[R];
    for (int r = 0; r < R; ++r) acc[r] = zeros();
    int k = 0;
    for (; k + kLanes <= n_in; k += kLanes) {
        const Floats at = load(x + k);
        for (int r = 0; r < R; ++r) acc[r] = fused(load(a + r * stride + k), at, acc[r]);
    }
    if (k < n_in) {
        alignas(64) float tail[kLanes] = {};
        std::memcpy(tail, x + k, size_t(n_in - k) * sizeof(float));
        const Floats at = load(tail);
        for (int r = 0; r < R; ++r) acc[r] = fused(load(a + r * stride + k), at, acc[r]);
    }
    for (int r = 0; r < R; ++r) low[r] = sum_lanes(acc[r]);
}

}  // namespace

void make_low(const AdapterTerm& term, const float* x, int n_in, float* low) {
    const int64_t stride = (int64_t(n_in) + kLanes - 1) / kLanes * kLanes;
    int r = 0;
    for (; r + kRanks <= term.rank; r += kRanks) low_of<kRanks>(term.a + r * stride, stride, x, n_in, low + r);
    for (; r < term.rank; ++r) low_of<1>(term.a + r * stride, stride, x, n_in, low + r);
}

void add_low(const AdapterTerm& term, float scale, const float* low, int unit, float* y) {
    const float* b = term.b + int64_t(unit) * term.rank * kUnit;
    Floats first = zeros(), second = zeros();
    for (int r = 0; r < term.rank; ++r, b += kUnit) {
        const Floats at = splat(low[r]);
        first = fused(load(b), at, first);
        second = fused(load(b + kLanes), at, second);
    }
    store(y, fused(splat(scale), first, load(y)));
    store(y + kLanes, fused(splat(scale), second, load(y + kLanes)));
}

}  // namespace imp
