// The sampling law of decode/sampling.py for one row: processors in float32, everything after them in double.
// Nothing sorts the vocabulary: maxima of runs of 64 logits tell where the candidates are.
#pragma once

#include <cstdint>
#include <vector>

namespace imp {

// One row of a step that wants ids. Positions j = 0 .. n_drafts have their logits at logits[j] (null: only best[j] matters).
struct SamplerPlan {
    const int32_t* history;       // prompt and output ids so far, but for those ahead
    const int32_t* bias_ids;
    const float* bias;
    const int32_t* banned;
    const uint32_t* masks;        // [1 + n_drafts, mask_words]; null = unconstrained
    const uint32_t* mask_flags;   // [1 + n_drafts], set by another thread once its mask is filled; null = all are
    const int32_t* drafts;
    int32_t* tokens;              // out [1 + n_drafts]
    float* logprobs;              // out [1 + n_drafts]
    int32_t* ranks;               // out [1 + n_drafts]
    int32_t* top_ids;             // out [1 + n_drafts, n_logprobs]
    float* top;                   // out [1 + n_drafts, n_logprobs]
    uint64_t seed;
    int64_t position;             // of the first sampled id in the output
    double temperature, top_p, min_p;
    float presence, frequency, repetition;
    int32_t n_history, n_prompt, repeat_last_n;
    int32_t n_bias, n_banned, mask_words;
    int32_t mask_patience_us;     // for all masks of the row together
    int32_t n_drafts, top_k, n_logprobs, choice;
    int32_t first_head;           // index of position 0 among the step's head tokens
    int32_t keep_logits;          // the raw logits are wanted as well
    int32_t slot;                 // of the row
    int32_t n_ahead;              // 1: the last of the ids so far is what the slot sampled last
    int32_t ahead;                // that id, filled in when the step runs; negative = there is none, so nothing is sampled
    int32_t n_tokens, n_accepted, dead_end, not_numbers;  // out
    int32_t mask_late;            // out: the first mask came too late, nothing was sampled
    int32_t mask_wait_us;         // out
    int32_t n_left_out;           // out: drafts not looked at, since their masks came too late
};

// Working memory of one thread.
class Sampler {
public:
    explicit Sampler(int vocab_size) : vocab_(vocab_size) {}

    // Walks the positions in order; a draft is accepted iff it is what would have been sampled there.
    void run(SamplerPlan& plan, float* const* logits, const int32_t* best);

private:
    struct Candidate {
        float logit;
        int32_t id;
    };
    void process(const SamplerPlan& plan, int j, float* logits);
    bool has_mask(SamplerPlan& plan, int j);  // waits
    void penalise(const SamplerPlan& plan, int j, float* logits);
    bool find_best(const float* logits, int32_t& best);  // false: not numbers
    int32_t draw(const SamplerPlan& plan, int j, const float* logits, int32_t best);
    void keep_mass(const SamplerPlan& plan, const float* logits, float best);
    int32_t draw_gumbel(const SamplerPlan& plan, int j);
    // Where a grammar allows little, nearly all logits are forbidden ones; they are only listed if they are asked for.
    void take_at_least(const float* logits, float bound, bool forbidden_too = false);
    void take_best(const float* logits, int k, bool forbidden_too = false);  // the k best, ordered
    void write_logprobs(const SamplerPlan& plan, int j, const float* logits, int32_t token);

    int vocab_;
    std::vector<float> run_max_, scratch_, copy_;
    std::vector<Candidate> candidates_;
    std::vector<int32_t> counts_;
};

// First output word of Philox4x32-10; key = the seed's halves, counter = position (low, high), id, choice.
uint32_t philox(uint64_t seed, int64_t position, uint32_t id, uint32_t choice);

}  // namespace imp
