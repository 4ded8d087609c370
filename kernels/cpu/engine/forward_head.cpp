// The end of a forward: final norm, LM head on the rows that want it, the best ids, sampling.
#include <algorithm>
#include <limits>

#include "forward.h"

namespace imp {

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
        worker.best_value.assign(size_t(step.n_head), -std::numeric_limits<float>::infinity());
        worker.best_id.assign(size_t(step.n_head), std::numeric_limits<int32_t>::max());
    }
    const Prepare take = [&](const Activations& to, int row) { put_row(to, row, normed + int64_t(rows[size_t(row)]) * width, width); };
    Input in = input(step.n_head, width, {&model_.head}, take);
    const bool scaled = model_.logit_scale != 1.0f || model_.logit_softcap != 0.0f;
    // Not `multiply`: an epilogue that keeps the best per worker must know the worker.
    const Matrix& m = model_.head;
    const int n_units = ceil_div(m.n_out, kUnitColumns), n_groups = in.shared.n_groups();
    const int per_chunk = units_per_chunk(n_units, 2 * m.panel_bytes, n_groups);
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
                    for (int i = 0; model_.head_bias && i < count; ++i) y[i] += model_.head_bias[column + i];
                    for (int i = 0; scaled && i < kUnitColumns; i += 16) {
                        Floats z = mul(load(y + i), splat(model_.logit_scale));
                        if (model_.logit_softcap != 0.0f)
                            z = mul(hyperbolic_tangent(mul(z, splat(1.0f / model_.logit_softcap))), splat(model_.logit_softcap));
                        store(y + i, z);
                    }
                    const size_t row = size_t(group * kGroupRows + r);
                    if (float* to = step.logits[row]) std::memcpy(to + column, y, size_t(count) * sizeof(float));
                    float best = own.best_value[row];
                    int32_t id = own.best_id[row];
                    const bool may_win = count < kUnitColumns || largest_lane(larger(load(y), load(y + 16))) >= best;
                    for (int i = 0; may_win && i < count; ++i) {
                        // A worker's chunks come in ascending order, but another group's turn may interleave: ties by id.
                        if (y[i] > best || (y[i] == best && column + i < id)) {
                            best = y[i];
                            id = column + i;
                        }
                    }
                    own.best_value[row] = best;
                    own.best_id[row] = id;
                }
            }
        }
    });
    for (int row = 0; row < step.n_head; ++row) {
        float best = -std::numeric_limits<float>::infinity();
        int32_t id = std::numeric_limits<int32_t>::max();
        for (const Worker& worker : workers_) {
            const float value = worker.best_value[size_t(row)];
            if (value > best || (value == best && worker.best_id[size_t(row)] < id)) {
                best = value;
                id = worker.best_id[size_t(row)];
            }
        }
        step.best[row] = id == std::numeric_limits<int32_t>::max() ? -1 : id;
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
