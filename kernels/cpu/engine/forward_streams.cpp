// What some layers have beside a mixer and a feed-forward (Gemma 3n and 4): what ids say to them, a second way around the
// mixer, and several streams of which they work on one.
//
// Arithmetic (twin_streams.py), a function of the row alone:
//   said = (norm of (x times the projection, over sqrt(width)) + own of the id times sqrt(size)) times sqrt(1/2)
//   how a stream counts: tanh of (its norm / width) times the router
//   predicted stream s = sum over t of predict[s, t] . counts times stream t, in that order, then + stream s
//   corrected stream s = (x - predicted stream 0) times (correct[s] . counts + 1) + predicted stream s
//   a stream made of another by a matrix is as large as that one: times its root mean square, over its own
#include <cmath>

#include "forward.h"

namespace imp {
namespace {

constexpr float kHalfRoot = 0.70710678118654752f;
constexpr float kSmallest = 1e-5f;  // of a mean square that is divided by

float dot(const float* a, const float* b, int n) {
    float sum = 0.0f;
    for (int i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
}

// y becomes as large as x is.
void as_large_as(const float* x, int n, float* y) {
    const float target = std::sqrt(mean_square(x, n)), own = std::sqrt(std::max(mean_square(y, n), kSmallest));
    for (int i = 0; i < n; ++i) y[i] = y[i] * target / own;
}

}  // namespace

void Forward::make_room_beside(int64_t n) {
    const int64_t width = model_.width, n_streams = model_.n_streams;
    const bool says = model_.layer_embedding.present();
    if (says) said_.get(n * model_.layer_embedding.n_in);
    if (n_streams > 1) {
        streams_.get(n * n_streams * width);
        counts_.get(n * n_streams);
    }
    if (n_streams > 1 || says) delta_.get(n * width);
    int64_t rank = 0, gates = 0;
    for (int l = 0; l < model_.n_layers; ++l) {
        const LayerPlan& layer = model_.layers[l];
        if (layer.laurel.down.present()) rank = std::max<int64_t>(rank, layer.laurel.down.n_out);
        if (layer.feed_forward != FeedForwardKind::experts && layer.dense.is_sparse)
            gates = std::max<int64_t>(gates, layer.dense.hidden);
    }
    if (rank) {
        laurel_.get(n * width);
        laurel_low_.get(n * rank);
    }
    if (gates) gates_.get(n * gates);
}

// to[row * stride + column] = the input's row times the matrix.
void Forward::multiply_to(Input& in, const Matrix& matrix, float* to, int64_t stride) {
    const int n_out = matrix.n_out;
    multiply(in, {&matrix}, [&](int, int first_row, int rows, int unit, float* out) {
        const int column = unit * kUnitColumns, count = std::min(kUnitColumns, n_out - column);
        for (int r = 0; r < rows; ++r)
            std::memcpy(to + int64_t(first_row + r) * stride + column, out + r * kUnitColumns, size_t(count) * sizeof(float));
    });
}

template <class Fn> void Forward::each_row(const Share& share, Fn&& f) {
    run_chunks(share, ceil_div(share.n, kGroupRows), [&](int group, int) {
        const int first = share.first + group * kGroupRows, end = std::min(share.first + share.n, first + kGroupRows);
        for (int row = first; row < end; ++row) f(row);
    });
}

// What the step's ids, and what they are embedded as, say to all layers.
void Forward::say_to_layers() {
    const Matrix& own = model_.layer_embedding;
    const int width = model_.width, size = model_.layers[0].said.size, whole = own.n_in;
    const float of_width = 1.0f / std::sqrt(float(width)), of_size = std::sqrt(float(size));
    const Prepare plain = [&](int first, int, float*) { return Rows{x_.data() + int64_t(first) * width, width}; };
    Input in = input(all_rows(), width, {&model_.layer_projection}, plain);
    multiply_to(in, model_.layer_projection, said_.data(), whole);
    each_row(all_rows(), [&](int row) {
        const int32_t id = ids_[size_t(row)];
        std::vector<float> said_by_id(size_t(whole) + 32);
        dequantise_row(own, id < model_.layer_vocab_size ? id : 0, said_by_id.data());
        float* said = said_.data() + int64_t(row) * whole;
        for (int at = 0; at < whole; at += size) {
            for (int i = at; i < at + size; ++i) said[i] *= of_width;
            normalise(model_.norm, model_.norm_eps, model_.layer_projection_norm, said + at, size, said + at);
            for (int i = at; i < at + size; ++i) said[i] = (said[i] + said_by_id[size_t(i)] * of_size) * kHalfRoot;
        }
    });
}

// x, or all streams but the first, plus what was said to this layer, as the gate lets it through.
void Forward::hear(const LayerPlan& layer, const Share& share) {
    const SaidPlan& plan = layer.said;
    const int width = model_.width, size = plan.size, n_streams = model_.n_streams;
    const int64_t whole = model_.layer_embedding.n_in;
    const Prepare heard_by = [&](int first, int n, float* room) {
        if (n_streams == 1) return Rows{x_.data() + int64_t(first) * width, width};
        for (int r = 0; r < n; ++r)
            for (int i = 0; i < width; ++i)
                room[int64_t(r) * width + i] = stream(first + r, 0)[i] * layer.streams.scale[i];
        return Rows{room, width};
    };
    const bool floats = is_float(plan.up.id());
    Hidden& own = share.alone() ? workers_[size_t(share.worker)].hidden : hidden_;
    Input heard{};
    heard.share = share;
    heard.shared = room(own.bytes, own.floats, share.n, size, !floats, floats);
    Input in = input(share, width, {&plan.gate}, heard_by);
    const int n_units = ceil_div(size, kUnitColumns), n_groups = in.shared.n_groups();
    run_chunks(share, n_units, [&](int unit, int worker) {
        const Activations& a = activations(in, worker);
        alignas(64) float gate[kGroupRows * kUnitColumns];
        for (int group = 0; group < n_groups; ++group) {
            multiply_unit(plan.gate, a, group, unit, gate);
            const int column = unit * kUnitColumns, count = std::min(kUnitColumns, size - column);
            for (int r = 0; r < a.rows_in(group); ++r) {
                float* g = gate + r * kUnitColumns;
                for (int i = 0; i < kUnitColumns; i += 16) store(g + i, activate(ActivationKind::gelu_tanh, load(g + i)));
                const float* said = said_.data() + (share.first + group * kGroupRows + r) * whole + plan.at + column;
                for (int i = 0; i < kUnitColumns; ++i) g[i] = i < count ? g[i] * said[i] : 0.0f;
            }
            put_block(heard.shared, group, unit, gate, kUnitColumns);
        }
    });
    if (n_streams == 1) return multiply_into_residual(heard, plan.up, nullptr, plan.norm);
    multiply_to(heard, plan.up, delta_.data(), width);
    each_row(share, [&](int row) {
        float* delta = delta_.data() + int64_t(row) * width;
        normalise(model_.norm, model_.norm_eps, plan.norm, delta, width, delta);
        for (int s = 1; s < n_streams; ++s)
            for (int i = 0; i < width; ++i) stream(row, s)[i] += delta[i];
    });
}

// The second way around the mixer, of what enters that.
void Forward::go_around(const LayerPlan& layer, const Share& share) {
    const LaurelPlan& plan = layer.laurel;
    const int width = model_.width, rank = plan.down.n_out;
    const Prepare entering = [&](int first, int n, float* room) { return normed(layer.attn_norm, x_.data(), first, n, room); };
    Input in = input(share, width, {&plan.down}, entering);
    multiply_to(in, plan.down, laurel_low_.data(), rank);
    const Prepare low = [&](int first, int, float*) { return Rows{laurel_low_.data() + int64_t(first) * rank, rank}; };
    Input low_in = input(share, rank, {&plan.up}, low);
    multiply_to(low_in, plan.up, laurel_.data(), width);
    each_row(share, [&](int row) {
        std::vector<float> entered(size_t(width) + 16);
        normalise(model_.norm, model_.norm_eps, layer.attn_norm, x_.data() + int64_t(row) * width, width, entered.data());
        float* around = laurel_.data() + int64_t(row) * width;
        normalise(model_.norm, model_.norm_eps, plan.norm, around, width, around);
        for (int i = 0; i < width; ++i) around[i] = entered[size_t(i)] + around[i];
    });
}

void Forward::meet_around(const Share& share) {
    const int64_t begin = int64_t(share.first) * model_.width, end = begin + int64_t(share.n) * model_.width;
    for (int64_t i = begin; i < end; ++i) x_.data()[i] = (x_.data()[i] + laurel_.data()[i]) * kHalfRoot;
}

// Streams that are made of x: as large, each by a matrix of its own.
void Forward::spread_streams() {
    const int width = model_.width, n_streams = model_.n_streams;
    const Prepare plain = [&](int first, int, float*) { return Rows{x_.data() + int64_t(first) * width, width}; };
    Input in = input(all_rows(), width, {&model_.stream_projection}, plain);
    multiply_to(in, model_.stream_projection, streams_.data() + width, int64_t(n_streams) * width);
    each_row(all_rows(), [&](int row) {
        const float* x = x_.data() + int64_t(row) * width;
        std::memcpy(stream(row, 0), x, size_t(width) * sizeof(float));
        for (int s = 1; s < n_streams; ++s) as_large_as(x, width, stream(row, s));
    });
}

// Into counts_: how the streams count, by what `from` [rows at `stride`] has.
void Forward::count_streams(const StreamsPlan& plan, const float* from, int64_t stride, const Share& share) {
    const int width = model_.width, n_streams = model_.n_streams;
    const Prepare scaled = [&](int first, int n, float* room) {
        for (int r = 0; r < n; ++r) {
            float* to = room + int64_t(r) * width;
            normalise(model_.norm, model_.norm_eps, plan.router_norm, from + (first + r) * stride, width, to);
            for (int i = 0; i < width; ++i) to[i] *= 1.0f / float(width);
        }
        return Rows{room, width};
    };
    Input in = input(share, width, {&plan.router}, scaled);
    multiply_to(in, plan.router, counts_.data(), n_streams);
    each_row(share, [&](int row) {
        float* counts = counts_.data() + int64_t(row) * n_streams;
        alignas(64) float lanes[16] = {};
        std::memcpy(lanes, counts, size_t(n_streams) * sizeof(float));
        store(lanes, hyperbolic_tangent(load(lanes)));
        std::memcpy(counts, lanes, size_t(n_streams) * sizeof(float));
    });
}

// The streams as this layer expects them; x is the first.
void Forward::predict_streams(const StreamsPlan& plan, const Share& share) {
    const int width = model_.width, n = model_.n_streams;
    count_streams(plan, streams_.data(), int64_t(n) * width, share);
    each_row(share, [&](int row) {
        const float* counts = counts_.data() + int64_t(row) * n;
        std::vector<float> before(stream(row, 0), stream(row, n));
        for (int s = 0; s < n; ++s) {
            float shares[kMostStreams];
            for (int t = 0; t < n; ++t) shares[t] = dot(plan.predict + (s * n + t) * n, counts, n);
            float* to = stream(row, s);
            for (int i = 0; i < width; ++i) {
                float sum = shares[0] * before[size_t(i)];
                for (int t = 1; t < n; ++t) sum += shares[t] * before[size_t(t * width + i)];
                to[i] = sum + before[size_t(s * width + i)];
            }
        }
        std::memcpy(x_.data() + int64_t(row) * width, stream(row, 0), size_t(width) * sizeof(float));
    });
}

// The streams, corrected by what the layer made of the first.
void Forward::correct_streams(const StreamsPlan& plan, const Share& share) {
    const int width = model_.width, n = model_.n_streams;
    count_streams(plan, x_.data(), width, share);
    each_row(share, [&](int row) {
        const float *counts = counts_.data() + int64_t(row) * n, *x = x_.data() + int64_t(row) * width;
        float* first = stream(row, 0);
        for (int s = n - 1; s >= 0; --s) {
            const float weight = dot(plan.correct + s * n, counts, n) + 1.0f;
            float* to = stream(row, s);
            for (int i = 0; i < width; ++i) to[i] = (x[i] - first[i]) * weight + to[i];
        }
    });
}

// x = the mean of the streams, all as large as the first.
void Forward::merge_streams() {
    const int width = model_.width, n = model_.n_streams;
    for (int s = 1; s < n; ++s) {
        const Prepare own = [&](int first, int, float*) { return Rows{stream(first, s), int64_t(n) * width}; };
        Matrix matrix = model_.stream_merge;
        matrix.data += int64_t(s - 1) * (width / kPanelRows) * matrix.panel_bytes;
        matrix.n_out = width;
        Input in = input(all_rows(), width, {&matrix}, own);
        multiply_to(in, matrix, delta_.data(), width);
        each_row(all_rows(), [&](int row) {
            float *x = x_.data() + int64_t(row) * width, *delta = delta_.data() + int64_t(row) * width;
            if (s == 1) std::memcpy(x, stream(row, 0), size_t(width) * sizeof(float));
            as_large_as(stream(row, 0), width, delta);
            for (int i = 0; i < width; ++i) x[i] += delta[i];
            for (int i = 0; s == n - 1 && i < width; ++i) x[i] /= float(n);
        });
    }
}

}  // namespace imp
