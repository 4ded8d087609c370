#include "head_plane.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace imp {
namespace {

using Head = Q8_Split;
constexpr int kSpanBytes = int(Head::header_bytes(Head::kSpan)) + Head::kSpan * Head::kPayload;
static_assert(Head::kSpan == 2 && Head::kInStream == 5, "the bound and the scan know two blocks and 5 bits");
constexpr int kMostBlocks = 4096;    // keeps the sum of roundings below 1 %
constexpr float kRounding = 320.0f * 5.9604645e-8f;
constexpr float kTiny = 1e-26f;
constexpr float kMostReach = 1e30f;  // below it no sum of either chain overflows
constexpr float kWorthShare = 0.3f;
constexpr int kRest = 32;
constexpr int kAloneUpTo = 24;       // candidates that one thread multiplies faster than two can be told to
constexpr int kCandidatesPerChunk = 8;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Dots of the upper bits, 0 .. 31, of half H.
template <int H> IMP_INLINE Floats upper_dot(const uint8_t* payload, const int32_t* quad) {
    const Bytes w[4] = {quad_of_planes<5, 4 * H>(payload), quad_of_planes<5, 4 * H + 1>(payload),
                        quad_of_planes<5, 4 * H + 2>(payload), quad_of_planes<5, 4 * H + 3>(payload)};
    return to_floats(dot16<false, 5>(int_zeros(), w, quad + 4 * H, 1));
}

// What a scan reads next but one: the upper bits of panel after panel, with the low bits between them left out.
class Ahead {
public:
    Ahead(const Matrix& head, int panel)
        : at_(head.data + panel * head.panel_bytes), stream_(Head::stream_bytes(head.n_blocks)), gap_(head.panel_bytes - stream_),
          left_(stream_) {}

    void prefetch_lines(int n) {
        for (int i = 0; i < n && left_ > 0; ++i, at_ += 64, left_ -= 64) prefetch(at_);
        if (left_ <= 0) {
            at_ += gap_;
            left_ = stream_;
        }
    }

private:
    const uint8_t* at_;
    int64_t stream_, gap_, left_;
};

}  // namespace

bool PlaneSearch::prepare(const Activations& activations, Block* blocks) {
    const auto* x = (const ActivationBlock<1>*)activations.quantised_group(0);
    bool bounded = true;
    for (int b = 0; b < activations.n_blocks; ++b, ++x) {
        Block& to = blocks[b];
        float sums[2];
        for (int h = 0; h < 2; ++h) {
            int8_t q[16];
            std::memcpy(q, &x->quad[4 * h][0], 16);
            int sum = 0;
            for (const int8_t value : q) sum += std::abs(int(value));
            sums[h] = float(sum);
            to.d[h] = 8.0f * x->d[h][0];
        }
        std::memcpy(to.quad, x->quad, sizeof to.quad);
        to.offset = -124.5f * x->d_sum_both[0];
        to.reach = 3.5f * (x->d[0][0] * sums[0] + x->d[1][0] * sums[1]);
        bounded = bounded && to.reach < kMostReach;
    }
    return bounded;
}

void PlaneSearch::scan(const Matrix& head, int first, int end, Worker& worker) {
    constexpr int kAheadSpans = 8;  // 5.6 KiB
    const Floats widen = splat(1.0f + kRounding * float(2 * head.n_blocks + 16));
    Floats lowest = load(worker.lower), reaches = load(worker.reaches);
    Ahead ahead(head, first);
    for (int span = 0; span < kAheadSpans; ++span) ahead.prefetch_lines(kSpanBytes / 64);
    for (int panel = first; panel < end; ++panel) {
        const uint8_t* at = head.data + panel * head.panel_bytes;
        const Block* x = worker.blocks.data();
        Floats value = zeros(), reach = zeros();
        for (int block = 0; block < head.n_blocks; block += Head::kSpan) {
            const int count = std::min(Head::kSpan, head.n_blocks - block);
            const uint8_t* header = at;
            ahead.prefetch_lines(kSpanBytes / 64);
            at += Head::header_bytes(count);
            for (int i = 0; i < count; ++i, ++x, at += Head::kPayload) {
                const Floats scale = block_scales<Head>(header, i).scale[0];
                Floats t = fused(upper_dot<0>(at, x->quad), splat(x->d[0]), splat(x->offset));
                t = fused(upper_dot<1>(at, x->quad), splat(x->d[1]), t);
                value = fused(scale, t, value);
                reach = fused(magnitude(scale), splat(x->reach), reach);
            }
        }
        reaches = add(reaches, reach);
        reach = fused(reach, widen, splat(kTiny));
        const int count = head.n_out - panel * kPanelRows;
        Floats upper = add(value, reach), lower = sub(value, reach);
        if (count < kPanelRows) {
            upper = keep_range(upper, 0, count, kLowest);
            lower = keep_range(lower, 0, count, kLowest);
        }
        upper_.data()[panel] = largest_lane(upper);
        lowest = larger(lowest, lower);
    }
    store(worker.lower, lowest);
    store(worker.reaches, reaches);
}

void PlaneSearch::evaluate(const Matrix& head, const Activations& a, int panel, Worker& worker) {
    alignas(64) float out[kUnitColumns];
    multiply_panel(head, a, panel, out);
    ++worker.n_evaluated;
    const int column = panel * kPanelRows, count = std::min(kPanelRows, head.n_out - column);
    for (int i = 0; i < count; ++i) {
        if (out[i] > worker.best_value || (out[i] == worker.best_value && column + i < worker.best_id)) {
            worker.best_value = out[i];
            worker.best_id = column + i;
        }
    }
}

// A head whose best ids stand out too little to be told by 5 bits is read twice: better not at all for a while.
bool PlaneSearch::worth_it() {
    if (rest_ > 0) {
        if (--rest_ > 0) return false;
        share_ = kWorthShare;
    }
    return true;
}

int32_t PlaneSearch::best(Pool& pool, const Matrix& head, const ActivationsOf& activations) {
    n_evaluated_ = 0;
    if (head.n_blocks > kMostBlocks || !worth_it()) return -1;
    workers_.resize(size_t(pool.size()));
    const int n_panels = head.n_panels(), threads = pool.in_use();
    upper_.get(n_panels);
    ++serial_;
    for (Worker& worker : workers_) {
        std::fill(worker.lower, worker.lower + 16, kLowest);
        std::fill(worker.reaches, worker.reaches + 16, 0.0f);
        worker.n_evaluated = 0;
    }
    const int per_chunk = threads == 1 ? n_panels : std::max(1, n_panels / (threads * 6));
    pool.run((n_panels + per_chunk - 1) / per_chunk, [&](int chunk, int index) {
        Worker& own = workers_[size_t(index)];
        if (own.serial != serial_) {
            const Activations& a = activations(index);
            if (!prepare(a, own.blocks.get(a.n_blocks))) own.reaches[0] = std::numeric_limits<float>::infinity();
            own.serial = serial_;
        }
        scan(head, chunk * per_chunk, std::min(n_panels, (chunk + 1) * per_chunk), own);
    });
    float least = kLowest;
    for (const Worker& worker : workers_) {
        for (int i = 0; i < 16; ++i) {
            if (!(worker.reaches[i] < kMostReach)) return -1;
            least = std::max(least, worker.lower[i]);
        }
    }

    const int32_t id = choose(pool, head, activations, least);
    share_ += 0.1f * (float(n_evaluated_) / float(n_panels) - share_);
    if (share_ > kWorthShare) rest_ = kRest;
    return id;
}

// Multiplies the panels that may hold the best; no output is below `least` and the best.
int32_t PlaneSearch::choose(Pool& pool, const Matrix& head, const ActivationsOf& activations, float least) {
    const float* upper = upper_.data();
    const int n_panels = head.n_panels();
    Worker& own = workers_[0];
    const Activations& a = activations(0);
    own.best_value = kLowest;
    own.best_id = std::numeric_limits<int32_t>::max();
    // Its exact value is a closer limit than the largest lower bound: an eighth of the candidates is left.
    const int top = int(std::max_element(upper, upper + n_panels) - upper);
    evaluate(head, a, top, own);
    least = std::max(least, own.best_value);
    candidates_.clear();
    for (int panel = 0; panel < n_panels; ++panel)
        if (upper[panel] >= least && panel != top) candidates_.push_back({upper[panel], panel});
    std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& x, const Candidate& y) { return x.upper > y.upper; });
    const int n = int(candidates_.size());
    if (n <= kAloneUpTo) {
        for (int i = 0; i < n && candidates_[size_t(i)].upper >= own.best_value; ++i)
            evaluate(head, a, candidates_[size_t(i)].panel, own);
        n_evaluated_ = own.n_evaluated;
        return own.best_id;
    }
    for (Worker& worker : workers_) {
        worker.best_value = own.best_value;
        worker.best_id = own.best_id;
    }
    pool.run((n + kCandidatesPerChunk - 1) / kCandidatesPerChunk, [&](int chunk, int index) {
        const Activations& mine = activations(index);
        Worker& worker = workers_[size_t(index)];
        for (int i = chunk * kCandidatesPerChunk; i < std::min(n, (chunk + 1) * kCandidatesPerChunk); ++i)
            if (candidates_[size_t(i)].upper >= worker.best_value) evaluate(head, mine, candidates_[size_t(i)].panel, worker);
    });
    for (const Worker& worker : workers_) {
        n_evaluated_ += worker.n_evaluated;
        if (worker.best_value < own.best_value || (worker.best_value == own.best_value && worker.best_id >= own.best_id)) continue;
        own.best_value = worker.best_value;
        own.best_id = worker.best_id;
    }
    return own.best_id;
}

}  // namespace imp
