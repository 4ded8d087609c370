#include "forward.h"

#include <algorithm>
#include <cstring>

namespace imp {
namespace {

constexpr int32_t kMostSlots = 1 << 16, kMostColumns = 1 << 24;
constexpr int kByWorkerRows = 4;         // up to here each worker normalises and quantises for itself: no barrier
constexpr int64_t kChunkBytes = 192 << 10;  // weights of a chunk that meets many row groups
// Rows that one thread takes through a whole layer: their activations stay in its second-level cache, while each weight
// that it reads from the third meets all of them.
constexpr int kBlockRows = 32, kFewestBlockRows = 16;

}  // namespace

Forward::Forward(const ModelPlan& model, int n_threads, int spin_us)
    : model_(model), threads_(n_threads, spin_us), workers_(size_t(std::max(1, n_threads))) {
    threads_.use(n_threads);
}

void Forward::set_pools(const PoolPlan* pools) {
    pools_.assign(pools, pools + model_.n_groups);
    slots_.clear();
}

void Forward::copy_block(int group, int32_t source, int32_t target) {
    const PoolPlan& pool = pools_[size_t(group)];
    std::memcpy(pool.data + target * pool.block_bytes, pool.data + source * pool.block_bytes, size_t(pool.block_bytes));
}

Error Forward::begin(const StepPlan& step) {
    row_slots_.clear();
    for (int row = 0; row < step.n_rows; ++row) {
        const int32_t slot = step.slots[row];
        if (slot < 0 || slot >= kMostSlots) return Error::wrong_slot;
        if (size_t(slot) >= slots_.size()) slots_.resize(size_t(slot) + 1);
        if (!slots_[size_t(slot)])
            slots_[size_t(slot)] = std::make_unique<Slot>(Slot{-1, std::vector<std::vector<int32_t>>(size_t(model_.n_groups))});
        row_slots_.push_back(slots_[size_t(slot)].get());
    }
    if (const Error wrong = change_tables(step); wrong != Error::ok) return wrong;
    if (step.row_starts[0] != 0 || step.row_starts[step.n_rows] != step.n_tokens) return Error::wrong_rows;
    for (int row = 0; row < step.n_rows; ++row)
        if (step.row_starts[row] >= step.row_starts[row + 1]) return Error::wrong_rows;
    ids_.assign(step.ids, step.ids + step.n_tokens);
    for (int row = 0; row < step.n_rows; ++row) {
        const int32_t last = row_slots_[size_t(row)]->last;
        for (int t = step.row_starts[row]; t < step.row_starts[row + 1]; ++t)
            if (ids_[size_t(t)] == kLastSampled && last != -1) ids_[size_t(t)] = last < 0 ? 0 : last;
    }
    return check(step);
}

Error Forward::change_tables(const StepPlan& step) {
    for (int g = 0; g < model_.n_groups; ++g) {
        const TableChanges& changes = step.table_changes[g];
        for (int64_t i = 0; i < changes.n; ++i) {
            const int32_t slot = changes.slots[i], column = changes.columns[i];
            if (slot < 0 || size_t(slot) >= slots_.size() || !slots_[size_t(slot)] || column < 0 || column >= kMostColumns) return Error::wrong_block_table;
            std::vector<int32_t>& table = slots_[size_t(slot)]->tables[size_t(g)];
            if (size_t(column) >= table.size()) table.resize(size_t(column) + 1, -1);
            table[size_t(column)] = changes.blocks[i];
        }
    }
    return Error::ok;
}

void Forward::note_sampled(const StepPlan& step) {
    for (int row = 0; row < step.n_rows; ++row)
        if (step.best_heads[row] >= 0) {
            const int32_t best = step.best[step.best_heads[row]];
            row_slots_[size_t(row)]->last = best < 0 ? -2 : best;
        }
    for (int i = 0; i < step.n_samplers; ++i) {
        const SamplerPlan& plan = step.samplers[i];
        slots_[size_t(plan.slot)]->last = plan.n_tokens > 0 ? plan.tokens[plan.n_tokens - 1] : -2;
    }
}

Error Forward::check(const StepPlan& step) const {
    for (int row = 0; row < step.n_rows; ++row) {
        for (int t = step.row_starts[row] + 1; t < step.row_starts[row + 1]; ++t)
            if (step.positions[t] != step.positions[t - 1] + 1) return Error::wrong_positions;
    }
    for (int row = 0; row < step.n_rows; ++row) {
        const int first = step.positions[step.row_starts[row]], last = step.positions[step.row_starts[row + 1] - 1];
        if (first < 0) return Error::wrong_positions;
        for (int g = 0; g < model_.n_groups; ++g) {
            const std::vector<int32_t>& table = row_slots_[size_t(row)]->tables[size_t(g)];
            if (size_t(last / kKvBlock) >= table.size()) return Error::wrong_block_table;
            for (size_t i = 0; i <= size_t(last / kKvBlock); ++i)
                if (table[i] >= pools_[g].n_blocks || (i >= size_t(first / kKvBlock) && table[i] < 0)) return Error::wrong_block_table;
        }
    }
    for (int t = 0; t < step.n_tokens; ++t)
        if (ids_[size_t(t)] < 0 || ids_[size_t(t)] >= model_.vocab_size) return Error::wrong_id;
    for (int i = 0; i < step.n_embedded; ++i)
        if (step.embedded_tokens[i] < 0 || step.embedded_tokens[i] >= step.n_tokens) return Error::wrong_id;
    for (int i = 0; i < step.n_samplers; ++i) {
        const int32_t slot = step.samplers[i].slot;
        if (slot < 0 || size_t(slot) >= slots_.size() || !slots_[size_t(slot)]) return Error::wrong_slot;
    }
    for (int l = 0; l < model_.n_layers; ++l) {
        const LayerPlan& layer = model_.layers[l];
        const int rope = layer.mixer == MixerKind::attention ? layer.attention.rope : layer.latent.rope;
        for (int row = 0; rope >= 0 && row < step.n_rows; ++row)
            if (step.positions[step.row_starts[row + 1] - 1] >= step.rope_positions[rope]) return Error::beyond_rope;
    }
    return Error::ok;
}

void Forward::run(const StepPlan& step) {
    threads_.use(step.n_threads);
    n_rows_ = step.n_tokens;
    items_window_ = -1;
    row_of_token_.resize(size_t(step.n_tokens));
    for (int row = 0; row < step.n_rows; ++row)
        std::fill(row_of_token_.begin() + step.row_starts[row], row_of_token_.begin() + step.row_starts[row + 1], row);
    take_adapters(step);
    for (int i = 0; i < step.n_samplers; ++i) {
        SamplerPlan& plan = step.samplers[i];
        plan.ahead = slots_[size_t(plan.slot)]->last;
    }
    wanted_.clear();
    std::set_union(step.head_tokens, step.head_tokens + step.n_head, step.hidden_tokens, step.hidden_tokens + step.n_hidden,
                   std::back_inserter(wanted_));
    make_room_beside(n_rows_);
    embed(step);
    if (model_.layer_embedding.present()) say_to_layers();
    if (model_.n_streams > 1) spread_streams();
    if (const int rows = rows_per_block(n_rows_)) layers_by_blocks(step, rows);
    else layers_together(step);
    if (n_rows_ == 0) return;
    if (model_.n_streams > 1) merge_streams();
    head(step);
    sample(step);
    note_sampled(step);
}

void Forward::embed(const StepPlan& step) {
    float* x = x_.get(int64_t(step.n_tokens) * model_.width);
    const int per_chunk = 16;
    threads_.run(ceil_div(step.n_tokens, per_chunk), [&](int chunk, int) {
        for (int t = chunk * per_chunk; t < std::min(step.n_tokens, (chunk + 1) * per_chunk); ++t) {
            float* row = x + int64_t(t) * model_.width;
            dequantise_row(model_.embedding, ids_[size_t(t)], row);
            if (model_.embedding_scale != 1.0f)
                for (int i = 0; i < model_.width; ++i) row[i] *= model_.embedding_scale;
        }
    });
    for (int i = 0; i < step.n_embedded; ++i)
        std::memcpy(x + int64_t(step.embedded_tokens[i]) * model_.width, step.embeddings + int64_t(i) * model_.width,
                    size_t(model_.width) * sizeof(float));
}

// Few rows: all threads share each matrix.
void Forward::layers_together(const StepPlan& step) {
    for (int l = 0; l < model_.n_layers; ++l) {
        const LayerPlan& plan = model_.layers[l];
        begin_mixer(plan, step, all_rows());
        mix(plan, step);
        if (l + 1 == model_.n_layers) keep_wanted();
        if (n_rows_ == 0) return;
        end_mixer(plan, all_rows());
        feed_forward(plan, all_rows());
    }
}

// 0: so few blocks that threads would wait for the last ones.
int Forward::rows_per_block(int n_rows) const {
    const int threads = threads_.in_use();
    if (n_rows >= 8 * threads * kBlockRows) return kBlockRows;
    return n_rows >= 4 * threads * kFewestBlockRows ? kFewestBlockRows : 0;
}

// Many rows: between two attentions each thread takes blocks of them through all that is done row by row, so that the
// threads meet twice in a layer, not eight times, and a block's numbers never leave its core.
void Forward::layers_by_blocks(const StepPlan& step, int rows_per_block) {
    const int64_t n = n_rows_;
    for (int l = 0; l < model_.n_layers; ++l) {
        make_room(model_.layers[l], n);
    }
    delta_.get(n * model_.width);
    before_.get(n * model_.width);
    const auto each_block = [&](const std::function<void(const Share&)>& f) {
        threads_.run(ceil_div(n_rows_, rows_per_block), [&](int block, int worker) {
            const int first = block * rows_per_block;
            f({first, std::min(rows_per_block, n_rows_ - first), worker});
        });
    };
    for (int l = 0; l < model_.n_layers; ++l) {
        const LayerPlan* last = l > 0 ? &model_.layers[l - 1] : nullptr;
        const bool together = last && last->feed_forward != FeedForwardKind::dense;  // one expert's rows come from all blocks
        if (together) {
            each_block([&](const Share& share) { end_mixer(*last, share); });
            feed_forward(*last, all_rows());
        }
        each_block([&](const Share& share) {
            if (last && !together) {
                end_mixer(*last, share);
                feed_forward(*last, share);
            }
            begin_mixer(model_.layers[l], step, share);
        });
        mix(model_.layers[l], step);
    }
    keep_wanted();
    if (n_rows_ == 0) return;
    end_mixer(model_.layers[model_.n_layers - 1], all_rows());
    feed_forward(model_.layers[model_.n_layers - 1], all_rows());
}

// A further kind of mixer or feed-forward is a further line in these six, and a file of its own.
int Forward::mixed_width(const LayerPlan& plan) const {
    switch (plan.mixer) {
        case MixerKind::attention: return plan.attention.q_width();
        case MixerKind::latent: return plan.latent.n_heads * plan.latent.rank();
    }
    return 0;
}

void Forward::make_room(const LayerPlan& plan, int64_t n_rows) {
    switch (plan.mixer) {
        case MixerKind::attention: qkv_.get(n_rows * plan.attention.row_width()); break;
        case MixerKind::latent:
            qkv_.get(n_rows * plan.latent.row_width());
            by_head_.get(n_rows * plan.latent.o.n_in);
    }
    mixed_.get(n_rows * mixed_width(plan));
}

void Forward::begin_mixer(const LayerPlan& plan, const StepPlan& step, const Share& share) {
    if (plan.parallel) {
        const int64_t width = model_.width;
        float* before = share.alone() ? before_.data() : before_.get(int64_t(n_rows_) * width);
        std::memcpy(before + share.first * width, x_.data() + share.first * width, size_t(share.n * width) * sizeof(float));
    }
    if (model_.n_streams > 1) predict_streams(plan.streams, share);
    if (plan.laurel.down.present()) go_around(plan, share);
    switch (plan.mixer) {
        case MixerKind::attention: return project(plan, plan.attention, step, share);
        case MixerKind::latent: return project_latent(plan, plan.latent, step, share);
    }
}

void Forward::mix(const LayerPlan& plan, const StepPlan& step) {
    switch (plan.mixer) {
        case MixerKind::attention: return attend(heads_of(plan.attention), step);
        case MixerKind::latent: return attend(heads_of(plan.latent), step);
    }
}

void Forward::end_mixer(const LayerPlan& plan, const Share& share) {
    switch (plan.mixer) {
        case MixerKind::attention:
            project_out(mixed_.data(), plan.attention.o, plan.attention.o_bias, plan.post_attn_norm, share);
            break;
        case MixerKind::latent: end_latent(plan, plan.latent, share);
    }
    if (plan.laurel.down.present()) meet_around(share);
}

void Forward::feed_forward(const LayerPlan& plan, const Share& share) {
    switch (plan.feed_forward) {
        case FeedForwardKind::dense: feed_dense(plan, plan.dense, share); break;
        case FeedForwardKind::experts: feed_experts(plan, plan.experts, false); break;
        case FeedForwardKind::dense_and_experts: feed_experts(plan, plan.experts, true);
    }
    if (model_.n_streams > 1) correct_streams(plan.streams, share);
    if (plan.said.size) hear(plan, share);
    const int width = model_.width;
    for (int64_t i = int64_t(share.first) * width; plan.scale != 1.0f && i < int64_t(share.first + share.n) * width; ++i)
        x_.data()[i] *= plan.scale;
}

Activations Forward::room(Buffer<uint8_t>& bytes, Buffer<float>& floats, int n_rows, int n_in, bool quantised, bool with_floats) {
    Activations a;
    a.n_rows = n_rows;
    a.n_blocks = ceil_div(n_in, kBlock);
    if (quantised) a.quantised = bytes.get(int64_t(n_rows) * a.n_blocks * kActivationBytes);
    if (with_floats) a.floats = floats.get(int64_t(n_rows) * a.n_blocks * kBlock);
    return a;
}

Forward::Input Forward::input(const Share& share, int n_in, std::initializer_list<const Matrix*> matrices, const Prepare& prepare) {
    Input in{};
    in.share = share;
    in.prepare = &prepare;
    in.n_in = n_in;
    for (const Matrix* matrix : matrices) {
        if (!matrix->present()) continue;
        (is_float(matrix->id()) ? in.floats : in.quantised) = true;
    }
    in.by_worker = !share.alone() && share.n <= kByWorkerRows;
    in.shared.n_rows = share.n;
    if (adapters_) prepare_additions(in, matrices, n_in, prepare);
    if (in.by_worker) {
        in.serial = ++serial_;
        return in;
    }
    Buffer<uint8_t>& bytes = share.alone() ? workers_[size_t(share.worker)].bytes : input_bytes_;
    Buffer<float>& floats = share.alone() ? workers_[size_t(share.worker)].floats : input_floats_;
    in.shared = room(bytes, floats, share.n, n_in, in.quantised, in.floats);
    run_chunks(share, in.shared.n_groups(), [&](int group, int worker) { fill(in.shared, group, in, worker); });
    return in;
}

void Forward::fill(const Activations& to, int group, const Input& in, int worker) {
    float* room = workers_[size_t(worker)].rows.get(int64_t(kGroupRows) * in.n_in);
    const Rows rows = (*in.prepare)(in.share.first + group * kGroupRows, to.rows_in(group), room);
    put_group(to, group, rows.first, rows.stride, in.n_in);
}

const Activations& Forward::activations(Input& in, int worker) {
    if (!in.by_worker) return in.shared;
    Worker& own = workers_[size_t(worker)];
    if (own.serial != in.serial) {
        own.activations = room(own.bytes, own.floats, in.shared.n_rows, in.n_in, in.quantised, in.floats);
        fill(own.activations, 0, in, worker);
        own.serial = in.serial;
    }
    return own.activations;
}

int Forward::units_per_chunk(const Share& share, int n_units, int64_t unit_bytes, int n_row_groups) const {
    if (share.alone()) return 1;
    const int threads = threads_.in_use();
    if (threads == 1 && n_row_groups == 1) return n_units;
    int per_chunk = threads == 1 ? n_units : std::max(1, n_units / (threads * 6));
    if (n_row_groups > 1) per_chunk = int(std::min<int64_t>(per_chunk, std::max<int64_t>(1, kChunkBytes / unit_bytes)));
    return per_chunk;
}

// The norm before a layer's half, for each group of rows of x when it comes to be multiplied.
Forward::Rows Forward::normed(const Norm& norm, const float* x, int first, int n, float* room) const {
    const int64_t width = model_.width;
    for (int r = 0; r < n; ++r)
        normalise(model_.norm, model_.norm_eps, norm, x + (first + r) * width, model_.width, room + r * width);
    return {room, width};
}

void Forward::project(const LayerPlan& layer, const AttentionPlan& plan, const StepPlan& step, const Share& share) {
    const int q_width = plan.q_width(), kv_width = plan.kv_width(), row_width = plan.row_width(), width = model_.width;
    float* qkv = share.alone() ? qkv_.data() : qkv_.get(int64_t(n_rows_) * row_width);
    const Prepare prepare = [&](int first, int n, float* room) { return normed(layer.attn_norm, x_.data(), first, n, room); };
    Input in = input(share, width, {&plan.q, &plan.k, &plan.v}, prepare);
    const int offsets[3] = {0, q_width, q_width + kv_width};
    const int widths[3] = {q_width, kv_width, kv_width};
    const float* biases[3] = {plan.q_bias, plan.k_bias, plan.v_bias};
    multiply(in, {&plan.q, &plan.k, &plan.v}, [&](int segment, int first_row, int rows, int unit, float* out) {
        const int column = unit * kUnitColumns, count = std::min(kUnitColumns, widths[segment] - column);
        const float* bias = biases[segment];
        for (int r = 0; r < rows; ++r) {
            float* to = qkv + int64_t(first_row + r) * row_width + offsets[segment] + column;
            std::memcpy(to, out + r * kUnitColumns, size_t(count) * sizeof(float));
            for (int i = 0; bias && i < count; ++i) to[i] += bias[column + i];
        }
    });
    for_positions(step, share, [&](int token) { write_position(plan, step, token); });
}

void Forward::project_out(const float* mixed, const Matrix& matrix, const float* bias, const Norm& post_norm, const Share& share) {
    const int mixed_width = matrix.n_in;
    const Prepare plain = [&](int first, int, float*) { return Rows{mixed + int64_t(first) * mixed_width, mixed_width}; };
    Input in = input(share, mixed_width, {&matrix}, plain);
    multiply_into_residual(in, matrix, bias, post_norm);
}

// x += residual_scale * post_norm(input times the matrix + bias).
void Forward::multiply_into_residual(Input& in, const Matrix& matrix, const float* bias, const Norm& post_norm) {
    const int width = model_.width;
    float* x = x_.data();
    const bool residual_first = !post_norm.weight;
    float* delta = in.share.alone() || residual_first ? delta_.data() : delta_.get(int64_t(n_rows_) * width);
    multiply(in, {&matrix}, [&](int, int first_row, int rows, int unit, float* out) {
        const int column = unit * kUnitColumns, count = std::min(kUnitColumns, width - column);
        for (int r = 0; r < rows; ++r) {
            const int64_t at = int64_t(first_row + r) * width + column;
            for (int i = 0; i < count; ++i) {
                const float y = bias ? out[r * kUnitColumns + i] + bias[column + i] : out[r * kUnitColumns + i];
                if (residual_first) x[at + i] += y * model_.residual_scale;
                else delta[at + i] = y;
            }
        }
    });
    if (!residual_first) add_to_residual(delta, post_norm, in.share);
}

void Forward::add_to_residual(const float* delta, const Norm& post_norm, const Share& share) {
    const int width = model_.width;
    run_chunks(share, ceil_div(share.n, kGroupRows), [&](int group, int) {
        std::vector<float> y(size_t(width) + 16);
        const int first = share.first + group * kGroupRows, end = std::min(share.first + share.n, first + kGroupRows);
        for (int row = first; row < end; ++row) {
            normalise(model_.norm, model_.norm_eps, post_norm, delta + int64_t(row) * width, width, y.data());
            float* x = x_.data() + int64_t(row) * width;
            for (int i = 0; i < width; ++i) x[i] += y[size_t(i)] * model_.residual_scale;
        }
    });
}

// up = activated gate * up, or activated up where there is no gate, with their biases; [n_rows][32] of one unit.
void Forward::gate_unit(const Gate& plan, int unit, int n_rows, float* gate, float* up) const {
    const int column = unit * kUnitColumns, count = std::min(kUnitColumns, plan.hidden - column);
    for (int r = 0; r < n_rows; ++r) {
        float *u = up + r * kUnitColumns, *g = gate + r * kUnitColumns;
        for (int i = 0; plan.up_bias && i < count; ++i) u[i] += plan.up_bias[column + i];
        for (int i = 0; plan.present && plan.gate_bias && i < count; ++i) g[i] += plan.gate_bias[column + i];
        for (int i = 0; i < kUnitColumns; i += 16) {
            if (plan.activation == ActivationKind::swiglu_clamped) {
                store(u + i, clamped_gate(load(g + i), load(u + i)));
                continue;
            }
            const Floats activated = activate(plan.activation, load(plan.present ? g + i : u + i));
            store(u + i, plan.present ? mul(activated, load(u + i)) : activated);
        }
        for (int i = count; i < kUnitColumns; ++i) u[i] = 0.0f;
    }
}

// Into gates_: by how much each gate exceeds its row's cut-off.
void Forward::cut_off_gates(const DensePlan& plan, Input& in) {
    const int hidden = plan.hidden;
    multiply_to(in, plan.gate, gates_.data(), hidden);
    run_chunks(in.share, in.share.n, [&](int r, int) {
        float* gates = gates_.data() + int64_t(in.share.first + r) * hidden;
        const float cutoff = cutoff_of(gates, hidden, plan.cutoff);
        for (int i = 0; i < hidden; ++i) gates[i] = std::max(gates[i] - cutoff, 0.0f);
    });
}

// What `down` is multiplied with, of the rows of a share.
Forward::Input Forward::dense_hidden(const DensePlan& plan, const Share& share, const Prepare& prepare) {
    const int hidden = plan.hidden;
    const Gate gate_of{hidden, plan.activation, plan.gate_bias, plan.up_bias, plan.gate.present()};
    const bool down_floats = is_float(plan.down.id());
    Hidden& own = share.alone() ? workers_[size_t(share.worker)].hidden : hidden_;
    Activations act = room(own.bytes, own.floats, share.n, hidden, !down_floats, down_floats);
    float* rows = adapters_ ? own.rows.get(int64_t(share.n) * hidden) : nullptr;  // before they are quantised
    Input in = input(share, model_.width, {&plan.gate, &plan.up}, prepare);
    if (plan.is_sparse) cut_off_gates(plan, in);
    const int n_units = ceil_div(hidden, kUnitColumns), n_groups = in.shared.n_groups();
    const int64_t unit_bytes = 2 * (plan.up.panel_bytes + (plan.gate.present() ? plan.gate.panel_bytes : 0));
    const int per_chunk = units_per_chunk(share, n_units, unit_bytes, n_groups);
    run_chunks(share, ceil_div(n_units, per_chunk), [&](int chunk, int worker) {
        const Activations& a = activations(in, worker);
        alignas(64) float gate[kGroupRows * kUnitColumns], up[kGroupRows * kUnitColumns];
        for (int group = 0; group < n_groups; ++group) {
            for (int unit = chunk * per_chunk; unit < std::min(n_units, (chunk + 1) * per_chunk); ++unit) {
                if (plan.is_sparse) {
                    const int column = unit * kUnitColumns, count = std::min(kUnitColumns, hidden - column);
                    const float* from = gates_.data() + int64_t(share.first + group * kGroupRows) * hidden + column;
                    for (int r = 0; r < a.rows_in(group); ++r)
                        std::memcpy(gate + r * kUnitColumns, from + int64_t(r) * hidden, size_t(count) * sizeof(float));
                } else if (plan.gate.present()) {
                    multiply_unit(plan.gate, a, group, unit, gate);
                    add_adapters(in, plan.gate, group, unit, gate);
                }
                multiply_unit(plan.up, a, group, unit, up);
                add_adapters(in, plan.up, group, unit, up);
                gate_unit(gate_of, unit, a.rows_in(group), gate, up);
                put_block(act, group, unit, up, kUnitColumns);
                const int column = unit * kUnitColumns;
                for (int r = 0; rows && r < a.rows_in(group); ++r)
                    std::memcpy(rows + int64_t(group * kGroupRows + r) * hidden + column, up + r * kUnitColumns,
                                size_t(std::min(kUnitColumns, hidden - column)) * sizeof(float));
            }
        }
    });

    Input from_hidden{};
    from_hidden.share = share;
    from_hidden.shared = act;
    if (rows) {
        const Prepare plain = [&](int first, int, float*) { return Rows{rows + int64_t(first - share.first) * hidden, hidden}; };
        prepare_additions(from_hidden, {&plan.down}, hidden, plain);
    }
    return from_hidden;
}

void Forward::feed_dense(const LayerPlan& layer, const DensePlan& plan, const Share& share) {
    const float* from = layer.parallel ? before_.data() : x_.data();
    const Prepare prepare = [&](int first, int n, float* room) { return normed(layer.ffn_norm, from, first, n, room); };
    Input in = dense_hidden(plan, share, prepare);
    multiply_into_residual(in, plan.down, plan.down_bias, layer.post_ffn_norm);
}

// After the last layer's mixer only the wanted rows go on.
void Forward::keep_wanted() {
    const int64_t width = model_.width, mixed = mixed_width(model_.layers[model_.n_layers - 1]);
    const auto keep = [](float* rows, int64_t size, size_t to, int32_t from) {
        std::memmove(rows + int64_t(to) * size, rows + from * size, size_t(size) * sizeof(float));
    };
    const LayerPlan& last = model_.layers[model_.n_layers - 1];
    for (size_t i = 0; i < wanted_.size(); ++i) {
        if (last.said.size) keep(said_.data(), model_.layer_embedding.n_in, i, wanted_[i]);
        if (last.laurel.down.present()) keep(laurel_.data(), width, i, wanted_[i]);
        if (model_.n_streams > 1) keep(streams_.data(), model_.n_streams * width, i, wanted_[i]);
        if (adapters_) adapters_of_[i] = adapters_of_[size_t(wanted_[i])];
        if (last.parallel) keep(before_.data(), width, i, wanted_[i]);
        keep(x_.data(), width, i, wanted_[i]);
        keep(mixed_.data(), mixed, i, wanted_[i]);
    }
    n_rows_ = int(wanted_.size());
}

}  // namespace imp
