#include "forward.h"

#include <algorithm>
#include <limits>

namespace imp {
namespace {

constexpr int kByWorkerRows = 4;         // up to here each worker normalises and quantises for itself: no barrier
constexpr int64_t kChunkBytes = 192 << 10;  // weights of a chunk that meets many row groups
constexpr int kItemTokens = 16;
constexpr int kInlineTokens = 4;         // cheaper done by the leader than handed out

int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace

Forward::Forward(const ModelPlan& model, int n_threads, int spin_us)
    : model_(model), threads_(n_threads, spin_us), workers_(size_t(std::max(1, n_threads))) {
    threads_.use(n_threads);
}

int Forward::check(const StepPlan& step) const {
    for (int row = 0; row < step.n_rows; ++row) {
        if (step.row_starts[row] >= step.row_starts[row + 1]) return 1;
        for (int t = step.row_starts[row] + 1; t < step.row_starts[row + 1]; ++t)
            if (step.positions[t] != step.positions[t - 1] + 1) return 2;
    }
    if (step.row_starts[0] != 0 || step.row_starts[step.n_rows] != step.n_tokens) return 1;
    for (int row = 0; row < step.n_rows; ++row) {
        const int first = step.positions[step.row_starts[row]], last = step.positions[step.row_starts[row + 1] - 1];
        if (first < 0) return 2;
        for (int g = 0; g < model_.n_groups; ++g) {
            if (last / kKvBlock >= step.table_widths[g]) return 3;
            const int32_t* table = step.tables[g] + int64_t(row) * step.table_widths[g];
            for (int i = 0; i <= last / kKvBlock; ++i)
                if (table[i] >= pools_[g].n_blocks || (i >= first / kKvBlock && table[i] < 0)) return 3;
        }
    }
    for (int t = 0; t < step.n_tokens; ++t)
        if (step.ids[t] < 0 || step.ids[t] >= model_.vocab_size) return 4;
    for (int l = 0; l < model_.n_layers; ++l) {
        const int rope = model_.layers[l].rope;
        for (int row = 0; rope >= 0 && row < step.n_rows; ++row)
            if (step.positions[step.row_starts[row + 1] - 1] >= step.rope_positions[rope]) return 5;
    }
    return 0;
}

void Forward::run(const StepPlan& step) {
    threads_.use(step.n_threads);
    n_rows_ = step.n_tokens;
    items_window_ = -1;
    row_of_token_.resize(size_t(step.n_tokens));
    for (int row = 0; row < step.n_rows; ++row)
        std::fill(row_of_token_.begin() + step.row_starts[row], row_of_token_.begin() + step.row_starts[row + 1], row);
    wanted_.clear();
    std::set_union(step.head_tokens, step.head_tokens + step.n_head, step.hidden_tokens, step.hidden_tokens + step.n_hidden,
                   std::back_inserter(wanted_));
    embed(step);
    for (int l = 0; l < model_.n_layers; ++l) {
        layer(model_.layers[l], step, l + 1 == model_.n_layers);
        if (n_rows_ == 0) return;
    }
    head(step);
    sample(step);
}

void Forward::embed(const StepPlan& step) {
    float* x = x_.get(int64_t(step.n_tokens) * model_.width);
    const int per_chunk = 16;
    threads_.run(ceil_div(step.n_tokens, per_chunk), [&](int chunk, int) {
        for (int t = chunk * per_chunk; t < std::min(step.n_tokens, (chunk + 1) * per_chunk); ++t) {
            float* row = x + int64_t(t) * model_.width;
            dequantise_row(model_.embedding, step.ids[t], row);
            if (model_.embedding_scale != 1.0f)
                for (int i = 0; i < model_.width; ++i) row[i] *= model_.embedding_scale;
        }
    });
}

void Forward::layer(const LayerPlan& plan, const StepPlan& step, bool last) {
    attention_block(plan, step, last);
    if (n_rows_) ffn_block(plan);
}

Activations Forward::room(Buffer<uint8_t>& bytes, Buffer<float>& floats, int n_rows, int n_in, bool quantised, bool with_floats) {
    Activations a;
    a.n_rows = n_rows;
    a.n_blocks = ceil_div(n_in, kBlock);
    if (quantised) a.quantised = bytes.get(int64_t(n_rows) * a.n_blocks * kActivationBytes);
    if (with_floats) a.floats = floats.get(int64_t(n_rows) * a.n_blocks * kBlock);
    return a;
}

Forward::Input Forward::input(int n_rows, int n_in, std::initializer_list<const Matrix*> matrices, const Prepare& prepare) {
    Input in{};
    in.prepare = &prepare;
    in.n_in = n_in;
    in.serial = ++serial_;
    for (const Matrix* matrix : matrices) {
        if (!matrix->present()) continue;
        (is_float(matrix->id()) ? in.floats : in.quantised) = true;
    }
    in.by_worker = n_rows <= kByWorkerRows;
    in.shared.n_rows = n_rows;
    if (in.by_worker) return in;
    in.shared = room(input_bytes_, input_floats_, n_rows, n_in, in.quantised, in.floats);
    threads_.run(in.shared.n_groups(), [&](int group, int) {
        for (int r = 0; r < in.shared.rows_in(group); ++r) prepare(in.shared, group * kGroupRows + r);
    });
    return in;
}

const Activations& Forward::activations(Input& in, int worker) {
    if (!in.by_worker) return in.shared;
    Worker& own = workers_[size_t(worker)];
    if (own.serial != in.serial) {
        own.activations = room(own.bytes, own.floats, in.shared.n_rows, in.n_in, in.quantised, in.floats);
        for (int row = 0; row < in.shared.n_rows; ++row) (*in.prepare)(own.activations, row);
        own.serial = in.serial;
    }
    return own.activations;
}

int Forward::units_per_chunk(int n_units, int64_t unit_bytes, int n_row_groups) const {
    const int threads = threads_.in_use();
    if (threads == 1 && n_row_groups == 1) return n_units;
    int per_chunk = threads == 1 ? n_units : std::max(1, n_units / (threads * 6));
    if (n_row_groups > 1) per_chunk = int(std::min<int64_t>(per_chunk, std::max<int64_t>(1, kChunkBytes / unit_bytes)));
    return per_chunk;
}

template <class Fn> void Forward::multiply(Input& in, std::initializer_list<const Matrix*> matrices, Fn&& epilogue) {
    int n_units = 0;
    int64_t unit_bytes = 1;
    for (const Matrix* m : matrices) {
        n_units += ceil_div(m->n_out, kUnitColumns);
        unit_bytes = std::max(unit_bytes, 2 * m->panel_bytes);
    }
    const int n_groups = in.shared.n_groups(), per_chunk = units_per_chunk(n_units, unit_bytes, n_groups);
    threads_.run(ceil_div(n_units, per_chunk), [&](int chunk, int worker) {
        const Activations& a = activations(in, worker);
        alignas(64) float out[kGroupRows * kUnitColumns];
        for (int group = 0; group < n_groups; ++group) {
            int first = chunk * per_chunk, left = std::min(n_units - first, per_chunk), segment = 0;
            for (const Matrix* m : matrices) {
                const int units = ceil_div(m->n_out, kUnitColumns);
                for (; left > 0 && first < units; ++first, --left) {
                    multiply_unit(*m, a, group, first, out);
                    epilogue(segment, group * kGroupRows, a.rows_in(group), first, out);
                }
                first -= units;
                ++segment;
            }
        }
    });
}

void Forward::attention_block(const LayerPlan& plan, const StepPlan& step, bool last) {
    const int q_width = plan.n_heads * plan.head_size, kv_width = plan.n_kv_heads * plan.head_size;
    const int row_width = q_width + 2 * kv_width, width = model_.width;
    float* x = x_.data();
    float* qkv = qkv_.get(int64_t(n_rows_) * row_width);
    const Prepare normed = [&](const Activations& to, int row) {
        alignas(64) thread_local std::vector<float> y;
        y.resize(size_t(width) + 16);
        normalise(model_.norm, model_.norm_eps, plan.attn_norm, x + int64_t(row) * width, width, y.data());
        put_row(to, row, y.data(), width);
    };
    {
        Input in = input(n_rows_, width, {&plan.q, &plan.k, &plan.v}, normed);
        const int offsets[3] = {0, q_width, q_width + kv_width};
        const int widths[3] = {q_width, kv_width, kv_width};
        const float* biases[3] = {plan.q_bias, plan.k_bias, plan.v_bias};
        multiply(in, {&plan.q, &plan.k, &plan.v}, [&](int segment, int first_row, int rows, int unit, float* out) {
            const int column = unit * kUnitColumns, count = std::min(kUnitColumns, widths[segment] - column);
            const float* bias = biases[segment];
            for (int r = 0; r < rows; ++r) {
                float* to = qkv + int64_t(first_row + r) * row_width + offsets[segment] + column;
                for (int i = 0; i < count; ++i) to[i] = bias ? out[r * kUnitColumns + i] + bias[column + i] : out[r * kUnitColumns + i];
            }
        });
    }
    write_positions(plan, step);
    mixed_.get(int64_t(n_rows_) * q_width);
    attend(plan, step);
    if (last) keep_wanted(step);
    if (!n_rows_) return;

    const float* mixed = mixed_.data();
    const bool residual_first = !plan.post_attn_norm.weight;
    float* delta = residual_first ? nullptr : delta_.get(int64_t(n_rows_) * width);
    const Prepare plain = [&](const Activations& to, int row) { put_row(to, row, mixed + int64_t(row) * q_width, q_width); };
    Input in = input(n_rows_, q_width, {&plan.o}, plain);
    multiply(in, {&plan.o}, [&](int, int first_row, int rows, int unit, float* out) {
        const int column = unit * kUnitColumns, count = std::min(kUnitColumns, width - column);
        for (int r = 0; r < rows; ++r) {
            const int64_t at = int64_t(first_row + r) * width + column;
            for (int i = 0; i < count; ++i) {
                const float y = plan.o_bias ? out[r * kUnitColumns + i] + plan.o_bias[column + i] : out[r * kUnitColumns + i];
                if (residual_first) x[at + i] += y * model_.residual_scale;
                else delta[at + i] = y;
            }
        }
    });
    if (!residual_first) add_to_residual(delta, plan.post_attn_norm);
}

void Forward::add_to_residual(const float* delta, const Norm& post_norm) {
    const int width = model_.width;
    threads_.run(ceil_div(n_rows_, kGroupRows), [&](int group, int) {
        std::vector<float> y(size_t(width) + 16);
        for (int row = group * kGroupRows; row < std::min(n_rows_, (group + 1) * kGroupRows); ++row) {
            normalise(model_.norm, model_.norm_eps, post_norm, delta + int64_t(row) * width, width, y.data());
            float* x = x_.data() + int64_t(row) * width;
            for (int i = 0; i < width; ++i) x[i] += y[size_t(i)] * model_.residual_scale;
        }
    });
}

void Forward::ffn_block(const LayerPlan& plan) {
    const int width = model_.width, hidden = plan.ffn_hidden;
    float* x = x_.data();
    const Prepare normed = [&](const Activations& to, int row) {
        thread_local std::vector<float> y;
        y.resize(size_t(width) + 16);
        normalise(model_.norm, model_.norm_eps, plan.ffn_norm, x + int64_t(row) * width, width, y.data());
        put_row(to, row, y.data(), width);
    };
    const bool down_floats = is_float(plan.down.id());
    Activations act = room(hidden_bytes_, hidden_floats_, n_rows_, hidden, !down_floats, down_floats);
    Input in = input(n_rows_, width, {&plan.gate, &plan.up}, normed);
    const int n_units = ceil_div(hidden, kUnitColumns), n_groups = in.shared.n_groups();
    const int64_t unit_bytes = 2 * (plan.up.panel_bytes + (plan.gate.present() ? plan.gate.panel_bytes : 0));
    const int per_chunk = units_per_chunk(n_units, unit_bytes, n_groups);
    threads_.run(ceil_div(n_units, per_chunk), [&](int chunk, int worker) {
        const Activations& a = activations(in, worker);
        alignas(64) float gate[kGroupRows * kUnitColumns], up[kGroupRows * kUnitColumns];
        for (int group = 0; group < n_groups; ++group) {
            for (int unit = chunk * per_chunk; unit < std::min(n_units, (chunk + 1) * per_chunk); ++unit) {
                if (plan.gate.present()) multiply_unit(plan.gate, a, group, unit, gate);
                multiply_unit(plan.up, a, group, unit, up);
                const int column = unit * kUnitColumns, count = std::min(kUnitColumns, hidden - column);
                for (int r = 0; r < a.rows_in(group); ++r) {
                    float* u = up + r * kUnitColumns;
                    float* g = plan.gate.present() ? gate + r * kUnitColumns : u;
                    for (int i = 0; i < count; ++i) {
                        if (plan.up_bias) u[i] += plan.up_bias[column + i];
                        if (plan.gate_bias && g != u) g[i] += plan.gate_bias[column + i];
                    }
                    for (int i = count; i < kUnitColumns; ++i) u[i] = g[i] = 0.0f;
                    for (int i = 0; i < kUnitColumns; i += 16) {
                        const Floats activated = activate(model_.activation, load(g + i));
                        store(u + i, plan.gate.present() ? mul(activated, load(u + i)) : activated);
                    }
                    put_block(act, group * kGroupRows + r, unit, u);
                }
            }
        }
    });

    const bool residual_first = !plan.post_ffn_norm.weight;
    float* delta = residual_first ? nullptr : delta_.get(int64_t(n_rows_) * width);
    Input from_hidden{};
    from_hidden.shared = act;
    multiply(from_hidden, {&plan.down}, [&](int, int first_row, int rows, int unit, float* out) {
        const int column = unit * kUnitColumns, count = std::min(kUnitColumns, width - column);
        for (int r = 0; r < rows; ++r) {
            const int64_t at = int64_t(first_row + r) * width + column;
            for (int i = 0; i < count; ++i) {
                const float y = plan.down_bias ? out[r * kUnitColumns + i] + plan.down_bias[column + i] : out[r * kUnitColumns + i];
                if (residual_first) x[at + i] += y * model_.residual_scale;
                else delta[at + i] = y;
            }
        }
    });
    if (!residual_first) add_to_residual(delta, plan.post_ffn_norm);
}

void Forward::write_position(const LayerPlan& plan, const StepPlan& step, int token) {
    const int hd = plan.head_size, q_width = plan.n_heads * hd, kv_width = plan.n_kv_heads * hd;
    float* q = qkv_.data() + int64_t(token) * (q_width + 2 * kv_width);
    float* k = q + q_width;
    const float* v = k + kv_width;
    if (plan.qk_norm_whole) {
        normalise(NormKind::rms, model_.norm_eps, plan.q_norm, q, q_width, q);
        normalise(NormKind::rms, model_.norm_eps, plan.k_norm, k, kv_width, k);
    }
    const int position = step.positions[token], row = row_of_token_[size_t(token)], g = plan.cache_group;
    const float* table = plan.rope >= 0 ? step.rope_tables[plan.rope] + int64_t(position) * plan.rope_dims : nullptr;
    for (int head = 0; head < plan.n_heads + plan.n_kv_heads; ++head) {
        const bool is_q = head < plan.n_heads;
        if (!plan.qk_norm_whole) normalise(NormKind::rms, model_.norm_eps, is_q ? plan.q_norm : plan.k_norm, q + head * hd, hd, q + head * hd);
        if (table) rotate(q + head * hd, plan.rope_dims, plan.rope_interleaved, table);
    }
    const int32_t block = step.tables[g][int64_t(row) * step.table_widths[g] + position / kKvBlock];
    uint8_t* at = pools_[size_t(g)].data + block * pools_[size_t(g)].block_bytes + plan.kv_offset;
    for (int head = 0; head < plan.n_kv_heads; ++head)
        write_kv(model_.kv, hd, at + head * kv_head_bytes(model_.kv, hd), position % kKvBlock, k + head * hd, v + head * hd);
}

void Forward::write_positions(const LayerPlan& plan, const StepPlan& step) {
    if (step.n_tokens <= kInlineTokens) {
        for (int token = 0; token < step.n_tokens; ++token) write_position(plan, step, token);
        return;
    }
    threads_.run(ceil_div(step.n_tokens, kGroupRows), [&](int chunk, int) {
        for (int t = chunk * kGroupRows; t < std::min(step.n_tokens, (chunk + 1) * kGroupRows); ++t) write_position(plan, step, t);
    });
}

// Cuts the rows into items. How is free: an item's numbers don't depend on it.
void Forward::plan_attention(const StepPlan& step, const LayerPlan& layer) {
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

void Forward::attend(const LayerPlan& plan, const StepPlan& step) {
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

void Forward::attend_item(const LayerPlan& plan, const StepPlan& step, const Item& item, int kv_head) {
    const int hd = plan.head_size, sharing = plan.n_heads / plan.n_kv_heads, g = plan.cache_group;
    const int q_width = plan.n_heads * hd, row_width = q_width + 2 * plan.n_kv_heads * hd;
    const KvView kv{pools_[size_t(g)].data + plan.kv_offset + kv_head * kv_head_bytes(model_.kv, hd), pools_[size_t(g)].block_bytes,
                    step.tables[g] + int64_t(item.row) * step.table_widths[g], model_.kv, hd};
    const AttentionRule rule{plan.attention_scale, plan.softcap, plan.window};
    Queries queries;
    Partial whole, next;
    for (int first = 0; first < item.n_tokens * sharing; first += kVectors) {
        queries.n = std::min(kVectors, item.n_tokens * sharing - first);
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

void Forward::finish_partials(const LayerPlan& plan, const StepPlan&) {
    const int hd = plan.head_size, sharing = plan.n_heads / plan.n_kv_heads, q_width = plan.n_heads * hd;
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

// After the last layer's attention only the wanted rows go on.
void Forward::keep_wanted(const StepPlan& step) {
    const LayerPlan& plan = model_.layers[model_.n_layers - 1];
    const int64_t width = model_.width, q_width = plan.n_heads * plan.head_size;
    for (size_t i = 0; i < wanted_.size(); ++i) {
        std::memmove(x_.data() + int64_t(i) * width, x_.data() + wanted_[i] * width, size_t(width) * sizeof(float));
        std::memmove(mixed_.data() + int64_t(i) * q_width, mixed_.data() + wanted_[i] * q_width, size_t(q_width) * sizeof(float));
    }
    n_rows_ = int(wanted_.size());
    (void)step;
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
