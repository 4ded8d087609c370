// The mixer of layers with latent attention: queries brought into the space of the latents, and back.
#include <cmath>

#include "forward.h"

namespace imp {

// Each head's numbers times its own rows of a matrix: all.n_in numbers to all.n_out / n_heads.
void Forward::multiply_by_head(const Matrix& all, int n_heads, const ByHead& from, const ByHead& to, const Share& share) {
    const int n_out = all.n_out / n_heads, n_groups = ceil_div(share.n, kGroupRows);
    const bool floats = is_float(all.id());
    run_chunks(share, n_heads * n_groups, [&](int chunk, int worker) {
        const int head = chunk / n_groups, first = share.first + chunk % n_groups * kGroupRows;
        const int n = std::min(kGroupRows, share.first + share.n - first);
        Matrix own = all;
        own.data += int64_t(head) * (n_out / kPanelRows) * all.panel_bytes;
        own.n_out = n_out;
        Hidden& hidden = workers_[size_t(worker)].hidden;
        const Activations a = room(hidden.bytes, hidden.floats, n, all.n_in, !floats, floats);
        put_group(a, 0, from.at + first * from.row_stride + head * from.head_stride, from.row_stride, all.n_in);
        alignas(64) float out[kGroupRows * kUnitColumns];
        for (int unit = 0; unit < ceil_div(n_out, kUnitColumns); ++unit) {
            multiply_unit(own, a, 0, unit, out);
            const int column = unit * kUnitColumns, count = std::min(kUnitColumns, n_out - column);
            for (int r = 0; r < n; ++r)
                std::memcpy(to.at + (first + r) * to.row_stride + head * to.head_stride + column, out + r * kUnitColumns,
                            size_t(count) * sizeof(float));
        }
    });
}

void Forward::project_latent(const LayerPlan& layer, const LatentPlan& plan, const StepPlan& step, const Share& share) {
    const int64_t row_width = plan.row_width();
    float* rows = share.alone() ? qkv_.data() : qkv_.get(n_rows_ * row_width);
    const auto keep = [&](int at, int width, const float* bias, int first_row, int n, int unit, const float* out) {
        const int column = unit * kUnitColumns, count = std::min(kUnitColumns, width - column);
        for (int r = 0; r < n; ++r) {
            float* to = rows + (first_row + r) * row_width + at + column;
            for (int i = 0; i < count; ++i) to[i] = bias ? out[r * kUnitColumns + i] + bias[column + i] : out[r * kUnitColumns + i];
        }
    };
    const bool compressed = plan.q_a.present();
    const Matrix& of_x = compressed ? plan.q_a : plan.q;
    const Prepare normed_x = [&](int first, int n, float* room) { return normed(layer.attn_norm, x_.data(), first, n, room); };
    Input in = input(share, model_.width, {&of_x, &plan.kv_a}, normed_x);
    multiply(in, {&of_x, &plan.kv_a}, [&](int segment, int first_row, int n, int unit, float* out) {
        if (segment == 1) keep(plan.key_at(), plan.key_width(), plan.kv_a_bias, first_row, n, unit, out);
        else keep(compressed ? plan.q_a_at() : plan.q_at(), of_x.n_out, plan.q_a_bias, first_row, n, unit, out);
    });
    if (compressed) {
        const int rank = plan.q_rank();
        const Prepare normed_q = [&](int first, int n, float* room) {
            for (int r = 0; r < n; ++r)
                normalise(NormKind::rms, plan.eps, plan.q_a_norm, rows + (first + r) * row_width + plan.q_a_at(), rank, room + r * rank);
            return Rows{room, rank};
        };
        Input q_in = input(share, rank, {&plan.q}, normed_q);
        multiply(q_in, {&plan.q}, [&](int, int first_row, int n, int unit, float* out) {
            keep(plan.q_at(), plan.q.n_out, nullptr, first_row, n, unit, out);
        });
    }
    multiply_by_head(plan.k_b, plan.n_heads, {rows + plan.q_at(), row_width, plan.head_size()}, {rows, row_width, plan.key_width()}, share);
    for_positions(step, share, [&](int token) { write_latent_position(plan, step, token); });
}

// The rest of a token's queries, and its key into the cache.
void Forward::write_latent_position(const LatentPlan& plan, const StepPlan& step, int token) {
    float *row = qkv_.data() + int64_t(token) * plan.row_width(), *latent = row + plan.key_at(), *turned = latent + plan.rank();
    const int position = step.positions[token], dims = plan.turned();
    const float* table = step.rope_tables[plan.rope] + int64_t(position) * dims;
    for (int head = 0; head < plan.n_heads; ++head) {
        float* to = row + head * plan.key_width() + plan.rank();
        std::memcpy(to, row + plan.q_at() + head * plan.head_size() + plan.still_size, size_t(dims) * sizeof(float));
        rotate(to, dims, plan.rope_interleaved, table);
    }
    if (plan.temperature != 0.0f) {
        const float factor = float(1.0 + double(plan.temperature) * std::log(1.0 + position / plan.temperature_step));
        for (int i = 0; i < plan.key_at(); ++i) row[i] *= factor;
    }
    normalise(NormKind::rms, plan.eps, plan.kv_a_norm, latent, plan.rank(), latent);
    rotate(turned, dims, plan.rope_interleaved, table);
    write_latent(plan.kv, position_in_cache(step, token, plan.cache_group, plan.kv_offset), position % kKvBlock, latent, turned);
}

void Forward::end_latent(const LayerPlan& layer, const LatentPlan& plan, const Share& share) {
    const int64_t width = plan.o.n_in, rank = plan.rank();
    float* values = share.alone() ? by_head_.data() : by_head_.get(n_rows_ * width);
    multiply_by_head(plan.v_b, plan.n_heads, {mixed_.data(), plan.n_heads * rank, rank}, {values, width, plan.value_size}, share);
    project_out(values, plan.o, plan.o_bias, layer.post_attn_norm, share);
}

}  // namespace imp
