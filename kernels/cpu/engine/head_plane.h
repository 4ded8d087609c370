// The best id of one row of an LM head, read from the head's high bits first.
//
// A plane holds the upper 5 of the 8 bits of a Q8_0 head: 65 % of its bytes. From it come, for each output, a value and how
// far the true logit may lie from it. Only panels that could hold the best are then multiplied by the head itself, in the
// arithmetic of the full product, so the id is that of the full product for every input.
//
// Layout of a panel (backends/cpu/head_plane.py): per 2 blocks the head's 64 bytes of scales, then per block 320 bytes:
//   byte 64 i + 4 r + b: bits 3-6 of inputs 4 i + b (low) and 16 + 4 i + b (high) of output r
//   byte 256 + 4 r + b: bit q is bit 7 of input 4 q + b of output r
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

int64_t plane_panel_bytes(int n_blocks);

// Owner of what one search needs, kept from step to step.
class PlaneSearch {
public:
    using ActivationsOf = std::function<const Activations&(int worker)>;

    // The id of the largest output of head times the one row of activations, the lowest on ties; -1: not bounded, or lately
    // not worth it, so multiply in full.
    int32_t best(Pool& pool, const Matrix& head, const Matrix& plane, const ActivationsOf& activations);

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
    void scan(const Matrix& plane, int first, int end, Worker& worker);
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
