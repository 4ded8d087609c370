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
            z = mul(hyperbolic_tangent(mul(z, splat(1.0f / model.logit_softcap))), splat(model.logit_softcap));
        store(y + i, z);
    }
}

// A worker's chunks come in ascending order, but another group's turn may interleave.
void offer_unit(Best& best, const float* y, int first, int count) {
    if (count == kUnitColumns && largest_lane(larger(load(y), load(y + 16))) < best.value) return;
    for (int i = 0; i < count; ++i) best.offer(y[i], first + i);
}

}  // namespace

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

    std::vector<int> rows(size_t(step.n_head));
    for (int i = 0; i < step.n_head; ++i) rows[size_t(i)] = row_of(step.head_tokens[i]);
    for (Worker& worker : workers_) {
        worker.best_value.assign(size_t(step.n_head), Best{}.value);
        worker.best_id.assign(size_t(step.n_head), kNoId);
    }
    const Prepare take = [&](int first, int n, float* room) {
        for (int r = 0; r < n; ++r)
            std::memcpy(room + int64_t(r) * width, normed + int64_t(rows[size_t(first + r)]) * width, size_t(width) * sizeof(float));
        return Rows{room, width};
    };
    Input in = input({0, step.n_head, -1}, width, {&model_.head}, take);
    if (model_.head_plane.present() && step.n_head == 1 && !step.logits[0]) {
        step.best[0] = plane_search_.best(threads_, model_.head, model_.head_plane,
                                          [&](int worker) -> const Activations& { return activations(in, worker); });
        if (step.best[0] >= 0) return;
    }
    // Not `multiply`: an epilogue that keeps the best per worker must know the worker.
    const Matrix& m = model_.head;
    const int n_units = ceil_div(m.n_out, kUnitColumns), n_groups = in.shared.n_groups();
    const int per_chunk = units_per_chunk(all_rows(), n_units, 2 * m.panel_bytes, n_groups);
    threads_.run(ceil_div(n_units, per_chunk), [&](int chunk, int worker) {
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
                    if (float* to = step.logits[row]) std::memcpy(to + column, y, size_t(count) * sizeof(float));
                    Best best{own.best_value[row], own.best_id[row]};
                    offer_unit(best, y, column, count);
                    own.best_value[row] = best.value;
                    own.best_id[row] = best.id;
                }
            }
        }
    });
    for (int row = 0; row < step.n_head; ++row) {
        Best best;
        for (const Worker& worker : workers_) best.offer(worker.best_value[size_t(row)], worker.best_id[size_t(row)]);
        step.best[row] = best.id == kNoId ? -1 : best.id;
    }
}

void Forward::sample(const StepPlan& step) {
    threads_.run(step.n_samplers, [&](int index, int worker) {
        Worker& own = workers_[size_t(worker)];
        if (!own.sampler) own.sampler = std::make_unique<Sampler>(model_.vocab_size);
        own.sampler->run(step.samplers[index], step.logits, step.best);
    });
}

}  // namespace imp
