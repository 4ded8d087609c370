// The best id of one row of an LM head, read from the head's upper bits first.
//
// A split head (formats.h, q8_split) keeps the upper 5 of its 8 bits in front, with the scales: 65 % of its bytes. From them
// come, for each output, a value and how far the true logit may lie from it. Only panels that could hold the best are then
// multiplied in full, in the arithmetic of the full product, so the id is that of the full product for every input.
//
// The bound. With v = 8 h + 3.5 + e, |e| <= 3.5, the plane's value differs from the exact sum by at most
//   reach = sum over blocks |scale| * 3.5 * (d 0 * sum |q| + d 1 * sum |q|).
// Both chains round: no product passes more than k = 2 n_blocks + 16 roundings, with or without FMA. The absolute terms of
// the full product sum to at most 128 / 3.5 reach, those of the plane's to (8 * 31 + 124.5) / 3.5 reach, so that
// reach * 143 k 2^-24 covers them; kRounding is twice that and more. Products below the normal range lose less than kTiny.
// Scales or activations that aren't numbers, or sums that might overflow, show in `reach`, and the search declines.
#pragma once

#include <functional>
#include <vector>

#include "pool.h"
#include "scratch.h"
#include "tiles.h"

namespace imp {

// Owner of what one search needs, kept from step to step.
class PlaneSearch {
public:
    using ActivationsOf = std::function<const Activations&(int worker)>;

    // The id of the largest output of a split head times the one row of activations, the lowest on ties; -1: not bounded, or
    // lately not worth it, so multiply in full.
    int32_t best(Pool& pool, const Matrix& head, const ActivationsOf& activations);

    int n_evaluated() const { return n_evaluated_; }  // panels of the head that the last search multiplied

private:
    struct Block {
        int32_t quad[8];
        float d[2];           // 8 times the activations' scales
        float offset, reach;  // what is the same for all outputs, before their scale
    };
    struct alignas(64) Worker {
        Buffer<Block> blocks;
        uint64_t serial = 0;
        float lower[16], reaches[16];
        float best_value;
        int32_t best_id;
        int n_evaluated;
    };
    struct Candidate { float upper; int panel; };

    static bool prepare(const Activations& activations, Block* blocks);
    void scan(const Matrix& head, int first, int end, Worker& worker);
    void evaluate(const Matrix& head, const Activations& activations, int panel, Worker& worker);
    int32_t choose(Pool& pool, const Matrix& head, const ActivationsOf& activations, float least);
    bool worth_it();

    std::vector<Worker> workers_;
    Buffer<float> upper_;  // of each panel
    std::vector<Candidate> candidates_;
    uint64_t serial_ = 0;
    int n_evaluated_ = 0;
    float share_ = 0.0f;   // of the panels that had to be multiplied, smoothed
    int rest_ = 0;         // steps until the next try
};

}  // namespace imp
