// The attention half of a forward: positions into the cache, then items of queries against it.
#include <algorithm>
#include <cmath>

#include "forward.h"

namespace imp {
namespace {

constexpr int kItemTokens = kVectors;  // so that an item's queries fill its groups, however many heads share a key

}  // namespace

void Forward::write_position(const AttentionPlan& plan, const StepPlan& step, int token) {
    const int hd = plan.head_size(), q_width = plan.q_width(), kv_width = plan.kv_width();
    float* q = qkv_.data() + int64_t(token) * (q_width + 2 * kv_width);
    float* k = q + q_width;
    float* v = k + kv_width;
    const bool has_keys = plan.k.present();
    if (has_keys && !plan.v.present()) std::memcpy(v, k, size_t(kv_width) * sizeof(float));
    for (int head = 0; has_keys && head < plan.n_kv_heads; ++head)
        normalise(model_.norm, model_.norm_eps, plan.v_norm, v + head * hd, hd, v + head * hd);
    if (plan.qk_norm_whole) {
        normalise(model_.norm, model_.norm_eps, plan.q_norm, q, q_width, q);
        normalise(model_.norm, model_.norm_eps, plan.k_norm, k, kv_width, k);
    }
    const int position = step.positions[token];
    const float* table = plan.rope >= 0 ? step.rope_tables[plan.rope] + int64_t(position) * plan.rope_dims : nullptr;
    for (int head = 0; head < plan.n_heads + (has_keys ? plan.n_kv_heads : 0); ++head) {
        const bool is_q = head < plan.n_heads;
        const Norm& norm = is_q ? plan.q_norm : plan.k_norm;
        float* at = q + head * hd;
        if (!plan.qk_norm_whole && !plan.norm_after_rope) normalise(model_.norm, model_.norm_eps, norm, at, hd, at);
        if (table) rotate(at, plan.rope_dims, plan.rope_interleaved, table);
        if (plan.norm_after_rope) normalise(model_.norm, model_.norm_eps, norm, at, hd, at);
    }
    if (plan.temperature != 0.0f) {
        const float factor = float(1.0 + double(plan.temperature) * std::log(1.0 + (position + plan.temperature_offset) / plan.temperature_step));
        for (int i = 0; i < q_width; ++i) q[i] *= factor;
    }
    if (!has_keys) return;
    uint8_t* at = position_in_cache(step, token, plan.cache_group, plan.kv_offset);
    for (int head = 0; head < plan.n_kv_heads; ++head)
        write_kv(plan.kv, at + head * plan.kv.stride, position % kKvBlock, k + head * hd, v + head * hd);
}

// Where the layer's data of the token's block begin.
uint8_t* Forward::position_in_cache(const StepPlan& step, int token, int cache_group, int64_t offset) const {
    const int row = row_of_token_[size_t(token)];
    const int32_t block = table_of(cache_group, row)[step.positions[token] / kKvBlock];
    return pools_[size_t(cache_group)].data + block * pools_[size_t(cache_group)].block_bytes + offset;
}

Forward::Heads Forward::heads_of(const AttentionPlan& plan) {
    return {plan.kv, plan.kv_offset, plan.row_width(), plan.n_heads, plan.n_kv_heads, plan.cache_group,
            plan.head_size(), plan.head_size(), plan.sinks, {plan.scale, plan.softcap, plan.window, plan.chunk}};
}

Forward::Heads Forward::heads_of(const LatentPlan& plan) {
    return {plan.kv, plan.kv_offset, plan.row_width(), plan.n_heads, 1, plan.cache_group,
            plan.key_width(), plan.rank(), nullptr, {plan.scale, 0.0f, 0, 0}};
}

// Cuts the rows into items. How is free: an item's numbers don't depend on it.
void Forward::plan_attention(const StepPlan& step, const Heads& layer) {
    if (items_window_ == layer.rule.window && items_chunk_ == layer.rule.chunk && items_heads_ == layer.sharing()) return;
    items_window_ = layer.rule.window;
    items_chunk_ = layer.rule.chunk;
    items_heads_ = layer.sharing();
    items_.clear();
    n_partials_ = 0;
    for (int row = 0; row < step.n_rows; ++row) {
        for (int token = step.row_starts[row]; token < step.row_starts[row + 1]; token += kItemTokens) {
            const int n = std::min(kItemTokens, step.row_starts[row + 1] - token);
            const int first = std::max(0, layer.rule.first_seen(step.positions[token])) / kSpan;
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

void Forward::attend(const Heads& heads, const StepPlan& step) {
    mixed_.get(int64_t(n_rows_) * heads.mixed_width());
    plan_attention(step, heads);
    if (n_partials_) partials_.get(int64_t(n_partials_) * heads.n_kv_heads);
    const int n = int(items_.size()) * heads.n_kv_heads;
    threads_.run(n, [&](int chunk, int) {
        // Late items of a prefill see most positions; starting with them evens out the end of the phase.
        const int index = n - 1 - chunk;
        attend_item(heads, step, items_[size_t(index / heads.n_kv_heads)], index % heads.n_kv_heads);
    });
    if (n_partials_) finish_partials(heads);
}

void Forward::attend_item(const Heads& heads, const StepPlan& step, const Item& item, int kv_head) {
    const int sharing = heads.sharing(), g = heads.cache_group, size = heads.value_size;
    const KvView kv{pools_[size_t(g)].data + heads.kv_offset + kv_head * heads.kv.stride, pools_[size_t(g)].block_bytes,
                    table_of(g, item.row), heads.kv};
    Queries queries;
    Partial whole, next;
    const int n = item.n_tokens * sharing, per_group = ceil_div(n, ceil_div(n, kVectors));
    for (int first = 0; first < n; first += per_group) {
        queries.n = std::min(per_group, n - first);
        for (int v = 0; v < queries.n; ++v) {
            const int token = item.first_token + (first + v) / sharing, head = kv_head * sharing + (first + v) % sharing;
            queries.positions[v] = step.positions[token];
            std::memcpy(queries.q[v], qkv_.data() + token * heads.row_width + head * heads.query_size, size_t(heads.query_size) * sizeof(float));
        }
        if (item.partial >= 0) {
            attend_span(kv, heads.rule, queries, item.first_span, partials_.data()[int64_t(item.partial) * heads.n_kv_heads + kv_head]);
            continue;
        }
        const int start = first_span(queries, heads.rule), end = end_span(queries);
        attend_span(kv, heads.rule, queries, start, whole);
        for (int span = start + 1; span < end; ++span) {
            attend_span(kv, heads.rule, queries, span, next);
            merge(whole, next, queries.n, size);
        }
        for (int v = 0; v < queries.n; ++v) {
            const int token = item.first_token + (first + v) / sharing, head = kv_head * sharing + (first + v) % sharing;
            finish(whole, v, size, heads.sinks ? heads.sinks + head : nullptr, mixed_.data() + int64_t(token) * heads.mixed_width() + head * size);
        }
    }
}

void Forward::finish_partials(const Heads& heads) {
    const int size = heads.value_size, sharing = heads.sharing();
    for (size_t i = 0; i < items_.size();) {
        const Item& item = items_[i];
        size_t end = i + 1;
        while (item.partial >= 0 && end < items_.size() && items_[end].first_token == item.first_token) ++end;
        for (int kv_head = 0; item.partial >= 0 && kv_head < heads.n_kv_heads; ++kv_head) {
            Partial& whole = partials_.data()[int64_t(item.partial) * heads.n_kv_heads + kv_head];
            const int n = item.n_tokens * sharing;
            for (size_t j = i + 1; j < end; ++j)
                merge(whole, partials_.data()[int64_t(items_[j].partial) * heads.n_kv_heads + kv_head], n, size);
            for (int v = 0; v < n; ++v) {
                const int head = kv_head * sharing + v % sharing;
                finish(whole, v, size, heads.sinks ? heads.sinks + head : nullptr,
                       mixed_.data() + int64_t(item.first_token + v / sharing) * heads.mixed_width() + head * size);
            }
        }
        i = end;
    }
}

}  // namespace imp
