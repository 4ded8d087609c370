// What adapters add in a phase: a x of each row that has one beforehand, b of it where the outputs come.
#include "forward.h"

namespace imp {

// After `input`, for the same matrices and rows.
void Forward::prepare_additions(Input& in, std::initializer_list<const Matrix*> matrices, int n_in, const Prepare& prepare) {
    Additions& to = in.added;
    for (const Matrix* matrix : matrices)
        if (matrix->present() && matrix->target) to.targets.push_back(matrix->target);
    if (to.targets.empty()) return;
    const int end_row = in.share.first + in.share.n, n_groups = ceil_div(in.share.n, kGroupRows);
    int64_t size = 0;
    for (int group = 0; group < n_groups; ++group) {
        const int first = in.share.first + group * kGroupRows;
        for (const int32_t target : to.targets) {
            to.starts.push_back(int(to.all.size()));
            for (int row = first; row < std::min(end_row, first + kGroupRows); ++row) {
                const Few& own = adapters_of_[size_t(row)];
                for (int i = own.first; i < own.end; ++i) {
                    const AdapterTerm& term = adapters_[i].terms[target];
                    if (!term.a) continue;
                    to.all.push_back({row, &term, term.scale * adapters_[i].scale, size});
                    size += term.rank;
                }
            }
        }
    }
    to.starts.push_back(int(to.all.size()));
    if (to.all.empty()) return;
    to.lows = (in.share.alone() ? workers_[size_t(in.share.worker)].lows : lows_).get(size);
    const auto make = [&](int index, int worker) {
        const Added& one = to.all[size_t(index)];
        float* room = workers_[size_t(worker)].rows.get(int64_t(kGroupRows) * n_in);
        make_low(*one.term, prepare(one.row, 1, room).first, n_in, to.lows + one.low);
    };
    if (n_groups == 1) return run_chunks(in.share, int(to.all.size()), make);
    const int n_targets = int(to.targets.size());
    run_chunks(in.share, n_groups, [&](int group, int worker) {
        const int begin = to.starts[size_t(group * n_targets)], end = to.starts[size_t((group + 1) * n_targets)];
        if (begin == end) return;
        const int first = in.share.first + group * kGroupRows;
        float* room = workers_[size_t(worker)].rows.get(int64_t(kGroupRows) * n_in);
        const Rows rows = prepare(first, std::min(kGroupRows, end_row - first), room);
        for (int i = begin; i < end; ++i) {
            const Added& one = to.all[size_t(i)];
            make_low(*one.term, rows.first + int64_t(one.row - first) * rows.stride, n_in, to.lows + one.low);
        }
    });
}

// To outputs [32 unit, 32 unit + 32) of a group's rows.
void Forward::add_adapters(const Input& in, const Matrix& matrix, int group, int unit, float* out) const {
    const Additions& from = in.added;
    if (from.all.empty()) return;
    const int n_targets = int(from.targets.size()), first = in.share.first + group * kGroupRows;
    for (int t = 0; t < n_targets; ++t) {
        if (from.targets[size_t(t)] != matrix.target) continue;
        const size_t at = size_t(group * n_targets + t);
        for (int i = from.starts[at]; i < from.starts[at + 1]; ++i) {
            const Added& one = from.all[size_t(i)];
            add_low(*one.term, one.scale, from.lows + one.low, unit, out + (one.row - first) * kUnitColumns);
        }
    }
}

// Which rows have which adapters, from here on by rows of x.
void Forward::take_adapters(const StepPlan& step) {
    adapters_ = step.adapter_starts ? step.adapters : nullptr;
    if (!adapters_) return;
    adapters_of_.resize(size_t(step.n_tokens));
    for (int token = 0; token < step.n_tokens; ++token) {
        const int row = row_of_token_[size_t(token)];
        adapters_of_[size_t(token)] = {step.adapter_starts[row], step.adapter_starts[row + 1]};
    }
}

}  // namespace imp
