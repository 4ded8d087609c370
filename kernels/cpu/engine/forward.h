// One forward of a batch: prefill chunks and decode rows mixed, every row by itself as far as numbers go.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "head_plane.h"
#include "plan.h"
#include "pool.h"
#include "scratch.h"

namespace imp {

constexpr int kMostStreams = 8;

inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

class Forward {
public:
    Forward(const ModelPlan& model, int n_threads, int spin_us);

    void set_pools(const PoolPlan* pools);
    void copy_block(int group, int32_t source, int32_t target);
    Pool& threads() { return threads_; }
    const PlaneSearch& plane_search() const { return plane_search_; }
    int n_masked_panels() const { return n_masked_panels_; }  // multiplied in the last step for rows whose masks allow few

    // Takes in what the step brings for its slots. `ok`, or what is wrong with it.
    Error begin(const StepPlan& step);
    // After `begin` said `ok`.
    void run(const StepPlan& step);

private:
    // Rows of up to 8 queries of one KV head that attention treats as one piece of work.
    struct Item {
        int row, first_token, n_tokens;
        int first_span, n_spans;  // spans done by this item
        int partial;              // index of its partial, -1 = it finishes by itself
    };
    // Where the numbers of rows [first, first + n) are, n <= 8: in `room` (as many rows of n_in), or wherever they were.
    struct Rows {
        const float* first;
        int64_t stride;
    };
    using Prepare = std::function<Rows(int first, int n, float* room)>;

    // Rows that are worked on: by one worker alone, or by all threads together (worker -1).
    struct Share {
        int first, n, worker;

        bool alone() const { return worker >= 0; }
    };
    // What adapters add to what a phase's matrices make of its rows: by groups of rows, then by matrices, then by rows.
    struct Added {
        int row;
        const AdapterTerm* term;
        float scale;
        int64_t low;  // where a x of it lies in `lows`
    };
    struct Additions {
        std::vector<Added> all;
        std::vector<int> starts;
        std::vector<int32_t> targets;
        float* lows = nullptr;
    };
    // The activations of a phase: prepared once by everybody together, or by each worker for itself when the rows are few.
    struct Input {
        Share share;
        Activations shared;
        const Prepare* prepare;
        bool by_worker;
        int n_in;
        bool floats, quantised;
        uint64_t serial;
        Additions added;
    };

    Share all_rows() const { return {0, n_rows_, -1}; }
    // Runs f(chunk, worker) for all chunks: on the share's own worker, or on all threads.
    template <class Fn> void run_chunks(const Share& share, int n_chunks, Fn&& f);
    Input input(const Share& share, int n_in, std::initializer_list<const Matrix*> matrices, const Prepare& prepare);
    const Activations& activations(Input& input, int worker);
    void fill(const Activations& to, int group, const Input& input, int worker);
    void take_adapters(const StepPlan& step);
    void prepare_additions(Input& input, std::initializer_list<const Matrix*> matrices, int n_in, const Prepare& prepare);
    void add_adapters(const Input& input, const Matrix& matrix, int group, int unit, float* out) const;
    Activations room(Buffer<uint8_t>& bytes, Buffer<float>& floats, int n_rows, int n_in, bool quantised, bool with_floats);

    Error change_tables(const StepPlan& step);
    Error check(const StepPlan& step) const;
    void note_sampled(const StepPlan& step);
    const int32_t* table_of(int group, int row) const { return row_slots_[size_t(row)]->tables[size_t(group)].data(); }

    void embed(const StepPlan& step);
    void layers_together(const StepPlan& step);
    void layers_by_blocks(const StepPlan& step, int rows_per_block);
    int rows_per_block(int n_rows) const;
    // A layer's mixer: what is done row by row, into the cache; what rows see of each other there; row by row again, into x.
    int mixed_width(const LayerPlan& plan) const;
    void make_room(const LayerPlan& plan, int64_t n_rows);
    void begin_mixer(const LayerPlan& plan, const StepPlan& step, const Share& share);
    void mix(const LayerPlan& plan, const StepPlan& step);
    void end_mixer(const LayerPlan& plan, const Share& share);
    void feed_forward(const LayerPlan& plan, const Share& share);

    Rows normed(const Norm& norm, const float* x, int first, int n, float* room) const;
    // x += what `mixed` [rows, matrix.n_in] makes.
    void project_out(const float* mixed, const Matrix& matrix, const float* bias, const Norm& post_norm, const Share& share);
    void multiply_into_residual(Input& input, const Matrix& matrix, const float* bias, const Norm& post_norm);
    void feed_dense(const LayerPlan& layer, const DensePlan& plan, const Share& share);
    struct Gate {
        int hidden;
        ActivationKind activation;
        const float *gate_bias, *up_bias;
        bool present;
    };
    void gate_unit(const Gate& plan, int unit, int n_rows, float* gate, float* up) const;
    Input dense_hidden(const DensePlan& plan, const Share& share, const Prepare& prepare);
    void cut_off_gates(const DensePlan& plan, Input& in);

    // Experts (forward_experts.cpp): always all rows together.
    struct Job {
        int expert, slot, n;
    };
    void feed_experts(const LayerPlan& layer, const ExpertsPlan& plan, bool beside_dense);
    void run_dense_beside(const LayerPlan& layer);
    void route(const LayerPlan& layer, const ExpertsPlan& plan);
    void sort_by_expert(const ExpertsPlan& plan);
    void run_experts(const ExpertsPlan& plan);
    void run_shared(const ExpertsPlan& plan);
    template <class Fn> void for_job_units(int n_units, Fn&& f);

    // What attention needs to know of a layer: queries in qkv_, results to mixed_, each head's after the other.
    struct Heads {
        KvForm kv;
        int64_t kv_offset, row_width;  // row_width: of qkv_, which begins with the queries
        int n_heads, n_kv_heads, cache_group;
        int query_size, value_size;
        const float* sinks;
        AttentionRule rule;

        int sharing() const { return n_heads / n_kv_heads; }
        int mixed_width() const { return n_heads * value_size; }
    };
    static Heads heads_of(const AttentionPlan& plan);
    static Heads heads_of(const LatentPlan& plan);
    void project(const LayerPlan& layer, const AttentionPlan& plan, const StepPlan& step, const Share& share);
    void attend(const Heads& heads, const StepPlan& step);
    template <class Fn> void for_positions(const StepPlan& step, const Share& share, Fn&& write);
    void write_position(const AttentionPlan& plan, const StepPlan& step, int token);
    uint8_t* position_in_cache(const StepPlan& step, int token, int cache_group, int64_t offset) const;
    void plan_attention(const StepPlan& step, const Heads& heads);
    void attend_item(const Heads& heads, const StepPlan& step, const Item& item, int kv_head);
    void finish_partials(const Heads& heads);

    // What ids say to layers, a second way around the mixer, and streams beside x (forward_streams.cpp).
    void make_room_beside(int64_t n_rows);
    template <class Fn> void each_row(const Share& share, Fn&& f);
    void multiply_to(Input& input, const Matrix& matrix, float* to, int64_t stride);
    void say_to_layers();
    void hear(const LayerPlan& layer, const Share& share);
    void go_around(const LayerPlan& layer, const Share& share);
    void meet_around(const Share& share);
    void spread_streams();
    void count_streams(const StreamsPlan& plan, const float* from, int64_t stride, const Share& share);
    void predict_streams(const StreamsPlan& plan, const Share& share);
    void correct_streams(const StreamsPlan& plan, const Share& share);
    void merge_streams();
    float* stream(int row, int s) const { return streams_.data() + (int64_t(row) * model_.n_streams + s) * model_.width; }

    // Latents (forward_latent.cpp).
    void project_latent(const LayerPlan& layer, const LatentPlan& plan, const StepPlan& step, const Share& share);
    void write_latent_position(const LatentPlan& plan, const StepPlan& step, int token);
    void end_latent(const LayerPlan& layer, const LatentPlan& plan, const Share& share);
    // Numbers of a row and a head: at + row * row_stride + head * head_stride.
    struct ByHead {
        float* at;
        int64_t row_stride, head_stride;
    };
    void multiply_by_head(const Matrix& all, int n_heads, const ByHead& from, const ByHead& to, const Share& share);
    void keep_wanted();
    void add_to_residual(const float* delta, const Norm& post_norm, const Share& share);
    void head(const StepPlan& step);
    void head_panels(const float* normed, const std::vector<int>& panels, float* logits);
    template <class Fn> void whole_head(const StepPlan& step, const std::vector<int>& heads, Fn&& normed_of);
    void sample(const StepPlan& step);

    // Calls epilogue(segment, first_row, n_rows, unit, out[8][32]) for all outputs of the matrices.
    template <class Fn> void multiply(Input& input, std::initializer_list<const Matrix*> matrices, Fn&& epilogue);
    // Units per claim: few enough claims to be cheap, small enough pieces to share and to stay in the second-level cache.
    int units_per_chunk(const Share& share, int n_units, int64_t unit_bytes, int n_row_groups) const;

    const ModelPlan model_;
    Pool threads_;
    std::vector<PoolPlan> pools_;
    // What is kept of a row from step to step.
    struct Slot {
        int32_t last;  // the id sampled last; -1 = none yet, -2 = the last step sampled nothing
        std::vector<std::vector<int32_t>> tables;
    };
    std::vector<std::unique_ptr<Slot>> slots_;
    std::vector<Slot*> row_slots_;
    std::vector<int32_t> ids_;  // of the step, with what slots sampled last
    int n_rows_ = 0;  // rows of x that are still of interest
    uint64_t serial_ = 0;
    int max_in_blocks_ = 0;
    std::vector<Item> items_;
    int n_partials_ = 0, items_heads_ = 0, items_window_ = -1, items_chunk_ = 0, items_threads_ = 0;
    std::vector<int> row_of_token_;
    std::vector<int32_t> wanted_;
    Buffer<float> x_, before_, qkv_, mixed_, by_head_, delta_, final_, input_floats_;
    Buffer<float> said_, streams_, counts_, laurel_, laurel_low_, gates_;
    Buffer<uint8_t> input_bytes_;
    struct Hidden {
        Buffer<uint8_t> bytes;
        Buffer<float> floats, rows;
    } hidden_;
    // Of the step under way: of each row of x, its place among `adapters_`; null = no row has any.
    struct Few {
        int first, end;
    };
    const AdapterShare* adapters_ = nullptr;
    std::vector<Few> adapters_of_;
    Buffer<float> lows_;
    struct {
        Buffer<float> normed, logits, outs, shared, beside, in_floats, hidden_floats;
        Buffer<uint8_t> in_bytes, hidden_bytes;
        std::vector<int32_t> ids;      // of row and place
        std::vector<float> weights;
        std::vector<int> choice_of_slot, slot_of_choice;
        std::vector<Job> jobs;
    } experts_;
    Buffer<Partial> partials_;
    struct Worker {
        Buffer<uint8_t> bytes;
        Buffer<float> floats, rows, lows;
        Hidden hidden;
        Activations activations;
        uint64_t serial = 0;
        std::vector<float> best_value;
        std::vector<int32_t> best_id;
        std::unique_ptr<Sampler> sampler;
    };
    std::vector<Worker> workers_;
    PlaneSearch plane_search_;
    int n_masked_panels_ = 0;
};

template <class Fn> void Forward::run_chunks(const Share& share, int n_chunks, Fn&& f) {
    if (!share.alone()) return threads_.run_in_order(n_chunks, f);
    for (int chunk = 0; chunk < n_chunks; ++chunk) f(chunk, share.worker);
}

// write(token) for the share's tokens, each of which is written by one thread.
template <class Fn> void Forward::for_positions(const StepPlan& step, const Share& share, Fn&& write) {
    constexpr int kInlineTokens = 4;  // cheaper done by the leader than handed out
    if (share.alone() || share.n <= kInlineTokens) {
        for (int token = share.first; token < share.first + share.n; ++token) write(token);
        return;
    }
    threads_.run(ceil_div(step.n_tokens, kGroupRows), [&](int chunk, int) {
        for (int t = chunk * kGroupRows; t < std::min(step.n_tokens, (chunk + 1) * kGroupRows); ++t) write(t);
    });
}

template <class Fn> void Forward::multiply(Input& in, std::initializer_list<const Matrix*> matrices, Fn&& epilogue) {
    int n_units = 0;
    int64_t unit_bytes = 1;
    for (const Matrix* m : matrices) {
        n_units += ceil_div(m->n_out, kUnitColumns);
        unit_bytes = std::max(unit_bytes, 2 * m->panel_bytes);
    }
    const int n_groups = in.shared.n_groups(), per_chunk = units_per_chunk(in.share, n_units, unit_bytes, n_groups);
    run_chunks(in.share, ceil_div(n_units, per_chunk), [&](int chunk, int worker) {
        const Activations& a = activations(in, worker);
        alignas(64) float out[kGroupRows * kUnitColumns];
        for (int group = 0; group < n_groups; ++group) {
            int first = chunk * per_chunk, left = std::min(n_units - first, per_chunk), segment = 0;
            for (const Matrix* m : matrices) {
                const int units = ceil_div(m->n_out, kUnitColumns);
                for (; left > 0 && first < units; ++first, --left) {
                    multiply_unit(*m, a, group, first, out);
                    add_adapters(in, *m, group, first, out);
                    epilogue(segment, in.share.first + group * kGroupRows, a.rows_in(group), first, out);
                }
                first -= units;
                ++segment;
            }
        }
    });
}

}  // namespace imp
