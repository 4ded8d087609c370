// Low-rank adapters: scale * b (a x), added to what a matrix makes of x. Both parts are floats, and so is x, whatever the
// matrix' own layout: a row's numbers don't depend on who stands beside it.
//
// Arithmetic (twin_adapters.py): a x by 16 lanes, each one fused chain over every 16th input in order, then sum_lanes; b low
// by one fused chain over the ranks in order; y = fused(scale, that, y).
#pragma once

#include <cstdint>

namespace imp {

struct AdapterTerm {
    const float* a;  // [rank][n_in, with zeros up to a multiple of 16]; null = nothing is added
    const float* b;  // by units of 32 outputs: [rank][32]
    int32_t rank;
    float scale;
};

// low[rank] = a x.
void make_low(const AdapterTerm& term, const float* x, int n_in, float* low);

// y[32] += scale * b low, of the outputs of one unit.
void add_low(const AdapterTerm& term, float scale, const float* low, int unit, float* y);

}  // namespace imp
