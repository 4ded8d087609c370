// The feed-forward of layers with experts: all rows together, so that each expert's weights are read once for all of its
// rows, and those of experts that nobody chose aren't read at all.
//
// Arithmetic (twin_model._experts), a function of the row alone:
//   router numbers as every product; the best by (number or score, descending; id ascending)
//   softmax: w = e^(x - largest); sigmoid: w = 1 / (1 + e^-x)
//   normalised: w / max(sum of the chosen in that order, 1e-20); else a softmax's w / sum over all in the order of ids;
//   then times the scale
//   with groups or a bias of the choice a softmax's w are divided by their sum first, as the choice goes by them: the
//   bias is added, and of the groups those count whose best expert, or two best together, are strongest (then the lowest)
//   total = w of the best * its output, then + w * output in that order; then + the shared expert's, times its scale;
//   beside a dense half the router has a norm of its own, each weight is multiplied with its expert's number, and both
//   halves are normalised before they are added;
//   with weights on the input an expert's rows are multiplied with w instead
#include <algorithm>
#include <cmath>

#include "forward.h"

namespace imp {
namespace {

// Whether expert a comes before b.
struct Before {
    const float* number;
    bool operator()(int a, int b) const { return number[a] > number[b] || (number[a] == number[b] && a < b); }
};

// Numbers of experts outside the strongest groups become -inf; `order` is room.
void keep_groups(const ExpertsPlan& plan, float* number, int* order) {
    const int size = plan.count / plan.n_groups;
    std::vector<float> strength(size_t(plan.n_groups));
    for (int g = 0; g < plan.n_groups; ++g) {
        float best = -INFINITY, second = -INFINITY;
        for (int e = g * size; e < (g + 1) * size; ++e) {
            if (number[e] > best) second = best, best = number[e];
            else if (number[e] > second) second = number[e];
        }
        strength[size_t(g)] = plan.best_two && size > 1 ? best + second : best;
        order[g] = g;
    }
    std::partial_sort(order, order + plan.top_groups, order + plan.n_groups, Before{strength.data()});
    for (int place = plan.top_groups; place < plan.n_groups; ++place)
        std::fill(number + order[place] * size, number + (order[place] + 1) * size, -INFINITY);
}

// What the router's numbers of one row say of each expert.
void score(const ExpertsPlan& plan, const float* logits, float* scores) {
    const int n = plan.count;
    if (plan.gating == GatingKind::sigmoid) {
        for (int e = 0; e < n; ++e) scores[e] = 1.0f / (1.0f + exponential_scalar(-logits[e]));
        return;
    }
    const float largest = *std::max_element(logits, logits + n);
    float sum = 0.0f;
    for (int e = 0; e < n; ++e) sum += scores[e] = exponential_scalar(logits[e] - largest);
    for (int e = 0; e < n; ++e) scores[e] /= sum;
}

// Phi's: the weight of the best is its softmax among those that come near to it, by a share of the larger of both; then the
// same again without it.
void mix_sparsely(const ExpertsPlan& plan, const float* logits, float* scores, int32_t* ids, float* weights) {
    const int n = plan.count;
    std::copy(logits, logits + n, scores);
    for (int place = 0; place < plan.top_k; ++place) {
        const int best = int(std::max_element(scores, scores + n) - scores);
        const float largest = scores[best];
        float sum = 0.0f;
        for (int e = 0; e < n; ++e) {
            const float factor = std::max(std::fabs(logits[e]), largest);
            if (scores[e] == -INFINITY || (largest - logits[e]) / factor > 2.0f * plan.jitter) continue;
            sum += exponential_scalar(logits[e] - largest);
        }
        ids[place] = best;
        weights[place] = 1.0f / sum * plan.scale;
        scores[best] = -INFINITY;
    }
}

// The chosen experts' ids and weights, best first, for the router's numbers of one row; `scores` and `order` are room.
void choose(const ExpertsPlan& plan, const float* logits, float* scores, int* order, int32_t* ids, float* weights) {
    if (plan.gating == GatingKind::sparse_mixer) return mix_sparsely(plan, logits, scores, ids, weights);
    const int n = plan.count, k = plan.top_k;
    const bool by_score = plan.gating == GatingKind::sigmoid || plan.selection_bias || plan.n_groups > 1;
    if (by_score) score(plan, logits, scores);
    float* number = scores + n;
    for (int e = 0; e < n; ++e) number[e] = !by_score ? logits[e] : plan.selection_bias ? scores[e] + plan.selection_bias[e] : scores[e];
    if (plan.n_groups > 1) keep_groups(plan, number, order);
    for (int e = 0; e < n; ++e) order[e] = e;
    std::partial_sort(order, order + k, order + n, Before{number});
    const float largest = logits[order[0]];
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) {
        ids[i] = order[i];
        weights[i] = by_score ? scores[order[i]] : exponential_scalar(logits[order[i]] - largest);
    }
    if (!by_score && !plan.normalise) {
        for (int e = 0; e < n; ++e) sum += exponential_scalar(logits[e] - largest);
        for (int i = 0; i < k; ++i) weights[i] /= sum;
        sum = 0.0f;
    }
    if (plan.normalise) {
        for (int i = 0; i < k; ++i) sum += weights[i];
        for (int i = 0; i < k; ++i) weights[i] /= std::max(sum, 1e-20f);
    }
    for (int i = 0; i < k; ++i) weights[i] *= plan.scale;
}

// One expert's rows of a matrix that holds all of them.
Matrix of_expert(const Matrix& all, int expert, int n_out) {
    Matrix m = all;
    m.data += int64_t(expert) * (n_out / kPanelRows) * all.panel_bytes;
    m.n_out = n_out;
    return m;
}

Activations at_slot(const Activations& all, int slot, int n_rows) {
    Activations a = all;
    a.n_rows = n_rows;
    if (a.quantised) a.quantised += int64_t(slot) * a.n_blocks * kActivationBytes;
    if (a.floats) a.floats += int64_t(slot) * a.n_blocks * kBlock;
    return a;
}

}  // namespace

// Slots: a row's choices, ordered by expert and then by row. Jobs: up to 8 slots of one expert.
void Forward::sort_by_expert(const ExpertsPlan& plan) {
    const int n = n_rows_ * plan.top_k;
    std::vector<int> ends(size_t(plan.count) + 1, 0);
    for (int i = 0; i < n; ++i) ++ends[size_t(experts_.ids[size_t(i)]) + 1];
    for (int e = 0; e < plan.count; ++e) ends[size_t(e) + 1] += ends[size_t(e)];
    experts_.jobs.clear();
    for (int e = 0; e < plan.count; ++e)
        for (int slot = ends[size_t(e)]; slot < ends[size_t(e) + 1]; slot += kGroupRows)
            experts_.jobs.push_back({e, slot, std::min(kGroupRows, ends[size_t(e) + 1] - slot)});
    experts_.choice_of_slot.resize(size_t(n));
    experts_.slot_of_choice.resize(size_t(n));
    for (int i = 0; i < n; ++i) {
        const int slot = ends[size_t(experts_.ids[size_t(i)])]++;
        experts_.choice_of_slot[size_t(slot)] = i;
        experts_.slot_of_choice[size_t(i)] = slot;
    }
}

void Forward::route(const LayerPlan& layer, const ExpertsPlan& plan) {
    const int width = model_.width, n = n_rows_;
    float* normed_rows = experts_.normed.get(int64_t(n) * width);
    const float* from = layer.parallel ? before_.data() : x_.data();
    threads_.run(ceil_div(n, kGroupRows), [&](int group, int) {
        const int first = group * kGroupRows;
        normed(plan.norm.weight ? plan.norm : layer.ffn_norm, from, first, std::min(kGroupRows, n - first),
               normed_rows + int64_t(first) * width);
    });
    const Prepare routed = [&](int first, int n, float* room) {
        if (plan.router_norm.weight) return normed(plan.router_norm, from, first, n, room);
        return Rows{normed_rows + int64_t(first) * width, width};
    };
    Input in = input(all_rows(), width, {&plan.router}, routed);
    float* logits = experts_.logits.get(int64_t(n) * plan.count);
    multiply(in, {&plan.router}, [&](int, int first_row, int rows, int unit, float* out) {
        const int column = unit * kUnitColumns, count = std::min(kUnitColumns, plan.count - column);
        for (int r = 0; r < rows; ++r)
            for (int i = 0; i < count; ++i)
                logits[int64_t(first_row + r) * plan.count + column + i] =
                    plan.router_bias ? out[r * kUnitColumns + i] + plan.router_bias[column + i] : out[r * kUnitColumns + i];
    });
    experts_.ids.resize(size_t(n) * size_t(plan.top_k));
    experts_.weights.resize(experts_.ids.size());
    std::vector<float> scores(size_t(plan.count) * 2);
    std::vector<int> order(size_t(plan.count));
    for (int row = 0; row < n; ++row) {
        choose(plan, logits + int64_t(row) * plan.count, scores.data(), order.data(), &experts_.ids[size_t(row) * size_t(plan.top_k)],
               &experts_.weights[size_t(row) * size_t(plan.top_k)]);
        for (size_t i = size_t(row) * size_t(plan.top_k); plan.expert_scale && i < size_t(row + 1) * size_t(plan.top_k); ++i)
            experts_.weights[i] *= plan.expert_scale[experts_.ids[i]];
    }
    sort_by_expert(plan);
}

// For all jobs and all units of 32 outputs: f(job, unit), in pieces that threads claim.
template <class Fn> void Forward::for_job_units(int n_units, Fn&& f) {
    const int n_jobs = int(experts_.jobs.size());
    const int per_chunk = std::max(1, int(int64_t(n_units) * n_jobs / (threads_.in_use() * 8)));
    const int per_job = ceil_div(n_units, std::min(per_chunk, n_units)), units = ceil_div(n_units, per_job);
    threads_.run_in_order(n_jobs * per_job, [&](int chunk, int) {
        const Job& job = experts_.jobs[size_t(chunk / per_job)];
        const int first = chunk % per_job * units;
        for (int unit = first; unit < std::min(n_units, first + units); ++unit) f(job, unit);
    });
}

void Forward::run_experts(const ExpertsPlan& plan) {
    const int width = model_.width, hidden = plan.hidden, n_slots = n_rows_ * plan.top_k;
    const bool in_floats = is_float(plan.gate.id()) || is_float(plan.up.id());
    const bool in_quantised = !is_float(plan.gate.id()) || !is_float(plan.up.id());
    const bool down_floats = is_float(plan.down.id());
    Activations inputs = room(experts_.in_bytes, experts_.in_floats, n_slots, width, in_quantised, in_floats);
    Activations hiddens = room(experts_.hidden_bytes, experts_.hidden_floats, n_slots, hidden, !down_floats, down_floats);
    float* outs = experts_.outs.get(int64_t(n_slots) * width);
    threads_.run(int(experts_.jobs.size()), [&](int index, int worker) {
        const Job& job = experts_.jobs[size_t(index)];
        float* rows = workers_[size_t(worker)].rows.get(int64_t(kGroupRows) * width);
        for (int r = 0; r < job.n; ++r) {
            const int choice = experts_.choice_of_slot[size_t(job.slot + r)];
            const float* from = experts_.normed.data() + int64_t(choice / plan.top_k) * width;
            const float weight = plan.weights_on_input ? experts_.weights[size_t(choice)] : 1.0f;
            for (int i = 0; i < width; ++i) rows[int64_t(r) * width + i] = from[i] * weight;
        }
        put_group(at_slot(inputs, job.slot, job.n), 0, rows, width, width);
    });
    for_job_units(ceil_div(hidden, kUnitColumns), [&](const Job& job, int unit) {
        alignas(64) float gate[kGroupRows * kUnitColumns], up[kGroupRows * kUnitColumns];
        const Activations a = at_slot(inputs, job.slot, job.n);
        multiply_unit(of_expert(plan.gate, job.expert, hidden), a, 0, unit, gate);
        multiply_unit(of_expert(plan.up, job.expert, hidden), a, 0, unit, up);
        const int64_t biases = int64_t(job.expert) * hidden;
        gate_unit({hidden, plan.activation, plan.gate_bias ? plan.gate_bias + biases : nullptr,
                   plan.up_bias ? plan.up_bias + biases : nullptr, true}, unit, job.n, gate, up);
        put_block(at_slot(hiddens, job.slot, job.n), 0, unit, up, kUnitColumns);
    });
    for_job_units(ceil_div(width, kUnitColumns), [&](const Job& job, int unit) {
        alignas(64) float out[kGroupRows * kUnitColumns];
        multiply_unit(of_expert(plan.down, job.expert, width), at_slot(hiddens, job.slot, job.n), 0, unit, out);
        const int column = unit * kUnitColumns, count = std::min(kUnitColumns, width - column);
        const float* bias = plan.down_bias ? plan.down_bias + int64_t(job.expert) * width + column : nullptr;
        for (int r = 0; r < job.n; ++r)
            for (int i = 0; i < count; ++i)
                outs[int64_t(job.slot + r) * width + column + i] = bias ? out[r * kUnitColumns + i] + bias[i] : out[r * kUnitColumns + i];
    });
}

// The always-active expert of all rows, to `experts_.shared`; a gate of its own scales it.
void Forward::run_shared(const ExpertsPlan& plan) {
    const int width = model_.width;
    const float* normed_rows = experts_.normed.data();
    const Prepare plain = [&](int first, int, float*) { return Rows{normed_rows + int64_t(first) * width, width}; };
    Input in = dense_hidden(plan.shared, all_rows(), plain);
    float* shared = experts_.shared.get(int64_t(n_rows_) * width);
    multiply(in, {&plan.shared.down}, [&](int, int first_row, int rows, int unit, float* out) {
        const int column = unit * kUnitColumns, count = std::min(kUnitColumns, width - column);
        for (int r = 0; r < rows; ++r)
            std::memcpy(shared + int64_t(first_row + r) * width + column, out + r * kUnitColumns, size_t(count) * sizeof(float));
    });
    if (!plan.shared_router.present()) return;
    Input rows_in = input(all_rows(), width, {&plan.shared_router}, plain);
    multiply(rows_in, {&plan.shared_router}, [&](int, int first_row, int rows, int, float* out) {
        for (int r = 0; r < rows; ++r) {
            const float gate = 1.0f / (1.0f + exponential_scalar(-out[r * kUnitColumns]));
            float* row = shared + int64_t(first_row + r) * width;
            for (int i = 0; i < width; ++i) row[i] *= gate;
        }
    });
}

// What the dense half beside the experts says, to `experts_.beside`.
void Forward::run_dense_beside(const LayerPlan& layer) {
    const int width = model_.width;
    const Prepare entering = [&](int first, int n, float* room) { return normed(layer.ffn_norm, x_.data(), first, n, room); };
    Input in = dense_hidden(layer.dense, all_rows(), entering);
    float* beside = experts_.beside.get(int64_t(n_rows_) * width);
    multiply_to(in, layer.dense.down, beside, width);
    threads_.run(ceil_div(n_rows_, kGroupRows), [&](int group, int) {
        for (int row = group * kGroupRows; row < std::min(n_rows_, (group + 1) * kGroupRows); ++row) {
            float* own = beside + int64_t(row) * width;
            normalise(model_.norm, model_.norm_eps, layer.experts.post_dense_norm, own, width, own);
        }
    });
}

void Forward::feed_experts(const LayerPlan& layer, const ExpertsPlan& plan, bool beside_dense) {
    const int width = model_.width, k = plan.top_k;
    if (beside_dense) run_dense_beside(layer);
    route(layer, plan);
    run_experts(plan);
    const bool has_shared = plan.shared.up.present(), residual_first = !layer.post_ffn_norm.weight;
    if (has_shared) run_shared(plan);
    float* delta = delta_.get(int64_t(n_rows_) * width);
    threads_.run(ceil_div(n_rows_, kGroupRows), [&](int group, int) {
        for (int row = group * kGroupRows; row < std::min(n_rows_, (group + 1) * kGroupRows); ++row) {
            float* total = delta + int64_t(row) * width;
            for (int place = 0; place < k; ++place) {
                const size_t choice = size_t(row) * size_t(k) + size_t(place);
                const float weight = plan.weights_on_input ? 1.0f : experts_.weights[choice];
                const float* out = experts_.outs.data() + int64_t(experts_.slot_of_choice[choice]) * width;
                for (int i = 0; i < width; ++i) total[i] = place ? total[i] + weight * out[i] : weight * out[i];
            }
            const float* shared = experts_.shared.data() + int64_t(row) * width;
            for (int i = 0; has_shared && i < width; ++i) total[i] += shared[i] * plan.shared_scale;
            normalise(model_.norm, model_.norm_eps, plan.post_norm, total, width, total);
            const float* beside = experts_.beside.data() + int64_t(row) * width;
            for (int i = 0; beside_dense && i < width; ++i) total[i] += beside[i];
            float* x = x_.data() + int64_t(row) * width;
            for (int i = 0; residual_first && i < width; ++i) x[i] += total[i] * model_.residual_scale;
        }
    });
    if (!residual_first) add_to_residual(delta, layer.post_ffn_norm, all_rows());
}

}  // namespace imp
