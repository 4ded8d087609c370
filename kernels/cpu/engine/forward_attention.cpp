// The attention half of a forward: positions into the cache, then items of queries against it.
#include <algorithm>
#include <cmath>

#include "forward.h"

namespace imp {
namespace {

constexpr int kItemTokens = kVectors;  // so that an item's queries fill its groups, however many heads share a key
constexpr int kInlineTokens = 4;  // cheaper done by the leader than handed out

}  // namespace

void Forward::write_position(const AttentionPlan& plan, const StepPlan& step, int token) {
    const int hd = plan.head_size(), q_width = plan.q_width(), kv_width = plan.kv_width();
    float* q = qkv_.data() + int64_t(token) * (q_width + 2 * kv_width);
    float* k = q + q_width;
    const float* v = k + kv_width;
    if (plan.qk_norm_whole) {
        normalise(model_.norm, model_.norm_eps, plan.q_norm, q, q_width, q);
        normalise(model_.norm, model_.norm_eps, plan.k_norm, k, kv_width, k);
    }
    const int position = step.positions[token], row = row_of_token_[size_t(token)], g = plan.cache_group;
    const float* table = plan.rope >= 0 ? step.rope_tables[plan.rope] + int64_t(position) * plan.rope_dims : nullptr;
    for (int head = 0; head < plan.n_heads + plan.n_kv_heads; ++head) {
        const bool is_q = head < plan.n_heads;
        const Norm& norm = is_q ? plan.q_norm : plan.k_norm;
        float* at = q + head * hd;
        if (!plan.qk_norm_whole && !plan.norm_after_rope) normalise(model_.norm, model_.norm_eps, norm, at, hd, at);
        if (table) rotate(at, plan.rope_dims, plan.rope_interleaved, table);
        if (plan.norm_after_rope) normalise(model_.norm, model_.norm_eps, norm, at, hd, at);
    }
    if (plan.temperature != 0.0f) {
        const float factor = float(1.0 + double(plan.temperature) * std::log(1.0 + position / plan.temperature_step));
        for (int i = 0; i < q_width; ++i) q[i] *= factor;
    }
    const int32_t block = step.tables[g][int64_t(row) * step.table_widths[g] + position / kKvBlock];
    uint8_t* at = pools_[size_t(g)].data + block * pools_[size_t(g)].block_bytes + plan.kv_offset;
    for (int head = 0; head < plan.n_kv_heads; ++head)
        write_kv(plan.kv, at + head * plan.kv.stride, position % kKvBlock, k + head * hd, v + head * hd);
}

void Forward::write_positions(const AttentionPlan& plan, const StepPlan& step, const Share& share) {
    if (share.alone() || share.n <= kInlineTokens) {
        for (int token = share.first; token < share.first + share.n; ++token) write_position(plan, step, token);
        return;
    }
    threads_.run(ceil_div(step.n_tokens, kGroupRows), [&](int chunk, int) {
        for (int t = chunk * kGroupRows; t < std::min(step.n_tokens, (chunk + 1) * kGroupRows); ++t) write_position(plan, step, t);
    });
}

// Cuts the rows into items. How is free: an item's numbers don't depend on it.
void Forward::plan_attention(const StepPlan& step, const AttentionPlan& layer) {
    if (items_window_ == layer.window && items_heads_ == layer.n_heads / layer.n_kv_heads) return;
    items_window_ = layer.window;
    items_heads_ = layer.n_heads / layer.n_kv_heads;
    items_.clear();
    n_partials_ = 0;
    for (int row = 0; row < step.n_rows; ++row) {
        for (int token = step.row_starts[row]; token < step.row_starts[row + 1]; token += kItemTokens) {
            const int n = std::min(kItemTokens, step.row_starts[row + 1] - token);
            const int first = layer.window ? std::max(0, step.positions[token] - layer.window + 1) / kSpan : 0;
            const int end = step.positions[token + n - 1] / kSpan + 1;
            const bool split = threads_.in_use() > 1 && end - first > 1 && n * items_heads_ <= kVectors && step.n_rows < 4;
            if (!split) {
                items_.push_back({row, token, n, first, end - first, -1});
                continue;
            }
            for (int span = first; span < end; ++span) items_.push_back({row, token, n, span, 1, n_partials_++});
        }
    }
}

void Forward::attend(const AttentionPlan& plan, const StepPlan& step) {
    mixed_.get(int64_t(n_rows_) * plan.q_width());
    plan_attention(step, plan);
    if (n_partials_) partials_.get(int64_t(n_partials_) * plan.n_kv_heads);
    const int n = int(items_.size()) * plan.n_kv_heads;
    threads_.run(n, [&](int chunk, int) {
        // Late items of a prefill see most positions; starting with them evens out the end of the phase.
        const int index = n - 1 - chunk;
        attend_item(plan, step, items_[size_t(index / plan.n_kv_heads)], index % plan.n_kv_heads);
    });
    if (n_partials_) finish_partials(plan, step);
}

void Forward::attend_item(const AttentionPlan& plan, const StepPlan& step, const Item& item, int kv_head) {
    const int hd = plan.head_size(), sharing = plan.n_heads / plan.n_kv_heads, g = plan.cache_group;
    const int q_width = plan.q_width(), row_width = plan.row_width();
    const KvView kv{pools_[size_t(g)].data + plan.kv_offset + kv_head * plan.kv.stride, pools_[size_t(g)].block_bytes,
                    step.tables[g] + int64_t(item.row) * step.table_widths[g], plan.kv};
    const AttentionRule rule{plan.scale, plan.softcap, plan.window};
    Queries queries;
    Partial whole, next;
    const int n = item.n_tokens * sharing, per_group = ceil_div(n, ceil_div(n, kVectors));
    for (int first = 0; first < n; first += per_group) {
        queries.n = std::min(per_group, n - first);
        for (int v = 0; v < queries.n; ++v) {
            const int token = item.first_token + (first + v) / sharing, head = kv_head * sharing + (first + v) % sharing;
            queries.positions[v] = step.positions[token];
            std::memcpy(queries.q[v], qkv_.data() + int64_t(token) * row_width + head * hd, size_t(hd) * sizeof(float));
        }
        if (item.partial >= 0) {
            attend_span(kv, rule, queries, item.first_span, partials_.data()[int64_t(item.partial) * plan.n_kv_heads + kv_head]);
            continue;
        }
        const int start = first_span(queries, rule), end = end_span(queries);
        attend_span(kv, rule, queries, start, whole);
        for (int span = start + 1; span < end; ++span) {
            attend_span(kv, rule, queries, span, next);
            merge(whole, next, queries.n, hd);
        }
        for (int v = 0; v < queries.n; ++v) {
            const int token = item.first_token + (first + v) / sharing, head = kv_head * sharing + (first + v) % sharing;
            finish(whole, v, hd, plan.sinks ? plan.sinks + head : nullptr, mixed_.data() + int64_t(token) * q_width + head * hd);
        }
    }
}

void Forward::finish_partials(const AttentionPlan& plan, const StepPlan&) {
    const int hd = plan.head_size(), sharing = plan.n_heads / plan.n_kv_heads, q_width = plan.q_width();
    for (size_t i = 0; i < items_.size();) {
        const Item& item = items_[i];
        size_t end = i + 1;
        while (item.partial >= 0 && end < items_.size() && items_[end].first_token == item.first_token) ++end;
        for (int kv_head = 0; item.partial >= 0 && kv_head < plan.n_kv_heads; ++kv_head) {
            Partial& whole = partials_.data()[int64_t(item.partial) * plan.n_kv_heads + kv_head];
            const int n = item.n_tokens * sharing;
            for (size_t j = i + 1; j < end; ++j)
                merge(whole, partials_.data()[int64_t(items_[j].partial) * plan.n_kv_heads + kv_head], n, hd);
            for (int v = 0; v < n; ++v) {
                const int head = kv_head * sharing + v % sharing;
                finish(whole, v, hd, plan.sinks ? plan.sinks + head : nullptr,
                       mixed_.data() + int64_t(item.first_token + v / sharing) * q_width + head * hd);
            }
        }
        i = end;
    }
}

}  // namespace imp
