// The end of a forward: final norm, LM head on the rows that want it, the best ids, sampling.
#include <algorithm>
#include <limits>

#include "forward.h"

namespace imp {

namespace {

constexpr int32_t kNoId = std::numeric_limits<int32_t>::max();

// The best logit of a row so far; ties go to the lowest id.
struct Best {
    float value = -std::numeric_limits<float>::infinity();
    int32_t id = kNoId;

    void offer(float other, int32_t other_id) {
        if (other > value || (other == value && other_id < id)) {
            value = other;
            id = other_id;
        }
    }
};

// Bias, scale and soft cap on the logits y of ids from `first` on; `count` of a unit's columns are ids.
void finish_logits(const ModelPlan& model, int first, int count, float* y) {
    for (int i = 0; model.head_bias && i < count; ++i) y[i] += model.head_bias[first + i];
    if (model.logit_scale == 1.0f && model.logit_softcap == 0.0f) return;
    for (int i = 0; i < kUnitColumns; i += 16) {
        Floats z = mul(load(y + i), splat(model.logit_scale));
        if (model.logit_softcap != 0.0f)
            z = fused(z, zeros(), mul(hyperbolic_tangent(mul(z, splat(1.0f / model.logit_softcap))), splat(model.logit_softcap)));  // what is no number stays none
        store(y + i, z);
    }
}

// A row whose mask leaves at most one panel in so many is multiplied panel by panel, and alone.
constexpr int kSparse = 6;

// The masks under which head tokens are sampled, as far as they are filled and nothing else wants the logits.
std::vector<const uint32_t*> masks_of(const StepPlan& step, int n_out) {
    std::vector<const uint32_t*> masks(size_t(step.n_head), nullptr);
    for (int s = 0; s < step.n_samplers; ++s) {
        const SamplerPlan& plan = step.samplers[s];
        if (!plan.masks || plan.keep_logits || plan.mask_words < ceil_div(n_out, 32)) continue;
        for (int j = 0; j <= plan.n_drafts; ++j) {
            if (plan.mask_flags && !__atomic_load_n(plan.mask_flags + j, __ATOMIC_ACQUIRE)) continue;
            if (step.logits[plan.first_head + j]) masks[size_t(plan.first_head + j)] = plan.masks + int64_t(j) * plan.mask_words;
        }
    }
    return masks;
}

// The panels with an allowed id, if they are few; false if not. Half a word of a mask is a panel.
bool few_panels(const uint32_t* mask, int n_panels, std::vector<int>& panels) {
    static_assert(kPanelRows == 16, "half a word of a mask");
    panels.clear();
    const size_t most = size_t(n_panels / kSparse);
    for (int panel = 0; panel < n_panels; ++panel)
        if (mask[panel >> 1] >> (16 * (panel & 1)) & 0xffffu) {
            if (panels.size() == most) return false;
            panels.push_back(panel);
        }
    return true;
}

// A worker's chunks come in ascending order, but another group's turn may interleave.
void offer_unit(Best& best, const float* y, int first, int count) {
    if (count == kUnitColumns && largest_lane(larger(load(y), load(y + 16))) < best.value) return;
    for (int i = 0; i < count; ++i) best.offer(y[i], first + i);
}

}  // namespace

// Logits of the ids of a few panels; the others are left as they are, since no one reads them.
void Forward::head_panels(const float* normed, const std::vector<int>& panels, float* logits) {
    const Matrix& m = model_.head;
    const Prepare take = [&](int, int, float*) { return Rows{normed, m.n_in}; };
    Input in = input({0, 1, -1}, m.n_in, {&m}, take);
    constexpr int kPerChunk = 32;
    const int n_panels = int(panels.size());
    threads_.run(ceil_div(n_panels, kPerChunk), [&](int chunk, int worker) {
        const Activations& a = activations(in, worker);
        alignas(64) float y[kUnitColumns] = {};
        for (int at = chunk * kPerChunk; at < std::min(n_panels, (chunk + 1) * kPerChunk); ++at) {
            multiply_panel(m, a, panels[size_t(at)], y);
            const int first = panels[size_t(at)] * kPanelRows, count = std::min(kPanelRows, m.n_out - first);
            finish_logits(model_, first, count, y);
            std::memcpy(logits + first, y, size_t(count) * sizeof(float));
        }
    });
}

// All logits of some head tokens, and their best ids. `normed_of` gives a token's row.
template <class Fn> void Forward::whole_head(const StepPlan& step, const std::vector<int>& heads, Fn&& normed_of) {
    const int width = model_.width, n_heads = int(heads.size());
    for (Worker& worker : workers_) {
        worker.best_value.assign(size_t(n_heads), Best{}.value);
        worker.best_id.assign(size_t(n_heads), kNoId);
    }
    const Prepare take = [&](int first, int n, float* room) {
        for (int r = 0; r < n; ++r)
            std::memcpy(room + int64_t(r) * width, normed_of(heads[size_t(first + r)]), size_t(width) * sizeof(float));
        return Rows{room, width};
    };
    Input in = input({0, n_heads, -1}, width, {&model_.head}, take);
    const bool is_bare = !model_.head_bias && model_.logit_scale == 1.0f && model_.logit_softcap == 0.0f;
    if (model_.head.id() == FormatId::q8_split && is_bare && step.n_head == 1 && !step.logits[0]) {
        step.best[0] = plane_search_.best(threads_, model_.head, [&](int worker) -> const Activations& { return activations(in, worker); });
        if (step.best[0] >= 0) return;
    }
    // Not `multiply`: an epilogue that keeps the best per worker must know the worker.
    const Matrix& m = model_.head;
    const int n_units = ceil_div(m.n_out, kUnitColumns), n_groups = in.shared.n_groups();
    const int per_chunk = units_per_chunk(all_rows(), n_units, 2 * m.panel_bytes, n_groups);
    threads_.run_in_order(ceil_div(n_units, per_chunk), [&](int chunk, int worker) {
        const Activations& a = activations(in, worker);
        alignas(64) float out[kGroupRows * kUnitColumns];
        Worker& own = workers_[size_t(worker)];
        for (int group = 0; group < n_groups; ++group) {
            for (int unit = chunk * per_chunk; unit < std::min(n_units, (chunk + 1) * per_chunk); ++unit) {
                multiply_unit(m, a, group, unit, out);
                const int column = unit * kUnitColumns, count = std::min(kUnitColumns, m.n_out - column);
                for (int r = 0; r < a.rows_in(group); ++r) {
                    float* y = out + r * kUnitColumns;
                    finish_logits(model_, column, count, y);
                    const size_t row = size_t(group * kGroupRows + r);
                    if (float* to = step.logits[heads[row]]) std::memcpy(to + column, y, size_t(count) * sizeof(float));
                    Best best{own.best_value[row], own.best_id[row]};
                    offer_unit(best, y, column, count);
                    own.best_value[row] = best.value;
                    own.best_id[row] = best.id;
                }
            }
        }
    });
    for (int row = 0; row < n_heads; ++row) {
        Best best;
        for (const Worker& worker : workers_) best.offer(worker.best_value[size_t(row)], worker.best_id[size_t(row)]);
        step.best[heads[size_t(row)]] = best.id == kNoId ? -1 : best.id;
    }
}

void Forward::head(const StepPlan& step) {
    const int width = model_.width;
    const float* x = x_.data();
    float* normed = final_.get(int64_t(n_rows_) * width);
    for (int row = 0; row < n_rows_; ++row)
        normalise(model_.norm, model_.norm_eps, model_.final_norm, x + int64_t(row) * width, width, normed + int64_t(row) * width);
    const auto row_of = [&](int32_t token) { return int(std::lower_bound(wanted_.begin(), wanted_.end(), token) - wanted_.begin()); };
    for (int i = 0; i < step.n_hidden; ++i)
        std::memcpy(step.hidden + int64_t(i) * width, normed + int64_t(row_of(step.hidden_tokens[i])) * width, size_t(width) * sizeof(float));
    if (!step.n_head) return;

    const Matrix& m = model_.head;
    const std::vector<const uint32_t*> masks = masks_of(step, m.n_out);
    std::vector<int> heads, panels;  // the head tokens that want most ids
    n_masked_panels_ = 0;
    for (int i = 0; i < step.n_head; ++i) {
        if (!masks[size_t(i)] || !few_panels(masks[size_t(i)], m.n_panels(), panels)) {
            heads.push_back(i);
            continue;
        }
        head_panels(normed + int64_t(row_of(step.head_tokens[i])) * width, panels, step.logits[i]);
        step.best[i] = -1;
        n_masked_panels_ += int(panels.size());
    }
    if (!heads.empty()) whole_head(step, heads, [&](int i) { return normed + int64_t(row_of(step.head_tokens[i])) * width; });
}

void Forward::sample(const StepPlan& step) {
    threads_.run(step.n_samplers, [&](int index, int worker) {
        Worker& own = workers_[size_t(worker)];
        if (!own.sampler) own.sampler = std::make_unique<Sampler>(model_.vocab_size);
        own.sampler->run(step.samplers[index], step.logits, step.best);
    });
}

}  // namespace imp
